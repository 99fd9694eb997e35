"""Intel Gaudi: operators of ``torch.ops.hpu``. This table has not been run on such a device."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.optimizers.multi_tensor import TensorLists, adam_signature
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.vendors import VendorLibrary, VendorOperator


def through_adamw(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``multi_tensor_adam`` on top of ``optimizer_adamw``.

    The operator takes a negative step size, and the factor by which decay scales a parameter. It does not correct the
    bias, so both corrections are part of the step size. Epsilon is multiplied by the root of the second correction;
    otherwise it would weigh more than in the formula. Decay in the gradient (mode 0) is added before the call.
    """

    @adam_signature
    def multi_tensor_adam(noop_flag: Tensor, tensor_lists: TensorLists, settings: AdamSettings) -> None:
        """Take Adam's step with the vendor's operator, which has no bias correction of its own."""
        gradients, parameters, means, squares = tensor_lists
        # The operator takes no flag. Reading it here waits for the device.
        if int(noop_flag) != 0 or not parameters:
            return
        first, root = settings.corrections[0], math.sqrt(settings.corrections[1])
        if not settings.decoupled and settings.weight_decay:
            gradients = torch._foreach_add(list(gradients), list(parameters), alpha=settings.weight_decay)
        kept = 1.0 - settings.lr * settings.weight_decay if settings.decoupled else 1.0
        size = _scalar(-settings.lr * root / first, parameters[0])
        numbers = (size, settings.beta1, settings.beta2, settings.epsilon * root)
        # In lazy mode the operator takes the decay factor as a number, in eager mode as a tensor with a flag.
        if importlib.import_module("habana_frameworks.torch.utils.internal").is_lazy():
            operator(gradients, parameters, means, squares, *numbers, kept)
        else:
            operator(gradients, parameters, means, squares, *numbers, _scalar(kept, parameters[0]), kept != 1.0)

    return multi_tensor_adam


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.tensor([value], dtype=like.dtype, device=like.device)


LIBRARY = VendorLibrary(
    device_type="hpu",
    package="habana_frameworks.torch.core",
    builders={
        "FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("torch.ops.hpu.optimizer_adamw", through_adamw)}
    },
)
