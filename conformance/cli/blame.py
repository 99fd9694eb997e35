"""``conformance blame``: find the operator that makes a user's own program wrong on a device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.blame.verdict import Blame

SUMMARY = "Find the operator that makes a program of yours wrong on a device."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        metavar="FILE.py:FUNCTION",
        help="a function that gets a torch.device, runs there, and returns tensors, numbers or a module",
    )
    parser.add_argument("--accelerator", metavar="NAME", required=True, help="the accelerator to run on")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    parser.add_argument(
        "-o",
        "--scripts",
        metavar="FOLDER",
        type=Path,
        help="write a script for each culprit into this folder; it shows the wrong call with torch alone",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer. Exit status 1 means that the device is at fault."""
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.blame.program import Program
    from conformance.blame.text import is_blamed, lines
    from conformance.blame.verdict import blame
    from conformance.process.trial import try_module

    program = Program.load(arguments.program)
    try_module(arguments.accelerator)
    accelerator = resolve(arguments.accelerator)
    device = accelerator.load().current_device_name()
    found = blame(program, torch.device(device), arguments.seed)
    package = str(getattr(accelerator.unloaded(), "package", "") or "")
    scripts = _written(found, arguments.scripts, device, package) if arguments.scripts else {}
    for line in lines(found, program.text, device, scripts):
        print(line)
    return 1 if is_blamed(found) else 0


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
