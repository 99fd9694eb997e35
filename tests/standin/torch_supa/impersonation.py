"""Makes ``torch.cuda`` answer for the vendor's device, so that code written for CUDA runs.

This is why nobody may conclude from ``torch.cuda.is_available()`` that there is a CUDA device.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

#: What is answered. Everything else is left to PyTorch, and says that this torch was built without CUDA.
ANSWERED = (
    "is_available",
    "device_count",
    "current_device",
    "set_device",
    "synchronize",
    "get_device_name",
    "get_device_capability",
    "is_bf16_supported",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "mem_get_info",
    "empty_cache",
    "Stream",
    "Event",
    "stream",
    "current_stream",
    "default_stream",
    # PyTorch's compiler and checkpoints keep CUDA's random numbers wherever CUDA says that it is available.
    "manual_seed",
    "manual_seed_all",
    "seed",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
)


@dataclass(frozen=True)
class Properties:
    """What ``torch.cuda.get_device_properties`` tells. A torch built without CUDA takes any GPU for AMD's."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    gcnArchName: str = "supa"


def answer_for(cuda: ModuleType, device: ModuleType) -> None:
    """Replace the functions of ``cuda`` with those of ``device``."""

    def get_device_properties(which: Any = None) -> Properties:
        own = device.get_device_properties(which)
        return Properties(own.name, own.total_memory, own.major, own.minor, own.multi_processor_count)

    for name in ANSWERED:
        setattr(cuda, name, getattr(device, name))
    cuda.get_device_properties = get_device_properties
    # Distributed checkpoints copy tensors of this device type to the host. It must not become "cuda", also in modules
    # that were imported before.
    for module in list(sys.modules.values()):
        if "_get_available_device_type" in getattr(module, "__dict__", {}):
            module._get_available_device_type = lambda: "supa"
