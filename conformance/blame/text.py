"""Text of the answer, for a terminal; and the script of a wrong call."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from conformance.suites.operators.judge.aspects import Aspect
from conformance.suites.operators.judge.cells import Failure
from conformance.suites.operators.judge.script import Unwritable
from conformance.suites.operators.judge.script import script as written

from .local import Local
from .verdict import Answer, Blame, Culprit, described

#: Culprits that are printed, and unjudged operators.
_SHOWN = 5
#: Answers that are no fault of the device.
_INNOCENT = frozenset(
    {Answer.RIGHT, Answer.ROUNDING, Answer.HOST, Answer.RANDOM, Answer.RAISED, Answer.CHANGING, Answer.TOO_LARGE}
)
#: Share of the end's error that the culprits explain, from which on they are all of it.
_SURE = 0.9


def lines(found: Blame, program: str, device: str, scripts: dict[str, str]) -> Iterator[str]:
    """Yield the answer; ``scripts`` has the file of the script of each culprit, by its name."""
    seconds = found.seconds
    yield f"{program} on {device}: {found.steps:,} calls, {found.judged:,} judged on their own inputs"
    yield f"{found.answer.value}{f': {found.detail}' if found.detail else ''}"
    yield from _end(found)
    if found.compiled and found.answer is not Answer.COMPILED:
        yield f"{found.compiled} compiled graphs: watched call by call, without the compiler, and compared at the end"
    for number, culprit in enumerate(found.culprits[:_SHOWN], 1):
        yield from _culprit(number, culprit, scripts.get(culprit.name, ""))
    if len(found.culprits) > _SHOWN:
        yield f"  and {len(found.culprits) - _SHOWN} more operators"
    if found.explained is not None:
        sure = "all of it" if found.explained >= _SURE else "not all of it: look again once these are mended"
        yield f"these calls explain {found.explained:.0%} of the end's error ({sure})"
    if found.unjudged:
        yield from _unjudged(found)
    named = {"program": "the run", "device": "two more runs", "watched": "watched", "replays": "replays"}
    yield "seconds: " + ", ".join(f"{text} {seconds[key]:.2f}" for key, text in named.items() if key in seconds)


def _end(found: Blame) -> Iterator[str]:
    worst = found.worst_end
    if worst is None:
        yield "the end: the program returned nothing that comes from the device"
    else:
        yield (
            f"the end: {worst.name} is off by {worst.error:.3g}; honest rounding of every call allows "
            f"{worst.allowed:.3g} ({_times(worst.budgets)} the budget)"
        )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _culprit(number: int, culprit: Culprit, script: str) -> Iterator[str]:
    share = "share not known" if culprit.share is None else f"{culprit.share:.0%} of the end's error"
    worst = culprit.worst
    yield f"  {number}. {culprit.name}: {share}; {len(culprit.calls)} of its {culprit.total} calls are wrong"
    if culprit.others:
        yield f"     with {', '.join(culprit.others)}: one kernel may be behind all of them"
    yield f"     {described(worst.step)}: {worst.finding}"
    yield f"     inputs: {', '.join(_inputs(worst))}"
    if worst.ratio not in (0.0, float("inf")):
        yield f"     its error: {_times(worst.ratio)} its budget"
    if culprit.misreads:
        yield "     what is read from the device comes back changed: the others may only have been misread"
    if culprit.is_hidden:
        yield "     hidden by another one: wrong once its inputs are right"
    if script:
        yield f"     shown without this package by: python {script}"


def _inputs(local: Local) -> Iterator[str]:
    """Yield shape, dtype and strides of each tensor, and the other arguments."""
    if local.call is None:
        return
    first, args, kwargs = local.call.arguments
    named: list[tuple[str, Any]] = [("", first), *(("", value) for value in args), *kwargs.items()]
    for name, value in named:
        yield f"{name}={_argument(value)}" if name else _argument(value)


def _argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        return f"{kind}{list(value.shape)}{strides}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
        return f"{len(value)} tensors, the first {_argument(value[0])}"
    return str(value)


def _unjudged(found: Blame) -> Iterator[str]:
    items = sorted(found.unjudged.items(), key=lambda item: -item[1])
    yield f"not judged: {'; '.join(f'{text} (×{count})' for text, count in items[:_SHOWN])}"


def script(culprit: Culprit, device: str, package: str) -> str:
    """Return a script that repeats the worst call of a culprit with torch alone. Raises Unwritable."""
    worst = culprit.worst
    if worst.call is None:
        raise Unwritable("its inputs were not kept")
    info = SimpleNamespace(op=worst.step.function, full_name="", name=worst.step.name)
    failure = Failure(worst.call, info, _aspect(worst), allowed=0.0)
    about = f"{described(worst.step)} on {device}: {worst.finding}"
    return written(failure, about, device=device, package=package)


def _aspect(local: Local) -> Aspect:
    """Return what is wrong with a call: how closely the script compares follows from it."""
    return Aspect.OTHER if local.ratio == float("inf") else Aspect.NUMBERS


def is_blamed(found: Blame) -> bool:
    """Return whether the device is at fault."""
    return found.answer not in _INNOCENT
