"""Table of the errors of parallel engines against one process in float64: ``python -m tests.docs.parity [--write]``.

Runs the engines' cases on the CPU and prints the table; ``--write`` writes it into docs/detection.md. DeepSpeed's
cases take part where it is installed. ``--report FILE`` takes a report.json instead of a run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.numerics.budgets import load_table
from conformance.plan.bundled import bundled_cases
from conformance.suites.workloads.parallel import models
from tests.docs.pages import ROOT, table, text, with_part

PAGE = ROOT / "conformance" / "suites" / "workloads" / "parallel" / "README.md"
PART = "parity"
#: Beginnings of the names of the modules that have the engines' cases.
MODULES = ("test_parallel_", "test_deepspeed_")
#: Metrics of a case that is compared with one process, in the order of the table's columns.
ERRORS = ("weight_error", "loss_error", "gradient_error")
#: The first line of the table's part.
BOUNDS = "Steps: {steps}. Bounds in float32: weights {weights:.0e}, loss {loss:.0e}, gradients {gradients:.0e}."
#: Dtypes whose errors must not share a row with those of float32.
NARROW = ("float16", "bfloat16")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.parity", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the README beside the cases")
    parser.add_argument("--report", type=Path, help="read this report.json, and run nothing")
    options = parser.parse_args(arguments)
    if options.report and not options.report.is_file():
        print(f"there is no report {options.report}; leave --report out to run the cases", file=sys.stderr)
        return 4
    found = cases(options.report) if options.report else run()
    made = part(found)
    if options.write:
        PAGE.write_text(with_part(text(PAGE), PART, made), encoding="utf-8")
    print(made, skipped(found), sep="\n\n")
    return 0


def run() -> list[dict[str, Any]]:
    """Run the cases on the CPU and return what the report says of each."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [
            f"--case={case.case.id}" for case in bundled_cases(["workloads"]) if case.path.name.startswith(MODULES)
        ]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--accelerator=cpu",
            *chosen,
            "-n0",
            f"--conformance-report={folder}",
        ]
        subprocess.run(command, stdout=sys.stderr, check=False)
        return cases(Path(folder, "cpu", "report.json"))


def cases(report: Path) -> list[dict[str, Any]]:
    """Return the cases of a report, which leaves the outcome of a passed case out."""
    return [{"outcome": "pass", **case} for case in json.loads(report.read_text(encoding="utf-8"))["cases"]]


def part(found: Iterable[Mapping[str, Any]]) -> str:
    """Return the bounds, and a row for each engine with the largest errors of its cases."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for case in sorted(found, key=lambda case: str(case["id"])):
        if any(error in case.get("metrics", {}) for error in ERRORS):
            rows.setdefault(engine(_short(case)), []).append(case)
    shown = table(
        ("engine", "cases", "weights", "loss", "gradients"),
        ((name, _counted(cases), *(_worst(cases, error) for error in ERRORS)) for name, cases in rows.items()),
    )
    return f"{BOUNDS.format(steps=models.STEPS, **load_table(models.__file__, 'bounds.toml'))}\n\n{shown}"


def skipped(found: Iterable[Mapping[str, Any]]) -> str:
    """Return a line for each reason for which cases did not run."""
    names: dict[str, list[str]] = {}
    for case in found:
        if case["outcome"] == "skip":
            names.setdefault(f"{case['reason']}, {case['message'].splitlines()[0]}", []).append(_short(case))
    return "\n".join(f"did not run: {', '.join(cases)}: {why}" for why, cases in names.items())


def _short(case: Mapping[str, Any]) -> str:
    return str(case["id"]).removeprefix("workloads.")


def engine(name: str) -> str:
    """Return the name of a case's row: without axes and resuming, and with a narrow dtype."""
    first, _, axes = name.partition("[")
    narrow = [dtype for dtype in NARROW if dtype in re.split(r"[-\]]", axes)]
    return " ".join([f"`{first.removesuffix('.resume')}`", *narrow])


def _counted(cases: Sequence[Mapping[str, Any]]) -> str:
    failed = sum(case["outcome"] != "pass" for case in cases)
    return f"{len(cases)}, **{failed} failed**" if failed else str(len(cases))


def _worst(cases: Sequence[Mapping[str, Any]], error: str) -> str:
    values = [case["metrics"][error] for case in cases if error in case["metrics"]]
    return f"{max(values):.1e}" if values else "–"


if __name__ == "__main__":
    raise SystemExit(main())
