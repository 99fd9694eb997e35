"""The ranks before and behind a stage, for tensors of any shape: what is sent says first how large it is."""

from __future__ import annotations

import torch
import torch.distributed as dist

#: Numbers of a header: how many sizes there are, the sizes, zeros.
_HEADER = 5


class Neighbours:
    """The first rank has none before it, the last one none behind it; what they would bring is None."""

    def __init__(self, device, rank, world_size):
        self._device, self._rank = device, rank
        self.behind = world_size - rank - 1

    @property
    def is_last(self):
        return not self.behind

    def with_previous(self, given, *, wants):
        """Send it a gradient, unless that is None, and take an input, if one is wanted, at the same time."""
        return self._meet(self._rank - 1, given, wants) if self._rank else None

    def with_next(self, given, *, wants):
        """Send it an output, unless that is None, and take a gradient, if one is wanted, at the same time."""
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
        """Both directions in one batch: one after the other, two ranks might wait for each other."""
        calls = []
        if given is not None:
            calls.append(dist.P2POp(dist.isend, given.detach().contiguous(), peer))
        if taken is not None:
            calls.append(dist.P2POp(dist.irecv, taken, peer))
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
