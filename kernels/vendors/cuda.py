"""NVIDIA and AMD: PyTorch's own fused optimizers. They compute in float32 whatever the storage."""

from __future__ import annotations

from conformance.kernels.adapting import through_torchs_fused_adam
from conformance.kernels.vendors import VendorLibrary, VendorOperator

LIBRARY = VendorLibrary(
    device_type="cuda",
    package="torch",
    builders={
        "FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("torch._fused_adam_", through_torchs_fused_adam)}
    },
)
