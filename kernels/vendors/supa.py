"""Biren: ``torch.ops.deepspeed.*``, registered by importing torch_supa_ext.deepspeed.

DeepSpeed's builder for this device calls the same names; lists of lists arrive one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.kernels.vendors import Operator, VendorLibrary


def lists_flattened(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The third argument, a list of lists, becomes as many arguments."""

    def call(chunk_size: int, noop_flag: Any, tensor_lists: Any, *rest: Any) -> Any:
        return operator(chunk_size, noop_flag, *tensor_lists, *rest)

    return call


LIBRARY = VendorLibrary(
    device_type="supa",
    package="torch_supa_ext.deepspeed",
    builders={
        "FusedAdamBuilder": {"multi_tensor_adam": Operator("torch.ops.deepspeed.multi_tensor_adam", lists_flattened)},
        "FusedLionBuilder": {"multi_tensor_lion": Operator("torch.ops.deepspeed.multi_tensor_lion", lists_flattened)},
        "FusedLambBuilder": {"lamb": Operator("torch.ops.deepspeed.lamb")},
    },
)
