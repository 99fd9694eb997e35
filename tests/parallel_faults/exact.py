"""Faults that the exact workloads have to find, each with the place that the message has to name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.parallel_faults.faults import (
    FAULTS,
    LLAMA,
    Fault,
    _after,
    _ddp,
    _loaded,
    _local,
    _mean,
    _reduced,
    _swapped,
    around,
)

EXACT = "workloads.exact."
#: Exact cases that train under the layouts of llama's cases.
_TWINS = {
    "ddp[2]": "replicated[2]",
    "fsdp2[2]": "sharded[2]",
    "tp[2]": "decoder_tensor[2]",
    "sp[2]": "decoder_tensor[2]",
    "1f1b[2]": "decoder_pipelined[2]",
    "gpipe[2]": "decoder_pipelined[2]",
    "interleaved-1f1b[2]": "decoder_pipelined[2]",
    "fsdp2.resume[2-tp@2]": "decoder_resumed[2]",
    "1f1b.resume[2-fsdp2@2]": "decoder_resumed[2]",
}
#: A parameter with an element or the loss, a rank and a step: every message names its place so.
PLACE = (
    r"rank \d, step \d: "
    r"(the (gradient of|weight|momentum of) [\w.]+( after the step| in the forward pass)?\[[\d, ]+\]|the loss) is "
)


def _twin(fault: Fault) -> Fault:
    case = EXACT + _TWINS[fault.case.removeprefix(LLAMA)]
    return Fault(f"exact: {fault.name}", case, fault.plant, fault.hangs, PLACE)


def _at(step: int, change: Callable[[torch.Tensor], torch.Tensor], *, last: bool = False) -> Callable[[], None]:
    """Return a planter that changes one reduced bucket of DDP, number ``step`` of the process."""
    count = 0

    def hook(buffer: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        reduced = _mean(buffer)
        here = not last or dist.get_rank() == dist.get_world_size() - 1
        return change(reduced) if count == step and here else reduced

    return _ddp(hook)


def _one_lost(buffer: torch.Tensor) -> torch.Tensor:
    """Lose the gradient of one element: the first that is not zero."""
    place = int(buffer.flatten().nonzero()[0])
    buffer.flatten()[place] = 0.0
    return buffer


def _one_twice(buffer: torch.Tensor) -> torch.Tensor:
    place = int(buffer.flatten().nonzero()[-1])
    buffer.flatten()[place] *= 2.0
    return buffer


def _own_element(buffer: torch.Tensor) -> torch.Tensor:
    """Leave one element out of the all-reduce."""
    own = buffer.clone()
    reduced = _mean(buffer)
    places = (own != reduced).flatten().nonzero().flatten()
    if len(places):
        reduced.flatten()[places[0]] = own.flatten()[places[0]]
    return reduced


def _narrow_sum(buffer: torch.Tensor) -> torch.Tensor:
    """Add in bfloat16 inside of an all-reduce of float32."""
    everyone = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, buffer)
    total = sum(part.bfloat16() for part in everyone)
    return (total.float() / len(everyone)).view_as(buffer)  # type: ignore[union-attr]


def _neighbours_part(number: int) -> Callable[[], None]:
    """Return a planter that gives each rank its neighbour's part in one reduce-scatter."""
    count = 0

    def spoil(output: torch.Tensor, given: torch.Tensor) -> None:
        nonlocal count
        count += 1
        if count == number:
            everyone = [torch.empty_like(output) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, output)
            output.copy_(everyone[(dist.get_rank() + 1) % len(everyone)])

    return _after(dist, "reduce_scatter_single", spoil)


def _stale_after_load() -> None:
    """Let a loaded parameter keep the values that its model had before, on the last rank."""
    import torch.distributed.checkpoint as dcp

    def spoil(original: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        shard = _local(state["model"]["model.layers.1.mlp.up_proj.weight"])
        before = shard.detach().clone()
        original(state, *args, **kwargs)
        if dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                shard.copy_(before)

    around(dcp, "load", spoil)


def _first_moment_lost(state: dict[str, Any]) -> None:
    name = next(name for name in sorted(state["optimizer"]) if name.endswith("lm_head.weight.momentum_buffer"))
    _local(state["optimizer"][name]).flatten()[:1].zero_()


DDP, FSDP, RESUMED = EXACT + "replicated[2]", EXACT + "sharded[2]", EXACT + "decoder_resumed[2]"
OWN = (
    Fault("exact: an all-reduce drops one element of each bucket", DDP, _ddp(_own_element), place=PLACE),
    Fault("exact: one gradient is lost in one bucket", DDP, _at(9, _one_lost), place=PLACE),
    Fault("exact: one gradient is lost on one rank", DDP, _at(12, _one_lost, last=True),
          place="rank 1, step .: the gradient of"),
    Fault("exact: one element is reduced twice", DDP, _at(7, _one_twice), place=PLACE),
    Fault("exact: an all-reduce of float32 adds in bfloat16", DDP, _ddp(_narrow_sum), place=PLACE),
    Fault("exact: one reduce-scatter is off by one rank", FSDP, _neighbours_part(5), place=PLACE),
    Fault("exact: a shard is stale after resume", RESUMED, _stale_after_load,
          place=r"rank 1, step 2: the weight model.layers.1.mlp.up_proj.weight after the step\["),
    Fault("exact: one element of a momentum is lost on resume", RESUMED, _loaded(_first_moment_lost),
          place=r"step 2: the momentum of lm_head.weight\["),
)  # fmt: skip
ZERO = EXACT + "deepspeed_zero[2]"
#: Faults that need DeepSpeed.
EXACT_UNDER_DEEPSPEED = (
    Fault("exact: zero reduces half of the gradients", ZERO, _reduced(lambda t: t[::2].div_(2)),
          place=r"zero \d: decoder-2, rank \d, step 1: the gradient of [\w.]+\["),
    Fault("exact: zero loses the last bit of a sum", ZERO, _reduced(lambda t: t.mul_(1.0 + 2.0**-23)),
          place=r"zero \d: decoder-2, rank \d, step 1: the gradient of [\w.]+\["),
    Fault("exact: zero gathers parts in the wrong order", ZERO, _after(dist, "all_gather_into_tensor", _swapped),
          place=r"zero \d: decoder-2, rank \d, step \d: "),
)  # fmt: skip
EXACT_FAULTS = (*OWN, *(_twin(fault) for fault in FAULTS if fault.case.removeprefix(LLAMA) in _TWINS))
