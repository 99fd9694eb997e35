"""Memory of a recorded run: each tensor is a view of a numbered memory, so that views and writes in place are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from conformance.numerics.compare import INTEGERS, same_bits
from conformance.numerics.transfer import memory_behind
from conformance.numerics.trees import mapped, tensors

#: The memory behind a tensor is read in one piece if it is at most so many times as large.
_MOST_BESIDE: Final = 2


@dataclass(slots=True)  # a frozen one takes four times as long to make, and each call of a run has several
class Place:
    """View of a memory: where the elements of one tensor lie."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conj: bool = False
    is_neg: bool = False


@dataclass(frozen=True)
class Constant:
    """Tensor that has no strided memory, such as a sparse one: a copy on the host stands for it."""

    tensor: torch.Tensor


@dataclass
class Memories:
    """Numbers of the memories of a run, and the bytes of those that the run was given.

    ``sizes`` has the bytes of every memory. ``given`` has the contents, on the host, of each memory that no recorded
    call has made, such as that of weights and of inputs.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    given: dict[int, torch.Tensor] = field(default_factory=dict)
    _known: dict[int, int] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)  # weak references
    _shapes: dict[torch.Size, torch.Size] = field(default_factory=dict)
    _strides: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def place(self, tensor: torch.Tensor, *, new: bool = False) -> Place | Constant:
        """Return the view that a tensor is. An unknown memory is ``new``, or its contents are copied now."""
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return Constant(tensor.detach().to("cpu", copy=True))
        storage = tensor.untyped_storage()
        number = self._known.get(storage._cdata)
        if number is None:
            number = self._new(tensor, storage, is_given=not new)
        elif (length := storage.nbytes()) > self.sizes[number]:
            self.sizes[number] = length
        size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
        # Equal ones are kept once: Python's search for garbage takes its time for each.
        size, stride = self._shapes.setdefault(size, size), self._strides.setdefault(stride, stride)
        is_conj = dtype.is_complex and tensor.is_conj()
        offset: Any = tensor.storage_offset()
        return Place(number, dtype, size, stride, offset, is_conj, tensor.is_neg())

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in a memory that has a number."""
        if tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._known

    def forget(self, tensor: torch.Tensor) -> None:
        """Let a memory count as a new one when it is read next, with the contents that it has then."""
        self._known.pop(tensor.untyped_storage()._cdata, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process can use: the addresses of this one mean nothing there."""
        return {**self.__dict__, "_known": {}, "_held": [], "_shapes": {}, "_strides": {}}

    def __del__(self) -> None:
        """Let the addresses of memories be used again."""
        for reference in self._held:
            torch.UntypedStorage._free_weak_ref(reference)  # type: ignore[no-untyped-call]  # torch has no types here

    def _new(self, tensor: torch.Tensor, storage: torch.UntypedStorage, *, is_given: bool) -> int:
        number = len(self.sizes)
        self.sizes[number] = storage.nbytes()
        # A weak reference keeps the address of a freed memory from being used again, and frees the memory.
        self._held.append(storage._weak_ref())
        self._known[storage._cdata] = number
        if is_given:
            self.given[number] = _bytes(tensor.detach())
        return number


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the whole memory behind a tensor, on the host."""
    plain = tensor.conj() if tensor.is_conj() else tensor
    plain = torch._neg_view(plain) if plain.is_neg() else plain
    if plain.is_meta or not plain.untyped_storage().nbytes():
        return torch.empty(0, dtype=torch.uint8)
    return to_host(_whole(plain)).view(torch.uint8)


def _whole(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the whole memory behind a tensor as a vector; where possible without a view, which may be wrong."""
    dtype = dtype or tensor.dtype
    length = tensor.untyped_storage().nbytes() // dtype.itemsize
    try:
        empty = torch.empty(0, dtype=dtype, device=tensor.device)
        return empty.set_(tensor.untyped_storage(), 0, (length,), (1,))
    except (RuntimeError, NotImplementedError, TypeError):  # a device may have no such call
        return memory_behind(tensor)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host.

    It is written over zeros. So a device whose copies let the old contents of their target show is read as one with
    right copies, and only its own copies are wrong. For the same reason numbers are read as integers of their size.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.to("cpu", copy=True)
    found = torch.empty_like(tensor, device="cpu")
    if tensor.device.type == "cpu" or (whole := _as_integers(tensor)) is None:
        return found.zero_().copy_(tensor)
    memory = torch.empty_like(whole, device="cpu").zero_().copy_(whole)
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    numbers = memory.view(torch.uint8)[: length * tensor.element_size()].view(tensor.dtype)
    return found.copy_(numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))


def _as_integers(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the memory behind a tensor as integers; None if most of it is another's, or no call makes that."""
    if not tensor.is_floating_point() or tensor.is_conj() or tensor.is_neg() or type(tensor) is not torch.Tensor:
        return None
    if tensor.untyped_storage().nbytes() > _MOST_BESIDE * tensor.numel() * tensor.element_size():
        return None
    whole = _whole(tensor, INTEGERS.get(tensor.element_size(), torch.uint8))
    return None if whole.is_floating_point() else whole


def is_misread(right: torch.Tensor, device: torch.device) -> bool:
    """Return whether numbers of the host that were brought to a device are read there as other ones."""
    if right.is_floating_point():
        right = right.contiguous().view(INTEGERS.get(right.element_size(), torch.uint8))
    return not same_bits(to_host(right.to(device)), right)


def fetched(value: Any) -> Any:
    """Return a deep copy of arguments on the host; strides, offsets and shared memory are kept."""
    counts = Counter(_address(tensor) for tensor in {id(tensor): tensor for tensor in tensors(value)}.values())
    memories: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    copies: dict[int, torch.Tensor] = {}

    def leaf(found: Any) -> Any:
        if isinstance(found, torch.device):
            return torch.device("cpu")
        if not isinstance(found, torch.Tensor):
            return found
        if id(found) not in copies:
            copies[id(found)] = copy(found.detach())
        return copies[id(found)]

    def copy(source: torch.Tensor) -> torch.Tensor:
        if source.is_conj():
            return copy(source.conj()).conj()
        if source.is_neg():
            return torch._neg_view(copy(torch._neg_view(source)))
        address = _address(source)
        if source.layout is not torch.strided or (source.is_contiguous() and counts[address] == 1):
            return to_host(source)
        if (address, source.dtype) not in memories:
            memories[address, source.dtype] = to_host(_whole(source))
        return memories[address, source.dtype].as_strided(source.shape, source.stride(), source.storage_offset())

    return mapped(value, leaf)


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else -id(tensor)


class HostMemories:
    """Memories of one replay, on the host. They come to exist at their first use."""

    def __init__(self, recorded: Memories) -> None:
        self._recorded = recorded
        self._bytes: dict[int, torch.Tensor] = {}

    def view(self, place: Place | Constant) -> torch.Tensor:
        """Return the tensor at a place; writing to it writes to the memory."""
        if isinstance(place, Constant):
            return place.tensor
        found = torch.empty(0, dtype=place.dtype)
        found.set_(self._memory(place.memory).untyped_storage(), place.offset, place.size, place.stride)
        found = found.conj() if place.is_conj else found
        return torch._neg_view(found) if place.is_neg else found

    def _memory(self, number: int) -> torch.Tensor:
        found = self._bytes.get(number)
        if found is None:
            given, size = self._recorded.given.get(number), self._recorded.sizes[number]
            found = torch.zeros(size, dtype=torch.uint8)
            if given is not None:
                found[: len(given)] = given
            self._bytes[number] = found
        return found

    def free(self, number: int) -> None:
        """Forget a memory that no later call uses."""
        self._bytes.pop(number, None)
