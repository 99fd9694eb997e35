"""All faults there are: from schemas with recorded flags, and from derivative rules. The draw of some by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from . import arguments, conditioned, derivatives, inputs, outputs, refusals
from .fault import FAMILIES, Fault, Flags, Kind
from .recording import Map

KINDS: dict[tuple[str, str], Kind] = {
    (kind.family, kind.name): kind
    for module in (arguments, inputs, outputs, refusals, conditioned)
    for kind in module.KINDS
}


def kind_of(fault: Fault) -> Kind | None:
    """Return the kind of a fault of a kernel; None for a derivative rule."""
    return KINDS.get((fault.family, fault.kind))


def flags_of_cases(found: Map) -> dict[str, Flags]:
    """Return for each kernel what cases give to it."""
    merged: dict[str, dict[str, set[str]]] = {}
    for record in found.cases.values():
        for kernel, places in record.reached.items():
            for place, flags in places.items():
                merged.setdefault(kernel, {}).setdefault(place, set()).update(flags)
    return {kernel: {place: sorted(flags) for place, flags in places.items()} for kernel, places in merged.items()}


def population(family: str, found: Map, rules: dict[str, int]) -> list[Fault]:
    """Return every fault of a family, sorted: of kernels that torch's databases or the suite's cases reach."""
    if family == "F":
        return list(derivatives.population(rules))
    seen: dict[str, Flags] = {**flags_of_cases(found), **found.flags}
    return sorted(_of_kernels(family, seen), key=str)


def _of_kernels(family: str, seen: dict[str, Flags]) -> Iterator[Fault]:
    for kind in KINDS.values():
        if kind.family == family:
            for kernel, flags in seen.items():
                for place, detail in kind.targets(kernel, flags):
                    yield Fault(family, kind.name, kernel, place, detail)


def drawn(
    families: Sequence[str],
    draws: int,
    seed: str,
    found: Map,
    rules: dict[str, int],
    is_chosen: Callable[[Fault], bool] = lambda fault: True,
) -> list[Fault]:
    """Draw chosen faults, the same number of each family, without repetition. A seed draws the same ones every time."""
    chosen = []
    for number, family in enumerate(families):
        share = draws // len(families) + (number < draws % len(families))
        every = [fault for fault in population(family, found, rules) if is_chosen(fault)]
        chosen += random.Random(f"{seed}:{family}").sample(every, min(share, len(every)))
    return chosen


def families() -> list[str]:
    """Return the families that have a population."""
    known = {family for family, _ in KINDS} | {"F"}
    return [family for family in FAMILIES if family in known]
