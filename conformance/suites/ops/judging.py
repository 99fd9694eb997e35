"""Is what a kernel left behind right? Every changed and returned tensor against the oracle, all others bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from conformance.kernels.arguments import tensors_in
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification
from conformance.numerics.bits import plain, same_bits
from conformance.numerics.budgets import accumulator_roundoff, floor, unit_roundoff


@dataclass
class Judge:
    """Compares, counts, and keeps the worst error in budgets. ``who`` begins every sentence."""

    check: object
    budget: ErrorBudget
    who: str
    ratio: float = 0.0

    def call(self, kernel: KernelSpecification, given: Arguments, after: Arguments, result: object) -> None:
        """One call: ``given`` as it was on the host, ``after`` what it left in its arguments, and its answer."""
        expected = dict(kernel.oracle(given))
        before = dict(tensors_in(given))
        found = {**dict(tensors_in(after)), **dict(tensors_in({"result": result}))}
        for path, tensor in found.items():
            if path in expected:
                self.tensor(path, tensor, expected.pop(path), before.get(path))
            elif path in kernel.scratch:
                self.check.that(tensor.shape == before[path].shape, f"{self.who}: {path} has another shape")
            elif path in before and not kernel.is_changed(path):
                same = same_bits(plain(tensor), before[path])
                self.check.that(same, f"{self.who}: {path} is an input, and was changed")
            else:
                raise LookupError(f"the oracle of {kernel.name} says nothing of {path}")
        self.check.that(not expected, f"{self.who}: nothing was returned for {', '.join(expected)}")
        self.check.that(True, "a call without tensors ends")

    def tensor(self, what: str, tensor: torch.Tensor, expected: Expected, before: torch.Tensor | None = None) -> None:
        """One tensor: its shape, its dtype, and every element."""
        dtype = before.dtype if before is not None else expected.dtype
        shape = tuple(expected.value.shape)
        place = f"{self.who}: {what}"
        self.check.that(tuple(tensor.shape) == shape, f"{place} has shape {tuple(tensor.shape)}, expected {shape}")
        self.check.that(dtype in (None, tensor.dtype), f"{place} is {tensor.dtype}, expected {dtype}")
        actual = plain(tensor)
        if not expected.value.is_floating_point():
            self._exactly(place, actual, expected.value)
        else:
            self._within(place, actual, expected)

    def _exactly(self, place: str, actual: torch.Tensor, value: torch.Tensor) -> None:
        differ = (actual != value).reshape(-1)
        wrong = int(differ.sum())
        shown = int(differ.long().argmax()) if wrong else 0
        self.check.that(
            not wrong,
            f"{place}: {wrong}/{actual.numel()} elements differ, first at {shown}"
            + (f": {actual.reshape(-1)[shown]} instead of {value.reshape(-1)[shown]}" if wrong else ""),
        )

    def _within(self, place: str, actual: torch.Tensor, expected: Expected) -> None:
        found, exact = actual.double(), expected.value
        bound = allowed_error(self.budget, expected, actual.dtype)
        # What leaves the dtype's range is infinite, and NaN is NaN, on both sides.
        same = (found == exact.to(actual.dtype).double()) | (found.isnan() & exact.isnan())
        error = torch.where(same, 0.0, (found - exact).abs().nan_to_num(nan=float("inf")))
        counted = torch.where(error == 0, 0.0, error / bound)
        wrong = int((counted > 1).sum())
        if counted.numel():
            worst = int(counted.argmax())
            self.ratio = max(self.ratio, float(counted.reshape(-1)[worst]))
        self.check.that(not wrong, f"{place}: {self._story(wrong, actual, exact, counted)}")

    def _story(self, wrong: int, actual: torch.Tensor, exact: torch.Tensor, counted: torch.Tensor) -> str:
        if not wrong:
            return "right"
        at = int(counted.argmax())
        got, right, ratio = (float(one.reshape(-1)[at]) for one in (actual, exact, counted))
        return (
            f"{wrong}/{actual.numel()} elements are wrong, worst at {at}: {got:.6g} instead of {right:.6g}, "
            f"{ratio:.3g} times the error that rounding explains"
        )


def allowed_error(budget: ErrorBudget, expected: Expected, dtype: torch.dtype) -> torch.Tensor:
    """The largest error of each element, by the formula of ErrorBudget."""
    if expected.allowed is not None:
        return expected.allowed
    magnitude = expected.value.abs()
    scale = magnitude if expected.scale is None else expected.scale
    return (
        budget.rounding * unit_roundoff(dtype) * magnitude
        + budget.conditioning * accumulator_roundoff(dtype) * scale
        + floor(dtype)
    )


def unchanged(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> list[str]:
    """The paths of tensors that differ in a bit."""
    return [path for path, tensor in after.items() if not same_bits(plain(tensor), plain(before[path]))]
