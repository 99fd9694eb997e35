"""Files, locked memory, and kernels that move values: what arrives elsewhere, half, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from conformance.kernels import pinned_memory
from conformance.kernels.async_io import Handle, NativeHandle, operation
from conformance.kernels.async_io.engines import NativeEngine
from conformance.kernels.async_io.files import OpenFile
from conformance.kernels.async_io.operation import Transfer
from conformance.kernels.kernel import Kernel
from conformance.kernels.pinned_memory import PinHandle
from conformance.kernels.specification import Arguments
from conformance.kernels.specifications import random_ltd
from tests.defects.catalogue.kernels import FAMILY, around, kernel, refusal, with_numbers
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import constant, replaced

_FILES = ("ops.aio_handle.*", "ops.aio_read.*", "v1.nvme.*", "v1.pin_memory.swap_buffer")
_LOCKED = ("ops.pin_handle.*", "ops.aio_handle.locked", "v1.pin_memory.*")
_COPYBACK = "DeepSpeed's deepspeed_cpu_op.cpp: copied back for cuda, xpu and cpu alone"
_SILENT = "DeepSpeed's aio: -1, or an assert that a release leaves out"


def file(name: str, precedent: str, caught_by: str, context: Any) -> Mutant:
    return Mutant(Fault(name, FAMILY, precedent, Where.KERNEL, caught_by, context=context), _FILES, _FILES)


def locked(name: str, precedent: str, caught_by: str, context: Any) -> Mutant:
    return Mutant(Fault(name, FAMILY, precedent, Where.KERNEL, caught_by, context=context), _LOCKED, _LOCKED)


def moving(change: Callable[[int, int], tuple[int, int]]) -> Any:
    """The engine moves ``change(bytes, offset)`` and says that it moved what was asked."""

    def of(old: Any) -> Any:
        def move(self: Any, writes: bool, direct: int, plain: int, address: int, bytes_: int, offset: int) -> int:
            old(self, writes, direct, plain, address, *change(bytes_, offset))
            return bytes_

        return move

    return replaced(NativeEngine, move=of)


def _answering(old: Any) -> Any:
    """-1 for what cannot be done."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return old(*args, **kwargs)
        except Exception:
            return -1

    return call


def _of_contiguous(old: Any) -> Any:
    return lambda buffer: old(buffer.contiguous())


def unchecked(entry: str) -> Any:
    """The reference computes, whatever the arguments."""

    def of(old: Any) -> Any:
        def call(self: Kernel, *args: Any, **kwargs: Any) -> Any:
            if self.__name__ != entry or self.specification.reference is None:
                return old(self, *args, **kwargs)
            return self.specification.reference(*args, **kwargs)

        return call

    return replaced(Kernel, __call__=of)


def _claims_all(old: Any) -> Any:
    """Reads, and tells that the work of all is done; the next wait() has nothing to wait for."""
    return lambda self: old(self) if self._pending else 0


def _of_the_first(call: Any, given: Arguments) -> Any:
    """Whatever the ids say."""
    ids = given["sorted_indices"]
    first = torch.arange(ids.shape[-1], dtype=torch.int32, device=ids.device)
    return call({**given, "sorted_indices": first.expand_as(ids).contiguous()})


def _last_bytes_lost(call: Any, given: Arguments) -> Any:
    if not given["src"].numel():
        return call(given)
    return call({"dst": given["dst"].view(-1)[:-2], "src": given["src"].view(-1)[:-1]})


def _of_a_copy(call: Any, given: Arguments) -> Any:
    if isinstance(given["tensor"], torch.Tensor):
        return call({"tensor": given["tensor"].clone()})
    return call(given)


def _sharing() -> Any:
    """All locked tensors lie in the same memory."""
    shared: list[torch.Tensor] = []

    def of(old: Any) -> Any:
        def tensor(self: Any, elements: int, dtype: torch.dtype) -> torch.Tensor:
            shared[:] = shared or [old(self, 1 << 20, torch.uint8)]
            found: torch.Tensor = shared[0][: elements * dtype.itemsize].view(dtype)
            return found

        return tensor

    return replaced(pinned_memory._LockedMemory, tensor=of)


def _last_group_lost(call: Any, given: Arguments) -> Any:
    result = call(given)
    if given["mat_b"].dim() == 3 and given["offs"].numel() > 1:
        result[int(given["offs"][-2]) :] = 0
    return result


def _masked(call: Any, given: Arguments) -> Any:
    """Every row times every matrix, and zeros from a mask: 0 · NaN is NaN."""
    left, right, ends = given["mat_a"], given["mat_b"], given["offs"].tolist()
    if right.dim() == 2 or not ends:
        return call(given)
    total = torch.zeros(left.shape[0], right.shape[2], device=left.device)
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        mask = torch.zeros(left.shape[0], 1, device=left.device)
        mask[start:stop] = 1
        total = total + mask * (left.float().nan_to_num() @ right[group].float()) + 0 * left.float().sum(0).sum()
    return total.to(left.dtype)


def _behind_kept(call: Any, given: Arguments) -> Any:
    result = call(given)
    if given["mat_b"].dim() == 3:
        result[int(given["offs"][-1]) :] = float("nan")
    return result


_NO_LOCKS = SimpleNamespace(mlock=lambda address, size: 0, munlock=lambda address, size: 0)

_ASYNC_IO = (
    file("files are not copied back to the device", _COPYBACK, "ops.aio_handle.device_read[async]",
         replaced(Transfer, deliver=constant(None))),
    file("only the first blocks are moved", "defect class of queues", "ops.aio_handle.round_trip[*",
         moving(lambda bytes_, offset: (min(bytes_, 4 * 4096), offset))),
    file("the end of a file is not moved", "DeepSpeed's aio: sizes that are no multiples",
         "ops.aio_handle.odd_sizes[*", moving(lambda bytes_, offset: (bytes_ // 512 * 512, offset))),
    file("files begin at 0 whatever the offset", "defect class of queues", "ops.aio_handle.offsets[*",
         moving(lambda bytes_, offset: (bytes_, 0))),
    file("a device tensor is written before it is copied", _COPYBACK, "ops.aio_handle.device_write",
         replaced(operation, _on_the_host=lambda old: lambda buffer, writes: old(buffer, False))),
    file("wait() with nothing pending answers 0", _SILENT, "ops.aio_handle.pending",
         replaced(Handle, wait=_claims_all)),
    file("errors of files are numbers", _SILENT, "ops.aio_handle.refuses[*",
         replaced(Handle, sync_pread=_answering, async_pread=_answering, wait=_answering)),
    file("a buffer with gaps is read into a copy", "DeepSpeed: .contiguous() of a parameter",
         "ops.aio_handle.strided", replaced(operation, check_buffer=_of_contiguous)),
    file("files stay open", "DeepSpeed #8075, 3c3c68f7c", "ops.aio_handle.descriptors",
         replaced(OpenFile, close=constant(None))),
    file("a handle forgets its queue's depth", "defect class of queues", "ops.aio_handle.settings",
         replaced(NativeHandle, get_queue_depth=constant(128))),
    file("a single read that does nothing", _SILENT, "ops.aio_read.round_trip", around("aio_read", constant(0)(None))),
    kernel("a copy of bytes that loses the tail", "defect class of kernels", "deepspeed_memcpy",
           "[float32-inference-65537]", _last_bytes_lost),
)  # fmt: skip
_HOST_MEMORY = (
    locked("locked memory is not locked", "DeepSpeed 7dfa67aea", "ops.pin_handle.locked[*",
           replaced(pinned_memory, _libc=lambda old: lambda: _NO_LOCKS)),
    locked("all memory is locked", "DeepSpeed 7dfa67aea", "ops.pin_handle.told",
           replaced(PinHandle, is_pinned=constant(True))),
    locked("any memory is freed", "DeepSpeed 7dfa67aea", "ops.aio_handle.locked",
           replaced(PinHandle, free_cpu_locked_tensor=constant(True))),
    locked("no memory is locked", "DeepSpeed 7dfa67aea", "v1.pin_memory.swap_buffer",
           replaced(PinHandle, is_pinned=constant(False))),
    locked("locked tensors share their memory", "DeepSpeed #7805: ping-pong buffers", "v1.pin_memory.transfers",
           _sharing()),
    kernel("bytes that are a copy", "defect class of kernels", "cast_to_byte_tensor",
           ".property[float32-inference-memory]", _of_a_copy),
)  # fmt: skip
_TOKENS = (
    kernel("ids that stay unsorted", "defect class of kernels", "token_sort_", "[float32-training-2048]",
           lambda call, given: given["unsorted_token_ids"]),
    kernel("the first tokens are taken", "defect class of kernels", "token_gather", "[float32-training-batch-first]",
           _of_the_first),
    kernel("tokens are put back in another order", "defect class of kernels", "token_scatter_",
           "[bfloat16-training-batch-first]",
           lambda call, given: call({**given, "sorted_indices": given["sorted_indices"].flip(1)})),
    kernel("tokens are put into a copy", "defect class of kernels", "token_scatter_",
           "[float32-training-sequence-first]",
           lambda call, given: call({**given, "all_activations": given["all_activations"].clone()})),
    kernel("masks for the first tokens", "defect class of kernels", "mask_gather_bert", "[float16-training-33]",
           _of_the_first),
    kernel("masks that see what comes", "defect class of kernels", "mask_gather_gpt", "[float32-training-33]",
           lambda call, given: call(given).transpose(2, 3).contiguous()),
    refusal("ids beyond the sequence are read", "DeepSpeed's random-LTD: no check of ids",
            "ops.token_scatter_.refuses[float32-training-beyond]",
            replaced(random_ltd, _check_range=constant(None))),
)  # fmt: skip


def _by_sign_bit(given: Arguments) -> Any:
    return torch.where(given["tensor"].signbit(), -1.0, 1.0)


def _least_bit_first(call: Any, given: Arguments) -> Any:
    packed = call(given)
    return sum(((packed >> bit) & 1) << (7 - bit) for bit in range(8)) if packed.numel() else packed


_SIGNS = (
    kernel("the sign bit is taken for the sign", "DeepSpeed XPU packbits: −0.0 is packed as −1", "packbits",
           "[float32-training-9]", with_numbers(tensor=_by_sign_bit)),
    kernel("the least bit comes first", "defect class of kernels", "packbits", "[float32-training-1001]",
           _least_bit_first),
    kernel("signs of the whole tensor", "defect class of kernels", "packbits", "[float32-training-part]",
           with_numbers(numel=lambda given: given["tensor"].numel())),
    kernel("a bit comes back as 0 or 1", "defect class of kernels", "unpackbits", "[float32-training-256]",
           lambda call, given: call(given).clamp(min=0)),
    kernel("bits in the order of memory", "defect class of kernels", "unpackbits", "[float32-training-transposed]",
           with_numbers(packed=lambda given: given["packed"].t() if given["packed"].dim() == 2 else given["packed"])),
    refusal("more signs are packed than there are", "DeepSpeed XPU packbits: no check of the number",
            "ops.packbits.refuses[float32-training-numel-1002]", unchecked("packbits")),
)  # fmt: skip
_OTHERS = (
    kernel("a bias that is added twice", "defect class of kernels", "nhwc_bias_add", "[float16-inference-image]",
           lambda call, given: call({**given, "bias": given["bias"] * 2})),
    kernel("channels come first afterwards", "defect class of kernels", "nhwc_bias_add",
           ".property[float32-inference-layout]", lambda call, given: call(given).contiguous()),
    kernel("an image is added without its weight", "defect class of kernels", "nhwc_bias_add_add",
           "[float32-inference-image]", lambda call, given: call({**given, "other": given["other"] * 0})),
    kernel("the second bias is the first", "defect class of kernels", "nhwc_bias_add_bias_add",
           "[float32-inference-sequence]", lambda call, given: call({**given, "other_bias": given["bias"]})),
    refusal("channels first are read as last", "DeepSpeed's spatial kernels: an assert",
            "ops.nhwc_bias_add.refuses[float32-inference-input-format]",
            unchecked("nhwc_bias_add")),
    kernel("the last group is lost", "defect class of kernels", "grouped_mm", "[float16-training-experts]",
           _last_group_lost),
    kernel("rows behind the last group are what was there", "uninitialised memory", "grouped_mm",
           "[float32-training-behind]", _behind_kept),
    kernel("a group of NaN reaches all", "defect class of kernels", "grouped_mm",
           ".property[float32-training-alone]", _masked),
    refusal("groups that overlap are multiplied", "defect class of kernels",
            "ops.grouped_mm.refuses[float32-training-decreasing]", unchecked("grouped_mm")),
)  # fmt: skip

MUTANTS = (*_ASYNC_IO, *_HOST_MEMORY, *_TOKENS, *_SIGNS, *_OTHERS)
