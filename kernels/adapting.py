"""Adapters from a specification's arguments to those of vendors' operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.optimizers.multi_tensor import TensorLists, adam_signature
from conformance.kernels.optimizers.portable import AdamSettings


def lists_flattened(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that passes each list of the third argument, a list of lists, as one argument."""

    def call(chunk_size: int, noop_flag: Tensor, tensor_lists: TensorLists, *rest: Any) -> Any:
        return operator(chunk_size, noop_flag, *tensor_lists, *rest)

    return call


def through_torchs_fused_adam(adam: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``multi_tensor_adam`` on top of PyTorch's ``_fused_adam_`` and ``_fused_adamw_``.

    Both expect the number of the current step, and change nothing where ``found_inf`` is set. They always correct the
    bias, so a call without bias correction raises NotImplementedError.
    """

    @adam_signature
    def multi_tensor_adam(noop_flag: Tensor, tensor_lists: TensorLists, settings: AdamSettings) -> None:
        """Run PyTorch's fused Adam on the tensors that have elements. It cannot step without bias correction."""
        if not settings.bias_correction:
            raise NotImplementedError("PyTorch's fused Adam always corrects the bias")
        gradients, parameters, means, squares = (
            [tensor for tensor in tensors if tensor.numel()] for tensors in tensor_lists
        )
        if not parameters:
            return
        count = torch.tensor(float(settings.step), device=parameters[0].device)
        function = torch._fused_adamw_ if settings.decoupled else adam
        function(
            parameters, gradients, means, squares, [], [count] * len(parameters),
            lr=settings.lr, beta1=settings.beta1, beta2=settings.beta2, weight_decay=settings.weight_decay,
            eps=settings.epsilon, amsgrad=False, maximize=False,
            found_inf=(noop_flag != 0).to(parameters[0].device, torch.float32).reshape(()),
        )  # fmt: skip

    return multi_tensor_adam
