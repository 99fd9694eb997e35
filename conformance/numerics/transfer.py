"""Deep copies of tensors across devices and precisions. Strides and shared memory are kept."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .layout import lies_in_order, storage_address
from .modes import with_modes
from .trees import PLAIN_TYPES, mapped, tensors

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached, strided copy on the host as a plain tensor of PyTorch's; a plain host tensor itself."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.device.type != "cpu":
        with with_modes():
            tensor = tensor.cpu()
    if type(tensor) is torch.Tensor:
        return tensor
    # The comparison reads bits. A wrapper answers with its own functions, which may not have what it needs.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    copy.copy_(tensor)  # its result is not used: it may be of the wrapper's type
    return copy


def copied(
    value: Any,
    device: torch.device,
    on_host: Iterable[torch.Tensor] = (),
    shared: frozenset[int] | None = None,
    copies: dict[int, torch.Tensor] | None = None,
) -> Any:
    """Return a deep copy with its tensors, device arguments and generators on ``device``.

    Tensors in ``on_host`` stay on the host, and ``meta`` tensors stay ``meta``. A tensor that is used twice is copied
    once. Tensors that share memory share it in the copy. ``shared`` is what ``shared_addresses`` has said of the value.
    ``copies`` gets the copy of each tensor, by the id of the tensor.
    """
    known = shared_addresses(value) if shared is None else shared
    copier = _Copier(device, known, frozenset(map(id, on_host)), {} if copies is None else copies)
    if device.type in ("cpu", "meta"):
        return mapped(value, copier.leaf)
    with with_modes():
        return mapped(value, copier.leaf)


def shared_addresses(value: Any) -> frozenset[int]:
    """Return the addresses of memory that several tensors share."""
    distinct = {id(tensor): tensor for tensor in tensors(value)}
    if len(distinct) < 2:
        return frozenset()
    counts = Counter(storage_address(tensor) for tensor in distinct.values())
    return frozenset(address for address, count in counts.items() if address and count > 1)


class NotLaidOut(RuntimeError):
    """The device refuses a view by which a copy would get its layout, or its bytes; cases about views tell of it."""


class _Copier:
    """Copier of leaves that copies each tensor and each shared memory once."""

    def __init__(
        self,
        device: torch.device,
        shared: frozenset[int],
        on_host: frozenset[int],
        copies: dict[int, torch.Tensor],
    ) -> None:
        self._device, self._shared, self._on_host, self._tensors = device, shared, on_host, copies
        self._memory: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def leaf(self, leaf: Any) -> Any:
        """Return the copy of one leaf."""
        if type(leaf) in PLAIN_TYPES:
            return leaf
        if not isinstance(leaf, torch.Tensor):
            return _moved_argument(leaf, self._device)
        known = self._tensors.get(id(leaf))
        if known is None:
            stays = leaf.is_meta or id(leaf) in self._on_host
            known = leaf.detach().clone() if stays else self._copy(leaf.detach())
            known = self._tensors[id(leaf)] = known.requires_grad_() if leaf.requires_grad else known
        return known

    def _copy(self, source: torch.Tensor) -> torch.Tensor:
        # as_strided, below, knows neither sparse layouts nor lazy bits.
        if source.is_conj():
            lazy = self._copy(source.conj()).conj()
            return lazy if lazy.is_conj() else self._copy(source.resolve_conj())
        if source.is_neg():
            # A device without lazy bits, such as one of Python wrappers, gets the values in memory.
            if source.is_complex() or has_lazy_negation(self._device):
                lazy = torch._neg_view(self._copy(torch._neg_view(source)))
                if lazy.is_neg():
                    return lazy
            return self._copy(source.resolve_neg())
        if source.layout is not torch.strided:
            return self._moved(source)
        is_plain = lies_in_order(source) and not is_first_part(source)
        if is_plain and not self._shared:
            return self._moved(source)
        address = storage_address(source)
        if is_plain and address not in self._shared:
            return self._moved(source)
        memory = self._memory.get((address, source.dtype)) if address else None
        if memory is None:
            memory = self._moved(memory_behind(source))
        if address:
            self._memory[address, source.dtype] = memory
        return _laid_out(memory, source)

    def _moved(self, source: torch.Tensor) -> torch.Tensor:
        if source.dtype is torch.bool and source.layout is torch.strided and has_other_bytes(source):
            # A copy of truth values may write bytes of 1.
            return _truths(self._moved(source.view(torch.uint8)))
        return source.clone() if self._device.type == "cpu" else source.to(self._device, copy=True)


def _laid_out(memory: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the view of copied memory that a tensor was of its own; raise NotLaidOut if the device refuses it."""
    try:
        return memory.as_strided(source.shape, source.stride(), source.storage_offset())
    except Exception as error:
        raise NotLaidOut("as_strided is refused, so no input has strides of its own") from error


def _truths(memory: torch.Tensor) -> torch.Tensor:
    """Return bytes as truth values; raise NotLaidOut if the device refuses that, or refuses to read them."""
    try:
        truths = memory.view(torch.bool)
        to_host(truths)  # some devices refuse a view when it is read
    except Exception as error:
        raise NotLaidOut("a view of bytes as truth values is refused") from error
    return truths


def has_other_bytes(truths: torch.Tensor) -> bool:
    """Return whether some truth values on the host have bytes other than 0 and 1."""
    return truths.numel() > 0 and truths.device.type == "cpu" and bool(truths.view(torch.uint8).max() > 1)


@functools.cache
def has_lazy_negation(device: torch.device) -> bool:
    """Return whether a lazily negated tensor of real numbers can come to exist on the device.

    Only the imaginary part of a conjugated complex tensor is one. PyTorch has no other public function that makes it.
    """
    try:
        return torch.zeros(1, dtype=torch.complex64, device=device).conj().imag.is_neg()
    except Exception:  # noqa: BLE001  a backend raises what it likes; cases of complex dtypes tell of it
        return False


def is_first_part(source: torch.Tensor) -> bool:
    """Return whether a dense tensor has memory behind it, as the first row of a table has."""
    return 0 < source.numel() * source.element_size() < source.untyped_storage().nbytes()


def memory_behind(source: torch.Tensor) -> torch.Tensor:
    """Return the whole memory behind a view as a vector."""
    length = source.untyped_storage().nbytes() // source.element_size()
    return source.as_strided((length,), (1,), 0)


def copied_with_memory(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy on the device with the strides and the offset of a host tensor: plain copies may be contiguous.

    The offset counts from the beginning of the copied memory, which may have an offset in the device's storage.
    A device that refuses such a view, of which other cases tell, gets a plain copy.
    """
    memory = memory_behind(source).to(device, copy=True)
    try:
        return memory.as_strided(source.shape, source.stride(), memory.storage_offset() + source.storage_offset())
    except Exception:  # noqa: BLE001  a backend raises what it likes
        return source.to(device, copy=True)


def _moved_argument(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
        return device
    if isinstance(leaf, torch.Generator) and device.type != "cpu":
        return torch.Generator(device).manual_seed(leaf.initial_seed())
    return leaf


def widened(value: Any, change: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> Any:
    """Return a deep copy in float64 or complex128, dtype arguments included.

    ``change`` is applied to every floating-point or complex tensor of the copy.
    """
    memo: dict[int, torch.Tensor] = {}

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return WIDER.get(leaf, leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in memo:
            memo[id(leaf)] = _widen_tensor(leaf, change)
        return memo[id(leaf)]

    return mapped(value, convert)


def _widen_tensor(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    copy = tensor.detach().to(WIDER.get(tensor.dtype, tensor.dtype), copy=True)
    if copy.dtype.is_floating_point or copy.dtype.is_complex:
        copy = change(copy)
    return copy.requires_grad_() if tensor.requires_grad else copy
