"""``conformance trace``: the calls of a model at their real sizes, and a judgement of each on a device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import UsageError

if TYPE_CHECKING:
    from conformance.suites.calls.spec import Spec

SUMMARY = "List the calls of a model of yours at their real sizes, or judge each of them on a device."
#: Elements of the tensors of one call above which it is left out: 2^27 numbers are half a gigabyte in float32.
_MOST_ELEMENTS = 1 << 27
#: Findings that are printed.
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        metavar="FILE.py:FUNCTION|CALLS.json|transformers:MODEL",
        help="a function that gets a torch.device and runs a model there; it runs on the meta device, which has no "
        "memory and computes nothing; or a file that this command has written; or a type of model of transformers, "
        "such as transformers:llama, whose calls come with this package",
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

    kind, _, model = text.partition(":")
    if kind == "transformers":
        return _shipped(model)
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


def _shipped(model: str) -> list[Spec]:
    from conformance.base.errors import UnknownName
    from conformance.suites.calls.data import architectures, calls_of

    if model not in architectures():
        raise UnknownName("model with known calls", model, architectures())
    return calls_of(model)


def _judged(calls: list[Spec], name: str, most: int) -> int:
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.process.trial import try_module
    from conformance.suites.calls.judging import on_device

    try_module(name)
    device = torch.device(resolve(name).load().current_device_name())
    wrong, unjudged = [], []
    for number, call in enumerate(calls):
        if call.elements > most:
            unjudged.append((call, f"its tensors have {call.elements:,} elements"))
            continue
        judged = on_device(call, device, number)
        if judged.unjudged:
            unjudged.append((call, judged.unjudged))
        elif judged.wrong:
            wrong.append((call, judged.wrong))
    print(
        f"{len(calls) - len(unjudged):,} calls judged on {device}, {len(wrong):,} wrong, {len(unjudged):,} not judged"
    )
    for call, what in wrong[:_SHOWN]:
        print(f"  WRONG {call}: {what}")
    for call, why in unjudged[:_SHOWN]:
        print(f"  not judged {call}: {why}")
    return 1 if wrong else 0
