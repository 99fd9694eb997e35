"""Time and memory of the gate for a report of 20,000 cases, alone and with a baseline."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from benchmarks.process import Finished, run
from benchmarks.table import Row, main
from conformance.reports.gate.manifests import dump, make_manifest
from conformance.reports.model import (
    AcceleratorRecord,
    CaseRecord,
    DeclarationRecord,
    DeclaredCell,
    Environment,
    Invocation,
    Report,
    Run,
    Suite,
    count_cases,
    declared_sha256,
)
from conformance.reports.planned import PlannedCase
from conformance.reports.report_json import to_json
from conformance.reports.stack import with_fingerprint

CASES = 20_000
TORCH = "2.13.0"
PLUGINS = ("accelerator-conformance 0.1.0", "pytest-xdist 3.8.0")
FILES = "5e" * 32
METRICS = {"budget": 4.0, "comparisons": 31, "samples": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judgements", type=int, default=7, help="number of runs of the gate (default: 7)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write(here)
        alone = [judge(here) for _ in range(arguments.judgements)]
        with_baseline = [judge(here, f"--baseline={here / 'baseline.json'}") for _ in range(arguments.judgements)]
        size = (here / "report.json").stat().st_size / 1e6
    return [
        Row(f"gate: start to verdict, {CASES} cases, {size:.1f} MB", wall(alone), "≤ 0.5 s"),
        Row("gate: processor time of it", processor(alone)),
        Row("gate: with a baseline of as many cases", wall(with_baseline)),
        Row("gate: peak memory with a baseline", f"{max(run.peak_mb for run in with_baseline):.0f} MB", "≤ 300 MB"),
    ]


def judge(folder: Path, *more: str) -> Finished:
    """Run the gate once; it must accept the report."""
    words = ["gate", "report.json", "--manifest=manifest.json.gz", "--profile=training", *more]
    done = run([sys.executable, "-m", "conformance.cli.main", *words], cwd=folder)
    assert done.status == 0, done.output
    return done


def wall(runs: list[Finished]) -> str:
    return f"{statistics.median(run.seconds for run in runs):.2f} s"


def processor(runs: list[Finished]) -> str:
    return f"{statistics.median(run.cpu_seconds for run in runs):.2f} s"


def write(folder: Path) -> None:
    """Write a report, an older report as the baseline, and the manifest of both."""
    plan = [*_core(), *_operators(CASES - 1)]
    manifest = make_manifest("0.1.0", TORCH, plan)
    (folder / "manifest.json.gz").write_bytes(dump(manifest))
    for name, days in (("report", 1), ("baseline", 10)):
        (folder / f"{name}.json").write_text(to_json(_report(plan, manifest.sha256["full"], name, days)))


def _core() -> list[PlannedCase]:
    return [PlannedCase("accelerator.device", "accelerator", requires=("device",), level="core")]


def _operators(number: int) -> list[PlannedCase]:
    modes = ("inference", "training")
    names = [(f"operators.nn.functional.operator_{n // 2}", modes[n % 2]) for n in range(number)]
    cells = [(f"{name}[float32-{mode}]", {"dtype": "float32", "mode": mode}) for name, mode in names]
    return [PlannedCase(id, "operators", axes=axes, requires=(id,), adaptive=True) for id, axes in cells]


def _passed(case: PlannedCase, draws: random.Random) -> CaseRecord:
    """Return a passed case with a duration and errors of its own, as measured ones are."""
    errors = {"max_abs": draws.uniform(1e-8, 1e-6), "max_ulp": draws.uniform(0.5, 3.5)}
    return CaseRecord(**vars(case), metrics={**METRICS, **errors}, seconds=round(draws.uniform(0.01, 0.03), 6))


def _report(plan: list[PlannedCase], manifest: str, name: str, days: int) -> Report:
    end = datetime.now(timezone.utc) - timedelta(days=days)
    suite = Suite("0.1.0", manifest, len(plan), files_sha256=FILES)
    invocation = Invocation(("--accelerator=acme",), workers=2)
    run = Run(name, (end - timedelta(hours=1)).isoformat(), suite, end.isoformat(), invocation)
    modes = ("inference", "training")
    cells = (
        DeclaredCell("device", "supported"),
        *(DeclaredCell(f"operators.*[float32-{m}]", "supported") for m in modes),
    )
    draws = random.Random(name)
    cases = tuple(_passed(case, draws) for case in plan)
    accelerator = AcceleratorRecord("acme", "acme", "acme:0", 1, torch=TORCH, torch_build="2f3c")
    facts = {"python": "3.11.7", "pytest": "9.2.0", "system": "Linux", "torch": TORCH}
    report = Report(run, accelerator, Environment(facts=facts, plugins=PLUGINS), cases=cases)
    declaration = DeclarationRecord(declared_sha256(cells), cells)
    return with_fingerprint(replace(report, declaration=declaration, totals=count_cases(cases, report.accounting)))


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
