"""Choice of calls by the faults of sizes that they meet: for the time that it takes, as many as possible.

What a kernel does at a size is seen by a call of that size alone. So the sample of calls gets, for each operator, calls
with many rows, long rows, long sums, many matrices, and sizes that no tile divides.
"""

from __future__ import annotations

import collections
import functools
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import torch

from conformance.numerics.trees import tensors
from conformance.suites.calls.judging import why_unjudged
from conformance.suites.calls.kernels import base_name, bound, named, outputs_of
from conformance.suites.calls.spec import Spec, function_of

from .size_faults import SizeFault, Sizes, faults


def on_meta(value: Any) -> Any:
    """Return arguments of a call without numbers as tensors of the meta device."""
    if isinstance(value, list):
        return [on_meta(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "size" in value:
        return torch.empty_strided(value["size"], value["stride"], dtype=getattr(torch, value["dtype"]), device="meta")
    if "torch" in value:
        return getattr(torch, value["torch"])
    if "device" in value:
        return torch.device("meta")
    return {name: on_meta(item) for name, item in value.items()}


def text_of(spec: Spec) -> str:
    """Return a call as a text; equal calls have equal ones."""
    return json.dumps([spec.function, spec.args, spec.kwargs])


def operator(spec: Spec) -> str:
    """Return the name of a call's operator, which its in-place form has too."""
    return base_name(function_of(spec)).removesuffix("_")


def sizes_of(spec: Spec) -> Sizes | None:
    """Return the sizes of a call; None if no kernel of its own computes it, or it cannot be made."""
    return _sizes(text_of(spec))


@functools.cache
def _sizes(text: str) -> Sizes | None:
    spec = Spec(*json.loads(text))
    function = function_of(spec)
    if function is None or why_unjudged(function) or function.is_view or base_name(function) in named("copies"):
        return None
    args, kwargs = on_meta(spec.args), on_meta(spec.kwargs)
    known = {tensor.untyped_storage()._cdata for tensor in tensors((args, kwargs))}
    try:
        found = function(*args, **kwargs)
    except Exception:  # what the meta device refuses has no size
        return None
    result = next(iter(outputs_of(function, args, kwargs, found)), None)
    if result is None or (result.untyped_storage()._cdata in known and not function._schema.is_mutable):
        return None  # a view in all but name
    return Sizes.of(operator(spec), bound(function, args, kwargs), result)


def met(specs: Iterable[Spec]) -> set[SizeFault]:
    """Return every fault that one of these calls meets."""
    by_operator: dict[str, list[Sizes]] = collections.defaultdict(list)
    for spec in specs:
        if (sizes := sizes_of(spec)) is not None:
            by_operator[operator(spec)].append(sizes)
    return {fault for name, sizes in by_operator.items() for fault in faults(name, sizes)}


def weights(architectures: Iterable[Iterable[Spec]]) -> collections.Counter[SizeFault]:
    """Return for each fault how many architectures have a call that meets it."""
    found: collections.Counter[SizeFault] = collections.Counter()
    for calls in architectures:
        found.update(met(calls))
    return found


def cover(
    seconds: Mapping[str, float], weight: Mapping[SizeFault, int], known: Set[SizeFault], most: float
) -> Iterator[str]:
    """Yield calls, the one with the most faults for its time first, until all take ``most`` seconds.

    ``seconds`` are those of each call, by its text. Faults that are ``known`` need no further call.
    """
    open_ = {fault: count for fault, count in weight.items() if fault not in known}
    meets = {text: [fault for fault in met([Spec(*json.loads(text))]) if fault in open_] for text in seconds}
    heap = [(-sum(open_[f] for f in found) / seconds[text], text) for text, found in meets.items() if found]
    heapq.heapify(heap)
    while heap:
        before, text = heapq.heappop(heap)
        gain = sum(open_.get(fault, 0) for fault in meets[text])
        now = -gain / seconds[text]
        if now > before + 1e-9:  # another call has taken some of its faults
            if gain:
                heapq.heappush(heap, (now, text))
            continue
        if seconds[text] > most:
            continue
        most -= seconds[text]
        for fault in meets[text]:
            open_.pop(fault, None)
        yield text
