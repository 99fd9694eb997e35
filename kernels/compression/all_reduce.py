"""Compressed all-reduce: the mean over ranks with one bit an element on the wire, and error feedback.

Tang et al., 1-bit Adam, 2021, arXiv:2102.02888, sections 3 and 4; the steps, their order, and the scale are those of
DeepSpeed's compressed backend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.base.errors import UsageError
from conformance.kernels.compression.packing import Packing, fastest, signs
from conformance.kernels.groups import member_of


@dataclass
class Feedback:
    """Error feedback: the loss of the last call, which is added to the input of the next one.

    ``worker`` is float32 of shape (padded,), ``server`` of shape (padded / ranks,); see ``CompressedAllReduce.padded``.
    """

    worker: Tensor
    server: Tensor


class CompressedAllReduce:
    """Mean over the ranks of ``group`` (all ranks if None), with one bit an element in each direction.

    It needs a backend with ``all_to_all_single`` of uint8 and ``all_gather`` of uint8 and float32, on the buffers' own
    device. ``bytes_sent`` counts the bytes that this rank has sent to others.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, packing: tuple[Packing, Packing] | None = None) -> None:
        """Use ``packing``, which is ``packbits`` and ``unpackbits``, or without it this project's fastest kernels.

        Raises UsageError without an initialized process group, and on a rank outside ``group``.
        """
        self.rank, self.world_size = member_of(group)
        self._packing = packing
        self.bytes_sent = 0
        self._group = group

    def padded(self, numel: int) -> int:
        """Return ``numel`` rounded up to a multiple of 8 × ranks, so that every rank's chunk has whole bytes."""
        unit = 8 * self.world_size
        return (numel + unit - 1) // unit * unit

    def feedback(self, buffer: Tensor) -> Feedback:
        """Return feedback of zeros for ``buffer``, on its device."""
        padded = self.padded(buffer.numel())
        worker = torch.zeros(padded, dtype=torch.float32, device=buffer.device)
        return Feedback(worker, torch.zeros(padded // self.world_size, dtype=torch.float32, device=buffer.device))

    def all_reduce(self, buffer: Tensor, feedback: Feedback) -> Tensor:
        """Replace ``buffer`` by the compressed mean and ``feedback`` by the loss; return ``buffer``.

        ``buffer`` is float32 of any shape and strides, with the same number of elements on all ranks. All ranks get
        the same bits. The mean over ranks of (input + worker feedback), plus the server feedbacks in the order of
        ranks, is the same before and after. Zeros that pad the buffer count in the scale. If the buffer has no element,
        the feedback is zeroed.

        Raises UsageError, with nothing changed, for another dtype or feedback of the wrong size or device.
        """
        self._check(buffer, feedback)
        if buffer.numel() == 0:
            feedback.worker.zero_()
            feedback.server.zero_()
            return buffer
        with torch.no_grad():
            padded = feedback.worker.new_zeros(feedback.worker.numel())
            padded[: buffer.numel()] = buffer.detach().reshape(-1)
            packed_mean = self._reduce_chunk(self._pack_own(padded, feedback), feedback)
            buffer.copy_(self._gather_chunks(*packed_mean)[: buffer.numel()].view(buffer.shape))
        return buffer

    def _pack_own(self, padded: Tensor, feedback: Feedback) -> tuple[Tensor, Tensor]:
        """Return this rank's packed signs and their scale; store the loss in the worker feedback."""
        # Error feedback: the loss of the last call is added to this one's input, so it is not lost for good.
        compensated = padded + feedback.worker
        scale = _scale(compensated)
        feedback.worker.copy_(compensated - scale * signs(compensated))
        return self._packed(compensated), scale

    def _reduce_chunk(self, worker: tuple[Tensor, Tensor], feedback: Feedback) -> tuple[Tensor, Tensor]:
        """Return packed signs and scale of the mean of this rank's chunk; store the loss in the server feedback."""
        packed, scale = worker
        received = torch.empty_like(packed)
        dist.all_to_all_single(received, packed, group=self._group)
        scales = self._gathered(scale.view(1))
        # Each rank keeps its own chunk, so it sends all but one of world_size parts.
        self.bytes_sent += packed.numel() * (self.world_size - 1) // self.world_size
        chunks = self._unpacked(received).view(self.world_size, -1)
        compensated = feedback.server.clone()
        for chunk, rank_scale in zip(chunks, scales, strict=True):
            compensated += chunk * (rank_scale / self.world_size)
        scale = _scale(compensated)
        feedback.server.copy_(compensated - scale * signs(compensated))
        return self._packed(compensated), scale

    def _gather_chunks(self, packed: Tensor, scale: Tensor) -> Tensor:
        """Return the whole mean: the chunks of all ranks in their order."""
        packed_chunks, scales = self._gathered(packed), self._gathered(scale.view(1))
        chunks = self._unpacked(packed_chunks).view(self.world_size, -1)
        return (chunks * scales.view(-1, 1)).view(-1)

    def _gathered(self, own: Tensor) -> Tensor:
        """Return the buffers of all ranks one after the other, and count the bytes that this rank sends."""
        out = own.new_empty(own.numel() * self.world_size)
        dist.all_gather(list(out.chunk(self.world_size)), own, group=self._group)
        self.bytes_sent += own.nbytes * (self.world_size - 1)
        return out

    def _packed(self, tensor: Tensor) -> Tensor:
        pack, _ = self._packing or fastest(tensor.device.type)
        return pack(tensor, tensor.numel(), 0)

    def _unpacked(self, bits: Tensor) -> Tensor:
        _, unpack = self._packing or fastest(bits.device.type)
        return unpack(bits, bits.numel(), 0)

    def _check(self, buffer: Tensor, feedback: Feedback) -> None:
        """Raise ``UsageError`` if the buffer or its feedback has another dtype, shape or device."""
        if buffer.dtype is not torch.float32:
            raise UsageError(f"the buffer is {buffer.dtype}.\n  compressed all-reduce takes float32: convert it")
        padded = self.padded(buffer.numel())
        wanted = {"worker": padded, "server": padded // self.world_size}
        for name, numel in wanted.items():
            error: Tensor = getattr(feedback, name)
            if (tuple(error.shape), error.dtype, error.device) != ((numel,), torch.float32, buffer.device):
                raise UsageError(
                    f"the {name} feedback is {error.dtype} of shape {tuple(error.shape)} on {error.device}, "
                    f"and {buffer.numel()} elements on {self.world_size} ranks need float32 of ({numel},) "
                    f"on {buffer.device}.\n  make it with feedback(buffer)"
                )


def _scale(tensor: Tensor) -> Tensor:
    """Return the root mean square, a float32 scalar: the signs times it have the norm of the tensor."""
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(tensor.numel())
