"""Derivative rules of backward passes: which ran, and for which inputs a gradient was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.graph

#: Gets a node's name and the gradients of its inputs (None where not asked for); returns others, or None.
Rule = Callable[[str, tuple[Any, ...]], "tuple[Any, ...] | None"]
#: Inputs of a node above which not every subset of them is listed.
_SUBSETS = 3


@contextmanager
def hooked(rule: Rule, only: str | None = None, *, device: str | None = None) -> Iterator[None]:
    """Call ``rule`` after every node of each backward pass, or after the nodes of one name.

    Without ``device``, nodes whose gradients are on the host are left out.
    """
    original = torch.autograd.graph._engine_run_backward

    def run(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        handles = _place(t_outputs, rule, only, device)
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()

    places = (torch.autograd, torch.autograd.graph)
    for place in places:
        place._engine_run_backward = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for place in places:
            place._engine_run_backward = original  # type: ignore[attr-defined]


def _place(outputs: Sequence[Any], rule: Rule, only: str | None, device: str | None) -> list[Any]:
    """Place hooks on the nodes behind the outputs, and return the handles."""
    handles, seen = [], set()
    waiting = [getattr(output, "node", None) or output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [next_node for next_node, _ in node.next_functions]
        name = node.name()
        if (only in (None, name)) and name != "torch::autograd::AccumulateGrad":
            handles.append(node.register_hook(_hook(name, rule, device)))
    return handles


def _hook(name: str, rule: Rule, device: str | None) -> Callable[[Any, Any], Any]:
    def hook(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
        return rule(name, inputs) if any(is_there(value, device) for value in (*inputs, *outputs)) else None

    return hook


def is_there(value: Any, device: str | None = None) -> bool:
    """Return whether a gradient is on a device of this type; by default on any that is not the host."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.device.type == device if device else value.device.type not in ("cpu", "meta")


def asked(inputs: Sequence[Any]) -> str:
    """Return which inputs of a node have a gradient, as ``1`` and ``0``."""
    return "".join("0" if value is None else "1" for value in inputs)


@contextmanager
def recording(device: str | None = None) -> Iterator[dict[str, set[str]]]:
    """Record the nodes of backward passes on a device, with the inputs that they are asked for."""
    found: dict[str, set[str]] = {}

    def rule(name: str, inputs: tuple[Any, ...]) -> None:
        found.setdefault(name, set()).add(asked(inputs))

    with hooked(rule, device=device):
        yield found


def subsets(count: int) -> Iterator[str]:
    """Yield the sets of inputs that a rule may be asked for: all of them where few, else each alone and all."""
    if count <= _SUBSETS:
        for number in range(1, 2**count):
            yield "".join("1" if number >> place & 1 else "0" for place in range(count))
        return
    for place in range(count):
        yield "".join("1" if at == place else "0" for at in range(count))
    yield "1" * count
