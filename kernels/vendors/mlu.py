"""Cambricon: ``torch.ops.torch_mlu.*``. Not run on such a device here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.kernels.vendors import VendorLibrary, VendorOperator


def without_chunks(operator: Callable[..., Any]) -> Callable[..., Any]:
    """No chunk size, and the lists one after the other."""

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
