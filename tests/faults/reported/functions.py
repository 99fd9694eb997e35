"""Reported bugs of PyTorch's functions and of autocast, which no kernel computes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import _tensor_str
from torch.utils._pytree import tree_leaves

from tests.faults.overriding import Call, has_kernel, overridden

Load = Callable[..., Any]


def _without_map_location(load: Load, _: str) -> Load:
    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        return load(f, **kwargs)

    return function


def _without_map_to_the_device(load: Load, device: str) -> Load:
    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == device:
            raise pickle.UnpicklingError(f"don't know how to restore data location of {device}")
        return load(f, map_location, **kwargs)

    return function


def _without_current_device(load: Load, device: str) -> Load:
    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and torch.device(map_location) == torch.device(device):
            map_location = torch.device(device, 0)
        return load(f, map_location, **kwargs)

    return function


def _without_index(load: Load, device: str) -> Load:
    def restored(storage: Any, location: str) -> Any:
        return torch.serialization.default_restore_location(storage, location.partition(":")[0])

    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        return load(f, restored if map_location is None else map_location, **kwargs)

    return function


def _on_the_first_device(load: Load, device: str) -> Load:
    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == device:
            current = torch.accelerator.current_device_index()
            if current and torch.device(map_location).index == current:
                map_location = torch.device(device, 0)
        return load(f, map_location, **kwargs)

    return function


def _mapped_alone(load: Load, device: str) -> Load:
    """Refuse what was saved on the device if nobody says where it is to go."""

    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        made = load(f, map_location, **kwargs)
        found = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        if map_location is None and any(each.device.type == device for each in found):
            raise pickle.UnpicklingError(f"don't know how to restore data location of {device}")
        return made

    return function


#: Effects on ``torch.load``.
LOADS: dict[str, Callable[[Load, str], Load]] = {
    "index forgotten": _without_index,
    "map_location ignored": _without_map_location,
    "map_location refused": _without_map_to_the_device,
    "refused without map_location": _mapped_alone,
    "current device ignored": _without_current_device,
    "on the first device in place of the current one": _on_the_first_device,
}


@contextmanager
def _rows_printed_as_zero(device: torch.device) -> Iterator[None]:
    """Print zeros for all matrices of a tensor but the first, if they do not fill a tile of 32 rows."""
    original = _tensor_str._str

    def function(self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        shown = self
        if self.device.type == device.type and self.dim() > 2 and self.shape[-2] % 32 and self.numel():
            with torch.no_grad():
                shown = self.detach().clone(memory_format=torch.contiguous_format)
                shown.view(-1, *self.shape[-2:])[1:] = 0
        return original(shown, *args, **kwargs)

    with mock.patch.object(_tensor_str, "_str", function):
        yield


@contextmanager
def _element_printed_from_the_start(device: torch.device) -> Iterator[None]:
    """Print the first element of memory for a tensor without dimensions that stands behind it."""
    original = _tensor_str._str

    def function(self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        shown = self
        if self.device.type == device.type and self.dim() == 0 and self.storage_offset():
            shown = self.detach().as_strided((), (), 0)
        return original(shown, *args, **kwargs)

    with mock.patch.object(_tensor_str, "_str", function):
        yield


#: Effects on printing.
PRINTS: dict[str, Callable[[torch.device], Any]] = {
    "later rows printed as zero": _rows_printed_as_zero,
    "element printed from the start": _element_printed_from_the_start,
}


@contextmanager
def _copied_to_the_host(device: torch.device) -> Iterator[None]:
    """Give a tensor of the host for a tensor of the device that Python copies."""
    original = copy.copy

    def function(x: Any) -> Any:
        made = original(x)
        return made.cpu() if isinstance(made, torch.Tensor) and made.device.type == device.type else made

    with mock.patch.object(copy, "copy", function):
        yield


@contextmanager
def _pickling_refused(device: torch.device) -> Iterator[None]:
    """Refuse to write the device's memory in the format that Python's pickle gets."""
    original = torch.UntypedStorage._write_file

    def function(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == device.type:
            raise RuntimeError(f"writeFileRaw: Device not recognized: {device.type}")
        return original(self, *args, **kwargs)

    with mock.patch.object(torch.UntypedStorage, "_write_file", function):
        yield


@contextmanager
def _deep_copies_on_the_first_device(device: torch.device) -> Iterator[None]:
    """Give a tensor of the first device for one of another device that Python copies with all its parts."""
    original = torch.Tensor.__deepcopy__

    def function(self: torch.Tensor, memo: Any) -> Any:
        made = original(self, memo)
        if self.device.type != device.type or not self.device.index:
            return made
        with torch.no_grad():
            made.data = made.data.to(torch.device(device.type, 0))
        return made

    with mock.patch.object(torch.Tensor, "__deepcopy__", function):
        yield


@contextmanager
def _taken_by_number_alone(device: torch.device) -> Iterator[None]:
    """Refuse to take other libraries' memory to the device if its number is not named."""
    original = torch.utils.dlpack.from_dlpack

    def function(ext_tensor: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
        place = torch.device(device) if isinstance(device, (str, torch.device)) else None
        if place is not None and place.type == kind and place.index is None:
            raise RuntimeError("The device index is out of range. It must be in [0, 1), but got -1.")
        return original(ext_tensor, device=device, **kwargs)

    kind = device.type
    with (
        mock.patch.object(torch, "from_dlpack", function),
        mock.patch.object(torch.utils.dlpack, "from_dlpack", function),
    ):
        yield


#: Effects on functions of Python that take tensors.
COPIES: dict[str, Callable[[torch.device], Any]] = {
    "copied to the host": _copied_to_the_host,
    "pickling refused": _pickling_refused,
    "deep copies on the first device": _deep_copies_on_the_first_device,
    "taken by number alone": _taken_by_number_alone,
}


@contextmanager
def loading(effect: str, device: torch.device) -> Iterator[None]:
    """Break ``torch.load`` inside the context."""
    other = LOADS[effect](torch.load, device.type)
    with mock.patch.object(torch, "load", other), mock.patch.object(torch.serialization, "load", other):
        yield


@contextmanager
def without_autocast(operator: str, device: torch.device, *, in_transforms: bool = False) -> Iterator[None]:
    """Leave the dtypes of an operator's tensors alone under autocast inside the context, or in torch.func's alone."""

    def behaviour(call: Call) -> Any:
        if in_transforms and torch._C._functorch.maybe_current_level() is None:
            return call.run()
        with torch.autocast(device.type, enabled=False):
            given = dict(zip([argument.name for argument in call.arguments], call.values, strict=True))
            only = {argument.name for argument in call.arguments if argument.kwarg_only}
            return getattr(torch.ops.aten, operator)(
                *[value for name, value in given.items() if name not in only],
                **{name: value for name, value in given.items() if name in only},
            )

    key = f"Autocast{torch._C._dispatch_key_for_device(device.type)}"
    every = torch._C._dispatch_get_all_op_names()
    names = [name for name in every if name.partition(".")[0] == f"aten::{operator}" and has_kernel(name, key)]
    with overridden(dict.fromkeys(names, behaviour), key):
        yield


# --- held rows of the sixteenth collection ---


@contextmanager
def _given_from_the_start(device: torch.device) -> Iterator[None]:
    """Give other libraries the start of a tensor's memory for its first element."""
    original = torch.Tensor.__dlpack__

    def function(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = self
        if self.device.type == device.type and self.storage_offset() and not self.requires_grad:
            given = self.as_strided(self.shape, self.stride(), 0)
        return original(given, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "__dlpack__", function):
        yield


COPIES["given from the start"] = _given_from_the_start


# --- held rows of the twentieth collection ---


@contextmanager
def _given_without_strides(device: torch.device) -> Iterator[None]:
    """Give other libraries a part with gaps as if it had none."""
    original = torch.Tensor.__dlpack__

    def function(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = self
        if self.device.type == device.type and not self.is_contiguous() and not self.requires_grad:
            dense = torch.empty(self.shape, device="meta").stride()
            memory = self.untyped_storage().nbytes() // self.element_size() - self.storage_offset()
            given = self.as_strided(self.shape, dense, self.storage_offset()) if memory >= self.numel() else self
        return original(given, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "__dlpack__", function):
        yield


COPIES["given without strides"] = _given_without_strides


# --- held rows of the twenty-third collection ---

#: Bytes from which what is loaded is lost.
_MEBIBYTE = 1 << 20


def _large_lost(load: Load, device: str) -> Load:
    """Give zeros for a file of a mebibyte or more that is loaded to the device."""

    def function(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        made = load(f, map_location, **kwargs)
        if isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == device:
            found = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
            if sum(each.nbytes for each in found) >= _MEBIBYTE:
                with torch.no_grad():
                    for each in found:
                        each.zero_()
        return made

    return function


LOADS["large files zero"] = _large_lost
