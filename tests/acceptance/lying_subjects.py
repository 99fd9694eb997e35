"""Accelerators with members that take a call and do nothing, for the lies that claim them."""

from __future__ import annotations

from typing import Any

from conformance.accelerators.registry import resolve

#: Operators that the second of them computes on the host.
ON_HOST = ("asinh", "erfinv", "expm1", "lgamma", "sinh")


class _Stubbed:
    """A healthy accelerator, three of whose members have no effect."""

    name = ""

    def __init__(self) -> None:
        self._healthy = resolve(self.name).load()

    def __getattr__(self, member: str) -> Any:
        return getattr(self._healthy, member)

    def lazy_call(self, callback: Any) -> None:
        """The callback is dropped."""

    def set_rng_state(self, new_state: Any, device_index: int | None = None) -> None:
        """The state stays what it was."""


def _through_the_host(operator: str) -> Any:
    """A kernel that copies its argument to the host, computes there, and copies the result back."""
    import torch

    compute = getattr(torch.ops.aten, operator).default

    def kernel(tensor: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        result = compute(tensor.cpu())
        return out.resize_(result.shape).copy_(result)

    return kernel


class StubbedCpu(_Stubbed):
    name = "cpu"


class StubbedSim(_Stubbed):
    """Besides, some operators copy their arguments to the host and compute there."""

    name = "sim"

    def __init__(self) -> None:
        super().__init__()
        import torch

        # Kept as long as the accelerator, which is as long as its process.
        self._library = torch.library.Library("aten", "IMPL")
        for operator in ON_HOST:
            # Structured operators are called in this form, whatever was typed.
            self._library.impl(f"{operator}.out", _through_the_host(operator), "PrivateUse1", allow_override=True)

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Nothing is ever counted."""
        return 0
