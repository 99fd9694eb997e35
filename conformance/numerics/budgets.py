"""Error budgets by operator class, read from budgets.toml, and the reader of such TOML files."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A complex product needs four real products; its error constant is 2*sqrt(2) times as large (Higham, lemma 3.5).
COMPLEX_FACTOR = 2.83


class OpClass(Enum):
    """Class of operators whose errors grow alike; the section of budgets.toml has the same name."""

    EXACT = "exact"
    ELEMENTWISE = "elementwise"
    TRANSCENDENTAL = "transcendental"
    SPECIAL = "special"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    NARROW = "narrow"
    ITERATIVE = "iterative"


#: Classes in which each output element depends on one element of each input.
ELEMENTWISE_CLASSES = frozenset({OpClass.ELEMENTWISE, OpClass.TRANSCENDENTAL, OpClass.SPECIAL})

#: Classes of sums of results of a class. A gradient is one where its input has fewer elements than the output.
OF_SUMS = {
    OpClass.EXACT: OpClass.REDUCTION,
    OpClass.ELEMENTWISE: OpClass.CONTRACTION,
    OpClass.TRANSCENDENTAL: OpClass.CONTRACTION,
}


@dataclass(frozen=True)
class Budget:
    """One section of budgets.toml; the formula stands at the top of that file."""

    rounding: float
    conditioning: float
    length: float
    host: float
    accumulator: str = "wide"
    once: float = 0.0

    def bound(
        self,
        exact: torch.Tensor,
        response: torch.Tensor,
        dtype: torch.dtype,
        n: float,
        *,
        once: bool = False,
        between: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the largest allowed absolute error of every element: float64, in the shape of ``exact``.

        ``response`` is the change of the exact value for a relative change of the inputs, in the same shape;
        ``dtype`` is the result's, and ``n`` is the reduction length. With ``once``, one kernel computes the result in
        the accumulator, and rounds it to the dtype. ``between`` is the change for a relative change of what each of
        several such kernels returns.
        """
        factor: float = COMPLEX_FACTOR if dtype.is_complex else 1.0
        rounding = self.relative(dtype, once=once) * exact.abs()
        if between is not None:
            rounding = self._of_steps(rounding, exact.abs(), between, dtype)
        accumulated = unit_roundoff(dtype) if self.accumulator == "result" else accumulator_roundoff(dtype)
        growth = self.conditioning * max(n, 1.0) ** self.length
        conditioning = growth * accumulated * response
        if self.length:
            # The partial sums of terms with one sign are as large as the result, and the response is not.
            conditioning = torch.maximum(conditioning, growth * accumulator_roundoff(dtype) * exact.abs())
        bound: torch.Tensor = (rounding + conditioning) * factor + floor(dtype)
        return bound

    def _of_steps(
        self, usual: torch.Tensor, sizes: torch.Tensor, between: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the roundings of several kernels: as the result responds to them, which may be more than usual."""
        first, unit = self.relative(dtype, once=True) * sizes, unit_roundoff(dtype)
        # Few changes leave some elements unchanged by chance; the others show the usual response.
        known = sizes > 0
        others = (between[known] / sizes[known]).mean() * sizes if bool(known.any()) else between
        return torch.maximum(2 * unit * between, torch.minimum(first + unit * others, usual))

    def relative(self, dtype: torch.dtype, *, once: bool = False) -> float:
        """Return the relative error that roundings may make, without the conditioning."""
        usual = self.rounding * unit_roundoff(dtype)
        if not (once and self.once):
            return usual
        return min(usual, self.once * unit_roundoff(dtype) + self.rounding * accumulator_roundoff(dtype))


@functools.cache
def load_table(module_file: str, name: str) -> dict[str, Any]:
    """Return the TOML file ``name`` in the folder of a module; ``module_file`` is that module's ``__file__``."""
    table: dict[str, Any] = tomllib.loads(Path(module_file).with_name(name).read_text(encoding="utf-8"))
    return table


@functools.cache
def budget_of(op_class: OpClass) -> Budget:
    """Return the error budget of a class of operators."""
    return _table()[op_class.value]


@functools.cache
def class_of_function(name: str) -> OpClass | None:
    """Return the class of a function that functions.toml names by its operator's name, else None."""
    return _class_in("class", name)


@functools.cache
def class_of_generator(name: str) -> OpClass | None:
    """Return the class of an operator without tensor inputs that functions.toml names, else None."""
    return _class_in("generator", name)


@functools.cache
def steps_of_kernel(name: str) -> float:
    """Return how far a kernel of a composition may round, relative to one elementwise operation; at least 1.

    A budget multiplies the response to a random change, which is half of the largest one on average.
    """
    rounding = budget_of(_class_in("kernel", name) or OpClass.ELEMENTWISE).rounding
    return max(1.0, rounding / (2 * budget_of(OpClass.ELEMENTWISE).rounding))


def _class_in(section: str, name: str) -> OpClass | None:
    for op_class, names in load_table(__file__, "functions.toml")[section].items():
        if name in names:
            return OpClass(op_class)
    return None


def slope_of(name: str) -> float:
    """Return the size relative to which the gradient of this operator is rounded (functions.toml); 0 if not listed."""
    return float(load_table(__file__, "functions.toml")["slope"].get(name, 0.0))


def term_of(name: str, x: float) -> float:
    """Return the size of the largest term by which the function is computed at ``x`` (functions.toml), or 0."""
    size = load_table(__file__, "functions.toml")["term"].get(name, 0.0)
    return abs(x) if size == "input" else float(size)


def term_of_generator(name: str) -> float:
    """Return the size of the largest term of an operator without tensor inputs (functions.toml); 0 if not listed."""
    return float(load_table(__file__, "functions.toml")["generator_term"].get(name, 0.0))


@functools.cache
def _table() -> dict[str, Budget]:
    return {name: Budget(**row) for name, row in load_table(__file__, "budgets.toml").items()}


@functools.cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the distance from 1 to the next number, for example 2^-24 for float32."""
    return float(torch.finfo(dtype).eps) / 2


@functools.cache
def accumulator_roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff of sums: that of float32 for 16-bit dtypes, otherwise that of the dtype itself."""
    return min(unit_roundoff(dtype), unit_roundoff(torch.float32))


@functools.cache
def floor(dtype: torch.dtype) -> float:
    """Return the absolute error that is always allowed: the smallest normal number, in float16 two subnormal steps."""
    limits = torch.finfo(dtype)
    if dtype in (torch.float16, torch.complex32):
        # The smallest normal number of float16 is 6e-5, which is the size of ordinary results.
        return 2 * float(limits.smallest_normal) * float(limits.eps)
    return float(limits.smallest_normal)
