"""Calls of models at sizes that no model has: one is beyond every limit of ``size_faults``, the others are smaller.

What a kernel does at a size then depends on no single model: each that calls it gives the same stretched call.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from conformance.suites.calls.spec import Spec

from .cover import operator, sizes_of, text_of

#: An overload, and of each tensor the order of its strides, and whether it is expanded.
Form = tuple[str, tuple[tuple[tuple[int, ...], bool], ...]]
#: Primes in place of one size, each beyond a limit: no tile divides them. And what all other sizes become: 64 for
#: kernels that need aligned rows.
_LARGE, _SMALL = (65_537, 16_411, 1_031), (67, 64, 17, 3, 1)
#: Sizes below this may also be options, such as a stride or a dimension; as one of the other sizes they stay.
_PLAIN = 16
#: Elements of the arguments of a stretched call, and of its result; and of one that may be judged whole.
_MOST = (1 << 24, 3 << 21)
#: Calls of an operator that are stretched, each of other dimensions or strides: those that most models make.
_PARENTS = 4
#: Operators whose kernel on the meta device fills memory.
_SLOW = frozenset({"unfold_backward"})


def stretched_of(makers: Mapping[str, int]) -> set[str]:
    """Return stretched calls of all operators, as texts, from calls and how many models make each."""
    counts: collections.Counter[Form] = collections.Counter()
    parents: dict[Form, tuple[int, str]] = {}
    for text, count in makers.items():
        spec = Spec(*json.loads(text))
        if sizes_of(spec) is not None and operator(spec) not in _SLOW:
            counts[form_of(spec)] += count
            parents[form_of(spec)] = max((count, text), parents.get(form_of(spec), (0, "")))
    kept: collections.Counter[str] = collections.Counter()
    found: set[str] = set()
    for form, _ in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
        spec = Spec(*json.loads(parents[form][1]))
        kept[operator(spec)] += 1
        if kept[operator(spec)] <= _PARENTS:
            found.update(map(text_of, stretched(spec)))
    return found


def stretched(spec: Spec) -> Iterator[Spec]:
    """Yield the calls that a call becomes if one of its sizes is large, and the others small for it."""
    sizes = {size for tensor in spec.tensors() for size in tensor["size"] if size > 1}
    for own, large in itertools.product(sorted(sizes), _LARGE):
        limits = list(_MOST)
        for small in (None, *_SMALL):
            others = {size: small for size in sizes if small is not None and size >= _PLAIN}
            one = Spec(spec.function, *_changed([spec.args, spec.kwargs], {**others, own: large}))
            if one.elements > limits[0] or (found := sizes_of(one)) is None or found.elements > limits[0]:
                continue
            yield one
            limits = [limit for limit in limits if limit < max(one.elements, found.elements)]
            if not limits:
                break


def form_of(spec: Spec) -> Form:
    """Return what calls have in common that are stretched to the same: the overload, and the order of strides."""
    return spec.function, tuple((tuple(_order(tensor)), 0 in tensor["stride"]) for tensor in spec.tensors())


def _order(tensor: dict[str, Any]) -> list[int]:
    """Return the dimensions from the largest stride to the smallest."""
    return sorted(range(len(tensor["size"])), key=lambda dim: (-tensor["stride"][dim], dim))


def _changed(value: Any, sizes: Mapping[int, int]) -> Any:
    """Return arguments with other sizes; the order of their strides stays."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return sizes.get(value, value) if value >= _PLAIN else value
    if isinstance(value, list | tuple):
        return [_changed(item, sizes) for item in value]
    if not isinstance(value, dict):
        return value
    if "size" not in value:
        return {name: _changed(item, sizes) for name, item in value.items()}
    size, stride = [sizes.get(number, number) for number in value["size"]], [0] * len(value["size"])
    order = [dim for dim in _order(value) if value["stride"][dim]]
    for place, dim in enumerate(order):
        stride[dim] = math.prod(size[other] for other in order[place + 1 :])
    return {**value, "size": size, "stride": stride}
