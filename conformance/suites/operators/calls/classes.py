"""Error-budget classes of operators, derived from the type of their OpInfo, and for functions from functions.toml."""

from __future__ import annotations

import re
from typing import Any

import torch

from conformance.numerics.budgets import ELEMENTWISE_CLASSES, OpClass, class_of_function, class_of_generator

from .facts import facts

#: Classes of operators by id, with the operator: PyTorch's descriptions have no hash.
_KNOWN: dict[int, tuple[object, OpClass]] = {}
#: Operators whose classes are kept. Every case asks for that of one operator, hundreds of times.
_MOST_KNOWN = 64


def is_a(info: Any, *kinds: str) -> bool:
    """Return whether the description of an operator is of one of these classes of PyTorch."""
    return not {kind.__name__ for kind in type(info).__mro__}.isdisjoint(kinds)


def op_class(info: Any) -> OpClass:
    """Return the error-budget class of an operator.

    An OpInfo without a special type may be composed of products and sums, so it is a contraction. A generator
    without tensor inputs, such as a window, is rounded like the function of which it consists.
    """
    known = _KNOWN.get(id(info))
    if known is None or known[0] is not info:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[id(info)] = (info, _class_of(info))
    return known[1]


def class_in(info: Any, dtype: torch.dtype) -> OpClass:
    """Return the error-budget class of an operator in a dtype: LAPACK has no 16 bits, so only sums are left there."""
    found = op_class(info)
    return OpClass.REDUCTION if found is OpClass.ITERATIVE and dtype.itemsize < torch.float32.itemsize else found


def _class_of(info: Any) -> OpClass:
    """Return the class of an entry of the database by its type, its name, and its facts."""
    if is_a(info, "ShapeFuncInfo") or facts(info.name).is_selection:
        return OpClass.EXACT
    if is_a(info, "UnaryUfuncInfo", "BinaryUfuncInfo"):
        # Functions with real results, such as exp, turn integers into floats; add and abs keep them.
        usual = OpClass.TRANSCENDENTAL if info.promotes_int_to_float else OpClass.ELEMENTWISE
        return class_of_function(info.name) or usual
    if generated := class_of_generator(info.name):
        return generated
    if is_a(info, "ReductionOpInfo"):
        return OpClass.REDUCTION
    if is_factorisation(info):
        return OpClass.ITERATIVE
    if facts(info.name).narrow:
        return OpClass.NARROW
    return OpClass.CONTRACTION


def is_factorisation(info: Any) -> bool:
    """Return whether the operator factorises or solves.

    PyTorch keeps such operators in ``linalg``, checks their gradients on Hermitian or triangular matrices, or skips
    their tests where it is built without LAPACK.
    """
    from torch.testing._internal.opinfo.core import OpInfo

    generic = OpInfo.__dataclass_fields__["gradcheck_wrapper"].default
    known = facts(info.name)
    return not (known.multiplies or known.moves_factors) and (
        info.name.startswith("linalg.")
        or "hermitian" in info.gradcheck_wrapper.__name__
        or (info.gradcheck_wrapper is not generic and "triangular" in info.gradcheck_wrapper.__name__)
        or _needs_lapack(info)
    )


def _needs_lapack(info: Any) -> bool:
    """Return whether the database skips the tests of this operator on a CPU without LAPACK."""
    from torch.testing._internal.common_device_type import skipCPUIfNoLapack

    return skipCPUIfNoLapack in info.decorators


def is_fourier_transform(info: Any) -> bool:
    """Return whether the operator is a Fourier transform."""
    return is_a(info, "SpectralFuncInfo") or facts(info.name).fourier


def is_uninitialised(info: Any) -> bool:
    """Return whether results are uninitialised memory.

    Newer OpInfos have an attribute for it; the operator's name shows it in every version.
    """
    return getattr(info, "has_nondeterministic_output", False) or "empty" in re.split(r"[._]", info.name)


def is_elementwise(info: Any) -> bool:
    """Return whether each output element depends on one element of each input."""
    return op_class(info) in ELEMENTWISE_CLASSES
