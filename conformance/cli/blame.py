"""``conformance blame``: find the operator that makes a user's own program wrong on a device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import UsageError

if TYPE_CHECKING:
    from conformance.blame.verdict import Blame

SUMMARY = "Find the operator that makes a program of yours wrong on a device."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        metavar="FILE.py:FUNCTION",
        nargs="?",
        default="",
        help="a function that gets a torch.device, runs there, and returns tensors, numbers or a module; "
        "with --from, the id of a failing workload (default: all of them)",
    )
    parser.add_argument("--accelerator", metavar="NAME", default="", help="the accelerator to run on")
    parser.add_argument(
        "--from",
        dest="report",
        metavar="PATH",
        type=Path,
        help="a report: name the failing operators that its failing workloads call; no device is needed",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    parser.add_argument("--ranks", type=int, default=1, help="processes, each with a rank of a process group")
    parser.add_argument(
        "--time-limit", type=float, default=600.0, metavar="SECONDS", help="for one run on several ranks (default: 600)"
    )
    parser.add_argument(
        "-o",
        "--scripts",
        metavar="FOLDER",
        type=Path,
        help="write a script for each culprit into this folder; it shows the wrong call with torch alone",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer. Exit status 1 means that the device is at fault."""
    if arguments.report:
        return _from_report(arguments.report, arguments.program)
    if not (arguments.program and arguments.accelerator):
        raise UsageError("name a program and an accelerator: conformance blame FILE.py:FUNCTION --accelerator NAME")
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.blame.program import Program
    from conformance.blame.runs import LocalRuns, RankRuns, Runs
    from conformance.blame.text import is_blamed, lines
    from conformance.blame.verdict import blame
    from conformance.process.trial import try_module

    program = Program.load(arguments.program)
    try_module(arguments.accelerator)
    accelerator = resolve(arguments.accelerator)
    device = accelerator.load().current_device_name()
    runs: Runs = LocalRuns(program, torch.device(device), arguments.seed)
    if arguments.ranks > 1:
        runs = RankRuns(program.text, arguments.accelerator, arguments.ranks, arguments.seed, arguments.time_limit)
    found = blame(runs)
    package = str(getattr(accelerator.unloaded(), "package", "") or "")
    scripts = _written(found, arguments.scripts, device, package) if arguments.scripts else {}
    for line in lines(found, program.text, device, scripts):
        print(line)
    return 1 if is_blamed(found) else 0


def _from_report(path: Path, case: str) -> int:
    """Print which failing operators each failing workload of a report calls."""
    from conformance.blame.from_report import suspects, text
    from conformance.reports.loading import load
    from conformance.reports.plain_text import one_line

    for found in suspects(load(path), case):
        for line in text(found):
            print(line[: len(line) - len(line.lstrip())] + one_line(line.strip()))
    return 1


def _written(found: Blame, folder: Path, device: str, package: str) -> dict[str, str]:
    """Write a script for each culprit; return the files by the operators' names."""
    from conformance.blame.text import script
    from conformance.suites.operators.judge.script import Unwritable

    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for culprit in found.culprits:
        try:
            text = script(culprit, device, package)
        except Unwritable as error:
            print(f"{culprit.name} has no script: {error}")
            continue
        path = folder / f"{culprit.name.replace('.', '_')}.py"
        path.write_text(text, encoding="utf-8")
        files[culprit.name] = str(path)
    return files
