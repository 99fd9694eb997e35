"""Defects of collectives at their edges: sizes, views, orders of ranks and handles, devices, and dying ranks."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from conformance.accelerators.simulated.faults import Fault, Where
from tests.defects.catalogue.collectives import GROUPS, after, broken
from tests.defects.catalogue.parallel import method
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import accelerator, constant, replaced

EDGES, DEATHS = "collectives at their edges", "ranks that die"
SHM = "DeepSpeed shm.cpp: another algorithm from 2^18 elements"


def _stops_at_2_18(output: Any, *_: Any) -> None:
    output.view(-1)[1 << 18 :] = 0


def _writes_before_a_view(output: Any, *_: Any) -> None:
    if output.storage_offset():
        torch.as_strided(output, (1,), (1,), output.storage_offset() - 1).add_(1)


def _reverses_in_groups(old: Any) -> Any:
    """Parts of a group other than the default one come in reverse."""

    def call(output: Any, part: Any, group: Any = None, **kwargs: Any) -> Any:
        work = old(output, part, group=group, **kwargs)
        if group is not None:
            output.copy_(output.view(group.size(), -1).flip(0).reshape(output.shape).clone())
        return work

    return call


def _only_the_last_delivers(old: Any) -> Any:
    """A gather whose handle is waited for after another collective has started brings nothing."""

    def call(output: Any, part: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("async_op"):
            return old(output, part, *args, **kwargs)
        whole = torch.empty_like(output)
        old(whole, part)
        number = dist.get_rank(), dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()

        def wait() -> None:
            group = dist.distributed_c10d._get_default_group()
            if group._get_sequence_number_for_group() == number[1]:
                output.copy_(whole)

        return mock.Mock(wait=wait)

    return call


def _rounds_twice(old: Any) -> Any:
    def call(self: Any, tensor: Any, *args: Any) -> Any:
        result = old(self, tensor, *args)
        return result.mul_(1 + 2 * torch.finfo(result.dtype).eps)

    return call


def _swallows(old: Any) -> Any:
    """A sum that a dead rank breaks off returns what is there."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return old(tensor, *args, **kwargs)
        except RuntimeError:
            return None

    return call


def launched(name: str, precedent: str, caught_by: str, context: Any) -> Mutant:
    what = Fault(name, DEATHS, precedent, Where.COLLECTIVE, caught_by, context=context)
    return Mutant(what, ("comm.world*", "launcher.*", "elasticity.*"), (caught_by,), how=How.PYTEST)


MUTANTS = (
    broken("a gather ends at 2^18 elements", EDGES, SHM, "comm.sizes[all_gather-2]",
           replaced(dist, all_gather_into_tensor=after(_stops_at_2_18))),
    broken("an exchange writes before its view", EDGES, "DeepSpeed ZeRO: views of one flat buffer",
           "comm.offset[all_to_all-2]", replaced(dist, all_to_all_single=after(_writes_before_a_view))),
    broken("a group's parts come in reverse", GROUPS, "DeepSpeed groups: ranks in another order",
           "comm.group.order[reversed-all_gather]", replaced(dist, all_gather_into_tensor=_reverses_in_groups)),
    broken("only the newest handle delivers", EDGES, "DeepSpeed CCL: handles that do nothing",
           "comm.async.mixed[reversed-2]", replaced(dist, all_gather_into_tensor=_only_the_last_delivers)),
    broken("the low-latency sum is rounded twice", EDGES, "DeepSpeed shm.cpp: sums in 16 bits",
           "comm.low_latency[bfloat16-2]",
           method("conformance.kernels.low_latency.all_reduce", "LowLatencyAllReduce", all_reduce=_rounds_twice)),
    launched("all ranks use the first device", "DeepSpeed launcher: LOCAL_RANK ignored", "comm.world[all]",
             accelerator(set_device=constant(None))),
    launched("a sum without a dead rank returns", "DeepSpeed #4048: collectives that go on without a rank",
             "comm.death", replaced(dist, all_reduce=_swallows)),
)  # fmt: skip
