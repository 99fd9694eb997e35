"""``conformance invariance``: print the smallest surrounding at which the bits of each operator change."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.suites.invariance.surroundings import Change

SUMMARY = "Print per operator the smallest batch, chunk, padding or stride at which its bits change."
#: Kinds that every device has; a stream and a graph need a device that declares them.
_ALWAYS = ("batch", "chunk", "padding", "stride", "run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--accelerator", metavar="NAME", help="the accelerator to compare with itself")
    source.add_argument(
        "--report", metavar="PATH", type=Path, help="a report; the table of its cases is printed, and nothing runs"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="dtype of the rows"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table. The exit status is 0 whatever changes: only a claim makes a change a failure."""
    if arguments.report:
        return _print_report(arguments.report)
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.process.trial import try_module
    from conformance.suites.invariance.mode import invariant_mode
    from conformance.suites.invariance.surroundings import changes, operators_in

    try_module(arguments.accelerator)
    accelerator = resolve(arguments.accelerator).load()
    device, dtype = torch.device(accelerator.current_device_name()), getattr(torch, arguments.dtype)
    with invariant_mode(accelerator) as ignored:
        for path in ignored:
            print(f"the declared mode is not on: {path} did not take the value")
        found = {kind: changes(kind, device, dtype, accelerator) for kind in _ALWAYS}
    for line in table(found, len(operators_in("chunk"))):
        print(line)
    return 0


def _print_report(path: Path) -> int:
    """Print the tables of a report, one for each dtype."""
    from conformance.base.errors import UsageError
    from conformance.reports.loading import load
    from conformance.reports.surroundings import surroundings_tables, table_lines

    tables = surroundings_tables(load(path).cases)
    if not tables:
        raise UsageError(f"{path} has no measured case of area invariance; run pytest with --area=invariance")
    for found in tables:
        print("\n".join([f"{found.dtype}:", *table_lines(found)]))
    return 0


def table(found: Mapping[str, list[Change]], count: int) -> list[str]:
    """Return the lines of the table: a row for each operator whose bits change, a column for each kind."""
    from conformance.reports.surroundings import SurroundingsTable, table_lines

    sizes = {(change.operator, kind): str(change.size) for kind, changed in found.items() for change in changed}
    names = sorted({operator for operator, _ in sizes})
    rows = tuple((name, tuple(sizes.get((name, kind), "·") for kind in found)) for name in names)
    return table_lines(SurroundingsTable("", tuple(found), rows, count - len(names)))
