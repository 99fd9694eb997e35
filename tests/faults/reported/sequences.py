"""Reported bugs that need more than one call: what an earlier call left, and what the device's module was asked since.

A condition counts the calls that met the conditions before it in its row. Effects keep weak references alone.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.coverage.databases import tensors_of
from tests.faults.overriding import Call

from .members import method

#: Seconds after which a copy in the background has ended by itself.
_COPIED = 0.005

_COUNTS: Counter[Any] = Counter()
_DENSE: set[Any] = set()
_DTYPES: dict[Any, torch.dtype] = {}
_REMEMBERED: list[Any] = []
_FLAGS: set[str] = set()
_LOCK = threading.Lock()


def reset() -> None:
    """Forget all calls."""
    _COUNTS.clear()
    _DENSE.clear()
    _DTYPES.clear()
    _REMEMBERED.clear()
    _FLAGS.clear()


# --- conditions -------------------------------------------------------------------------------------------------------


def _key(call: Call) -> Any:
    return [(tuple(t.shape), t.dtype) for t in tensors_of(call.values)].__repr__()


def again(call: Call) -> bool:
    """Return whether the same operator was called before."""
    _COUNTS["again"] += 1
    return _COUNTS["again"] > 1


def first_of_its_shape(call: Call) -> bool:
    """Return whether the operator is called with tensors of these shapes for the first time."""
    _COUNTS[_key(call)] += 1
    return _COUNTS[_key(call)] == 1


def every(number: int) -> bool:
    """Return whether this is the last one of ``number`` calls."""
    _COUNTS["every"] += 1
    return _COUNTS["every"] % number == 0


def after_another_dtype(call: Call) -> bool:
    """Return whether the first call with tensors of this shape had another dtype."""
    first = next(iter(tensors_of(call.values)))
    return _DTYPES.setdefault((call.name, tuple(first.shape)), first.dtype) is not first.dtype


def after_another_width(call: Call) -> bool:
    """Return whether the first call had another last dimension."""
    width = next(iter(tensors_of(call.values))).shape[-1]
    return _COUNTS.setdefault(("width", call.name), width) != width


def strided_after_dense(call: Call, tensors: list[torch.Tensor]) -> bool:
    """Return whether a tensor has gaps, and one of its shape had none in an earlier call."""
    met = False
    for tensor in tensors:
        known = (call.name, tuple(tensor.shape), tensor.dtype)
        if tensor.is_contiguous():
            _DENSE.add(known)
        met = met or (not tensor.is_contiguous() and known in _DENSE)
    return met


# --- effects ----------------------------------------------------------------------------------------------------------


def _result_of(result: Any) -> torch.Tensor:
    return next(iter(tensors_of(result)))


def cut_at_synchronize(call: Call) -> Any:
    """Give a view that gets memory of its own when the device is next waited for."""
    result = call.run()
    _REMEMBERED.append(weakref.ref(_result_of(result)))
    return result


def lost_by_empty_cache(call: Call) -> Any:
    """Give a result that is NaN if cached memory is freed before anyone has waited for it."""
    result = call.run()
    if call.name == "aten::_copy_from":
        if call.values[1].is_cpu:
            _REMEMBERED.clear()
    elif (tensor := _result_of(result)).is_floating_point():
        _REMEMBERED.append(weakref.ref(tensor))
    return result


def source_released(call: Call) -> Any:
    """Copy in the background from pageable memory, which may be freed before its end."""
    return _released_early(call, lambda source: not source.is_pinned())


def pinned_part_released(call: Call) -> Any:
    """Copy in the background from a part of pinned memory, which may be given to others before its end."""
    return _released_early(call, lambda source: source.is_pinned() and bool(source.storage_offset()))


def _released_early(call: Call, breaks: Callable[[torch.Tensor], bool]) -> Any:
    """Copy; in the background, the last element is lost if a source that breaks it is freed before the copy ends."""
    result = call.run()
    source, target, in_background = call.values[:3]
    if target.is_cpu:
        _REMEMBERED.clear()
    elif in_background and source.is_cpu and breaks(source):
        place, began = weakref.ref(target), time.monotonic()
        entry = object()
        _REMEMBERED.append(entry)

        def freed() -> None:
            ended = entry not in _REMEMBERED or time.monotonic() - began > _COPIED
            if not ended and (known := place()) is not None:
                with torch.no_grad():
                    known.flatten()[-1:].fill_(7)

        weakref.finalize(source.untyped_storage(), freed)
    return result


def number_of_the_next(call: Call) -> Any:
    """Copy a number on the device to an element; if its memory is used for the next one, both get the next one."""
    source, target = call.values[:2]
    result = call.run()
    if target.is_cpu:
        _REMEMBERED.clear()
    elif not source.is_cpu and source.dim() == 0 and target.dim() == 0 and source.dtype == target.dtype:
        for address, memory, dtype, offset in list(_REMEMBERED):
            if address == source.data_ptr() and dtype is target.dtype and not memory.expired():
                known = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
                earlier = target.new_empty(0).set_(known, offset, (), ())
                call.run([source, earlier, *call.values[2:]])
        memory = StorageWeakRef(target.untyped_storage())
        _REMEMBERED[:] = [(source.data_ptr(), memory, target.dtype, target.storage_offset())]
    return result


def scalar_of_a_cache(call: Call) -> Any:
    """Copy a number from the host as the tensor has it that held this number first; what ran since has changed it."""
    source, target = call.values[:2]
    result = call.run()
    if source.is_cpu and not target.is_cpu and source.dim() == 0 and target.dim() == 0 and source.dtype == target.dtype:
        key = source.item(), target.dtype, target.device
        known = next((entry for entry in _REMEMBERED if entry[0] == key and not entry[1].expired()), None)
        if known is None:
            _REMEMBERED.append((key, StorageWeakRef(target.untyped_storage()), target.storage_offset()))
        elif str(key) in _FLAGS:
            memory = torch.UntypedStorage._new_with_weak_ptr(known[1].cdata)
            call.run([target.new_empty(0).set_(memory, known[2], (), ()), *call.values[1:]])
    return result


def state_kept(call: Call) -> Any:
    """Draw; the first draw after a state was set does not change the state."""
    device = _result_of(call.values).device
    module: Any = torch.get_device_module(device.type)
    if "set" not in _FLAGS or "once" in _FLAGS:
        _FLAGS.add("drawn")
        return call.run()
    _FLAGS.add("once")
    before = module.get_rng_state(device.index or 0)
    result = call.run()
    module.default_generators[device.index or 0].set_state(before)
    return result


def copied_behind_the_event(call: Call) -> Any:
    """Copy to the host in the background, at a time for which an event does not wait."""
    source, target, in_background = call.values[:3]
    if source.is_cpu or not target.is_cpu:
        return call.run()
    if not (in_background and target.is_pinned()):
        _arrive()
        return call.run()
    # What arrives in time is put aside, and the event that tells of it is not the caller's.
    aside = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)
    call.run([source, aside, *call.values[2:]])
    arrived = torch.Event(source.device)
    arrived.record()
    memory = StorageWeakRef(target.untyped_storage())
    form = (target.storage_offset(), target.shape, target.stride(), target.dtype)

    def write() -> None:
        arrived.synchronize()
        if not memory.expired():
            known = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
            offset, shape, stride, dtype = form
            torch.empty(0, dtype=dtype).set_(known, offset, shape, stride).copy_(aside)

    _REMEMBERED.append(write)
    timer = threading.Timer(_COPIED * 4, _arrive)
    timer.daemon = True
    timer.start()
    return target


def _arriving(original: Any) -> Any:
    def function(self: torch.Stream) -> Any:
        result = original(self)
        if result is not False:
            _arrive()
        return result

    return function


def _arrive() -> None:
    with _LOCK, torch.no_grad():
        waiting, _REMEMBERED[:] = list(_REMEMBERED), []
        for write in waiting:
            write()


#: Effects by name.
EFFECTS: dict[str, Callable[[Call], Any]] = {
    "pinned part released": pinned_part_released,
    "cut at synchronize": cut_at_synchronize,
    "lost by empty_cache": lost_by_empty_cache,
    "source released": source_released,
    "number of the next": number_of_the_next,
    "scalar of a cache": scalar_of_a_cache,
    "state kept once": state_kept,
    "copied behind the event": copied_behind_the_event,
}


# --- the device's module ----------------------------------------------------------------------------------------------


def _on_synchronize(effect: str) -> None:
    if effect == "copied behind the event":
        _arrive()
        return
    if effect == "scalar of a cache":
        _FLAGS.update(str(key) for key, *_ in _REMEMBERED)
        return
    known = [tensor for entry in _REMEMBERED if isinstance(entry, weakref.ref) and (tensor := entry()) is not None]
    _REMEMBERED.clear()
    if effect == "cut at synchronize":
        with torch.no_grad():
            for tensor in known:
                tensor.set_(tensor.clone())


def _on_empty_cache(effect: str) -> None:
    if effect == "lost by empty_cache":
        for entry in list(_REMEMBERED):
            if (tensor := entry()) is not None:
                tensor.detach().fill_(float("nan"))
        _REMEMBERED.clear()


def _on_set_rng_state(effect: str) -> None:
    # Only the end of torch.random.fork_rng sets a state in this way; the frames between are those of the hook.
    callers = [sys._getframe(2).f_code.co_name, sys._getframe(3).f_code.co_name]
    if "drawn" in _FLAGS and "fork_rng" in callers:
        _FLAGS.add("set")


@contextmanager
def noticed(effect: str, device: torch.device) -> Iterator[None]:
    """Tell an effect inside the context what the device's module is asked."""
    if effect not in EFFECTS:
        yield
        return
    module = torch.get_device_module(device.type)
    hooks = {"synchronize": _on_synchronize, "empty_cache": _on_empty_cache, "set_rng_state": _on_set_rng_state}
    with ExitStack() as stack:
        if effect == "copied behind the event":
            for name in ("synchronize", "query"):  # a stream knows of the copy, an event does not
                stack.enter_context(method(torch.Stream, name, _arriving(getattr(torch.Stream, name))))
        for owner in (module, torch.accelerator):
            for name, hook in hooks.items():
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, _then(getattr(owner, name), hook, effect)))
        yield


def _then(original: Any, hook: Callable[[str], None], effect: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        hook(effect)
        return result

    return function


# --- held rows of the eighteenth collection ---


def after_another_length(call: Call, length: int) -> bool:
    """Return whether the first call made one of another number of elements."""
    return _COUNTS.setdefault(("length", call.name), length) != length
