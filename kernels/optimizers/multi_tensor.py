"""Signatures of the multi-tensor optimizer kernels. They are stated once; implementations adopt them as decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from conformance.kernels.optimizers.portable import AdamSettings

#: Gradients, parameters and states, a list of each. Tensors at the same index belong to one parameter.
TensorLists = Sequence[Sequence[Tensor]]


def adam_signature(update: Callable[[Tensor, TensorLists, AdamSettings], None]) -> Callable[..., None]:
    """Return a function with the signature of ``multi_tensor_adam`` that calls ``update``.

    ``update`` gets the flag, the lists and the settings. It does not get ``chunk_size``, which has no effect on values.
    """

    def multi_tensor_adam(
        chunk_size: int,
        noop_flag: Tensor,
        tensor_lists: TensorLists,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: int,
        mode: int,
        bias_correction: int,
        weight_decay: float,
    ) -> None:
        settings = AdamSettings(lr, beta1, beta2, epsilon, weight_decay, step, bool(bias_correction), mode == 1)
        update(noop_flag, tensor_lists, settings)

    # Not functools.wraps: inspect.signature would then answer with the signature of ``update``.
    multi_tensor_adam.__doc__ = update.__doc__
    return multi_tensor_adam


def lion_signature(update: Callable[[Tensor, TensorLists, float, float, float, float], None]) -> Callable[..., None]:
    """Return a function with the signature of ``multi_tensor_lion`` that calls ``update``.

    ``update`` gets the flag, the lists, the learning rate, both betas and the weight decay. ``chunk_size`` and ``step``
    have no effect on values.
    """

    def multi_tensor_lion(
        chunk_size: int,
        noop_flag: Tensor,
        tensor_lists: TensorLists,
        lr: float,
        beta1: float,
        beta2: float,
        step: int,
        weight_decay: float,
    ) -> None:
        update(noop_flag, tensor_lists, lr, beta1, beta2, weight_decay)

    multi_tensor_lion.__doc__ = update.__doc__
    return multi_tensor_lion
