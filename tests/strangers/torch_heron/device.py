"""``torch.heron``: one device, which computes synchronously."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: torch.utils.checkpoint saves the random numbers of initialized devices only.
_initialized = True
_generator: torch.Generator | None = None
_ahead_of_first_use: list[Any] = []


def _own_generator() -> torch.Generator:
    """Return the device's generator, which is created at its first use."""
    global _generator
    if _generator is None:
        _generator = torch.Generator()
        _generator.manual_seed(torch.initial_seed())
    return _generator


# --- devices --------------------------------------------------------------------------------------------------------


def is_initialized() -> bool:
    return True


def is_available() -> bool:
    return True


def init() -> None:
    """Do nothing: there is no driver."""


def _lazy_init() -> None:
    init()


def _lazy_call(callback: Any) -> None:
    callback()


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def _index(device: Any) -> int:
    """Return the index of a device, an integer, a name or None; raise for a device that is not here."""
    if device is None:
        return 0
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "heron":
            raise ValueError(f"Expected a heron device, but got: {device}")
        device = device.index or 0
    if device not in (0, -1):
        raise RuntimeError(f"invalid device ordinal: heron:{device}; there is one heron device")
    return 0


def set_device(device: Any) -> None:
    _index(device)


class device(object):  # noqa: UP004 - the name that every device module has
    """Context manager that selects a device."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


def synchronize(device: Any = None) -> None:
    """Return at once: every operator is complete when its call returns."""
    _index(device)


def get_device_name(device: Any = None) -> str:
    _index(device)
    return "Heron (Python)"


def get_device_capability(device: Any = None) -> tuple[int, int]:
    _index(device)
    return (1, 0)


class _Properties:
    def __init__(self) -> None:
        self.name = get_device_name()
        self.major, self.minor = get_device_capability()
        self.total_memory = _total_memory()
        self.multi_processor_count = os.cpu_count() or 1


def get_device_properties(device: Any = None) -> _Properties:
    _index(device)
    return _Properties()


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


# --- random numbers -------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    _own_generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    manual_seed(seed)


def seed() -> int:
    return _own_generator().seed()


def seed_all() -> int:
    return seed()


def initial_seed() -> int:
    return _own_generator().initial_seed()


def get_rng_state(device: Any = "heron") -> torch.Tensor:
    _index(device)
    return _own_generator().get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state(new_state: torch.Tensor, device: Any = "heron") -> None:
    _index(device)
    _own_generator().set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for state in new_states:
        set_rng_state(state)


@contextmanager
def _random_numbers() -> Iterator[None]:
    """Let the host's default generator continue the device's sequence inside the block."""
    own = _own_generator()
    host = torch.default_generator
    before = host.get_state()
    host.set_state(own.get_state())
    try:
        yield
    finally:
        own.set_state(host.get_state())
        host.set_state(before)


# --- memory ---------------------------------------------------------------------------------------------------------


class _Block:
    """Memory of one storage. It is counted until the storage is gone."""

    __slots__ = ("__weakref__", "size")

    def __init__(self, size: int) -> None:
        self.size = 0
        self.resize(size)

    def resize(self, size: int) -> None:
        with _memory_lock:
            _memory["allocated"] += size - self.size
            _memory["peak"] = max(_memory["peak"], _memory["allocated"])
        self.size = size

    def __del__(self) -> None:
        _memory["allocated"] -= self.size


_memory_lock = threading.RLock()
_memory = {"allocated": 0, "peak": 0}
_blocks: weakref.WeakValueDictionary[int, _Block] = weakref.WeakValueDictionary()


def _block_of(tensor: torch.Tensor) -> _Block:
    """Return the block in which a tensor of the host lies; tensors with one storage share their block."""
    storage = tensor.untyped_storage()
    # The address of the storage object, and not of the memory: an empty tensor has none.
    key, size = storage._cdata, storage.nbytes()
    block = _blocks.get(key)
    if block is None:
        block = _blocks[key] = _Block(size)
    elif block.size != size:
        block.resize(size)
    return block


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and the total bytes."""
    _index(device)
    total = _total_memory()
    return total - _memory["allocated"], total


def memory_allocated(device: Any = None) -> int:
    _index(device)
    return _memory["allocated"]


def max_memory_allocated(device: Any = None) -> int:
    _index(device)
    return _memory["peak"]


def memory_reserved(device: Any = None) -> int:
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    _index(device)
    _memory["peak"] = _memory["allocated"]


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_reserved = reset_peak_memory_stats


def empty_cache() -> None:
    """Do nothing: freed memory returns to the system at once."""


def memory_stats(device: Any = None) -> dict[str, int]:
    _index(device)
    now, peak = _memory["allocated"], _memory["peak"]
    return {
        f"{kind}_bytes.all.{when}": value
        for kind in ("allocated", "reserved")
        for when, value in (("current", now), ("peak", peak))
    }
