"""Cases of invariance: the device against itself, in each kind of surrounding."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.judging.finding import Refused
from conformance.plan.case import Case, cases

from .judging import tell
from .mode import invariant_mode
from .surroundings import KINDS, changes, operators_in, without_values

DTYPES = ("float32", "bfloat16")
#: Capabilities without which there is no such surrounding.
NEEDS = {"stream": can.STREAM, "graph": can.GRAPH_CAPTURE}
#: Timeout in seconds. The kinds with many rows take 6 seconds on a free processor.
DEADLINE = 120.0


def invariance_cases():
    """Return a case for each kind of surrounding and dtype, such as ``invariance.batch[float32]``."""
    return [
        Case(
            id=f"invariance.{kind}[{dtype}]", area="invariance", axes=(("dtype", dtype),), deadline=DEADLINE,
            requires=(can.find_capability(f"invariance.{kind}").on(dtype),), adaptive=True,
        )
        for kind in KINDS
        for dtype in DTYPES
    ]  # fmt: skip


@cases(invariance_cases)
def test_invariance(accelerator, device, declaration, case, check):
    """The bits of a row are the same in every surrounding: in other batches, chunks, strides, and runs."""
    import torch

    kind, dtype = case.subject, getattr(torch, case.dtype)
    need = NEEDS.get(kind)
    if need and not declaration.supports(need.cell):
        raise Refused(f"the device does not declare {need}, so it has no such surrounding")
    if not declaration.supports(can.DTYPE.on(case.dtype)):
        raise Refused(f"the device does not declare {case.dtype}")
    with invariant_mode(accelerator) as ignored:
        empty = without_values(device, dtype)
        found = changes(kind, device, dtype, accelerator)
    tell(check, declaration, case, kind, found, len(operators_in(kind)), ignored=ignored, empty=empty)
