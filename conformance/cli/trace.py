"""``conformance trace``: the calls of a model at their real sizes, and a judgement of each on a device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import UsageError

if TYPE_CHECKING:
    import torch

    from conformance.blame.calls import Spec
    from conformance.blame.local import Local

SUMMARY = "List the calls of a model of yours at their real sizes, or judge each of them on a device."
#: Elements of the tensors of one call above which it is left out: 2^27 numbers are half a gigabyte in float32.
_MOST_ELEMENTS = 1 << 27
#: Findings that are printed.
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        metavar="FILE.py:FUNCTION|CALLS.json",
        help="a function that gets a torch.device and runs a model there; it runs on the meta device, which has no "
        "memory and computes nothing; or a file that this command has written",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the calls, without numbers, as JSON")
    parser.add_argument("--accelerator", metavar="NAME", default="", help="judge each call on this accelerator")
    parser.add_argument(
        "--most-elements",
        metavar="N",
        type=int,
        default=_MOST_ELEMENTS,
        help=f"leave out calls whose tensors have more elements together (default: {_MOST_ELEMENTS:,})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the calls, or what is wrong with each. Exit status 1 means that a call is wrong."""
    from conformance.blame.calls import write

    calls = _calls(arguments.program)
    if arguments.output:
        write(arguments.output, calls)
    print(f"{arguments.program}: {len(calls):,} different calls of {sum(one.count for one in calls):,}")
    if not arguments.accelerator:
        for call in sorted(calls, key=lambda one: -one.elements)[:_SHOWN]:
            print(f"  {call.count:5,} × {call}")
        return 0
    return _judged(calls, arguments.accelerator, arguments.most_elements)


def _calls(text: str) -> list[Spec]:
    from conformance.blame.calls import read, recorded
    from conformance.blame.program import Program

    if text.endswith(".json"):
        return read(Path(text))
    program = Program.load(text)
    try:
        return recorded(program.function)
    except Exception as error:  # noqa: BLE001  what the user's program raises
        raise UsageError(
            f"{text} does not run on the meta device: {type(error).__name__}: {error}. A model that reads numbers "
            "from tensors cannot; give it a function without the loss or the decision that reads them."
        ) from None


def _judged(calls: list[Spec], name: str, most: int) -> int:
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.process.trial import try_module

    try_module(name)
    device = torch.device(resolve(name).load().current_device_name())
    wrong, unjudged = [], []
    for number, call in enumerate(calls):
        local = None if call.elements > most else _one(call, device, number)
        if local is None:
            unjudged.append((call, f"its tensors have {call.elements:,} elements"))
        elif local.unjudged:
            unjudged.append((call, local.unjudged))
        elif local.wrong:
            wrong.append((call, local))
    print(
        f"{len(calls) - len(unjudged):,} calls judged on {device}, {len(wrong):,} wrong, {len(unjudged):,} not judged"
    )
    for call, local in wrong[:_SHOWN]:
        print(f"  WRONG {call}: {local.finding}")
    for call, why in unjudged[:_SHOWN]:
        print(f"  not judged {call}: {why}")
    return 1 if wrong else 0


def _one(call: Spec, device: torch.device, number: int) -> Local:
    from conformance.blame.calls import on_device

    return on_device(call, device, number)
