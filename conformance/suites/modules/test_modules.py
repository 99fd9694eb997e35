"""The body of every module case."""

from __future__ import annotations

from conformance.plan.case import cases

from . import planned


@cases(planned.generate)
def test_module(device, case, check):
    """A module has the results, gradients and buffers of its float64 copy on the host, in each layout of its inputs."""
    import torch  # a plan does not need it, nor PyTorch's databases

    from conformance.suites.operators.cell import quiet

    from . import checking

    with quiet():
        checking.check_module(check, case.payload, device, getattr(torch, case.dtype), training=case.mode == "training")
