"""Cases of invariance on ranks: the same rows, computed by one rank and by groups of more and more ranks."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.plan.case import WORLD_AXIS, Case, case_id, cases

from . import ranks
from .judging import tell
from .mode import invariant_mode

DTYPES = ("float32", "bfloat16")
#: Timeout in seconds. A case takes one on a free processor.
DEADLINE = 120.0


def rank_cases():
    """Return a case for each dtype and number of ranks, such as ``invariance.rank[float32-4]``."""
    found = []
    for dtype in DTYPES:
        for size in (2, 4):
            axes = (("dtype", dtype), (WORLD_AXIS, str(size)))
            found.append(
                Case(
                    id=case_id("invariance.rank", axes), area="invariance", axes=axes, deadline=DEADLINE,
                    requires=(can.INVARIANT_RANK.on(dtype),), adaptive=True, world_size=size,
                )
            )  # fmt: skip
    return found


@cases(rank_cases)
def test_rank(accelerator, device, declaration, case, check, rank, world_size, group):
    """The bits of a row are the same whether one rank computes it, or two, or four together."""
    import torch
    import torch.distributed as dist

    sizes = [size for size in (2, 4) if size <= world_size]
    # Every rank makes every group: new_group() is a collective.
    handles = {size: [dist.new_group(list(range(n, n + size))) for n in range(0, world_size, size)] for size in sizes}
    groups = [ranks.Group(size, rank % size, handles[size][rank // size]) for size in sizes]
    with invariant_mode(accelerator) as ignored:
        found, empty = ranks.compare(groups, device, getattr(torch, case.dtype))
    total = found.to(device)
    dist.all_reduce(total)
    # The first rank tells for all: they know the same.
    changed = ranks.changes_of(total.cpu(), sizes) if rank == 0 else []
    tell(check, declaration, case, "rank", changed, len(ranks.PARALLEL), ignored=ignored, empty=empty)
