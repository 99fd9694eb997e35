"""Mutants through a real run: options, worker processes, crash handling, the watchdog and the report take part."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from conformance.reports.verdict import Verdict
from tests.acceptance.running import DATABASE, Run
from tests.acceptance.running import run as run_pytest

from . import bench, measuring
from .accelerators import VARIABLE
from .mutant import Mutant

ROOT = Path(__file__).parents[2]
SPEC = "tests.defects.accelerators:BROKEN"


def run_mutant(mutant: Mutant, chosen: list[str]) -> measuring.Result:
    """``pytest --accelerator=…`` over those cases."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        finished = run(mutant, chosen, Path(folder))
        verdicts = {case.id: Verdict(case.outcome, case.reason, case.message) for case in finished.report.cases}
    assert set(verdicts) == set(chosen), f"{mutant.name}: planned {chosen}, accounted {sorted(verdicts)}"
    return measuring.result_of(mutant.name, verdicts, time.perf_counter() - started)


def run(mutant: Mutant, cases: list[str], folder: Path) -> Run:
    # Only the tests may be found by path: beside them stands a folder conformance/ that is not the installed package.
    (folder / "tests").symlink_to(ROOT / "tests")
    # Ranks are processes of their own: what kills one of them leaves pytest alone.
    workers = "-n0" if all(bench.on_ranks(case) for case in cases) else "-n1"
    return run_pytest(
        f"--accelerator={SPEC}",
        *(f"--case={case}" for case in cases),
        f"--strictness={mutant.strictness.value}",
        workers,
        cwd=folder,
        name="sim",
        imported=DATABASE,
        PYTHONPATH=str(folder),
        **{VARIABLE: mutant.name},
    )
