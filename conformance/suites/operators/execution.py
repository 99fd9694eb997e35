"""Where operators run. ``execute`` and ``gradients`` are the only places that compute on the device under test.

The host's side calls ``call`` and ``host_gradients``; so a defect can be injected into one side alone.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._device import _device_constructors

from conformance.numerics.transfer import copied, widened
from conformance.numerics.trees import leaves, tensors

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Sample:
    """One set of arguments. ``process`` removes what the operator leaves open, such as the sign of eigenvectors.

    ``on_host`` counts the tensors, in order, that the operator wants on the host whatever the device.
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
    def of(cls, number: int, sample) -> Sample:
        process = sample.output_process_fn_grad
        is_default = process.__qualname__ == "SampleInput.__init__.<locals>.<lambda>"
        return cls(
            number, sample.input, sample.args, sample.kwargs, None if is_default else process, sample.broadcasts_input
        )

    def with_arguments(self, arguments) -> Sample:
        first, args, kwargs = arguments
        return replace(self, input=first, args=args, kwargs=kwargs)

    @property
    def arguments(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        return self.input, self.args, self.kwargs

    def on(self, device: torch.device) -> Sample:
        stay = [tensor for position, tensor in enumerate(self.tensors) if position in self.on_host]
        first, args, kwargs = copied(self.arguments, device, stay)
        return replace(self, input=first, args=args, kwargs=kwargs, device=device)

    def wide(self, change) -> Sample:
        return self.with_arguments(widened(self.arguments, change))

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        return tensors(self.arguments)

    def __str__(self) -> str:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in self.tensors[:4]) or "no tensors"
        return f"sample {self.number} (shape {shapes}{', ' + self.tier if self.tier else ''})"


def call(function, sample: Sample, **extra):
    """Compute on the host, or wherever the sample's tensors are."""
    try:
        with _default_device(function, sample):
            return function(sample.input, *sample.args, **sample.kwargs, **extra)
    except AssertionError as error:
        # Here an assertion is the operator's own refusal, not our finding that its result is wrong.
        raise RuntimeError(f"AssertionError: {error}") from error


def _default_device(function, sample: Sample) -> AbstractContextManager[object]:
    """Operators that make tensors of nothing are told the device by a default: not every sample names one."""
    makes_tensors = function in _device_constructors() or not sample.tensors
    return sample.device if makes_tensors and sample.device != HOST else nullcontext()


def execute(function, sample: Sample, **extra):
    """Compute on the device under test."""
    return call(function, sample, **extra)


def host_gradients(outputs, inputs, cotangents):
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


def gradients(outputs, inputs, cotangents):
    """Run backward on the device under test."""
    return host_gradients(outputs, inputs, cotangents)


def processed(sample: Sample, result):
    """What is unique about the result: leaves after the sample's own post-processing."""
    return leaves(sample.process(result) if sample.process else result)
