"""``torch.save`` and ``torch.load``: a storage of the device is written with the location ``heron:0``."""

from __future__ import annotations

from typing import Any

import torch


class HeronStorage(torch.UntypedStorage):
    """Memory that belongs to the device, although it lies on the host."""

    @property
    def device(self) -> torch.device:
        return torch.device("heron", 0)

    def cpu(self) -> torch.UntypedStorage:
        return torch.UntypedStorage(self.nbytes()).copy_(self, False)


def storage_on_heron(storage: torch.UntypedStorage) -> HeronStorage:
    """Make a storage of the host one of the device; both classes have the same layout."""
    storage.__class__ = HeronStorage
    return storage


def reduce(held: torch.Tensor, requires_grad: bool) -> Any:
    """Return what ``torch.save`` writes for a tensor."""
    storage = torch.storage.TypedStorage(
        wrap_storage=storage_on_heron(held.untyped_storage()), dtype=held.dtype, _internal=True
    )
    metadata = {name: True for name, bit in (("conj", held.is_conj()), ("neg", held.is_neg())) if bit}
    arguments = (storage, held.storage_offset(), tuple(held.size()), held.stride(), requires_grad, {})
    return torch._utils._rebuild_tensor_v2, (*arguments, metadata) if metadata else arguments


def tag(storage: torch.UntypedStorage) -> str | None:
    return "heron:0" if isinstance(storage, HeronStorage) else None


def restore(storage: torch.UntypedStorage, location: str) -> HeronStorage | None:
    if not location.startswith("heron"):
        return None
    return storage_on_heron(storage)


# Before the host's entry, which has the priority 10.
torch.serialization.register_package(5, tag, restore)
