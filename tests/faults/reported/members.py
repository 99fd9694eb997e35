"""Reported bugs of the members of the device's module and of ``torch.accelerator``, which no kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from conformance.accelerators.simulated.simulator import started


@contextmanager
def _counter_not_restored(device: torch.device) -> Iterator[None]:
    """Restore the seed of a generator's state, and start its numbers again."""
    module: Any = torch.get_device_module(device.type)
    set_rng_state = module.set_rng_state

    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        def set_state(self, new_state: torch.Tensor) -> Any:
            result = original.set_state(self, new_state)
            if self.device.type == device.type:
                self.manual_seed(self.initial_seed())
            return result

    def function(new_state: torch.Tensor, index: Any = device.index or 0) -> None:
        set_rng_state(new_state, index)
        at = index if isinstance(index, int) else torch.device(index).index or 0
        generator = module.default_generators[at]
        generator.manual_seed(generator.initial_seed())

    with mock.patch.object(torch, "Generator", Generator), mock.patch.object(module, "set_rng_state", function):
        yield


@contextmanager
def _empty_cache_refused(device: torch.device) -> Iterator[None]:
    """Refuse the function of all devices, and keep that of the device's module."""
    module: Any = torch.get_device_module(device.type)
    original = torch.accelerator.empty_cache

    def function() -> None:
        raise RuntimeError(f"Allocator for {device.type} is not a DeviceAllocator.")

    with (
        mock.patch.object(torch.accelerator, "empty_cache", function),
        mock.patch.object(module, "empty_cache", original),
    ):
        yield


@contextmanager
def _negative_times(device: torch.device) -> Iterator[None]:
    """Give each fifth time between two events the wrong sign."""
    core = started().core
    core.set_switch("event_elapsed_scale", -1.0)
    core.set_switch("where_every", 5.0)
    try:
        yield
    finally:
        core.clear_switches()


#: Effects by name.
EFFECTS: dict[str, Callable[[torch.device], Any]] = {
    "counter not restored": _counter_not_restored,
    "refused by torch.accelerator": _empty_cache_refused,
    "each fifth time negative": _negative_times,
}
