"""Biren: ``torch.ops.deepspeed.*``, registered by importing torch_supa_ext.deepspeed.

DeepSpeed's builder for this device calls the same names; lists of lists arrive one after the other.
"""

from __future__ import annotations

from conformance.kernels.adapting import lists_flattened
from conformance.kernels.vendors import Operator, VendorLibrary

LIBRARY = VendorLibrary(
    device_type="supa",
    package="torch_supa_ext.deepspeed",
    builders={
        "FusedAdamBuilder": {"multi_tensor_adam": Operator("torch.ops.deepspeed.multi_tensor_adam", lists_flattened)},
        "FusedLionBuilder": {"multi_tensor_lion": Operator("torch.ops.deepspeed.multi_tensor_lion", lists_flattened)},
        "FusedLambBuilder": {"lamb": Operator("torch.ops.deepspeed.lamb")},
    },
)
