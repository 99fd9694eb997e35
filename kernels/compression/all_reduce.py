"""Mean over ranks with one bit an element on the wire, and what was lost on the way kept for the next call.

Tang et al., 1-bit Adam, 2021, arXiv:2102.02888, sections 3 and 4; the steps, their order, and the scale are those of
DeepSpeed's compressed backend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.errors import UsageError
from conformance.kernels.compression.packing import fastest, signs
from conformance.kernels.groups import member_of


@dataclass
class Feedback:
    """What compression has lost so far: added to the next input, and replaced by what that call loses.

    ``worker`` is float32 of shape (padded,), ``server`` of shape (padded / ranks,); see ``CompressedAllReduce.padded``.
    """

    worker: Tensor
    server: Tensor


class CompressedAllReduce:
    """The mean over the ranks of ``group`` (all ranks if None), with one bit an element and direction.

    Any backend with ``all_to_all_single`` of uint8 and ``all_gather`` of uint8 and float32 carries it, on the buffers'
    own device. ``bytes_sent`` counts what this rank has sent to others so far.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Raises UsageError without an initialized process group, and on a rank outside ``group``."""
        self.rank, self.world_size = member_of(group)
        self.bytes_sent = 0
        self._group = group

    def padded(self, numel: int) -> int:
        """``numel`` rounded up to a multiple of 8 × ranks: whole bytes for every rank's chunk."""
        unit = 8 * self.world_size
        return (numel + unit - 1) // unit * unit

    def feedback(self, buffer: Tensor) -> Feedback:
        """Zeros of the sizes that ``buffer`` needs, on its device."""
        padded = self.padded(buffer.numel())
        worker = torch.zeros(padded, dtype=torch.float32, device=buffer.device)
        return Feedback(worker, torch.zeros(padded // self.world_size, dtype=torch.float32, device=buffer.device))

    def all_reduce(self, buffer: Tensor, feedback: Feedback) -> Tensor:
        """Replace ``buffer`` by the compressed mean, ``feedback`` by what is lost, and return ``buffer``.

        ``buffer`` is float32 of any shape and strides, the same number of elements on all ranks. All ranks get the same
        bits. The mean over ranks of (input + worker feedback), plus the server feedbacks in the order of ranks, is the
        same before and after. Zeros that pad the buffer take part in the scale. With no element the feedback is zeroed.

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
            mean = self._server(self._worker(padded, feedback), feedback)
            buffer.copy_(self._spread(*mean)[: buffer.numel()].view(buffer.shape))
        return buffer

    def _worker(self, padded: Tensor, feedback: Feedback) -> tuple[Tensor, Tensor]:
        """Packed signs of this rank, and its scale; the loss goes into the feedback."""
        compensated = padded + feedback.worker
        scale = _scale(compensated)
        feedback.worker.copy_(compensated - scale * signs(compensated))
        return _packed(compensated), scale

    def _server(self, worker: tuple[Tensor, Tensor], feedback: Feedback) -> tuple[Tensor, Tensor]:
        """Packed signs of the mean of this rank's chunk, and its scale; the loss goes into the feedback."""
        packed, scale = worker
        received = torch.empty_like(packed)
        dist.all_to_all_single(received, packed, group=self._group)
        scales = self._gathered(scale.view(1))
        self.bytes_sent += packed.numel() * (self.world_size - 1) // self.world_size
        chunks = _unpacked(received).view(self.world_size, -1)
        compensated = feedback.server.clone()
        for chunk, of_rank in zip(chunks, scales, strict=True):
            compensated += chunk * (of_rank / self.world_size)
        scale = _scale(compensated)
        feedback.server.copy_(compensated - scale * signs(compensated))
        return _packed(compensated), scale

    def _spread(self, packed: Tensor, scale: Tensor) -> Tensor:
        """Every rank's chunk of the mean, one after the other."""
        everyone, scales = self._gathered(packed), self._gathered(scale.view(1))
        chunks = _unpacked(everyone).view(self.world_size, -1)
        return (chunks * scales.view(-1, 1)).view(-1)

    def _gathered(self, own: Tensor) -> Tensor:
        out = own.new_empty(own.numel() * self.world_size)
        dist.all_gather(list(out.chunk(self.world_size)), own, group=self._group)
        self.bytes_sent += own.nbytes * (self.world_size - 1)
        return out

    def _check(self, buffer: Tensor, feedback: Feedback) -> None:
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


def _packed(tensor: Tensor) -> Tensor:
    return fastest(tensor.device.type)[0](tensor, tensor.numel(), 0)


def _unpacked(bits: Tensor) -> Tensor:
    return fastest(bits.device.type)[1](bits, bits.numel(), 0)


def _scale(tensor: Tensor) -> Tensor:
    """The root mean square: with it, ±scale has the norm of the tensor."""
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(tensor.numel())
