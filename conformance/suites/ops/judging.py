"""Comparison of a kernel's results: changed and returned tensors with the oracle, all others bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from conformance.kernels.arguments import tensors_in
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification
from conformance.numerics.budgets import accumulator_roundoff, floor, unit_roundoff
from conformance.numerics.compare import plain, same_bits


@dataclass
class KernelJudge:
    """Comparison of the calls of one kernel.

    ``ratio`` keeps the worst error in budgets. ``who`` (the builder, or the reference) begins every message.
    """

    check: object
    budget: ErrorBudget
    who: str
    ratio: float = 0.0

    def call(self, kernel: KernelSpecification, given: Arguments, after: Arguments, result: object) -> None:
        """Compare one call: ``given`` holds the host's arguments before, ``after`` those of the kernel after the call.

        Raise LookupError if the oracle does not describe a tensor that the kernel returned.
        """
        expected = dict(kernel.oracle(given))
        before = dict(tensors_in(given))
        found = {**dict(tensors_in(after)), **dict(tensors_in({"result": result}))}
        for path, tensor in found.items():
            if path in expected:
                self.tensor(path, tensor, expected.pop(path), before.get(path))
            elif path in kernel.scratch:  # its content is undefined; only the shape has to stay
                self.check.that(
                    tensor.shape == before[path].shape,
                    f"{self.who}: {path} has shape {tuple(tensor.shape)}, expected {tuple(before[path].shape)}",
                )
            elif path in before and not kernel.is_changed(path):
                same = same_bits(plain(tensor), before[path])
                self.check.that(same, f"{self.who}: {path} is an input, but was changed")
            else:
                raise LookupError(f"the oracle of {kernel.name} does not describe {path}")
        self.check.that(not expected, f"{self.who}: nothing was returned for {', '.join(expected)}")
        self.check.that(True, "a call without tensors ends")  # a case that compares nothing fails

    def tensor(self, what: str, tensor: torch.Tensor, expected: Expected, before: torch.Tensor | None = None) -> None:
        """Compare one tensor: its shape, its dtype, and every element."""
        # An argument keeps its dtype; a new tensor has that of the specification, if it names one.
        dtype = before.dtype if before is not None else expected.dtype
        shape = tuple(expected.value.shape)
        label = f"{self.who}: {what}"
        self.check.that(tuple(tensor.shape) == shape, f"{label} has shape {tuple(tensor.shape)}, expected {shape}")
        self.check.that(dtype in (None, tensor.dtype), f"{label} is {tensor.dtype}, expected {dtype}")
        actual = plain(tensor)
        if self.check.answers is not None:
            # Not ``label``: another implementation may have answered.
            actual = self.check.answers.of(what, actual)
        if not expected.value.is_floating_point():
            self._exactly(label, actual, expected.value)
        else:
            self._within(label, actual, expected)

    def _exactly(self, label: str, actual: torch.Tensor, value: torch.Tensor) -> None:
        differ = (actual != value).reshape(-1)
        wrong = int(differ.sum())
        shown = int(differ.long().argmax()) if wrong else 0
        self.check.that(
            not wrong,
            f"{label}: {wrong}/{actual.numel()} elements differ, first at {shown}"
            + (f": {actual.reshape(-1)[shown]} instead of {value.reshape(-1)[shown]}" if wrong else ""),
        )

    def _within(self, label: str, actual: torch.Tensor, expected: Expected) -> None:
        found, exact = actual.double(), expected.value
        bound = allowed_error(self.budget, expected, actual.dtype)
        # A value beyond the dtype's range is infinite on both sides; NaN equals NaN.
        same = (found == exact.to(actual.dtype).double()) | (found.isnan() & exact.isnan())
        # NaN on one side only is an infinite error.
        error = torch.where(same, 0.0, (found - exact).abs().nan_to_num(nan=float("inf")))
        # An error of 0 is 0 budgets even where the bound is 0.
        counted = torch.where(error == 0, 0.0, error / bound)
        wrong = int((counted > 1).sum())
        if counted.numel():
            worst = int(counted.argmax())
            self.ratio = max(self.ratio, float(counted.reshape(-1)[worst]))
        self.check.that(not wrong, f"{label}: {self._summary(wrong, actual, exact, counted)}")

    def _summary(self, wrong: int, actual: torch.Tensor, exact: torch.Tensor, counted: torch.Tensor) -> str:
        if not wrong:
            return "right"
        at = int(counted.argmax())
        got, right, ratio = (float(values.reshape(-1)[at]) for values in (actual, exact, counted))
        return (
            f"{wrong}/{actual.numel()} elements are wrong, worst at {at}: {got:.6g} instead of {right:.6g}, "
            f"{ratio:.3g} times the error that rounding explains"
        )


def allowed_error(budget: ErrorBudget, expected: Expected, dtype: torch.dtype) -> torch.Tensor:
    """Return the largest allowed error of each element, by the formula of ErrorBudget."""
    if expected.allowed is not None:
        return expected.allowed
    magnitude = expected.value.abs()
    scale = magnitude if expected.scale is None else expected.scale
    return (
        budget.rounding * unit_roundoff(dtype) * magnitude
        + budget.conditioning * accumulator_roundoff(dtype) * scale
        + floor(dtype)
    )


def differing(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the paths of tensors that differ in any bit."""
    return [path for path, tensor in after.items() if not same_bits(plain(tensor), plain(before[path]))]
