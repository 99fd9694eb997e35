"""What a direct call does: the same work on each device, in two kinds of streams, in two threads, some times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

#: How often a direct call repeats its work: faults act after 10 calls at the latest.
ROUNDS = 14
DEVICES = 2
#: Elements: enough that the device is busy for longer than a launch.
SIZE = 1 << 16


def module() -> Any:
    """Return ``torch.<device>`` of the simulated accelerator."""
    from conformance.accelerators.simulated.simulator import started

    return torch.get_device_module(started().profile.device)


def device(index: int) -> torch.device:
    """Return a device of the simulated accelerator."""
    from conformance.accelerators.simulated.simulator import started

    return torch.device(started().profile.device, index)


def everywhere(work: Callable[[int, torch.Stream], Any]) -> list[Any]:
    """Return what ``work(device, stream)`` gives for each device and kind of stream, in this thread and another."""
    found: list[Any] = []

    def run() -> None:
        for index in range(DEVICES):
            torch.accelerator.set_device_index(index)
            for stream in (module().default_stream(index), torch.Stream(device=device(index))):
                for _ in range(ROUNDS):
                    found.append(_ended(work, index, stream))
        torch.accelerator.set_device_index(0)

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def _ended(work: Callable[[int, torch.Stream], Any], index: int, stream: torch.Stream) -> Any:
    try:
        return work(index, stream)
    except Exception as error:
        return type(error).__name__
    finally:
        torch.accelerator.synchronize(0)
        torch.accelerator.synchronize(1)


def first(tensor: torch.Tensor) -> float:
    """Return the first element of a host tensor; NaN as -1, so that it equals itself."""
    value = float(tensor.reshape(-1)[0])
    return -1.0 if value != value else value


def written(index: int, stream: torch.Stream, value: float = 3.0) -> torch.Tensor:
    """Return a tensor that the stream is about to write."""
    with module().stream(stream):
        return torch.full((SIZE,), value, device=device(index))


def landing() -> torch.Tensor:
    """Return page-locked memory with known values."""
    return torch.zeros(SIZE).pin_memory()
