"""Members of ``torch.accelerator``, the ways to name a device to them, and the device that PyTorch really uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.judging.finding import environment_lacks


def member(name: str) -> Any:
    """Return the member of ``torch.accelerator``; skip the case if the installed torch has none of that name."""
    found = getattr(getattr(torch, "accelerator", None), name, None)
    if found is None:
        environment_lacks(f"torch {torch.__version__} has no torch.accelerator.{name}; install torch 2.13 or later")
    if not name.endswith("_idx"):
        return found
    return _quiet(found)


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without its warning: the old names warn that they are old, and still have to work."""

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return function(*args)

    return call


def used_device(device: torch.device) -> int:
    """Return the index of the device where PyTorch puts a new tensor: the current one, whatever any function says."""
    return torch.empty(0, device=device.type).device.index


def names_of(device: torch.device, index: int) -> dict[str, Any]:
    """Return the ways to name a device: a number, a torch.device and a string."""
    return {"a number": index, "a torch.device": torch.device(device.type, index), "a string": f"{device.type}:{index}"}


def indices(accelerator: Any) -> list[int]:
    """Return the indices of at most two devices."""
    return list(range(min(2, accelerator.device_count())))


@contextmanager
def selected(accelerator: Any, device: torch.device, index: int) -> Iterator[None]:
    """Make a device current through the vendor's module inside the context, and the one before it afterwards."""
    before = used_device(device)
    try:
        accelerator.set_device(index)
        assert used_device(device) == index, f"set_device({index}) leaves device {used_device(device)} current"
        yield
    finally:
        accelerator.set_device(before)


def check_names(name: str, read: Callable[..., Any], accelerator: Any, device: torch.device) -> None:
    """Check that each way to name a device gives one answer, and that no argument means the current device."""
    for index in indices(accelerator):
        with selected(accelerator, device, index):
            here = read()
            for way, spelled in {"None": None, **names_of(device, index)}.items():
                answer = read(spelled)
                assert answer == here, (
                    f"{name}() is {answer!r} for device {index} as {way}, and while it is current {here!r}"
                )
        for away in indices(accelerator):
            if away != index:
                with selected(accelerator, device, away):
                    answer = read(index)
                assert answer == here, (
                    f"{name}({index}) is {answer!r} while device {away} is current, and {here!r} otherwise"
                )


def check_refuses_others(name: str, call: Callable[..., Any]) -> None:
    """Check that a device of another type is refused."""
    try:
        answer = call(torch.device("meta", 0))
    except (ValueError, RuntimeError):
        return
    raise AssertionError(f"torch.accelerator.{name}() accepts a meta device and answers {answer!r}")
