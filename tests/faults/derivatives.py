"""Faults of derivative rules: a hook on the nodes of every backward pass breaks one gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from conformance.coverage.backward import Rule, asked, is_there, subsets

from .fault import Fault, Hits

# --- family F ---------------------------------------------------------------------------------------------------------

_EFFECTS = ("scaled", "dropped", "rolled", "stale", "twice", "undefined")


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
