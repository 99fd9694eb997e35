"""Which error budget an operator gets, from what its OpInfo is rather than from its name."""

from __future__ import annotations

import re

from conformance.numerics.budgets import OpClass

from .settings import limits


def op_class(info) -> OpClass:
    """By the OpInfo's kind; whatever is of no special kind may be composed of products and sums."""
    kinds = {kind.__name__ for kind in type(info).__mro__}
    if "ShapeFuncInfo" in kinds:
        return OpClass.EXACT
    if "UnaryUfuncInfo" in kinds or "BinaryUfuncInfo" in kinds:
        return OpClass.TRANSCENDENTAL if info.promotes_int_to_float else OpClass.ELEMENTWISE
    if "ReductionOpInfo" in kinds:
        return OpClass.REDUCTION
    if is_factorisation(info):
        return OpClass.ITERATIVE
    if info.name in limits().narrow.operators:
        return OpClass.NARROW
    return OpClass.CONTRACTION


def is_factorisation(info) -> bool:
    """Linear algebra beyond products: PyTorch keeps it in ``linalg`` or checks its gradients on special matrices."""
    from torch.testing._internal.opinfo.core import OpInfo

    generic = OpInfo.__dataclass_fields__["gradcheck_wrapper"].default
    return (
        info.name.startswith("linalg.")
        or "hermitian" in info.gradcheck_wrapper.__name__
        or (info.gradcheck_wrapper is not generic and "triangular" in info.gradcheck_wrapper.__name__)
    )


def is_uninitialised(info) -> bool:
    """Whether results hold whatever the memory held: newer OpInfos say so, and the operator's name always does."""
    return getattr(info, "has_nondeterministic_output", False) or "empty" in re.split(r"[._]", info.name)


def is_elementwise(info) -> bool:
    return op_class(info) in (OpClass.ELEMENTWISE, OpClass.TRANSCENDENTAL)
