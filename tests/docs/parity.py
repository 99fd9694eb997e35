"""Table of the errors of parallel engines against one process in float64: ``python -m tests.docs.parity [--write]``.

Runs the engines' cases on the CPU and prints the table; ``--write`` writes docs/parity.md. Cases of DeepSpeed take part
where DeepSpeed is installed. ``--report FILE`` takes a report.json instead of a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.numerics.budgets import load_table
from conformance.plan import bundled_cases
from conformance.suites.workloads.parallel import models

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
#: Beginnings of the names of the modules that have the engines' cases.
MODULES = ("test_parallel_", "test_deepspeed_")
#: Metrics of a case that is compared with one process, in the order of the table's columns.
ERRORS = ("weight_error", "loss_error", "gradient_error")
HEAD = """# Parity of parallel engines

    python -m tests.docs.parity            # runs the cases on this machine's CPU, and prints this table
    python -m tests.docs.parity --write    # renews this page; with DeepSpeed installed, its rows too

Each engine trains a small llama or mixtral of transformers for {steps} steps of SGD. One process in float64 does the
same on the host. `weights` is the largest error of a weight over the largest weight of its parameter. `loss` is the
largest relative error of a loss, and `gradients` the largest error of a gradient over its largest element. The number
in brackets is the number of ranks.

A case fails if an error is above its bound: weights {weights:.0e}, loss {loss:.0e}, gradients {gradients:.0e}. Other
bounds hold in 16 bits; all are in `conformance/suites/workloads/parallel/bounds.toml`. `tp.resume[2-fsdp2@4]` means:
saved by 2 ranks under `tp`, resumed by 4 ranks under `fsdp2`. In `deepspeed.zero[3-float32-2]`, 3 is ZeRO's stage.
`deepspeed.universal[3-4]` trains with AdamW; 2 ranks save at stage 3, and 4 ranks load the universal checkpoint.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.parity", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/parity.md")
    parser.add_argument("--report", type=Path, help="read this report.json, and run nothing")
    options = parser.parse_args(arguments)
    if options.report and not options.report.is_file():
        print(f"there is no report {options.report}; leave --report out to run the cases", file=sys.stderr)
        return 4
    made = page(cases(options.report) if options.report else run())
    if options.write:
        PAGE.write_text(made, encoding="utf-8")
    print(made)
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


def page(found: Iterable[Mapping[str, Any]]) -> str:
    """Return the page with a row for each case that has an error, or that says why it did not run."""
    bounds = load_table(models.__file__, "bounds.toml")
    lines = [HEAD.format(steps=models.STEPS, **bounds), "| case | weights | loss | gradients |", "|---|--:|--:|--:|"]
    others = []
    for case in sorted(found, key=lambda case: str(case["id"])):
        metrics = case.get("metrics", {})
        if case["outcome"] == "skip":
            others.append(f"* `{case['id']}`: {case['reason']}, {case['message'].splitlines()[0]}")
        elif any(name in metrics for name in ERRORS):
            failed = "" if case["outcome"] == "pass" else " **failed**"
            figures = (f"{metrics[name]:.1e}" if name in metrics else "–" for name in ERRORS)
            lines.append(f"| `{case['id'].removeprefix('workloads.')}`{failed} | {' | '.join(figures)} |")
    if others:
        lines += ["", "These cases did not run:", "", *others]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
