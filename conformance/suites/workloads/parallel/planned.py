"""Cases of parallel engines, and the check of losses that several ranks have."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import Capability, Cell
from conformance.plan.case import About, Case, Isolation, Tier, case_id

from .models import Reference, check_losses

#: Timeout of a case in seconds. One takes 1 to 7 seconds on a free machine.
DEADLINE = 180.0


def planned(
    subject: str,
    axes: tuple[tuple[str, str], ...],
    needs: Sequence[Capability | Cell],
    ranks: int | None,
    *,
    deep: bool = False,
) -> Case:
    """Return the case ``workloads.<subject>[axes]`` on that many ranks, of the tier ``deep`` or workload."""
    cells = [need if isinstance(need, Cell) else need.cell for need in needs]
    # PyTorch's ring attention knows three attention operators by name; a device with another one cannot have it.
    special = {
        "deepspeed": About.LIBRARY,
        "exact.deepspeed_zero": About.LIBRARY,
        "exact.deepspeed_auto_tp": About.LIBRARY,
        "llama.accelerate_ranks": About.LIBRARY,
        "llama.cp": About.PYTORCH,
    }
    about = special.get(subject, special.get(subject.partition(".")[0], About.DEVICE))
    return Case(
        id=case_id(f"workloads.{subject}", axes),
        area="workloads",
        tier=Tier.DEEP if deep else Tier.WORKLOAD,
        axes=axes,
        requires=tuple(dict.fromkeys(cells)),
        deadline=DEADLINE,
        about=about,
        world_size=ranks,
        isolation=_isolation(about) if ranks else Isolation.REUSE,
    )


def _isolation(about: About) -> Isolation:
    """Return the isolation of cases on ranks: DeepSpeed and PyTorch's ring attention change torch's functions for good.

    Where DeepSpeed is missing, its cases are skipped, and change nothing.
    """
    changes = _has_deepspeed() if about is About.LIBRARY else about is About.PYTORCH
    return Isolation.FORK if changes else Isolation.REUSE


@functools.cache
def _has_deepspeed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def check_mean_losses(
    check: Any,
    family: str,
    run: Sequence[float | None],
    parts: int,
    device: torch.device,
    kind: str = "",
    known: Reference | None = None,
) -> None:
    """Check the mean of all losses that ranks have. Each part of the batch is on as many ranks as every other."""
    row = [0.0] * (len(run) + 1) if run[0] is None else [*run, 1.0]
    sums = torch.tensor(row, device=device)
    dist.all_reduce(sums)
    *losses, holders = sums.tolist()
    check.that(holders >= parts, f"{holders} ranks have a loss, for {parts} parts of the batch")
    check_losses(check, family, [loss / holders for loss in losses], kind, known)
