"""``conformance coverage``: which of PyTorch's overloads the cases exercise, and which none does."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import SetupError, UsageError

if TYPE_CHECKING:
    from conformance.coverage.map import CoverageMap

SUMMARY = "Print which of PyTorch's overloads, arguments and derivatives the cases exercise."
#: The status when more is missing than --at-most allows.
_MISSING = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("map", metavar="MAP", type=Path, nargs="?", help="a file from --out; then no case runs")
    add("--accelerator", metavar="NAME", help="run the cases on this accelerator and record them")
    add("--area", metavar="AREA", action="append", default=[], help="only these areas (repeatable, or commas)")
    add("--case", metavar="ID", action="append", default=[], help="only these cases (repeatable); * is any text")
    add("-n", metavar="WORKERS", dest="workers", default="auto", help="worker processes, as with pytest -n")
    add("--out", metavar="FILE", type=Path, help="write the whole map to this file")
    add("--format", metavar="FORMAT", default="text", help="text (default) or json")
    add("--at-most", metavar="PERCENT", type=float, help="end with status 1 if more of the overloads are missing")


def run(arguments: argparse.Namespace) -> int:
    """Print the tables. Exit status 1 means that more is missing than ``--at-most`` allows."""
    from conformance.cli.main import known_name

    formats: dict[str, Callable[[dict[str, object]], str]] = {"text": _text, "json": _json}
    render = formats[known_name("format", arguments.format, formats)]
    _require_sense(arguments)
    found = _map_of(arguments)
    if arguments.out:
        found.write(arguments.out)
    # Imported here: the tables read PyTorch's schemas.
    from conformance.coverage.tables import missing_share, tables

    data = tables(found)
    sys.stdout.write(render(data))
    allowed = arguments.at_most
    return _MISSING if allowed is not None and missing_share(data) * 100 > allowed else 0


def _require_sense(arguments: argparse.Namespace) -> None:
    """Raise UsageError if options contradict each other or a value is impossible."""
    if (arguments.map is None) == (arguments.accelerator is None):
        raise UsageError(
            "coverage needs either a map or an accelerator, and not both. "
            "Record one: conformance coverage --accelerator NAME --out FILE. Print it again: conformance coverage FILE."
        )
    if arguments.map and (arguments.area or arguments.case or arguments.out):
        raise UsageError("--area, --case and --out need --accelerator: with a map no case runs. Leave them out.")
    if arguments.at_most is not None and not 0 <= arguments.at_most <= 100:
        raise UsageError(f"--at-most {arguments.at_most:g} is no percentage. Give a number from 0 to 100.")
    if not re.fullmatch(r"auto|logical|\d+", arguments.workers):
        raise UsageError(f"-n {arguments.workers} is no number of processes. Give a number, or auto.")
    if arguments.out and not arguments.out.absolute().parent.is_dir():
        raise UsageError(f"the folder of {arguments.out} does not exist. Make it, or choose another file with --out.")


def _map_of(arguments: argparse.Namespace) -> CoverageMap:
    from conformance.coverage.map import CoverageMap, read

    if arguments.map:
        return read(arguments.map)
    with tempfile.TemporaryDirectory(prefix="conformance-coverage-") as name:
        folder = Path(name)
        _record(arguments, folder)
        import torch

        from conformance.coverage.reference import reached

        found = CoverageMap(arguments.accelerator, str(torch.__version__))
        found.add(_lines(folder))
        found.databases, found.inputs = reached()
    if not found.cases:
        raise UsageError("no case was recorded. Cases on ranks and compiled cases are not; choose others with --case.")
    return found


def _record(arguments: argparse.Namespace, folder: Path) -> None:
    """Run the cases under the recording plugin; raise SetupError if pytest did not complete the run."""
    from conformance.coverage.recording import FOLDER
    from conformance.process.python import child_pytest, death_of_pytest

    report = folder / "report"
    command = child_pytest(
        *("-p", "conformance.coverage.recording", "-p", "no:cacheprovider", "-q", "--tb=no"),
        f"--accelerator={arguments.accelerator}",
        f"--conformance-report={report}",
        f"-n{arguments.workers}",
        *(f"--area={area}" for area in arguments.area),
        *(f"--case={case}" for case in arguments.case),
    )
    # This interpreter and our own options; only names of accelerators, areas and cases come from the user.
    completed = subprocess.run(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, FOLDER: str(folder)},
    )
    name, (status, output) = arguments.accelerator, (completed.returncode, completed.stdout)
    if death := death_of_pytest(status, output, report, run=f"the run on {name}", accelerator=name):
        raise SetupError(death)


def _lines(folder: Path) -> list[dict[str, object]]:
    """Return the lines that processes have written; a killed process may have cut its last one."""
    import json

    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def _text(data: dict[str, object]) -> str:
    from conformance.coverage.tables import text

    return text(data)


def _json(data: dict[str, object]) -> str:
    import json

    return json.dumps(data, indent=1) + "\n"
