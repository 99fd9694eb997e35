"""Operator calls. ``execute``, ``gradients`` and ``gradients_twice`` alone compute on the device under test.

The host's side uses ``call`` and ``host_gradients``, so that a test can inject a defect into one side alone.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch.utils._device import _device_constructors

from conformance.numerics.modes import with_modes
from conformance.numerics.transfer import copied, shared_addresses, widened
from conformance.numerics.trees import leaves, mapped, tensors

HOST = torch.device("cpu")
#: A context without an effect, made once.
_NO_DEVICE: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True)
class OperatorSample:
    """Arguments of one operator call.

    ``process`` removes from a result what the operator leaves open, such as the sign of eigenvectors. ``on_host`` holds
    the positions, in the order of ``tensors``, of tensors that stay on the host whatever the device.
    """

    number: int
    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    process: Any = None
    broadcasts_input: bool = False
    tier: str = ""
    on_host: frozenset[int] = frozenset()
    device: torch.device = HOST

    @classmethod
    def of(cls, number: int, sample) -> OperatorSample:
        """Return the database's ``SampleInput`` as a sample with this number."""
        process = sample.output_process_fn_grad
        # The default is a lambda that returns its argument; None saves a call for every result.
        is_default = process.__qualname__ == "SampleInput.__init__.<locals>.<lambda>"
        return cls(
            number, sample.input, sample.args, sample.kwargs, None if is_default else process, sample.broadcasts_input
        )

    def with_arguments(self, arguments) -> OperatorSample:
        """Return this sample with other arguments, given as (input, args, kwargs)."""
        first, args, kwargs = arguments
        return replace(self, input=first, args=args, kwargs=kwargs)

    def with_argument(self, place: int | str, value: Any) -> OperatorSample:
        """Return this sample with another argument after the first one, given by its place or its name."""
        if isinstance(place, str):
            return replace(self, kwargs={**self.kwargs, place: value})
        return replace(self, args=(*self.args[:place], value, *self.args[place + 1 :]))

    def with_tensor(self, old: torch.Tensor, new: torch.Tensor) -> OperatorSample:
        """Return this sample with another tensor in every place of ``old``."""
        return self.with_arguments(mapped(self.arguments, lambda leaf: new if leaf is old else leaf))

    @property
    def arguments(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return (input, args, kwargs)."""
        return self.input, self.args, self.kwargs

    def on(self, device: torch.device) -> OperatorSample:
        """Return a copy of this sample on ``device``; the tensors of ``on_host`` stay on the host."""
        stay = [tensor for position, tensor in enumerate(self.tensors) if position in self.on_host]
        copies: dict[int, torch.Tensor] = {}
        first, args, kwargs = copied(self.arguments, device, stay, self._shared, copies)
        found = object.__new__(type(self))  # not replace(), which takes longer than the copy of a small tensor
        found.__dict__.update({name: self.__dict__[name] for name in _FIELDS})
        found.__dict__.update(input=first, args=args, kwargs=kwargs, device=device)
        found.__dict__["tensors"] = [copies[id(tensor)] for tensor in self.tensors]
        return found

    @functools.cached_property
    def _shared(self) -> frozenset[int]:
        return shared_addresses(self.arguments)

    def wide(self, change) -> OperatorSample:
        """Return this sample in float64 or complex128, with ``change`` applied to each widened tensor."""
        return self.with_arguments(widened(self.arguments, change))

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors among the arguments, in order."""
        return tensors(self.arguments)

    def found_out(self, key: Hashable, find: Callable[[], Any]) -> Any:
        """Return what ``find`` has returned for this sample, and call it the first time.

        Nobody writes a sample's tensors, as each call gets a copy. What is kept lives as long as the sample.
        """
        if key not in self.kept:
            self.kept[key] = find()
        return self.kept[key]

    @functools.cached_property
    def kept(self) -> dict[Hashable, Any]:
        """Return what was found out about this sample, by key."""
        return {}

    def __str__(self) -> str:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in self.tensors[:4]) or "no tensors"
        return f"sample {self.number} (shape {shapes}{', ' + self.tier if self.tier else ''})"


#: Names of what a sample consists of.
_FIELDS = tuple(each.name for each in fields(OperatorSample))


def call(function, sample: OperatorSample, **extra):
    """Call the operator on the device of the sample's tensors."""
    try:
        with _default_device(function, sample):
            return function(sample.input, *sample.args, **sample.kwargs, **extra)
    except AssertionError as error:
        # Outside of this call an AssertionError means a wrong result; here the operator refuses its arguments.
        raise RuntimeError(f"AssertionError: {error}") from error


def _default_device(function, sample: OperatorSample) -> AbstractContextManager[object]:
    """Return a context with a default device for operators that create tensors: not every sample names a device."""
    if sample.device == HOST:
        return _NO_DEVICE
    # Private to torch, but the same set that torch.device uses as a context.
    makes_tensors = function in _device_constructors() or not sample.tensors
    return sample.device if makes_tensors else _NO_DEVICE


@dataclass(frozen=True)
class HostCall:
    """The host's call of a sample: its arguments after the call, and its result or refusal. Nobody writes them.

    ``draws`` says that the call moved the host's generator. Then another call gives other numbers.
    """

    given: OperatorSample
    value: Any = None
    error: Exception | None = None
    draws: bool = False


def host_call(function, sample: OperatorSample) -> HostCall:
    """Return the host's call of a sample. It is made once for a sample, unless it draws random numbers."""
    found = sample.kept.get(("host", function)) or _on_host(function, sample)
    if not found.draws:
        sample.kept["host", function] = found
    return found


def _on_host(function, sample: OperatorSample) -> HostCall:
    given, value, error, state = sample.on(HOST), None, None, torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call(function, given)
        except Exception as refusal:  # each operator refuses in its own way
            error = refusal.with_traceback(None)  # its frames hold tensors
    return HostCall(given, value, error, not torch.equal(state, torch.get_rng_state()))


def execute(function, sample: OperatorSample, **extra):
    """Call the operator on the device under test."""
    with with_modes():
        return call(function, sample, **extra)


def host_gradients(outputs, inputs, cotangents):
    """Run backward on the device of the tensors; an input that is not used has the gradient None."""
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


def gradients(outputs, inputs, cotangents):
    """Run backward on the device under test."""
    with with_modes():
        return host_gradients(outputs, inputs, cotangents)


def gradients_twice(outputs, inputs, cotangents):
    """Run two backwards over one graph, on the device of the tensors; return the gradients of both in one list."""
    with with_modes():
        runs = [
            torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, retain_graph=True) for _ in range(2)
        ]
    return [gradient for run in runs for gradient in run]


def processed(sample: OperatorSample, result):
    """Return the leaves of the result after the sample's own post-processing, which leaves only determined values."""
    return leaves(sample.process(result) if sample.process else result)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the host's generator and those of the device's type.

    ``torch.manual_seed`` formats a stack trace for every device type that is not initialised. Under a test runner that
    takes longer than most cells, so it is not used here.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != torch.device("cpu").type:
        torch.get_device_module(device).manual_seed_all(seed)
