"""Tecorigin: operators of ``torch.ops.sdaa``. This table has not been run on such a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from conformance.kernels.optimizers.multi_tensor import TensorLists, adam_signature
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.vendors import VendorLibrary, VendorOperator


def reordered(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``multi_tensor_adam`` for an operator with another order of arguments.

    It takes an empty list in place of AMSGrad's maxima, and the betas before the learning rate. It takes no overflow
    flag, so the flag is read before the call.
    """

    @adam_signature
    def multi_tensor_adam(noop_flag: Tensor, tensor_lists: TensorLists, settings: AdamSettings) -> None:
        """Take Adam's step with the vendor's operator, unless the flag is set."""
        # Reading the flag waits for the device.
        if int(noop_flag) == 0:
            operator(
                *tensor_lists, [], settings.beta1, settings.beta2, settings.epsilon, settings.lr, settings.weight_decay,
                int(settings.decoupled), settings.step, int(settings.bias_correction),
            )  # fmt: skip

    return multi_tensor_adam


LIBRARY = VendorLibrary(
    device_type="sdaa",
    package="torch_sdaa",
    builders={"FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("torch.ops.sdaa.fused_adam", reordered)}},
)
