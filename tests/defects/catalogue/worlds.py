"""Defects of collectives at their edges: sizes, views, orders of ranks and handles, devices, and dying ranks."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.defects.catalogue.collectives import GROUPS, after, before, broken
from tests.defects.catalogue.parallel import method
from tests.defects.faults import Fault, Where
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import accelerator, constant, replaced, together

EDGES, DEATHS = "collectives at their edges", "ranks that die"
RESIZED = "training at another size"
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


def _reads_nothing(old: Any) -> Any:
    """What cannot be read is empty."""

    def call(tensor: Any) -> Any:
        try:
            return old(tensor)
        except RuntimeError:
            return []

    return call


def _without_moments(old: Any) -> Any:
    """A checkpoint comes back without the optimizer's moments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        loaded = old(*args, **kwargs)
        if isinstance(loaded, tuple) and len(loaded) == 3:
            for state in loaded[1]["state"].values():
                state["exp_avg"].zero_()
        return loaded

    return call


def _from_the_last(old: Any) -> Any:
    def call(tensor: Any, src: int = 0, *args: Any, **kwargs: Any) -> Any:
        return old(tensor, dist.get_world_size() - 1, *args, **kwargs)

    return call


def _nothing_after_a_restart(tensor: Any) -> None:
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "1":
        tensor.zero_()


def _takes_signals(old: Any) -> Any:
    """A runtime that handles signals itself as soon as it is used."""

    def call(self: Any) -> Any:
        for number in (signal.SIGTERM, signal.SIGINT):
            if "JOB_SIGNAL" in os.environ:
                signal.signal(number, signal.SIG_IGN)
        return old(self)

    return call


def _takes_options(old: Any) -> Any:
    """A runtime that reads options from the command line and removes them."""

    def call(self: Any, *args: Any) -> Any:
        if "JOB_ACCELERATOR" in os.environ:
            sys.argv[:] = [word for word in sys.argv if not word.startswith("--")]
        return old(self, *args)

    return call


def _takes_the_output(old: Any) -> Any:
    """A runtime that writes its own log to where a rank's output goes."""

    def call(self: Any, *args: Any) -> Any:
        if "JOB_ACCELERATOR" in os.environ:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return old(self, *args)

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
             "comm.death",
             # On a device with a queue, the error comes with the values.
             together(replaced(dist, all_reduce=_swallows), replaced(torch.Tensor, tolist=_reads_nothing))),
    broken("a checkpoint loses the optimizer's moments", RESIZED, "DeepSpeed universal checkpoints",
           "elasticity.resize[3-2]", replaced(torch, load=_without_moments)),
    broken("a broadcast comes from the rank that returns", RESIZED, "DeepSpeed elasticity: nodes that return",
           "elasticity.returns", replaced(dist, broadcast=_from_the_last)),
    launched("sums are zero after a restart", "DeepSpeed elasticity: groups that are not made again",
             "elasticity.restart.inside", replaced(dist, all_reduce=before(_nothing_after_a_restart))),
    launched("a runtime takes the signals", "DeepSpeed launcher: signals for all ranks", "launcher.signal[SIGTERM]",
             accelerator(current_device_name=_takes_signals)),
    launched("a runtime takes options", "DeepSpeed launcher: arguments of the user", "launcher.arguments",
             accelerator(set_device=_takes_options)),
    launched("a runtime takes the output", "DeepSpeed launcher: one log for each rank", "launcher.logs",
             accelerator(set_device=_takes_the_output)),
)  # fmt: skip
