"""Derivative rules: hooks on the nodes of every backward pass, which record the asked inputs or break a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.graph

from .fault import Fault, Hits

#: Gets a node's name, the gradients of its inputs (None where not asked for) and the device type; returns others.
Rule = Callable[[str, tuple[Any, ...]], tuple[Any, ...] | None]


@contextmanager
def hooked(rule: Rule, only: str | None = None) -> Iterator[None]:
    """Call ``rule`` after every node of each backward pass, or after the nodes of one name."""
    original = torch.autograd.graph._engine_run_backward

    def run(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        handles = _place(t_outputs, rule, only)
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


def _place(outputs: Sequence[Any], rule: Rule, only: str | None) -> list[Any]:
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
            handles.append(node.register_hook(_hook(name, rule)))
    return handles


def _hook(name: str, rule: Rule) -> Callable[[Any, Any], Any]:
    def hook(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
        return rule(name, inputs) if any(is_there(value) for value in (*inputs, *outputs)) else None

    return hook


def is_there(value: Any) -> bool:
    """Return whether a gradient is on a device that is not the host."""
    return isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta")


def asked(inputs: Sequence[Any]) -> str:
    """Return which inputs of a node have a gradient, as ``1`` and ``0``."""
    return "".join("0" if value is None else "1" for value in inputs)


@contextmanager
def recording() -> Iterator[dict[str, set[str]]]:
    """Record the nodes of backward passes on a device, with the inputs that they are asked for."""
    found: dict[str, set[str]] = {}

    def rule(name: str, inputs: tuple[Any, ...]) -> None:
        found.setdefault(name, set()).add(asked(inputs))

    with hooked(rule):
        yield found


# --- family F ---------------------------------------------------------------------------------------------------------

_EFFECTS = ("scaled", "dropped", "rolled", "stale", "twice", "undefined")
#: Inputs of a node above which not every subset of them is a fault of its own.
_SUBSETS = 3


def subsets(count: int) -> Iterator[str]:
    """Yield the sets of inputs that a rule may be asked for: all of them where few, else each alone and all."""
    if count <= _SUBSETS:
        for number in range(1, 2**count):
            yield "".join("1" if number >> place & 1 else "0" for place in range(count))
        return
    for place in range(count):
        yield "".join("1" if at == place else "0" for at in range(count))
    yield "1" * count


def population(inputs: Mapping[str, int]) -> Iterator[Fault]:
    """Yield the faults of derivative rules: one input's gradient, always or for one set of asked inputs."""
    for name, count in sorted(inputs.items()):
        if "ForCpu" in name:
            continue  # another device has another rule
        for place in range(count):
            for effect in _EFFECTS:
                yield Fault("F", effect, name, str(place), "always")
                # With one input, "alone" is "always".
                if count > 1:
                    for subset in subsets(count):
                        if subset[place] == "1":
                            yield Fault("F", effect, name, str(place), subset)


def breaking(fault: Fault, hit: Hits) -> Rule:
    """Return the rule that spoils the gradient."""
    place, stale = int(fault.place), {}

    def rule(name: str, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # A node lists inputs that are no tensors too; a fault counts those that can have a gradient.
        if place >= len(inputs) or not is_there(inputs[place]):
            return None
        if fault.detail != "always" and asked(inputs).ljust(len(fault.detail), "0") != fault.detail:
            return None
        gradient = inputs[place]
        other = _spoiled(fault.kind, gradient, stale)
        if other is None:
            return None
        hit()
        return (*inputs[:place], other[0], *inputs[place + 1 :])

    return rule


def _spoiled(effect: str, gradient: torch.Tensor, stale: dict[Any, torch.Tensor]) -> tuple[torch.Tensor | None] | None:
    """Return the wrong gradient in a tuple; None where the effect has no meaning."""
    if effect == "undefined":
        return (None,)
    if effect == "rolled":
        return (gradient.roll(1, -1),) if gradient.dim() and gradient.shape[-1] > 1 else None
    if effect == "stale":
        key = (gradient.shape, gradient.dtype)
        old, stale[key] = stale.get(key), gradient.detach().clone()
        return None if old is None else (old,)
    if not (gradient.is_floating_point() or gradient.is_complex()):
        return None
    return ({"scaled": gradient * 1.5, "dropped": torch.zeros_like(gradient), "twice": gradient + gradient}[effect],)


def needs(fault: Fault, recorded: Sequence[str]) -> bool:
    """Return whether a rule was ever asked for the inputs that the fault wants."""
    place = int(fault.place)
    if fault.detail == "always":
        return any(place < len(mask) and mask[place] == "1" for mask in recorded)
    return any(mask.ljust(len(fault.detail), "0") == fault.detail for mask in recorded)
