"""Point-to-point exchange with the previous and the next rank; a header with the shape precedes each tensor."""

from __future__ import annotations

import torch
import torch.distributed as dist

#: Length of a header: the number of dimensions, the sizes, and zeros up to four dimensions.
_HEADER = 5


class Neighbours:
    """Neighbour ranks of a pipeline stage. A missing neighbour of the first or last rank gives None."""

    def __init__(self, device, rank, world_size):
        self._device, self._rank = device, rank
        self.behind = world_size - rank - 1

    @property
    def is_last(self):
        return not self.behind

    def with_previous(self, given, *, wants):
        """Send a gradient to the previous rank, unless it is None, and return its input if ``wants`` is true."""
        return self._meet(self._rank - 1, given, wants) if self._rank else None

    def with_next(self, given, *, wants):
        """Send an output to the next rank, unless it is None, and return its gradient if ``wants`` is true."""
        return None if self.is_last else self._meet(self._rank + 1, given, wants)

    def _meet(self, peer, given, wants):
        header = self._empty((_HEADER,), torch.int64) if wants else None
        self._swap(peer, None if given is None else self._header(given), header)
        taken = self._empty(header[1 : 1 + header[0]].tolist(), torch.float32) if wants else None
        self._swap(peer, given, taken)
        return taken

    def _empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _header(self, tensor):
        sizes = [tensor.dim(), *tensor.shape]
        return torch.tensor(sizes + [0] * (_HEADER - len(sizes)), device=self._device)

    @staticmethod
    def _swap(peer, given, taken):
        """Send and receive in one batch. Done one after the other, two ranks could deadlock."""
        calls = []
        if given is not None:
            calls.append(dist.P2POp(dist.isend, given.detach().contiguous(), peer))
        if taken is not None:
            calls.append(dist.P2POp(dist.irecv, taken, peer))
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
