"""Run of the suite on the accelerator that does nothing: which cases pass, and may they?

    python -m tests.do_nothing.run                      # every case, a quarter of an hour on two cores
    python -m tests.do_nothing.run --portion 300        # as many operator cases, and some of every other area

``may_pass.toml`` names the cases that may pass, with reasons. The command prints each difference and ends with 1 if
there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.plan.bundled import bundled_cases
from conformance.plan.case import Case
from conformance.plan.selection import matches
from conformance.reports.model import CaseRecord
from conformance.reports.verdict import Outcome
from tests.acceptance.running import DATABASE, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
SPEC = "tests.do_nothing.accelerator:DO_NOTHING"
#: Cases of each area besides the operators in a portion.
_OF_AN_AREA = 8
#: Seconds.
_LONGEST = 4 * 3600.0


def may_pass() -> dict[str, str]:
    """Return the reason for each pattern of ids in may_pass.toml."""
    groups = tomllib.loads((HERE / "may_pass.toml").read_text(encoding="utf-8"))["group"]
    return {pattern: group["reason"] for group in groups for pattern in group["cases"]}


def portion(cases: Iterable[Case], operators: int, others: int = _OF_AN_AREA, seed: str = "") -> list[str]:
    """Return the ids of some operator cases and of ``others`` of every other area, the same ones for the same seed."""
    areas: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        areas[case.area].append(case.id)
    return [
        id
        for area, ids in areas.items()
        for id in sorted(ids, key=lambda id: _place(id, seed))[: operators if area == "operators" else others]
    ]


def _place(id: str, seed: str) -> bytes:
    return hashlib.sha256(f"{seed}/{id}".encode()).digest()


def run_cases(ids: Iterable[str], folder: Path, workers: str = "-n2") -> tuple[CaseRecord, ...]:
    """Run the cases on the accelerator that does nothing; return them with their verdicts."""
    # Only the tests may be found by path: beside them stands a folder conformance/ that is not the installed package.
    (folder / "tests").symlink_to(HERE.parent)
    (folder / "cases.txt").write_text("\n".join(ids), encoding="utf-8")
    words = [f"--accelerator={SPEC}", f"--case-file={folder / 'cases.txt'}", workers]
    done = run(*words, cwd=folder, timeout=_LONGEST, name="nil", imported=DATABASE, PYTHONPATH=str(folder))
    return done.report.cases


def unearned(cases: Iterable[CaseRecord], allowed: Mapping[str, str]) -> list[str]:
    """Return the ids of the cases about the device that passed, and that no pattern allows."""
    passed = [case.id for case in cases if case.outcome is Outcome.PASS and case.of_device]
    return [id for id in passed if not any(matches(pattern, id) for pattern in allowed)]


def stale(cases: Iterable[CaseRecord], allowed: Mapping[str, str], planned: Iterable[str]) -> list[str]:
    """Return the patterns that match no case that passed, although all planned cases that they match ran."""
    ran = {case.id: case.outcome is Outcome.PASS for case in cases}
    ids = list(planned)
    named = {pattern: [id for id in ids if matches(pattern, id)] for pattern in allowed}
    return [pattern for pattern, found in named.items() if all(ran.get(id) is False for id in found)]


def main() -> int:
    """Run all cases, or a portion; print the cases that pass without a reason, and the entries that are stale."""
    parser = argparse.ArgumentParser(prog="python -m tests.do_nothing.run")
    parser.add_argument("--portion", type=int, metavar="N", help="only N operator cases, and some of every other area")
    parser.add_argument("--seed", default="", help="another portion")
    arguments = parser.parse_args()
    planned = [bundled.case for bundled in bundled_cases()]
    ids = [case.id for case in planned]
    if arguments.portion is not None:
        ids = portion(planned, arguments.portion, seed=arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        cases = run_cases(ids, Path(folder))
    new, old = unearned(cases, may_pass()), stale(cases, may_pass(), [case.id for case in planned])
    for id in new:
        print(f"passes on an accelerator that does nothing: {id}")
    for pattern in old:
        print(f"no longer passes, remove it from may_pass.toml: {pattern}")
    passed = sum(case.outcome is Outcome.PASS for case in cases)
    print(f"{len(cases)} cases ran, {passed} passed, {len(new)} without a reason, {len(old)} entries are stale")
    return 1 if new or old else 0


if __name__ == "__main__":
    sys.exit(main())
