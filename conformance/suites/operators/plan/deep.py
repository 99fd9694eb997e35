"""Deep cases of the operators: more samples, more settings, and direct calls of every overload behind an operator."""

from __future__ import annotations

from conformance.accelerators.capabilities import Cell, Mode
from conformance.plan.case import Case, Tier

from .catalogue import AREA, Operator, operators

#: One dtype of each kind: kernels of other dtypes have the same arguments.
DTYPES = ("float32", "int64", "complex64", "bool")
#: Seconds for one case.
_DEADLINE = 600.0


def generate() -> list[Case]:
    """Return every deep case, in the database's order."""
    return [case for operator in operators() for case in cases_of(operator)]


def cases_of(operator: Operator) -> list[Case]:
    """Return one operator's deep cases: inference per dtype, then training per dtype."""
    inference = [dtype for dtype in DTYPES if dtype in operator.dtypes]
    training = [dtype for dtype in inference if operator.autograd and dtype in operator.backward]
    return [
        *(_case(operator, dtype, Mode.INFERENCE) for dtype in inference),
        *(_case(operator, dtype, Mode.TRAINING) for dtype in training),
    ]


def _case(operator: Operator, dtype: str, mode: Mode) -> Case:
    """Return the case of the deep tier for an operator in a dtype and mode."""
    subject = f"{AREA}.{operator.name}"
    return Case(
        id=f"{subject}[{dtype}-{mode.value}-deep]",
        area=AREA,
        tier=Tier.DEEP,
        axes=(("dtype", dtype), ("mode", mode.value), ("depth", "deep")),
        requires=(Cell(subject, dtype, mode.value),),
        deadline=_DEADLINE,
        payload=operator.full_name,
    )
