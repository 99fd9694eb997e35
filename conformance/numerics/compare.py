"""Is a result right? Element by element, against the host in the same dtype and an exact oracle.

Three parties are compared: the device, PyTorch's CPU in the same dtype (*host*), and the CPU in float64
(*oracle*). A device whose bits are the host's is right. Otherwise every element must be within its budget of the
oracle, or no worse than the host is somewhere (see budgets.toml), or within its budget of the host itself: at a
discontinuity the two may stand on different sides, and both are right. NaN and infinities must stand where the host
or the oracle has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .bits import same_bits
from .budgets import Budget, OpClass, budget_of

#: From so many elements on, "every exact value fits the dtype" is evidence that nothing is rounded.
EVIDENCE_OF_EXACTNESS = 16

#: An oracle that the host misses by more than this share of its largest value is not the host's oracle.
LARGEST_HOST_ERROR = 0.25


@dataclass(frozen=True)
class Exact:
    """The oracle's answer for one tensor: the exact value and its response to relative input changes."""

    value: torch.Tensor
    response: Callable[[], torch.Tensor | None]


@dataclass(frozen=True)
class Comparison:
    """What comparing one tensor found. ``ratio`` is the worst error counted in budgets; right when ≤ ``allowed``."""

    wrong: int = 0
    total: int = 0
    worst: float = 0.0
    index: tuple[int, ...] = ()
    budget: float = 0.0
    ratio: float = 0.0
    detail: str = ""

    @property
    def right(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        if self.detail:
            return self.detail
        where = list(self.index)
        return f"{self.wrong}/{self.total} elements differ, worst {self.worst:.3g} at {where}, budget {self.budget:.3g}"


def compare(
    actual: torch.Tensor, host: torch.Tensor, oracle: Callable[[], Exact | None], op_class: OpClass, n: float = 1.0
) -> Comparison:
    """Judge ``actual`` (a host copy of the device's result). Dtype and shape must have been found equal to ``host``'s.

    ``oracle`` is asked only when bits differ, because it costs a second computation in float64.
    """
    if same_bits(actual, host):
        return Comparison(total=actual.numel())
    if not (actual.dtype.is_floating_point or actual.dtype.is_complex):
        return _compare_exactly(actual, host, oracle())
    return _compare_within_budget(actual, host, oracle() or Exact(widen(host), lambda: None), op_class, n)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """float64 or complex128 with the same values."""
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _compare_exactly(actual: torch.Tensor, host: torch.Tensor, exact: Exact | None) -> Comparison:
    differ = actual != host
    if exact is not None and exact.value.shape == actual.shape:
        # Rounding before a floor or a comparison may decide either way; the exact decision is right as well.
        differ &= actual != exact.value.to(actual.dtype)
    error = (actual.to(torch.float64) - host.to(torch.float64)).abs()
    return _summary(differ, error, torch.zeros_like(error), float("inf"))


def _compare_within_budget(
    actual: torch.Tensor, host: torch.Tensor, exact: Exact, op_class: OpClass, n: float
) -> Comparison:
    budget = budget_of(op_class)
    if host.shape != exact.value.shape or host.is_complex() != exact.value.is_complex():
        exact = Exact(widen(host), lambda: None)
    bound = bound_of(host, exact, budget, op_class, n)
    allowed = bound
    if not _answers_another_question(host, exact.value):
        allowed = torch.maximum(bound, budget.host * _excused_by_host(host, exact.value, bound))
    error, ratio = _ratio(actual, exact.value, bound)
    near_host = _ratio(actual, widen(host), bound)[0] <= bound
    differ = (error > allowed) & ~near_host & ~_same_value(actual, exact.value.to(actual.dtype))
    judged = ratio.isfinite() & actual.isfinite()
    worst_ratio = float(ratio[judged].max()) if bool(judged.any()) else 0.0
    return _summary(differ, error, allowed, worst_ratio)


def host_ratio(host: torch.Tensor, exact: Exact, op_class: OpClass, n: float) -> float:
    """The host's own worst error counted in budgets: what the report shows when the device has the host's bits."""
    return _worst_of_host(host, exact.value, bound_of(host, exact, budget_of(op_class), op_class, n))


def bound_of(host: torch.Tensor, exact: Exact, budget: Budget, op_class: OpClass, n: float) -> torch.Tensor:
    """The budget of every element, as an absolute error in float64."""
    if _is_unrounded(host, exact.value):
        return torch.zeros(exact.value.shape, dtype=torch.float64)
    magnitude = torch.where(exact.value.isfinite(), exact.value, 0)
    response = exact.response()
    response = magnitude.abs() if response is None else response
    if op_class is not OpClass.ELEMENTWISE and op_class is not OpClass.TRANSCENDENTAL and response.numel():
        # One probe may leave a sum unchanged by luck; neighbours share its conditioning.
        response = torch.maximum(response, response.mean())
    if op_class is OpClass.ITERATIVE and magnitude.numel():
        magnitude = magnitude.abs().max().expand(magnitude.shape)
    return budget.bound(magnitude, response, host.dtype, n)


def _answers_another_question(host: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether host and oracle have no digit in common: different branches, another sign convention, random numbers.

    "No worse than the host" would then excuse everything.
    """
    error = (widen(host) - exact).abs()
    judged = error.isfinite() & exact.to(host.dtype).isfinite()
    if not bool(judged.any()):
        return False
    return bool(error[judged].max() > LARGEST_HOST_ERROR * exact[judged].abs().max())


def _is_unrounded(host: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the computation rounds nothing: all exact values fit the dtype, and the host has them all."""
    if host.dtype in (torch.float64, torch.complex128) or host.numel() < EVIDENCE_OF_EXACTNESS:
        return False
    return bool(_same_value(widen(host), exact).all()) and bool(
        (exact != exact.round()).any() if not exact.is_complex() else True
    )


def _ratio(value: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute errors, and the same counted in budgets; what is not finite on one side is infinitely wrong."""
    error = (widen(value) - exact).abs()
    error = torch.where(error.isnan(), float("inf"), error)
    error = torch.where(_same_value(widen(value), exact), 0.0, error)
    return error, torch.where(error == 0, 0.0, error / bound)


def _excused_by_host(host: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """The host's worst error, given to all elements: counted in budgets or absolute, whichever is less.

    Where a result nearly vanishes (the gradient of a saturated tanh) the host may miss all digits; that excuses as
    much anywhere in absolute terms, and not a millionfold budget on the large elements.
    """
    error, ratio = _ratio(host, exact, bound)
    finite = ratio.isfinite() & error.isfinite()
    if not bool(finite.any()):
        return torch.zeros_like(bound)
    return (bound * ratio[finite].max()).clamp(max=float(error[finite].max()))


def _worst_of_host(host: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> float:
    _, ratio = _ratio(host, exact, bound)
    finite = ratio[ratio.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _same_value(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.is_complex():
        # NaN in one part with garbage in the other is still "not a number" on both sides.
        return (left == right) | (left.isnan() & right.isnan()) | (left.isinf() & right.isinf())
    return (left == right) | (left.isnan() & right.isnan())


def _summary(differ: torch.Tensor, error: torch.Tensor, budget: torch.Tensor, ratio: float) -> Comparison:
    wrong = int(differ.sum())
    if not wrong:
        return Comparison(total=differ.numel(), ratio=ratio)
    shown = torch.where(differ, error, -1.0)
    position = int(shown.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), differ.shape)) if differ.dim() else ()
    return Comparison(
        wrong, differ.numel(), float(shown.reshape(-1)[position]), index, float(budget.reshape(-1)[position]), ratio
    )


def zero_signs(actual: torch.Tensor, host: torch.Tensor, exact: torch.Tensor | None = None) -> Comparison:
    """Where the host has a zero, the device's zero has the sign of the host's or of the oracle's (IEEE 754, 6.3)."""
    if actual.is_complex() or not actual.dtype.is_floating_point:
        return Comparison(total=actual.numel())
    differ = (host == 0) & (actual == 0) & (host.signbit() != actual.signbit())
    if exact is not None and exact.shape == actual.shape:
        differ &= exact.signbit() != actual.signbit()
    wrong = int(differ.sum())
    return Comparison(wrong, differ.numel(), detail=f"{wrong} zeros have the wrong sign" if wrong else "")
