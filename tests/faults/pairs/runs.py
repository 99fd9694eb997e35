"""Judges faults of collectives: direct calls on four ranks, then runs of pytest in which each case has one fault."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from conformance.reports.standard import standard_ids
from tests.acceptance.running import environment
from tests.acceptance.running import run as run_pytest
from tests.defects import bench
from tests.faults.fault import Fault
from tests.faults.judging import End, Judged, standard_first
from tests.faults.liveness import Shown

from . import collectives

ROOT = Path(__file__).parents[3]
SPEC = "tests.faults.pairs.ranks:BROKEN"
#: Runs of pytest, and cases of one fault in each.
_ROUNDS, _CASES = 3, 2
#: Rounds with cases of the profile ``standard`` alone, before the others.
_STANDARD_ROUNDS = 12
_WORLD = 4


def judged(faults: Sequence[Fault], say: Callable[[str], None]) -> list[Judged]:
    """Judge faults of collectives."""
    cases = {case: entry.case.world_size for case, entry in bench.plan("comm").items() if entry.case.world_size}
    waiting = {fault: standard_first(collectives.candidates(fault, cases)) for fault in faults}
    subjects = {fault: len(ids) for fault, ids in waiting.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tests").symlink_to(ROOT / "tests")
        live = _live(faults, folder)
        say(f"{len(live)} of {len(faults)} faults of collectives are live")
        ends = {
            fault: Judged(
                fault,
                End.UNEXERCISED if fault in live else End.UNPROVEN,
                Shown(fault in live, "a direct call" if fault in live else ""),
                True,
                cases=subjects[fault],
            )
            for fault in faults
        }
        number = 0
        for standard in (True, False):
            for _ in range(_STANDARD_ROUNDS if standard else _ROUNDS):
                left = [fault for fault in live if ends[fault].end is not End.KILLED]
                if not _run(number, left, waiting, ends, folder, standard=standard):
                    break
                number += 1
                say(f"round {number}: {sum(end.end is End.KILLED for end in ends.values())} killed")
    return [ends[fault] for fault in faults]


def _live(faults: Sequence[Fault], folder: Path) -> list[Fault]:
    """Return the faults that direct calls on four ranks have shown."""
    file = folder / "faults.json"
    file.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")
    command = [sys.executable, "-m", "tests.faults.pairs.direct", str(file), str(_WORLD)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment(PYTHONPATH=str(folder)), timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-3000:])
    shown = set(json.loads((folder / "faults.live.json").read_text(encoding="utf-8")))
    return [fault for fault in faults if fault.id in shown]


def _run(
    number: int,
    faults: Sequence[Fault],
    waiting: dict[Fault, list[str]],
    ends: dict[Fault, Judged],
    folder: Path,
    *,
    standard: bool,
) -> bool:
    """Give each fault some cases of its own, run them, and note what was killed. Return whether a case was left.

    With ``standard`` only cases of that profile run: few, so faults wait for the same case through some rounds.
    """
    taken: dict[str, Fault] = {}
    for _ in range(_CASES):
        for fault in faults:
            free = (case for case in waiting[fault] if case not in taken)
            case = next((case for case in free if not standard or case in standard_ids()), None)
            if case:
                taken[case] = fault
                waiting[fault].remove(case)
    if not taken:
        return False
    verdicts, hit = in_a_run(taken, folder, f"round{number}", timeout=1200)
    for case, (outcome, reason) in verdicts.items():
        end = ends[taken[case]]
        end.ran += 1
        if case not in hit:
            continue
        end.hits += 1
        if outcome == "fail":
            end.end, end.by, end.reason, end.by_standard = End.KILLED, case, reason, case in standard_ids()
        elif end.end is not End.KILLED:
            end.end = End.TOLERATED
    return True


def in_a_run(
    taken: Mapping[str, Fault], folder: Path, name: str, *, timeout: float
) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """Run cases with a fault each in one run of pytest; return their verdicts, and the cases that met their fault."""
    plan, chosen = folder / f"{name}.json", folder / f"{name}.txt"
    plan.write_text(json.dumps({case: asdict(fault) for case, fault in taken.items()}), encoding="utf-8")
    chosen.write_text("\n".join(taken), encoding="utf-8")
    options = (f"--accelerator={SPEC}", f"--case-file={chosen}", "-n0", "-q", "--tb=no")
    variables = {"PYTHONPATH": str(folder), collectives.VARIABLE: str(plan)}
    finished = run_pytest(*options, cwd=folder, name="sim", timeout=timeout, **variables)
    hits = plan.with_suffix(".hits")
    return finished.verdicts, set(hits.read_text(encoding="utf-8").splitlines()) if hits.exists() else set()
