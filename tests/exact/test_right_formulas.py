"""Devices that compute in the dtype of the inputs by another right formula than PyTorch's CPU fail nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from conformance.numerics.budgets import OpClass
from conformance.suites.operators.calls import database, execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import op_class
from conformance.suites.operators.judge.oracle import of_forward
from tests.layers import longer
from tests.suites.test_operators_detect import run


def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    dimensions = tuple(range(-len(shape), 0))
    centred = x - x.sum(dimensions, keepdim=True) / math.prod(shape)
    result = centred * (1 / torch.sqrt((centred * centred).mean(dimensions, keepdim=True) + eps))
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    rows = x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    result = layer_norm(rows, rows.shape[-1:], eps=eps).reshape(x.shape)
    channels = [1, -1] + [1] * (x.dim() - 2)
    result = result if weight is None else result * weight.reshape(channels)
    return result if bias is None else result + bias.reshape(channels)


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    dimensions = tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    result = x * torch.rsqrt((x * x).mean(dimensions, keepdim=True) + eps)
    return result if weight is None else result * weight


#: Each formula once in each dtype and in each mode.
USUAL = [(layer_norm, "float32", "training", 0), (layer_norm, "float64", "inference", 0),
         (group_norm, "float32", "inference", 0), (group_norm, "float64", "training", 0),
         (rms_norm, "float32", "training", 0), (rms_norm, "float64", "inference", 0)]  # fmt: skip
ALL = [
    *itertools.product((layer_norm, group_norm, rms_norm), ("float32", "float64"), ("inference", "training"), range(5))
]


@pytest.mark.parametrize(
    ("formula", "dtype", "mode", "base"),
    longer(ALL, *USUAL, repeating=[each for each in ALL if each[-1]]),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_normalisations_of_one_and_two_elements(
    formula: Any, dtype: str, mode: str, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of two normalised elements is rounding, of the terms and not of the difference."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        execution.call(function, sample, **extra)  # PyTorch's own checks of arguments refuse on every device
        return execution.call(formula, sample)

    monkeypatch.setattr(execution, "execute", execute)

    run(f"operators.nn.functional.{formula.__name__}[{dtype}-{mode}]", base)


def test_a_normalisation_that_is_off_by_a_thousandth_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        return execution.call(layer_norm, sample) * (1 + 1e-5)

    monkeypatch.setattr(execution, "execute", execute)

    for mode in ("inference", "training"):
        with pytest.raises(AssertionError, match="elements differ"):
            run(f"operators.nn.functional.layer_norm[float32-{mode}]")


@pytest.mark.parametrize("keywords", [{}, {"eps": None}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_oracle_of_rms_norm_takes_the_eps_of_the_dtype(dtype: torch.dtype, keywords: dict[str, Any]) -> None:
    """Inputs of 1e-4 are smaller than the root of float32's eps, so that eps decides the result."""
    sample = Call(0, torch.full((2, 5), 1e-4, dtype=dtype), ([5],), keywords)
    info = database.find("nn.functional.rms_norm")

    exact = of_forward(info, sample).leaf(0)

    assert torch.allclose(exact.value, execution.call(info.op, sample).double(), rtol=torch.finfo(dtype).eps * 8)


FACTORISATIONS = (
    "qr", "svd", "lu", "lu_solve", "triangular_solve", "geqrf", "cholesky_solve", "pinverse", "svd_lowrank",
    "pca_lowrank", "cholesky", "linalg.inv",
)  # fmt: skip


#: ormqr multiplies by the factor that it is given.
PRODUCTS = (
    "lu_unpack", "mm", "matmul", "addmm", "bmm", "einsum", "nn.functional.linear", "ormqr", "linalg.cross",
    "linalg.multi_dot", "linalg.vecdot",
)  # fmt: skip


@pytest.mark.parametrize("name", longer(FACTORISATIONS, step=3))
def test_what_factorises_or_solves_is_iterative(name: str) -> None:
    assert op_class(database.find(name)) is OpClass.ITERATIVE


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_moves_are_no_factorisations(name: str) -> None:
    assert op_class(database.find(name)) is not OpClass.ITERATIVE


def laid_out_otherwise(value: torch.Tensor) -> torch.Tensor:
    """Swap the layouts of matrices: rows in a row, and columns as LAPACK has them."""
    if value.dim() < 2:
        return value
    return value.contiguous() if value.mT.is_contiguous() else value.mT.contiguous().mT


@pytest.mark.parametrize("name", ["qr", "lu_solve", "geqrf", "cholesky_solve", "pinverse", "svd_lowrank"])
def test_strides_of_factors_are_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of factors is the library's choice, and meta functions do not promise it."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = execution.call(function, sample, **extra)
        if extra:
            return result
        if isinstance(result, torch.Tensor):
            return laid_out_otherwise(result)
        factors = [laid_out_otherwise(factor) for factor in result]
        return tuple(factors) if type(result) is tuple else type(result)(factors)

    monkeypatch.setattr(execution, "execute", execute)

    run(f"operators.{name}[float32-inference]")


CLASSES = {
    "nn.functional.mish": OpClass.TRANSCENDENTAL,
    "nn.functional.silu": OpClass.TRANSCENDENTAL,
    "logaddexp": OpClass.TRANSCENDENTAL,
    "pow": OpClass.TRANSCENDENTAL,
    "exp": OpClass.TRANSCENDENTAL,
    "special.bessel_j0": OpClass.SPECIAL,
    "special.erfcx": OpClass.SPECIAL,
    "polygamma.polygamma_n_1": OpClass.SPECIAL,
    "igamma": OpClass.SPECIAL,
    "add": OpClass.ELEMENTWISE,
    "abs": OpClass.ELEMENTWISE,
    "nn.functional.relu": OpClass.ELEMENTWISE,
}


@pytest.mark.parametrize("name", longer(CLASSES, step=3))
def test_the_class_follows_from_what_the_function_is(name: str) -> None:
    assert op_class(database.find(name)) is CLASSES[name]


@pytest.mark.parametrize("name", ["hypot", "copysign", "ldexp", "special.erfcx", "special.i1e", "tanh", "sigmoid"])
def test_gradients_from_an_output_that_is_one_ulp_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch differentiates from the saved output, and sums the gradients of broadcast inputs: terms can cancel."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = execution.call(function, sample, **extra)
        result.data.mul_(1 + 2**-52)
        return result

    monkeypatch.setattr(execution, "execute", execute)

    for base in range(3):
        run(f"operators.{name}[float64-training]", base)


#: Windows that are sums of cosines, and those that are one function of the position.
SUMS = ("blackman", "cosine", "general_cosine", "general_hamming", "hamming", "hann", "nuttall")
FUNCTIONS = ("exponential", "gaussian")


def moved_by(units: float, *, of_largest: bool) -> Any:
    """Return an ``execute`` whose results are wrong by some unit roundoffs, alternately up and down."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = execution.call(function, sample, **extra)
        if extra or not result.numel():
            return result
        signs = torch.ones_like(result)
        signs[::2] = -1
        size = result.abs().max() if of_largest else result.abs()
        step = torch.finfo(result.dtype).eps / 2 * units * size * signs
        return result + torch.where(result == 0, 0, step)

    return execute


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "units", "of_largest"), [
    *((name, 6, True) for name in SUMS),  # cosines within two ulp, and the sum
    *((name, 9, False) for name in FUNCTIONS),  # exp within two ulp
    ("kaiser", 28, False),  # a quotient of Bessel functions
])  # fmt: skip
def test_windows_are_rounded_like_their_functions(
    name: str, units: float, of_largest: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "execute", moved_by(units, of_largest=of_largest))
    run(f"operators.signal.windows.{name}[{dtype}-inference]")

    monkeypatch.setattr(execution, "execute", moved_by(units * 8, of_largest=of_largest))
    with pytest.raises(AssertionError, match="elements differ"):
        run(f"operators.signal.windows.{name}[{dtype}-inference]")
