"""Cambricon: operators of ``torch.ops.torch_mlu``. This table has not been run on such a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.kernels.vendors import VendorLibrary, VendorOperator


def without_chunks(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``multi_tensor_adam`` for an operator that takes no chunk size, and each list as one argument."""

    def multi_tensor_adam(chunk_size: int, noop_flag: Any, tensor_lists: Any, *rest: Any) -> None:
        operator(noop_flag, *tensor_lists, *rest)

    return multi_tensor_adam


LIBRARY = VendorLibrary(
    device_type="mlu",
    package="torch_mlu",
    builders={
        "FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("torch.ops.torch_mlu.fused_adam", without_chunks)}
    },
)
