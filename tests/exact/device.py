"""A device whose functions are correctly rounded: it computes on the host, then replaces what mpmath can evaluate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from conformance.numerics.functions import FUNCTIONS, exact, exact_derivative, rounded
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.checks import kernels

#: Significant bits and exponent of the smallest subnormal number.
FORMATS = {torch.float32: (24, -149), torch.float64: (53, -1074)}


def nearest(value: Any, dtype: torch.dtype) -> float:
    """Round once: infinite beyond the format's range."""
    number = rounded(value, *FORMATS[dtype])
    return math.copysign(math.inf, number) if abs(number) > torch.finfo(dtype).max else number


@dataclass
class ExactDevice:
    """Calls of one operator. ``replaced`` counts the elements that mpmath has computed, so that a test can ask."""

    name: str
    replaced: int = 0
    _last: tuple[list[torch.Tensor], dict[str, Any], list[int]] | None = field(default=None, repr=False)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            mock.patch.object(execution, "execute", self.execute),
            mock.patch.object(execution, "gradients", self.gradients),
        ):
            yield

    def execute(self, function: Any, sample: Call, **extra: Any) -> Any:
        if isinstance(function, (torch._ops.OpOverload, kernels.Into)):
            return execution.call(function, sample, **extra)  # a kernel of the backward is another function
        self._last = arguments = self._arguments(sample)
        result = execution.call(function, sample, **extra)
        if arguments is not None and isinstance(result, torch.Tensor):
            self._replace(result, arguments, lambda at, keywords: exact(self.name, at, keywords))
        return result

    def gradients(self, outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        if self._last is None or len(cotangents) != 1:
            return found
        _, _, ids = self._last
        for gradient, tensor in zip(found, inputs, strict=True):
            if (
                gradient is None
                or gradient._is_zerotensor()
                or ids.count(id(tensor)) != 1
                or gradient.shape != cotangents[0].shape
            ):
                continue
            by, seed = ids.index(id(tensor)), iter(cotangents[0].double().reshape(-1).tolist())

            def value(at: Any, keywords: Any, by: int = by, seed: Iterator[float] = seed) -> Any:
                slope, factor = exact_derivative(self.name, at, keywords, by), next(seed)
                # mpmath computes finite numbers only: what NaN and infinities give is the host's.
                return None if slope is None or not math.isfinite(factor) else slope * factor

            self._replace(gradient, self._last, value)
        return found

    def _arguments(self, sample: Call) -> tuple[list[torch.Tensor], dict[str, Any], list[int]] | None:
        passed = [sample.input, *sample.args]
        if sample.process is not None or not all(isinstance(a, (int, float, torch.Tensor)) for a in passed):
            return None
        if any(isinstance(value, torch.Tensor) for value in sample.kwargs.values()):
            return None
        wide = [torch.as_tensor(argument, dtype=torch.float64).detach() for argument in passed]
        try:
            shaped = [tensor.clone() for tensor in torch.broadcast_tensors(*wide)]
        except RuntimeError:
            return None
        return shaped, dict(sample.kwargs), [id(argument) for argument in passed]

    def _replace(self, result: torch.Tensor, arguments: Any, value: Any) -> None:
        tensors, keywords, _ = arguments
        if result.dtype not in FORMATS or result.shape != tensors[0].shape:
            return
        if 0 in result.stride() and result.numel() > 1:
            return  # an expanded argument or cotangent itself: nothing was computed, and nothing can be written
        numbers = result.detach().double().reshape(-1).tolist()
        for position, at in enumerate(zip(*(tensor.reshape(-1).tolist() for tensor in tensors), strict=True)):
            better = value(at, keywords)
            if all(map(math.isfinite, at)) and better is not None:
                self.replaced += 1
                # A zero keeps the host's sign: mpmath has no signed zeros.
                number = nearest(better, result.dtype)
                numbers[position] = number or math.copysign(0.0, numbers[position])
        # Through .data: what autograd saved is the rounded result, as on every device, and its version stays.
        result.data.copy_(torch.tensor(numbers, dtype=torch.float64).to(result.dtype).reshape(result.shape))


def is_evaluated(info: Any) -> bool:
    """Return whether mpmath evaluates this unary or binary operator."""
    if info.name in RETURN_THEIR_INPUT:
        return False
    kinds = {kind.__name__ for kind in type(info).__mro__}
    return info.name in FUNCTIONS and bool({"UnaryUfuncInfo", "BinaryUfuncInfo"} & kinds or info.name in UNSORTED)


#: They compute nothing, and what is written to their result is written to the input.
RETURN_THEIR_INPUT = {"positive"}
#: Functions of one or two tensors that the database does not enter as such.
UNSORTED = {"nn.functional.gelu", "nn.functional.hardswish", "nn.functional.leaky_relu", "logaddexp2"}
