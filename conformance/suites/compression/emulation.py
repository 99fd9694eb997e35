"""Single-process reference of compressed means over ranks, written from the published algorithm alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sign(tensor: Tensor) -> Tensor:
    return 2 * (tensor >= 0).to(tensor.dtype) - 1


def compressed_mean(
    given: Sequence[Tensor], workers: Sequence[Tensor], servers: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return the compressed mean of padded flat tensors, the new worker feedbacks, and the new server feedbacks.

    ``servers`` and the returned server feedbacks are those of all ranks, concatenated. A compressed tensor is its root
    mean square times its signs; the feedback is the compression error, which the next call adds to its input.
    """
    size, padded = len(given), given[0].numel()
    mean, new_workers = servers.clone(), []
    for tensor, worker in zip(given, workers, strict=True):
        whole = tensor + worker
        sent = (whole.pow(2).mean().sqrt() * sign(whole)) if padded else whole  # the mean of no elements is NaN
        new_workers.append(whole - sent)
        mean += sent / size
    chunks = mean.view(size, -1)
    out = (chunks.pow(2).mean(dim=1, keepdim=True).sqrt() * sign(chunks)).view(-1)
    return out, new_workers, mean - out


class EmulatedExchange:
    """Compressed means of unpadded tensors, with the error feedback of one tensor."""

    def __init__(self) -> None:
        self.workers: list[Tensor] = []
        self.servers = torch.zeros(0)

    def mean(self, given: Sequence[Tensor]) -> Tensor:
        """Return the compressed mean of one tensor for each rank, and keep the feedback for the next call."""
        size, numel = len(given), given[0].numel()
        # Each of ``size`` chunks is a whole number of bytes of 8 sign bits.
        padded = -(-numel // (8 * size)) * 8 * size
        if not self.workers:
            self.workers = [tensor.new_zeros(padded) for tensor in given]
            self.servers = given[0].new_zeros(padded)
        flat = [torch.nn.functional.pad(tensor.reshape(-1), (0, padded - numel)) for tensor in given]
        out, self.workers, self.servers = compressed_mean(flat, self.workers, self.servers)
        return out[:numel].view(given[0].shape)
