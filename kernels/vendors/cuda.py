"""NVIDIA and AMD: PyTorch's own fused optimizers, which compute in float32 for every storage dtype."""

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
