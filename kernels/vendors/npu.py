"""Huawei Ascend: torch_npu registers kernels for PyTorch's own fused optimizers.

This table has not been run on such a device.
"""

from __future__ import annotations

from conformance.kernels.adapting import through_torchs_fused_adam
from conformance.kernels.vendors import VendorLibrary, VendorOperator

LIBRARY = VendorLibrary(
    device_type="npu",
    package="torch_npu",
    builders={
        "FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("torch._fused_adam_", through_torchs_fused_adam)}
    },
)
