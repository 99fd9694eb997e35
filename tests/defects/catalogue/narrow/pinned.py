"""Page-locked host memory and the copies from and to it, wrong for one dtype, argument, size or order of calls."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import Call, accelerator, on_device, spoiled

PINNED = "DeepSpeed 7dfa67aea: pinned buffers on by default"
NARROW = "DeepSpeed 437226bf2: pin_memory's keyword dropped"
FLAG, EARLY = "pinned flag false", "async copy returning early"
PROBES = "capabilities.memory.pinned*"


def pinning(name: str, family: str, precedent: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, Where.COPY, caught_by, **fault), touch)


def _widening(old: Any) -> Any:
    def pin_memory(self: Any, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> Any:
        pinned = old(self, tensor, make_copy, match_shape)
        return pinned.float().pin_memory() if tensor.dtype is torch.float16 else pinned

    return pin_memory


def _flat_without_copy(old: Any) -> Any:
    return lambda self, tensor, make_copy=True, match_shape=True: old(
        self, tensor, make_copy, match_shape and make_copy
    )


def _unlocks_locked(old: Any) -> Any:
    """Pinning is a switch: what is pinned is pageable afterwards."""

    def pin_memory(self: Any, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> Any:
        if make_copy and tensor.is_pinned():
            return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        return old(self, tensor, make_copy, match_shape)

    return pin_memory


def _own_dtype(old: Any) -> Any:
    return lambda self, tensor, device="cpu", dtype=None: old(self, tensor, device)


def _head_only(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a large asynchronous copy the last megabyte is still under way after synchronize()."""
    result = call(*args, **kwargs)
    source = args[0]
    if kwargs.get("non_blocking") and on_device(result) and source.is_pinned() and result.nbytes > 1 << 23:
        result.view(-1)[-(1 << 20) // result.itemsize :] = 0
    return result


def _last_page_staged(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pageable memory goes through a staging buffer, whose last page is never sent."""
    result = call(*args, **kwargs)
    source = args[0]
    if kwargs.get("non_blocking") and on_device(result) and source.device.type == "cpu" and not source.is_pinned():
        result.view(-1)[-4096 // result.itemsize :] = 0
    return result


def _reusing(old: Any) -> Any:
    """A pinned buffer is handed out again as soon as its tensor is dropped, whoever still reads it."""
    buffers: dict[tuple[Any, ...], tuple[Any, torch.Tensor]] = {}

    def pin_memory(self: Any, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> Any:
        if not make_copy:
            return old(self, tensor, make_copy, match_shape)
        key = (tuple(tensor.shape), tensor.dtype)
        owner, memory = buffers.get(key, (None, None))
        if memory is None or owner() is not None:
            memory = old(self, tensor)
        else:
            memory.copy_(tensor)
        given = memory.view(memory.shape)
        buffers[key] = (weakref.ref(given), memory)
        return given

    return pin_memory


MUTANTS = (
    pinning("pin_memory widens float16", FLAG, PINNED, "accelerator.pin.values", PROBES,
            context=accelerator(pin_memory=_widening)),
    pinning("pin_memory without a copy loses the shape", FLAG, NARROW, "accelerator.pin.arguments",
            context=accelerator(pin_memory=_flat_without_copy)),
    pinning("tensors without elements are pinned", FLAG, PINNED, "accelerator.pin.pageable_is_not_pinned", PROBES,
            context=accelerator(is_pinned=lambda old: lambda self, tensor:
                                old(self, tensor) or (tensor.device.type == "cpu" and tensor.numel() == 0))),
    pinning("pinning twice unlocks", FLAG, PINNED, "accelerator.pin.is_pinned",
            context=accelerator(pin_memory=_unlocks_locked)),
    pinning("pin_empty_like ignores the dtype", FLAG, NARROW, "accelerator.pin.empty",
            context=accelerator(pin_empty_like=_own_dtype)),
    pinning("large asynchronous copies arrive without their end", EARLY, PINNED, "accelerator.pin.to_device", PROBES,
            context=spoiled(_to_copy=_head_only)),
    pinning("pinned buffers are reused at once", EARLY, "DeepSpeed a41729f6a: the buffer was rewritten before its "
            "collective had read it", "accelerator.pin.reuse", PROBES, context=accelerator(pin_memory=_reusing)),
    pinning("asynchronous copies of pageable memory lose their last page", EARLY, PINNED,
            "accelerator.pin.pageable_copies", "utils.placement.*", context=spoiled(_to_copy=_last_page_staged)),
)  # fmt: skip
