"""Search for the first wrong layer: the module whose output, or gradient, leaves its budget, and an operator in it."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .loop import exact

#: Errors of a layer are divided by at least this share of the largest value of any layer.
FLOOR = 1e-6
Run = Callable[[nn.Module], Any]
Place = Callable[[Any], contextlib.AbstractContextManager[Any]]


@dataclass
class Call:
    """One call of a module: its floating-point inputs and outputs, and their gradients, float64 on the host."""

    module: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    #: Places in the order of the backward pass, by input.
    places: dict[int, int] = field(default_factory=dict)
    input_gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    output_gradients: dict[int, torch.Tensor] = field(default_factory=dict)


def first_wrong(device: nn.Module, host: nn.Module, oracle: nn.Module, run: Run, bound: float, factor: float) -> str:
    """Run three equal models; return a sentence about the first wrong module, or an empty one if all are right.

    A module is wrong if its error exceeds ``bound`` and ``factor`` times the error of ``host``, which computes in the
    same dtype. ``run`` calls a model and returns a loss, or None where there is no backward pass.
    """
    calls = _aligned(*(_recorded(model, run) for model in (device, host, oracle)))
    for found, of_host, wanted in calls:
        error = _error(found.outputs, wanted.outputs)
        allowed = max(bound, factor * _error(of_host.outputs, wanted.outputs))
        if not error <= allowed:
            given = max(bound, factor * _error(of_host.inputs, wanted.inputs))
            if _error(found.inputs, wanted.inputs) <= given or not found.module:
                inside = _first_wrong_operator(device, found.module, run, bound)
                return f"The first wrong layer is {found.module or 'the model'}: {_sized(error, allowed)}{inside}."
            # All modules before are right, so what the parent computes between its children is wrong.
            parent = found.module.rpartition(".")[0] or "the model"
            return f"The first wrong layer is {parent}: what it gives to {found.module} is wrong."
    return _first_wrong_gradient(calls, bound, factor)


def _sized(error: float, allowed: float) -> str:
    return f"its output is off by {error:.2g}, allowed {allowed:.2g}"


def _aligned(*runs: list[Call]) -> list[tuple[Call, ...]]:
    """Return the calls that all runs have in common, in the order of the first run.

    An oracle may compute a layer in another way, and not call the modules inside it.
    """
    named = [{} for _ in runs]
    for run, names in zip(runs, named, strict=True):
        seen: Counter[str] = Counter()
        for call in run:
            names[call.module, seen[call.module]] = call
            seen[call.module] += 1
    return [tuple(names[key] for names in named) for key in named[0] if all(key in names for names in named)]


def _first_wrong_gradient(calls: list[tuple[Call, ...]], bound: float, factor: float) -> str:
    """Return the module that turns right gradients of its outputs into wrong ones of its inputs."""
    wrong: list[tuple[int, int, str, float, float]] = []
    for call, of_host, exact_call in calls:
        out, into = (
            (_gradient_error(call, exact_call, side), _gradient_error(of_host, exact_call, side))
            for side in ("output_gradients", "input_gradients")
        )
        allowed = [10 * max(bound, factor * errors[1]) for errors in (out, into)]
        if out[0] <= allowed[0] and not into[0] <= allowed[1]:
            # Several modules may read one tensor, whose gradient is complete only after the last of them.
            wrong.append((min(call.places.values()), -call.module.count("."), call.module, into[0], allowed[1]))
    if not wrong:
        return ""
    _, _, module, error, allowed_error = min(wrong)
    return (
        f"The first wrong layer of the backward pass is {module or 'the model'}: "
        f"the gradient of its input is off by {error:.2g}, allowed {allowed_error:.2g}."
    )


def _gradient_error(call: Call, wanted: Call, side: str) -> float:
    mine, exact_ones = getattr(call, side), getattr(wanted, side)
    pairs = [(mine[index], exact_ones[index]) for index in exact_ones if index in mine]
    return _error([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the largest error of an element over the largest element; infinite for other shapes, NaN with a NaN."""
    worst = 0.0
    for value, right in zip(found, wanted, strict=False):
        if value.shape != right.shape:
            return float("inf")
        if not right.numel():
            continue
        # Masks hold -inf on both sides, or the smallest number of their dtype.
        real = right.isfinite() & (right.abs() < 1e30)
        value, right = value[real | value.isnan()], right[real | value.isnan()]
        if right.numel():
            error = float((value - right).abs().max() / right.abs().max().clamp(min=FLOOR))
            worst = error if not error <= worst else worst
    return worst


def _recorded(model: nn.Module, run: Run) -> list[Call]:
    """Return the calls of all modules in the order in which they end."""
    calls: list[Call] = []
    clock = itertools.count()
    handles = [
        module.register_forward_hook(_recorder(name, calls, clock), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        model.zero_grad(set_to_none=True)
        loss = run(model)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    return calls


def _recorder(name: str, calls: list[Call], clock: Iterator[int]) -> Callable[..., None]:
    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs, outputs = _numbers((args, kwargs)), _numbers(output)
        call = Call(name, [exact(tensor) for tensor in inputs], [exact(tensor) for tensor in outputs])
        calls.append(call)
        for index, tensor in enumerate(inputs):
            if tensor.requires_grad:
                tensor.register_hook(_keeper(call.input_gradients, index, call.places, clock))
        for index, tensor in enumerate(outputs):
            if tensor.requires_grad:
                tensor.register_hook(_keeper(call.output_gradients, index, {}, clock))

    return hook


def _keeper(
    gradients: dict[int, torch.Tensor], index: int, places: dict[int, int], clock: Iterator[int]
) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        gradients[index], places[index] = exact(gradient), next(clock)

    return keep


def _numbers(tree: Any) -> list[torch.Tensor]:
    """Return the numbers and indices among arguments or results; masks of bool are left out."""
    leaves = pytree.tree_leaves(dict(tree) if hasattr(tree, "items") else tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dtype is not torch.bool]


class _Compared(TorchDispatchMode):
    """Mode that repeats each operator in float64 on the host, and keeps the first one that is wrong."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound, self.found = bound, ""
        self.watching = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Inputs are copied first: the operator may write into them.
        given = _on_host((args, kwargs)) if self.watching and not self.found else None
        result = func(*args, **kwargs)
        if given is not None and torch.Tag.nondeterministic_seeded not in func.tags and func._schema.returns:
            self._compare(func, given, result)
        return result

    def _compare(self, func: Any, given: Any, result: Any) -> None:
        try:
            wanted = func(*given[0], **given[1])
        except Exception:
            return  # an operator without float64 on the host cannot be compared
        error = _error([exact(part) for part in _numbers(result)], [exact(part) for part in _numbers(wanted)])
        if not error <= self.bound:
            name = func._schema.name.removeprefix("aten::")
            self.found = f"; in it the operator {name} is off by {error:.2g} (area operators, subject {name})"


def _on_host(tree: Any) -> Any:
    """Return arguments with float64 copies on the host in place of tensors, and without the device."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            copied = leaf.detach().cpu()
            return copied.double() if copied.is_floating_point() else copied.clone()
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    return pytree.tree_map(move, tree)


def _first_wrong_operator(model: nn.Module, module: str, run: Run, bound: float) -> str:
    """Return words about the first operator of the module that is wrong for its own inputs; empty if none is."""
    mode, watched = _Compared(10 * bound), model.get_submodule(module)

    def enter(*_: Any) -> None:
        mode.watching += 1

    def leave(*_: Any) -> None:
        mode.watching -= 1

    with _hooked(watched, enter, leave), torch.no_grad(), mode:
        run(model)
    return mode.found


@contextlib.contextmanager
def _hooked(module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
