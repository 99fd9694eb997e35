"""The allocator and its numbers, pinned memory, copies between host and device."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant, on_device, replaced, result_of, spoiled

NUMBERS = ("accelerator.memory.*", "capabilities.memory.*", "profiling.memory.*", "profiling.oom.*",
           "accelerator.interface.*", "accelerator.stream.record_lets_go", "accelerator.effect.*",
           "workloads.*")  # fmt: skip
MEMORY_RUN = ("profiling.memory.*", "profiling.oom.*")
#: Everything that holds values in device memory.
VALUES = ("accelerator.*", "capabilities.*", "utils.*", "profiling.*")
COPIES = (
    "accelerator.dtype.*",
    "accelerator.memory.holds_values*",
    "capabilities.copy",
    "capabilities.dtype*",
    "utils.*",
)


def memory(name: str, family: str, precedent: str, caught_by: str, *touch: str, where: Where = Where.ALLOCATOR,
           also_run: tuple[str, ...] = MEMORY_RUN, peer_misses: bool = False, **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, family, precedent, where, caught_by, **fault), touch, also_run, peer_misses=peer_misses)


def copying(name: str, family: str, precedent: str, caught_by: str, *touch: str, also_run: tuple[str, ...] = (),
            peer_misses: bool = False, **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(
        Fault(name, family, precedent, Where.COPY, caught_by, **fault), touch, also_run, peer_misses=peer_misses
    )


def is_floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _quiet_nan(result: torch.Tensor, args: Any) -> None:
    if is_floating(result):
        result.masked_fill_(result.isnan(), float("nan"))


def _flush(result: torch.Tensor, args: Any) -> None:
    if is_floating(result):
        result.masked_fill_(result.abs() < torch.finfo(result.dtype).smallest_normal, 0.0)


def _unsigned_zero(result: torch.Tensor, args: Any) -> None:
    if is_floating(result):
        result.masked_fill_(result == 0, 0.0)


def _lose_tail(result: torch.Tensor, args: Any) -> None:
    if result.dim() == 1 and result.numel() > 64:
        result[result.numel() // 64 * 64 :] = 0


def _overrun(result: torch.Tensor, args: Any) -> None:
    end = result.storage_offset() + result.numel()
    if result.is_contiguous() and (end + 1) * result.itemsize <= result.untyped_storage().nbytes():
        result.as_strided((1,), (1,), end).fill_(0)


def _truncate(result: torch.Tensor, args: Any) -> torch.Tensor | None:
    """bfloat16 is the upper half of float32, without rounding."""
    source = args[0]
    if result.dtype is not torch.bfloat16 or source.dtype is not torch.float32:
        return None
    return source.contiguous().view(torch.int16).view(-1, 2)[:, 1].clone().view(torch.bfloat16).view(result.shape)


def _saturate(result: torch.Tensor, args: Any) -> torch.Tensor | None:
    return result.clamp(-65504.0, 65504.0) if result.dtype is torch.float16 and result.is_floating_point() else None


def _off_by_one(result: torch.Tensor, args: Any) -> torch.Tensor | None:
    """Casts from integers to float32 are one too large."""
    if result.dtype is torch.float32 and args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.int16:
        return result + 1
    return None


def _narrow(result: torch.Tensor, args: Any) -> torch.Tensor | None:
    return result.float() if result.dtype is torch.float64 else None


def _other_devices_get_zeros(call: Any, args: Any, kwargs: Any) -> Any:
    result = call(*args, **kwargs)
    source = args[1] if call.overloadpacket.__name__ == "copy_" else args[0]
    if on_device(result) and on_device(source) and result.device != source.device:
        result.zero_()
    return result


def _lands_on_current(call: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "sim":
        kwargs = {**kwargs, "device": torch.device("sim", torch.accelerator.current_device_index())}
    return call(*args, **kwargs)


def _gathered(call: Any, args: Any, kwargs: Any) -> Any:
    """Tensors of another device are moved silently to the first one's."""
    first = next((arg.device for arg in args if on_device(arg)), None)
    return call(*(arg.to(first) if on_device(arg) and arg.device != first else arg for arg in args), **kwargs)


def _wrong_size(call: Any, args: Any, kwargs: Any) -> Any:
    """A copy between shapes that do not fit copies what it can."""
    try:
        return call(*args, **kwargs)
    except RuntimeError:
        count = min(args[0].numel(), args[1].numel())
        args[0].flatten()[:count].copy_(args[1].flatten()[:count])
        return args[0]


def _without_dtype(old: Any) -> Any:
    """Loading widens 16-bit tensors."""

    def load(*args: Any, **kwargs: Any) -> Any:
        return _widened(old(*args, **kwargs))

    return load


def _widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _widened(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_widened(one) for one in value)
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


def _emptied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _emptied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_emptied(one) for one in value)
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def _first_row_only(call: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    if on_device(target) and target.dim() > source.dim() and target.numel():
        call(target[0], source, *args[2:], **kwargs)
        return target
    return call(*args, **kwargs)


class _Growing:
    """Answers with a GiB more at every call."""

    calls = 0

    def __call__(self, *args: Any) -> int:
        self.calls += 1
        return self.calls << 30


ALLOCATOR = (
    memory("peak memory is 0", "memory statistics negative or constant",
           "DeepSpeed cd20a3bbc: unbounded memory unnoticed", "accelerator.memory.peak", *NUMBERS,
           switches={"alloc_peak_constant": 0}, peer_misses=True),
    memory("allocated memory is 0", "memory statistics negative or constant", "defect class of memory accounting",
           "accelerator.memory.allocated_follows[*]", *NUMBERS, switches={"alloc_current_constant": 0}),
    memory("allocated memory is negative", "memory statistics negative or constant",
           "defect class of memory accounting", "accelerator.memory.*", *NUMBERS,
           switches={"alloc_current_constant": -1}),
    memory("reserved memory is 0", "memory statistics negative or constant", "defect class of memory accounting",
           "accelerator.memory.order", *NUMBERS, switches={"alloc_reserved_constant": 0}),
    memory("freed memory stays counted", "memory statistics negative or constant",
           "DeepSpeed 6eefc3d0e: a leak in I/O buffers", "accelerator.memory.freed", *NUMBERS, "accelerator.flags.*",
           switches={"alloc_free_uncounted": 1}),
    memory("memory is counted on device 0", "memory statistics per process", "defect class of memory accounting",
           "accelerator.memory.per_device", *NUMBERS, "accelerator.device.*", "accelerator.rng.*",
           "capabilities.device*", "capabilities.rng.state", switches={"alloc_on_device_zero": 1}),
    memory("empty_cache destroys live tensors", "empty_cache frees live memory", "defect class of caching allocators",
           "accelerator.memory.empty_cache_keeps_values", *VALUES, switches={"alloc_empty_cache_poisons_live": 1}),
    memory("empty_cache raises reserved memory", "memory statistics negative or constant",
           "defect class of caching allocators", "accelerator.memory.empty_cache_gives_back", *NUMBERS,
           context=accelerator(memory_reserved=lambda old: _reserved_after_empty,
                               empty_cache=lambda old: _empty_and_count)),
    memory("the device never runs out of memory", "out of memory goes unnoticed", "DeepSpeed cd20a3bbc",
           "profiling.oom.single", *NUMBERS, "accelerator.flags.backpressure", switches={"alloc_no_limit": 1}),
    memory("out of memory is a RuntimeError", "out of memory goes unnoticed", "defect class of error types",
           "profiling.oom.single", "capabilities.memory.oom", "profiling.oom.*",
           switches={"alloc_oom_runtime_error": 1}),
    memory("memory of live tensors is handed out", "in-place aliasing",
           "DeepSpeed 3e486febf: storage released too early", "accelerator.memory.*", *VALUES,
           switches={"alloc_hands_out_live": 1}),
    memory("total memory is in MiB", "memory statistics in a wrong unit", "defect class of memory accounting",
           "accelerator.memory.total", *NUMBERS,
           context=accelerator(total_memory=lambda old: lambda self, device_index=None: old(self) >> 20)),
    memory("more is available than there is", "memory statistics negative or constant",
           "defect class of memory accounting", "accelerator.memory.total", *NUMBERS,
           context=accelerator(available_memory=constant(1 << 60))),
    memory("available memory is constant", "memory statistics negative or constant",
           "defect class of memory accounting", "accelerator.memory.available_drops", *NUMBERS,
           context=accelerator(available_memory=constant(1 << 30))),
    memory("the peak cannot be reset", "memory statistics negative or constant", "DeepSpeed cd20a3bbc",
           "accelerator.memory.peak_reset[*]", *NUMBERS, members={"reset_peak_memory_stats": constant(None)}),
    memory("one of the two resets does nothing", "memory statistics negative or constant",
           "defect class of memory accounting", "accelerator.memory.peak_reset[reset_max_memory_allocated]", *NUMBERS,
           context=accelerator(reset_max_memory_allocated=constant(None))),
    memory("memory_stats is stale", "memory statistics negative or constant", "defect class of memory accounting",
           "accelerator.memory.stats", *NUMBERS,
           context=accelerator(memory_stats=lambda old: lambda self, device_index=None: dict.fromkeys(old(self), 0))),
    memory("memory_stats has other names", "memory statistics negative or constant",
           "defect class of memory accounting", "accelerator.memory.stats", *NUMBERS,
           context=accelerator(memory_stats=constant({"bytes": 0}))),
    memory("memory_cached is allocated memory", "memory statistics negative or constant",
           "DeepSpeed interface: two names, one number", "accelerator.memory.cached_is_reserved", *NUMBERS,
           context=accelerator(memory_cached=lambda old: lambda self, device_index=None: self.memory_allocated())),
    memory("memory_reserved only grows", "memory statistics negative or constant", "DeepSpeed cd20a3bbc",
           "accelerator.memory.*", *NUMBERS, context=accelerator(memory_reserved=lambda old: _Growing())),
    memory("record_stream does nothing", "stream order ignored",
           "DeepSpeed dac1525b3: record_stream missing in overlap_comm, NaN at step 3",
           "accelerator.stream.record_keeps_memory[whole]", "accelerator.stream.record_*", "capabilities.stream.record",
           where=Where.STREAM, also_run=(), switches={"record_stream_ignored": 1}),
    memory("recorded memory is never released", "memory statistics negative or constant", "DeepSpeed cd20a3bbc",
           "accelerator.stream.record_lets_go", "accelerator.stream.record_*", "capabilities.stream.record",
           where=Where.STREAM, also_run=(), context=replaced(torch.Tensor, record_stream=lambda old: _hoard)),
    memory("a resized storage loses its bytes", "in-place aliasing", "DeepSpeed 3e486febf: storage released too early",
           "utils.views.storage_grow", "utils.views.*", also_run=("utils.views.*",),
           switches={"storage_resize_loses_data": 1}),
)  # fmt: skip

_RAISED = {"bytes": 0}
_HOARD: list[torch.Tensor] = []


def _hoard(self: torch.Tensor, stream: Any) -> None:
    _HOARD.append(self)


def _empty_and_count(self: Any) -> None:
    _RAISED["bytes"] += 1 << 24


def _reserved_after_empty(self: Any, device_index: int | None = None) -> int:
    return int(torch.accelerator.memory_reserved()) + _RAISED["bytes"]


LATE = ("accelerator.pin.*", "capabilities.memory.pinned*", "utils.placement.non_blocking*")
COPY = (
    copying("copies to the host never arrive", "async copy returning early",
            "DeepSpeed 7dfa67aea: pinned offload read too early", "accelerator.pin.to_host", *LATE,
            also_run=("utils.placement.*",), switches={"copy_d2h_never": 1}),
    copying("copies to the device return early", "async copy returning early", "DeepSpeed 7dfa67aea",
            "accelerator.pin.to_device", *LATE, also_run=("utils.placement.*",), switches={"copy_h2d_poison": 1}),
    copying("copies ignore strides", "strides or storage offset ignored",
            "DeepSpeed 4e3acb1e3: aligned buffer, unaligned stride", "accelerator.dtype.copy_layouts[strided]", *COPIES,
            "accelerator.*", "capabilities.*", switches={"copy_ignores_strides": 1}),
    copying("copies ignore the storage offset", "strides or storage offset ignored", "DeepSpeed 4e3acb1e3",
            "accelerator.dtype.copy_layouts[offset]", *COPIES, "accelerator.*", "capabilities.*",
            switches={"copy_ignores_offset": 1}),
    copying(".item() drops the fraction", "wrong type promotion", "seen missed by a peer suite",
            "accelerator.dtype.item[float32]", "accelerator.*", "capabilities.*", switches={"item_truncates": 1},
            peer_misses=True),
    copying("copies change NaN payloads", "NaN in copies", "defect class of copies through registers",
            "accelerator.dtype.copy*", *COPIES,
            context=spoiled(_to_copy=result_of(_quiet_nan), copy_=result_of(_quiet_nan),
                                                               clone=result_of(_quiet_nan))),
    copying("copies flush subnormal numbers", "subnormals flushed", "defect class of copies through registers",
            "accelerator.dtype.copy_edges[*]", *COPIES,
            context=spoiled(_to_copy=result_of(_flush), copy_=result_of(_flush), clone=result_of(_flush))),
    copying("copies lose the sign of zero", "−0", "defect class of copies through registers",
            "accelerator.dtype.copy_edges[*]", *COPIES,
            context=spoiled(**dict.fromkeys(("_to_copy", "copy_", "clone"), result_of(_unsigned_zero)))),
    copying("the last tile is not copied", "last tile not computed",
            "DeepSpeed 11aa880ef: numel equal to the bucket never reduced", "accelerator.dtype.copy_sizes[*]", *COPIES,
            "accelerator.*",
            "capabilities.graph.*", context=spoiled(copy_=result_of(_lose_tail))),
    copying("copies write one element too many", "out-of-bounds write by one",
            "DeepSpeed 4e3acb1e3: padding into the next parameter", "accelerator.dtype.copy_sizes[*]", *COPIES,
            "accelerator.*", context=spoiled(copy_=result_of(_overrun))),
    copying("casts to bfloat16 truncate", "low-precision accumulation", "reductions that cut instead of rounding",
            "accelerator.dtype.cast_from_float32[bfloat16]", *COPIES, context=spoiled(_to_copy=result_of(_truncate))),
    copying("casts to float16 saturate", "integer overflow saturates",
            "DeepSpeed 1752c2ab6: wrong handling of overflow", "accelerator.dtype.cast_special[float16]", *COPIES,
            context=spoiled(_to_copy=result_of(_saturate))),
    copying("casts from int16 are off by one", "wrong type promotion", "defect class of casts",
            "accelerator.dtype.cast_to_float32[int16]", *COPIES, context=spoiled(_to_copy=result_of(_off_by_one))),
    copying("float64 becomes float32 silently", "wrong type promotion",
            "DeepSpeed 56005d2b2 and devices without float64", "accelerator.dtype.no_silent_change", "*",
            context=spoiled(zeros=result_of(_narrow), empty=result_of(_narrow))),
    copying("copies between devices give zeros", "set_device ignored", "defect class of peer copies",
            "accelerator.device.copies_between", "capabilities.device.multiple",
            context=spoiled(_to_copy=_other_devices_get_zeros, copy_=_other_devices_get_zeros)),
    copying("tensors land on the current device", "set_device ignored", "DeepSpeed #5464: two ranks on one card",
            "accelerator.device.tensor_index", "accelerator.*", "capabilities.*",
            context=spoiled(**dict.fromkeys(("empty", "zeros", "ones", "full", "_to_copy", "randn", "arange"),
                                            _lands_on_current))),
    copying("mixed devices are accepted", "set_device ignored", "defect class of peer access",
            "accelerator.device.mixed_devices_raise", context=spoiled(add=_gathered, mul=_gathered, mm=_gathered)),
    copying("copies of a wrong size write", "out= resized silently", "DeepSpeed 325c6c5e9: uneven shards",
            "accelerator.dtype.wrong_size_raises", context=spoiled(copy_=_wrong_size)),
    copying("checkpoints lose the dtype", "checkpoint loses dtype",
            "DeepSpeed: checkpoint loaded without float32 masters", "utils.checkpoint.dtypes[*]", "utils.checkpoint.*",
            "accelerator.dtype.*", also_run=("utils.checkpoint.*",), context=replaced(torch, load=_without_dtype)),
    copying("checkpoints come back as zeros", "checkpoint loses dtype",
            "DeepSpeed: checkpoint loaded without float32 masters", "capabilities.checkpoint", "utils.checkpoint.*",
            "accelerator.rng.state_saved", also_run=("utils.checkpoint.*",),
            context=replaced(torch, load=lambda old: lambda *args, **kwargs: _emptied(old(*args, **kwargs)))),
    copying("broadcasting copies write the first row", "size-0 broadcasting", "defect class of copies",
            "accelerator.dtype.copy_broadcast", *COPIES, "accelerator.*", "capabilities.*",
            context=spoiled(copy_=_first_row_only)),
    copying("zeros() keeps what was in memory", "in-place aliasing", "DeepSpeed 56005d2b2: uninitialised memory",
            "accelerator.memory.zero_filled", "accelerator.*", "capabilities.*",
            context=spoiled(zeros=result_of(lambda result, args: torch.full_like(result, 1)))),
    copying("optimizer state stays on the host", "optimizer state on the wrong device",
            "DeepSpeed aeb10bb1a: offloaded state dropped", "utils.checkpoint.optimizer",
            also_run=("utils.checkpoint.*",),
            context=replaced(torch.optim.Optimizer,
                             _process_value_according_to_param_policy=lambda old: _left_on_host)),
)  # fmt: skip


def _left_on_host(param: Any, value: torch.Tensor, param_id: int, param_groups: Any, key: Any = None) -> torch.Tensor:
    return value.cpu()


def pinning(name: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    what = Fault(
        name, "pinned flag false", "DeepSpeed 7dfa67aea: pinned buffers on by default", Where.COPY, caught_by, **fault
    )
    return Mutant(what, ("accelerator.pin.*", "capabilities.memory.pinned*", *touch), ("utils.placement.*",))


PINNED = (
    pinning("is_pinned is always True", "accelerator.pin.pageable_is_not_pinned", switches={"pin_flag": 1}),
    pinning("is_pinned is always False", "accelerator.pin.is_pinned", switches={"pin_flag": 0}),
    pinning("pin_memory gives pageable memory", "accelerator.pin.is_pinned", switches={"pin_pageable": 1}),
    pinning("pin_memory loses the shape", "accelerator.pin.values",
            context=accelerator(pin_memory=lambda old: lambda self, tensor, make_copy=True, match_shape=True:
                                old(self, tensor, make_copy, match_shape).flatten())),
    pinning("pin_memory clears its copy", "accelerator.pin.values",
            context=accelerator(pin_memory=lambda old: lambda self, tensor, make_copy=True, match_shape=True:
                                torch.zeros_like(old(self, tensor, make_copy, match_shape)))),
    pinning("pin_empty is not pinned", "accelerator.pin.empty",
            context=accelerator(pin_empty=lambda old: lambda self, *size, dtype, device="cpu":
                                torch.empty(*size, dtype=dtype))),
)  # fmt: skip

MUTANTS = (*ALLOCATOR, *COPY, *PINNED)
