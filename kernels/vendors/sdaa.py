"""Tecorigin: ``torch.ops.sdaa.*``. Not run on such a device here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.kernels.vendors import VendorLibrary, VendorOperator


def reordered(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Betas before the rate, an empty list where amsgrad has its maxima, and no flag, which is therefore read here."""

    def multi_tensor_adam(
        chunk_size: int,
        noop_flag: Any,
        tensor_lists: Any,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: int,
        mode: int,
        bias_correction: int,
        weight_decay: float,
    ) -> None:
        if int(noop_flag) == 0:
            operator(*tensor_lists, [], beta1, beta2, epsilon, lr, weight_decay, mode, step, bias_correction)

    return multi_tensor_adam


LIBRARY = VendorLibrary(
    device_type="sdaa",
    package="torch_sdaa",
    builders={"FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("torch.ops.sdaa.fused_adam", reordered)}},
)
