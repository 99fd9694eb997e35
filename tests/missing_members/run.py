"""Runs a sample of the suite on devices whose module lacks a member: which cases fail, and is the member to blame?

    python -m tests.missing_members.run                              # every member, and those that stand in for others
    python -m tests.missing_members.run device_count seed,manual_seed    # some; the second device lacks two at once
    python -m tests.missing_members.run --how raises                 # the member is there, and raises
    python -m tests.missing_members.run --how none                   # the member is there, and returns None
    python -m tests.missing_members.run --how absent --how raises --how none    # all of it
    python -m tests.missing_members.run Event --whole                # the whole sample, and not what looks a member up

A device that lacks nothing runs the sample first and notes which line looks up which member. Every other device runs
two cases for each line that looks up a member that it lacks.

A missing member is a finding of the cases about it, and their messages name it. Any other case passes, or is skipped
with a reason that names the member. The command prints each case that fails otherwise, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import bisect
import functools
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from conformance.plan.costs import measured
from conformance.reports.journal import read_journal
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome, Reason, Verdict
from tests.acceptance.running import DATABASE, python, run

HERE = Path(__file__).parent
SPEC = "tests.missing_members.accelerator:GAP"
#: Seconds.
_LONGEST = 1800.0
ABSENT = "absent"
HOWS = (ABSENT, "raises", "none")
#: Cases for each line that looks a member up: the cheapest of the sample.
_OF_A_LINE = 2
#: Exit status of a run that has no device.
_CANNOT_START = 4
#: Seconds between the clocks of a look-up and of the journal.
_LATE = 0.001
#: What PyTorch asks of the module of a device, in the documentation of ``torch.utils.rename_privateuse1_backend``.
DOCUMENTED = (
    "get_amp_supported_dtype", "_is_in_bad_fork", "manual_seed_all", "device_count", "get_rng_state", "set_rng_state",
    "is_available", "current_device",
)  # fmt: skip
#: Members that stand in for each other: devices lack them at once.
TOGETHER = (
    "manual_seed,manual_seed_all", "manual_seed,default_generators", "manual_seed_all,default_generators",
    "get_rng_state,default_generators", "manual_seed,manual_seed_all,default_generators",
    "memory_allocated,mem_get_info", "current_device,set_device", "device_count,current_device",
    "Stream,current_stream,stream", "Event,synchronize",
)  # fmt: skip
#: A device that has what PyTorch documents, and nothing else.
LEAST = "all that PyTorch does not ask for"
#: First names of the capabilities that a member is for, by a pattern of its name; the first that matches. None where
#: no case is about a member, because PyTorch documents nothing of it: then its name in the message is enough.
ABOUT: dict[str, tuple[str, ...] | None] = {
    r"(is|_)_?initialized|init|_lazy_init|_\w+_device|_get_device_index": None,
    r"_is_in_bad_fork|.*seed.*|.*rng.*|default_generators": ("rng",),
    r".*memory.*|mem_get_info|empty_cache": ("memory", "torch-accelerator"),
    r".*[Ss]tream.*": ("stream", "graph", "memory.pinned-async"),
    r"Event": ("event",),
    r"synchronize": ("synchronize", "event", "stream"),
    r".*[Gg]raph.*|is_current_stream_capturing": ("graph",),
    r".*amp.*": ("autocast",),
    r".*Tensor": ("tensor-types",),
    r".*lazy.*": ("lazy-call",),
    r".*device.*|is_available": ("device", "torch-accelerator"),
    r".*": (),
}
#: Members of the interface by which a case sees that a member is missing or does nothing: their names say as much.
READ_BY = {
    "GapGraph": ("create_graph",),
    "reset_peak_memory_stats": ("reset_max_memory_allocated", "reset_max_memory_cached"),
    "_lazy_call": ("lazy_call",),
}


@dataclass
class Found:
    """What the runs on one device showed."""

    lacking: str
    how: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    died: str = ""
    refused: bool = False
    seconds: float = 0.0

    @property
    def failures(self) -> dict[str, Verdict]:
        return {id: verdict for id, verdict in self.verdicts.items() if verdict.outcome is Outcome.FAIL}

    def false(self, planned: dict[str, PlannedCase]) -> dict[str, Verdict]:
        """Return the failures that are no findings about the member, and skips that hide why the case did not run."""
        return {
            id: verdict
            for id, verdict in self.verdicts.items()
            if not _is_right(planned[id], verdict, self.lacking.split(","))
        }


def _is_right(case: PlannedCase, verdict: Verdict, lacking: Sequence[str]) -> bool:
    """Return whether a verdict accuses nobody falsely: a failure is of a case about a member, and names it."""
    if verdict.outcome is Outcome.FAIL:
        return any(_is_about(case, name) and _names(verdict.message, name) for name in lacking)
    return verdict.reason is not Reason.ENVIRONMENT or any(_names(verdict.message, name) for name in lacking)


def _names(message: str, member: str) -> bool:
    return any(re.search(rf"(?<!\w){word}(?!\w)", message) for word in (member, *READ_BY.get(member, ())))


def _is_about(case: PlannedCase, member: str) -> bool:
    """Return whether a case is about a member: its id names it, or it needs a capability that the member is for.

    This table is the instrument's own: what the suite says of its cases is judged here.
    """
    if re.search(rf"(?<![a-z_]){member}(?![a-z_])", case.id):
        return True
    subjects = next(names for pattern, names in ABOUT.items() if re.fullmatch(pattern, member))
    return subjects is None or any(cell.partition("[")[0].partition(".")[0] in subjects for cell in case.requires)


#: Cases by the line that looks a member up, for each member.
LookUps = Mapping[str, Mapping[str, set[str]]]


def look_ups(ids: Iterable[str], folder: Path, imported: tuple[str, ...] = DATABASE) -> LookUps:
    """Run cases on a device that lacks nothing, and return which of them look up a member, by the line that does."""
    file = folder / "look-ups.txt"
    run_without("", ABSENT, ids, folder, imported, GAP_LOOK_UPS=str(file))
    journal = read_journal(folder / "conformance-report" / "gap" / "journal.jsonl")
    started = sorted((start.at, id) for id, start in journal.started.items())
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in file.read_text(encoding="utf-8").splitlines():
        when, name, line = row.split("\t")
        at = bisect.bisect_right(started, (float(when) + _LATE, chr(sys.maxunicode))) - 1
        if at >= 0:  # before the first case, the run itself looks up what it needs
            found[name][line].add(started[at][1])
    return found


def touching(lacking: Sequence[str], found: LookUps) -> set[str]:
    """Return the cheapest cases for each line that looks up one of the members."""
    costs = measured()
    lines = [cases for name in lacking for cases in found.get(name, {}).values()]
    return {id for cases in lines for id in sorted(cases, key=lambda id: (costs.seconds(id), id))[:_OF_A_LINE]}


def run_without(
    lacking: str, how: str, ids: Iterable[str], folder: Path, imported: tuple[str, ...] = DATABASE, **more: str
) -> Found:
    """Run cases on the device that lacks some members, in a copy of a process that has imported what they need."""
    began = time.monotonic()
    (folder / "tests").symlink_to(HERE.parent)
    (folder / "cases.txt").write_text("\n".join(ids), encoding="utf-8")
    words = [f"--accelerator={SPEC}", f"--case-file={folder / 'cases.txt'}", "-n0", "-q"]
    variables = {"PYTHONPATH": str(folder), "GAP_MEMBERS": lacking, "GAP_HOW": how, **more}
    done = run(*words, cwd=folder, timeout=_LONGEST, name="gap", imported=imported, **variables)
    found = Found(lacking, how)
    journal = folder / "conformance-report" / "gap" / "journal.jsonl"
    if journal.exists():
        found.verdicts = {id: end.verdict for id, end in read_journal(journal).ended.items()}
    if missing := set(ids) - set(found.verdicts):
        last = " ".join(done.output.split())[-300:]
        # A device that cannot be used at all is one finding, if the message names the member.
        found.refused = done.status == _CANNOT_START and any(_names(done.output, name) for name in lacking.split(","))
        if not found.refused:
            found.died = f"{len(missing)} cases did not run (status {done.status}): {last}"
    found.seconds = time.monotonic() - began
    return found


def devices() -> list[str]:
    """Return what each device of the sweep lacks: one member, or several that stand in for each other."""
    from tests.missing_members import device

    return [*device.members(), *TOGETHER, LEAST]


def lacked(text: str) -> str:
    """Return the members in place of the name for those that PyTorch does not ask for."""
    return ",".join(name for name in _members() if name not in DOCUMENTED) if text == LEAST else text


@functools.cache
def _members() -> tuple[str, ...]:
    """Return the members of a device that lacks none, from another process: a process has one out-of-tree device."""
    code = "from tests.missing_members import device; print(*device.members())"
    done = python("-c", code, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    return tuple(done.stdout.split())


def main() -> int:
    """Run the sample on each device; print the table of failures, and each one that is no finding about the member."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lacking", nargs="*", metavar="MEMBER", help="members; default: each, and some at once")
    parser.add_argument("--how", choices=HOWS, action="append", help="what is left of the member; default: absent")
    parser.add_argument("--case", action="append", help="only these cases")
    parser.add_argument("--whole", action="store_true", help="the whole sample, not only cases that look a member up")
    arguments = parser.parse_args()
    from tests.missing_members.sample import PLANNED, SAMPLE

    began = time.monotonic()
    # The module is imported where the copies come from, and it is found by this process's path.
    imported = (*DATABASE, "tests.missing_members.sample")
    ids = [id for id in SAMPLE if not arguments.case or id in arguments.case]
    found_at: LookUps = {}
    if not arguments.case and not arguments.whole:
        with tempfile.TemporaryDirectory() as folder:
            found_at = look_ups(ids, Path(folder), imported)
    rows, wrong, failed = [], 0, 0
    for how, text in _sweep(arguments.how or [ABSENT], arguments.lacking):
        some = touching(lacked(text).split(","), found_at) if found_at else set(ids)
        if not some:
            continue  # nothing of the sample looks such a member up
        with tempfile.TemporaryDirectory() as folder:
            found = run_without(lacked(text), how, [id for id in ids if id in some], Path(folder), imported)
        false = found.false(PLANNED)
        wrong, failed = wrong + len(false) + bool(found.died), failed + len(found.failures)
        skipped = sum(verdict.reason is Reason.ENVIRONMENT for verdict in found.verdicts.values())
        counts = (len(some), len(found.failures), skipped, len(false))
        rows.append((text, how, *counts, f"{found.seconds:.0f}", found.died[:40] or "cannot be used" * found.refused))
        print(f"{text} ({how}): {len(found.failures)} failures, {len(false)} false {found.died}", flush=True)
        for id, verdict in false.items():
            print(f"    {id}: {verdict.reason.value}: {verdict.message.partition(chr(10))[0][:160]}", flush=True)
    headers = ("lacks", "how", "cases", "failures", "skipped", "misattributed", "seconds", "")
    print(tabulate(rows, headers=headers, tablefmt="github"))
    took = time.monotonic() - began
    print(f"{wrong} misattributed of {failed} failures on {len(rows)} devices in {took:.0f} s")
    return int(wrong > 0)


def _sweep(hows: Sequence[str], named: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is left of members, and which. A member that is no function is either there or not: once is enough."""
    from tests.missing_members import device

    for how in hows:
        for text in named or devices():
            if how == hows[0] or named or any(device.can_be_left(name) for name in lacked(text).split(",")):
                yield how, text


if __name__ == "__main__":
    sys.exit(main())
