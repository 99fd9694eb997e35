"""What is determined of the factors of a matrix, where the documentation leaves signs and phases open."""

from __future__ import annotations

from typing import Any

import torch


def with_positive_diagonal(result: Any) -> list[torch.Tensor]:
    """Return the factors Q and R whose R has no negative diagonal: it is unique up to the signs of its diagonal.

    In the complex case the diagonal may have any phase. Of further columns of Q, beyond those of a reduced QR, only the
    space that they span is determined: they are returned as the projection onto it. Without Q, only R is returned.
    """
    q, r = result
    count = min(r.shape[-2:])
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    phase = torch.where(diagonal == 0, torch.ones_like(diagonal), diagonal.detach().sgn())
    rows = r[..., :count, :] * phase.conj().unsqueeze(-1)
    if not q.numel():
        return [rows]
    first, further = q[..., :count] * phase.unsqueeze(-2), q[..., count:]
    return [first, rows] if not further.shape[-1] else [first, rows, further @ further.mH]
