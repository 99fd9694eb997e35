"""Cases of exact workloads under DeepSpeed: every stage of ZeRO gives the bits of one process."""

from __future__ import annotations

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, Cell
from conformance.plan.case import cases

from .exact import deepspeed, injected, ranks
from .parallel.deepspeed_engine import IMPORTS
from .parallel.planned import planned

RANK_IMPORTS = (*ranks.RANK_IMPORTS, *IMPORTS)
NEEDS = (
    COMM, COMM_DTYPE.on("float32"), DTYPE.on("float32"), Cell("workloads.exact", "float32", "training"),
)  # fmt: skip


def zero_cases():
    """Return a case for each number of ranks, such as ``workloads.exact.deepspeed_zero[2]``."""
    return [planned("exact.deepspeed_zero", (("world", str(size)),), NEEDS, size) for size in (2, 4)]


@cases(zero_cases)
def test_zero(accelerator, check, device, world_size, group):
    """An exact decoder under each stage of ZeRO has the bits of one process, on every rank and after every step."""
    for stage in deepspeed.STAGES:
        deepspeed.check_stage(check, accelerator, device, stage)
    deepspeed.check_stage(check, accelerator, device, stage=2, micro_steps=2)


def auto_tp_cases():
    """Return the case ``workloads.exact.deepspeed_auto_tp[2]``."""
    return [planned("exact.deepspeed_auto_tp", (("world", "2"),), NEEDS, 2)]


@cases(auto_tp_cases)
def test_auto_tp(accelerator, check, device, world_size, group):
    """An exact decoder that DeepSpeed cuts over the ranks has the bits of one process, after every step."""
    injected.check_auto_tp(check, accelerator, device)
