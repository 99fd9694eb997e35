"""Judgement of one call at its real size: made on the device, and judged at a cost below the call's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.numerics.compare import compare, plain, same_bits
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.judging import length_of_sizes
from conformance.suites.operators.judge.oracle import Oracle

from .choices import chooses
from .freivalds import PRODUCTS, wrong_rows
from .kernels import base_name, class_of, is_pointwise, named, outputs_of
from .samples import Part, parts_of
from .spec import Made, Spec, function_of, made, moved

#: Elements of the arguments from which on the host holds none while the call runs: they are made again for judging.
_MANY: Final = 1 << 24


@dataclass(frozen=True)
class Ran:
    """A call that a device has made: its arguments and its results on the host."""

    function: Any
    given: Made
    after: list[torch.Tensor]


def run(spec: Spec, device: torch.device, seed: int) -> Ran:
    """Make a call on a device with new numbers. What the device raises reaches the caller."""
    function = function_of(spec)
    if function is None:
        raise LookupError(f"this torch has no {spec.function}")
    if spec.elements < _MANY:
        given = made(spec, function, seed)
        args, kwargs = mapped((given.args, given.kwargs), lambda leaf: moved(leaf, device))
        return Ran(function, given, _results(function, args, kwargs))
    there = made(spec, function, seed, lambda leaf: moved(leaf, device))
    after = _results(function, there.args, there.kwargs)
    del there
    return Ran(function, made(spec, function, seed), after)


def _results(function: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Make a call, and return its outputs on the host."""
    result = function(*args, **kwargs)
    if base_name(function) in named("zeros"):
        result.fill_(1)  # zeros are made once more, most likely in this memory: a kernel has to write them
        del result
        result = function(*args, **kwargs)
    return [plain(tensor) for tensor in outputs_of(function, args, kwargs, result)]


@dataclass(frozen=True)
class Judged:
    """What was found out about a call: what is wrong with it, or why it was not judged."""

    wrong: str = ""
    unjudged: str = ""


def on_device(spec: Spec, device: torch.device, seed: int = 0) -> Judged:
    """Make a call on a device and judge it. What only the device raises is wrong."""
    function = function_of(spec)
    if function is None:
        return Judged(unjudged=f"this torch has no {spec.function}")
    if reason := why_unjudged(function):
        return Judged(unjudged=reason)
    try:
        with torch.no_grad():
            return Judged(wrong(run(spec, device, seed), seed))
    except torch.OutOfMemoryError:
        return Judged(unjudged="it does not fit into the device's memory")
    except Exception as error:
        text = f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return Judged(unjudged=f"the host {text}") if _host_refuses(spec, seed) else Judged(text)


def _host_refuses(spec: Spec, seed: int) -> bool:
    try:
        with torch.no_grad():
            run(spec, torch.device("cpu"), seed)
    except Exception:
        return True
    return False


def why_unjudged(function: Any) -> str:
    """Return why results of a kernel are not compared; empty if they are."""
    name = base_name(function)
    if name in named("uninitialised"):
        return "uninitialised memory"
    if name in named("unordered") and function._overloadname != "value":
        return "the order of its writes is open"
    return "its results are not unique" if name in named("open") else ""


def wrong(ran: Ran, seed: int) -> str:
    """Return what is wrong with the results of a call, as a phrase; empty if nothing is."""
    function, given = ran.function, ran.given
    shapes = _due(ran)
    found = [tuple(tensor.shape) for tensor in ran.after]
    if shapes and found != shapes:
        return f"the results have the shapes {found}, not {shapes}"
    for part in parts_of(function, given.args, given.kwargs, ran.after):
        if text := _wrong_part(part.function or function, part):
            return text
    if base_name(function) in PRODUCTS and ran.after[0].is_floating_point():
        return wrong_rows(function, given.args, given.kwargs, ran.after[0], seed)
    return ""


def _due(ran: Ran) -> list[tuple[int, ...]]:
    """Return the shapes of the results as the meta device has them; empty if it has no such kernel."""
    try:
        args, kwargs = mapped((ran.given.args, ran.given.kwargs), _on_meta)
        outputs = outputs_of(ran.function, args, kwargs, ran.function(*args, **kwargs))
    except (RuntimeError, TypeError, NotImplementedError):
        return []
    return [tuple(tensor.shape) for tensor in outputs]


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf


def _wrong_part(function: Any, part: Part) -> str:
    host = _made(function, part.args, part.kwargs)
    op_class, length = class_of(function), _length(function, part)
    call = Call(0, part.args[0] if part.args else None, part.args[1:], part.kwargs, function=function)
    count = len(part.args)

    def compute(wide: Call, _: Any) -> list[torch.Tensor]:
        return [plain(leaf) for leaf in _made(function, (wide.input, *wide.args)[:count], wide.kwargs)]

    oracle = Oracle(compute, call)
    for position, (actual, due) in enumerate(zip(part.after, host, strict=False)):
        if position and due.is_floating_point() and actual.is_floating_point():
            due = due.to(actual.dtype)  # what a backward pass needs may be kept in a wider dtype
        if (actual.shape, actual.dtype) != (due.shape, due.dtype):
            return f"output {position} is {tuple(actual.shape)} {actual.dtype}, not {tuple(due.shape)} {due.dtype}"
        if base_name(function) in named("moves"):
            if not same_bits(actual, plain(due)):  # there is no rounding, and so no need of an exact value
                return f"output {position} has other numbers than its inputs"
            continue
        compared = compare(actual, plain(due), lambda at=position: oracle.leaf(at), op_class, length)  # type: ignore[misc]
        if not compared.right and not chooses(function, part.args, part.kwargs, position, actual, due):
            return f"output {position}, in the part that is judged: {compared}"
    return ""


def _made(function: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Make a call on copies of its arguments on the host, and return its outputs."""
    args, kwargs = mapped((args, kwargs), lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
    return outputs_of(function, args, kwargs, function(*args, **kwargs))


def _length(function: Any, part: Part) -> float:
    if is_pointwise(function):
        return 1.0
    read = [leaf.numel() for leaf in part.args if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return length_of_sizes(read, [tensor.numel() for tensor in part.after])
