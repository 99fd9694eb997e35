"""Tensors as bits: identity that sees NaN, the sign of zero, and nothing else."""

from __future__ import annotations

import torch

_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host, strided, detached, with lazy conjugation and negation carried out."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    return tensor.resolve_conj().resolve_neg()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two host tensors of one dtype and shape agree in every bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_carrier(left), _carrier(right))


def _carrier(tensor: torch.Tensor) -> torch.Tensor:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return tensor
    if tensor.dtype is torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_CARRIER[tensor.element_size()])
