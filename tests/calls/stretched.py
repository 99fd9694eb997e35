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

import torch

from conformance.numerics.trees import leaves
from conformance.suites.calls.spec import Spec

from .cover import on_meta, operator, sizes_of, text_of

#: An overload, and of each tensor the order of its strides, and whether it is expanded.
Form = tuple[str, tuple[tuple[tuple[int, ...], bool], ...]]
#: Primes in place of one size, each beyond a limit: no tile divides them. For kernels that need aligned rows an odd
#: number of eights. And what all other sizes become: 64 is aligned.
_LARGE, _SMALL = {65_537: 65_544, 16_411: 16_424, 1_031: 1_032}, (67, 64, 17, 8, 3, 1)
#: Sizes below this may also be options, such as a stride or a dimension; as one of the other sizes they stay.
_PLAIN = 16
#: Elements of the arguments of a stretched call, and of its result; and of one that may be judged whole.
_MOST = (1 << 24, 3 << 21)
#: Forms of an operator's calls that are stretched, those that most models make: of each the call that most models make,
#: and the one with the most different sizes, of which each is stretched alone.
_PARENTS = 4
#: Operators whose kernel on the meta device fills memory.
_SLOW = frozenset({"unfold_backward"})


def stretched_of(makers: Mapping[str, int]) -> set[str]:
    """Return stretched calls of all operators, as texts, from calls and how many models make each."""
    counts: collections.Counter[Form] = collections.Counter()
    common: dict[Form, tuple[int, int, str]] = {}
    unlike: dict[Form, tuple[int, int, str]] = {}
    for text, count in makers.items():
        spec = Spec(*json.loads(text))
        if sizes_of(spec) is not None and operator(spec) not in _SLOW:
            form, different = form_of(spec), len(_sizes(spec))
            counts[form] += count
            common[form] = max((count, different, text), common.get(form, (0, 0, "")))
            unlike[form] = max((different, count, text), unlike.get(form, (0, 0, "")))
    kept: collections.Counter[str] = collections.Counter()
    found: set[str] = set()
    for form, _ in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
        parents = [Spec(*json.loads(text)) for text in dict.fromkeys((common[form][-1], unlike[form][-1]))]
        kept[operator(parents[0])] += 1
        if kept[operator(parents[0])] <= _PARENTS:
            for spec in parents:
                found.update(map(text_of, stretched(spec)))
    return found


def stretched(spec: Spec) -> Iterator[Spec]:
    """Yield the calls that a call becomes if one of its sizes is large, and the others small for it."""
    sizes = _sizes(spec)
    for own, (prime, aligned) in itertools.product(sorted(sizes), _LARGE.items()):
        limits = list(_MOST)
        for small in (None, *_SMALL):
            others, found = {size: small for size in sizes if small is not None and size >= _PLAIN}, None
            for large in (prime, aligned):
                one = _fitting(Spec(spec.function, *_changed([spec.args, spec.kwargs], {**others, own: large})))
                if one.elements <= limits[0] and (found := sizes_of(one)) is not None:
                    break
            if found is None or found.elements > limits[0]:
                continue
            yield one
            limits = [limit for limit in limits if limit < max(one.elements, found.elements)]
            if not limits:
                break


def _fitting(spec: Spec) -> Spec:
    """Return a call of a backward whose gradient has the size of what the forward makes, where nothing else asks it."""
    grad, *others = spec.args if spec.args else [None]
    try:
        if spec.function.startswith("aten.convolution_backward."):
            source, weight, _, *options, _ = others
            made = torch.ops.aten.convolution.default(on_meta(source), on_meta(weight), None, *options)
        elif spec.function.startswith("aten.slice_backward."):
            made = torch.ops.aten.slice.Tensor(torch.empty(others[0], device="meta"), *others[1:])
        else:
            return spec
    except RuntimeError:  # there is no such forward
        return spec
    return Spec(spec.function, [_changed({**grad, "size": list(made.shape)}, {}), *others], spec.kwargs)


def _sizes(spec: Spec) -> set[int]:
    """Return the sizes of a call's tensors, and those of its result that an argument asks for."""
    own = {size for tensor in spec.tensors() for size in tensor["size"] if size > 1}
    found = sizes_of(spec)
    asked = {value for value in leaves(spec.args) if type(value) is int and value >= _PLAIN}
    return own | (asked & set(found.result) if found is not None else set())


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
