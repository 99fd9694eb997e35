"""Element-by-element comparison of a device result with the host's result and with an exact oracle.

The *host* is PyTorch's CPU in the same dtype; the *oracle* is the CPU in float64. A result with the host's bits is
right. Otherwise every element must meet one of three conditions:

* its distance from the oracle is within its error budget;
* its distance from the oracle is within a multiple of the host's worst error (``host`` in budgets.toml);
* its distance from the host is within its budget. At a discontinuity, host and oracle may lie on different sides.

NaN and infinities must be in the places where the host or the oracle has them.

The oracle can be wrong itself. If an element meets no condition, and the function has exact values (functions.py), the
exact values replace the oracle's there and judge the device and the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from .budgets import ELEMENTWISE_CLASSES, Budget, OpClass, budget_of
from .transfer import to_host

#: Number of elements from which on "every exact value fits the dtype" counts as evidence that nothing is rounded.
#: A few small results may be exact by chance.
EVIDENCE_OF_EXACTNESS = 16

#: Largest error of the host as a share of the oracle's largest value. Beyond it, the two compute different functions.
LARGEST_HOST_ERROR = 0.25

#: Integer dtypes that carry the bits of a floating-point element, by its size in bytes.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


#: Number of elements that are computed exactly before the tensor is judged again. One wrong element ends the work.
EXACT_ELEMENTS = 128

#: The tolerances of ``torch.testing.assert_close`` (relative, absolute), by dtype: torch/testing/_comparison.py.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}


class Elements(Protocol):
    """Exact values of single elements; NaN where there is none. ``positions`` count in the flattened tensor."""

    def values(self, positions: list[int]) -> list[float]:
        """Return the exact values, rounded once to float64."""

    def responses(self, positions: list[int]) -> list[float]:
        """Return the sizes of the changes of the exact values per relative change of the inputs."""


@dataclass(frozen=True)
class Exact:
    """Result of the oracle for one tensor: the exact value, and its response to relative changes of the inputs.

    ``value`` is float64 or complex128. ``response`` is called only where a budget needs it, because it computes the
    operator again. It returns a float64 tensor of the same shape, or None if the response is unknown. ``elements`` has
    values that are better than ``value``. ``scale`` has the sizes relative to which results are rounded where the
    exact value is smaller. With ``from_host`` there is no oracle, and ``value`` is the host's own result. With
    ``rounds``, the computation may round also where the host's result is exact by chance. With ``once``, one kernel
    computes the result, and rounds it once. Where several such kernels do, ``between`` returns the response to
    relative changes of what each returns; it is called for 16-bit dtypes alone.
    """

    value: torch.Tensor
    response: Callable[[], torch.Tensor | None]
    elements: Elements | None = None
    scale: torch.Tensor | None = None
    from_host: bool = False
    rounds: bool = False
    once: bool = False
    between: Callable[[], torch.Tensor | None] | None = None

    @classmethod
    def of_host(cls, host: torch.Tensor) -> Exact:
        """Return the host's own result in place of an oracle's."""
        return cls(widen(host), lambda: None, from_host=True)


@dataclass(frozen=True)
class Comparison:
    """Outcome of the comparison of one tensor.

    ``wrong`` of ``total`` elements are wrong. ``worst`` is the largest absolute error among them, at ``index``, where
    ``budget`` is allowed. ``ratio`` is the largest error of all elements divided by the element's budget.
    ``tolerance`` says how a wrong result compares with the tolerances of ``torch.testing``.
    """

    wrong: int = 0
    total: int = 0
    worst: float = 0.0
    index: tuple[int, ...] = ()
    budget: float = 0.0
    ratio: float = 0.0
    detail: str = ""
    tolerance: str = ""

    @property
    def right(self) -> bool:
        """Return whether no element is wrong."""
        return not self.wrong

    def __str__(self) -> str:
        if self.detail:
            return self.detail
        where = list(self.index)
        found = (
            f"{self.wrong}/{self.total} elements differ, worst {self.worst:.3g} at {where}, budget {self.budget:.3g}"
        )
        return f"{found}{self.tolerance}"


def compare(
    actual: torch.Tensor, host: torch.Tensor, oracle: Callable[[], Exact | None], op_class: OpClass, n: float = 1.0
) -> Comparison:
    """Compare ``actual``, a host copy of the device's result, with the host's result and the oracle's.

    The caller has checked that ``actual`` has the dtype and the shape of ``host``. ``n`` is the reduction length.
    ``oracle`` is called only if bits differ, because it costs a second computation in float64; None means that the
    operator has no oracle.
    """
    if same_bits(actual, host):
        return Comparison(total=actual.numel())
    if not (actual.dtype.is_floating_point or actual.dtype.is_complex):
        return _compare_exactly(actual, host, oracle())
    return _compare_within_budget(actual, host, oracle() or Exact.of_host(host), op_class, n)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the host: detached, strided, with lazy conjugation and negation carried out."""
    found = to_host(tensor)
    return found.resolve_conj().resolve_neg() if found.is_conj() or found.is_neg() else found


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two host tensors have the same dtype, shape and bits; NaN and the sign of zero count."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_carrier(left), _carrier(right))


def without_nan(tensor: torch.Tensor, number: float) -> torch.Tensor:
    """Return the tensor with a number in the place of each NaN, which equals nothing. Infinities stay infinite."""
    return tensor.nan_to_num(number, math.inf, -math.inf)


def _carrier(tensor: torch.Tensor) -> torch.Tensor:
    # As integers, NaN equals itself and -0.0 differs from 0.0.
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return tensor
    if tensor.dtype is torch.complex128:  # no integer has 16 bytes
        tensor = torch.view_as_real(tensor)
    return tensor.view(INTEGERS[tensor.element_size()])


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64 or complex128."""
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _is_finite(tensor: torch.Tensor) -> torch.Tensor:
    # PyTorch has no isfinite for some float8 dtypes; a wider dtype keeps what is finite.
    return widen(tensor).isfinite()


def _compare_exactly(actual: torch.Tensor, host: torch.Tensor, exact: Exact | None) -> Comparison:
    differ = actual != host
    if exact is not None and exact.value.shape == actual.shape:
        # Rounding before a floor or a comparison can change the result; the result without rounding is right as well.
        differ &= actual != exact.value.to(actual.dtype)
    error = (actual.to(torch.float64) - host.to(torch.float64)).abs()
    return _summary(differ, error, torch.zeros_like(error), float("inf"))


def _compare_within_budget(
    actual: torch.Tensor, host: torch.Tensor, exact: Exact, op_class: OpClass, n: float
) -> Comparison:
    if host.shape != exact.value.shape or host.is_complex() != exact.value.is_complex():
        exact = Exact.of_host(host)
    if not (exact.value.is_floating_point() or exact.value.is_complex()):
        # In place, a comparison writes its truth values into a floating-point tensor.
        exact = replace(exact, value=widen(exact.value), response=lambda: None)
    judged = judged_elements(actual, host, exact, op_class, n)
    if exact.elements is not None and bool(judged.differ.any()):
        judged = _judged_exactly(judged, actual, host, exact, op_class, n)
    finite = judged.ratio.isfinite() & _is_finite(actual)
    worst_ratio = float(judged.ratio[finite].max()) if bool(finite.any()) else 0.0
    found = _summary(judged.differ, judged.error, judged.allowed, worst_ratio)
    return found if found.right else replace(found, tolerance=_against_tolerance(actual, host))


@dataclass(frozen=True)
class Judged:
    """Decision on every element: wrong or not, its error, the error that is allowed, and its error in budgets."""

    differ: torch.Tensor
    error: torch.Tensor
    allowed: torch.Tensor
    ratio: torch.Tensor


def judged_elements(actual: torch.Tensor, host: torch.Tensor, exact: Exact, op_class: OpClass, n: float) -> Judged:
    """Judge every element by the value of ``exact`` alone; exact values of single elements are not computed."""
    budget = budget_of(op_class)
    bound = bound_of(host, exact, budget, op_class, n)
    allowed = bound
    if not _oracle_differs(host, exact.value):
        allowed = torch.maximum(bound, budget.host * _excused_by_host(host, exact.value, bound))
    error, ratio = _ratio(actual, exact.value, bound)
    host_error, ratio_to_host = _ratio(actual, widen(host), bound)
    near_host = host_error <= bound
    differ = (error > allowed) & ~near_host & ~_same_value(actual, exact.value.to(actual.dtype))
    # What is right because it is near the host's value is as far from it as counts.
    return Judged(differ, error, allowed, torch.where(near_host, torch.minimum(ratio, ratio_to_host), ratio))


def _judged_exactly(
    judged: Judged, actual: torch.Tensor, host: torch.Tensor, exact: Exact, op_class: OpClass, n: float
) -> Judged:
    """Compute the wrong elements exactly, some at a time, and judge again until none is left or one stays wrong."""
    elements = exact.elements
    assert elements is not None
    value, response = exact.value.clone(memory_format=torch.contiguous_format), exact.response()
    response = (value.abs() if response is None else response).clone(memory_format=torch.contiguous_format)
    better = replace(exact, value=value, response=lambda: response)
    done = torch.zeros(value.numel(), dtype=torch.bool)
    while bool(judged.differ.any()):
        open_ = (judged.differ.reshape(-1) & ~done).nonzero().reshape(-1)[:EXACT_ELEMENTS]
        if not len(open_):
            break
        _place(value, open_, elements.values(open_.tolist()))
        done[open_] = True
        judged = judged_elements(actual, host, better, op_class, n)
        left = open_[judged.differ.reshape(-1)[open_]]
        if len(left):
            # Near a pole or an edge of the domain the response of the oracle is no measure.
            _place(response, left, elements.responses(left.tolist()))
            judged = judged_elements(actual, host, better, op_class, n)
            if bool(judged.differ.reshape(-1)[left].any()):
                break
    return judged


def _place(target: torch.Tensor, positions: torch.Tensor, values: list[float]) -> None:
    new = torch.tensor(values, dtype=torch.float64)
    known = ~new.isnan()
    target.view(-1)[positions[known]] = new[known]


def _against_tolerance(actual: torch.Tensor, host: torch.Tensor) -> str:
    """Return how a result over our budget compares with the tolerances of ``torch.testing``, as a phrase."""
    if actual.dtype not in TOLERANCES:
        return ""
    relative, absolute = TOLERANCES[actual.dtype]
    close = torch.allclose(widen(actual), widen(host), rtol=relative, atol=absolute, equal_nan=True)
    side = "within" if close else "outside"
    return f" (over our budget, {side} torch.testing's rtol {relative:g}, atol {absolute:g})"


def host_ratio(host: torch.Tensor, exact: Exact, op_class: OpClass, n: float) -> float:
    """Return the host's largest error in budgets; the report shows it if the device has the host's bits."""
    return _worst_of_host(host, exact.value, bound_of(host, exact, budget_of(op_class), op_class, n))


def bound_of(host: torch.Tensor, exact: Exact, budget: Budget, op_class: OpClass, n: float) -> torch.Tensor:
    """Return the budget of every element: absolute errors in float64, in the shape of the exact value."""
    # A factorisation rounds: that the host's factors are exact, as those of zeros, is a chance.
    may_round = exact.from_host or exact.rounds or op_class is OpClass.ITERATIVE
    if not may_round and _is_unrounded(host, exact.value):
        return torch.zeros(exact.value.shape, dtype=torch.float64)
    # Where the two lie on different sides of a pole, what is near the host has a budget too.
    finite = exact.value.isfinite()
    magnitude = torch.where(finite, exact.value, 0 if bool(finite.all()) else _finite_part(host))
    response = exact.response()
    response = magnitude.abs() if response is None else response
    if op_class not in ELEMENTWISE_CLASSES and response.numel():
        # One change of the inputs can leave a sum unchanged by chance; other elements show the usual response.
        response = torch.maximum(response, response.mean())
    if op_class is OpClass.ITERATIVE and magnitude.numel():
        # Backward stability bounds the error by the norm of the whole result, and not element by element.
        magnitude = magnitude.abs().max().expand(magnitude.shape)
    if exact.scale is not None:
        magnitude = torch.maximum(magnitude.abs(), exact.scale)
    between = exact.between() if exact.between is not None and budget.once and host.dtype.itemsize == 2 else None
    return budget.bound(magnitude, response, host.dtype, n, once=exact.once, between=between)


def _finite_part(host: torch.Tensor) -> torch.Tensor:
    """Return the host's values with 0 in the place of what is not finite."""
    wide = widen(host)
    return torch.where(wide.isfinite(), wide, 0)


def _oracle_differs(host: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether host and oracle have no digit in common, so that the host's error excuses nothing.

    Causes are a different branch, another sign convention, or random numbers.
    """
    error = (widen(host) - exact).abs()
    judged = error.isfinite() & _is_finite(exact.to(host.dtype))
    if not bool(judged.any()):
        return False
    return bool(error[judged].max() > LARGEST_HOST_ERROR * exact[judged].abs().max())


def _is_unrounded(host: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether the computation rounds nothing: the host has all exact values, and not all are whole."""
    if host.dtype in (torch.float64, torch.complex128) or host.numel() < EVIDENCE_OF_EXACTNESS:
        return False
    return bool(_same_value(widen(host), exact).all()) and bool(
        (exact != exact.round()).any() if not exact.is_complex() else True
    )


def _ratio(value: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return absolute errors and errors in budgets; both are infinite where only one side is finite."""
    error = (widen(value) - exact).abs()
    error = torch.where(error.isnan(), float("inf"), error)
    error = torch.where(_same_value(widen(value), exact), 0.0, error)
    return error, torch.where(error == 0, 0.0, error / bound)


def _excused_by_host(host: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Return the error that the host's worst error excuses in every element.

    It is the worst error in budgets times the element's budget, at most the worst absolute error. The second bound is
    needed where a result nearly vanishes, as the gradient of a saturated tanh: there the host may miss all digits,
    and without it the large elements would be allowed a million budgets.
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
        # A complex number is NaN if one part is NaN; the other part then means nothing.
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
    """Compare signs where host and device are zero: the host's or the oracle's sign is right (IEEE 754, 6.3)."""
    if actual.is_complex() or not actual.dtype.is_floating_point:
        return Comparison(total=actual.numel())
    differ = (host == 0) & (actual == 0) & (host.signbit() != actual.signbit())
    if exact is not None and exact.shape == actual.shape:
        differ &= exact.signbit() != actual.signbit()
    wrong = int(differ.sum())
    return Comparison(wrong, differ.numel(), detail=f"{wrong} zeros have the wrong sign" if wrong else "")
