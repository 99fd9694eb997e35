"""Cases of invariance under a compiler: an operator compiled alone, and beside others in one graph."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.judging.finding import Refused
from conformance.plan.case import Case, cases

from . import compiled
from .judging import tell
from .mode import invariant_mode

DTYPES = ("float32", "bfloat16")
#: Timeout in seconds, for seven graphs.
DEADLINE = 300.0


def compile_cases():
    """Return a case for each dtype, such as ``invariance.compile[float32]``."""
    return [
        Case(
            id=f"invariance.compile[{dtype}]", area="invariance", axes=(("dtype", dtype),), deadline=DEADLINE,
            requires=(can.INVARIANT_COMPILE.on(dtype),), adaptive=True,
        )
        for dtype in DTYPES
    ]  # fmt: skip


@cases(compile_cases)
def test_compiled(accelerator, device, declaration, case, check):
    """A compiled operator has the same bits alone and in graphs of several operators."""
    import torch
    import torch._dynamo

    from conformance.suites.shared_bodies import WatchedBackend

    for need in (can.COMPILE.cell, can.DTYPE.on(case.dtype)):
        if not declaration.supports(need):
            raise Refused(f"the device does not declare {need}, so it has no such surrounding")
    backend = WatchedBackend(accelerator.get_compile_backend())
    torch._dynamo.reset()  # graphs of an earlier case would be reused
    try:
        with invariant_mode(accelerator) as ignored:
            found, empty = compiled.changes(
                lambda function: torch.compile(function, backend=backend, dynamic=False),
                device,
                getattr(torch, case.dtype),
            )
    finally:
        torch._dynamo.reset()
    backend.check()
    tell(check, declaration, case, "compile", found, len(compiled.NAMES), ignored=ignored, empty=empty)
