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
    _done,
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


# --- compiled engines, and engines whose state or activations are on the host ---------------------------------------


def _traced_once() -> None:
    """Let compiled code compute with the weights of its first call, as if they were constants of the graph."""
    import torch._dynamo.backends.registry as registry

    def compiled(original: Any, module: Any, inputs: Any, **kwargs: Any) -> Any:
        function, kept = original(module, inputs, **kwargs), {}

        def run(*arguments: Any) -> Any:
            for place, each in enumerate(arguments):
                if isinstance(each, torch.nn.Parameter):
                    kept.setdefault(place, each.detach().clone())
            stale = [
                # The old value with the gradient of the new one.
                each - each.detach() + kept[place] if place in kept else each
                for place, each in enumerate(arguments)
            ]
            return function(*stale)

        return run

    lookup = registry.lookup_backend
    original = lookup("aot_eager")
    registry._COMPILER_FNS["aot_eager"] = lambda module, inputs, **kwargs: compiled(original, module, inputs, **kwargs)


def _slope_lost() -> None:
    """Let a compiler take one bent activation for another."""
    import torch._dynamo.backends.registry as registry

    original = registry.lookup_backend("aot_eager")

    def compiled(module: Any, inputs: Any, **kwargs: Any) -> Any:
        for node in module.graph.nodes:
            if node.target is torch.nn.functional.relu6:
                node.target = torch.nn.functional.relu
        module.recompile()
        return original(module, inputs, **kwargs)

    registry._COMPILER_FNS["aot_eager"] = compiled


def _first_step_only() -> Callable[[], None]:
    """Return a planter that reduces no bucket after the first step, as if the hook was no part of a compiled step."""
    seen: set[int] = set()

    def hook(bucket: Any) -> torch.Tensor:
        buffer = bucket.buffer()
        if bucket.index() in seen:
            return buffer
        if bucket.is_last():
            seen.update(range(100))
        return _mean(buffer)

    return _ddp_bucket(hook)


def _ddp_bucket(hook: Callable[[Any], torch.Tensor]) -> Callable[[], None]:
    from torch.nn.parallel import DistributedDataParallel

    def change(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, lambda state, bucket: _done(hook(bucket)))

    return lambda: around(DistributedDataParallel, "__init__", change)


def _unpacked(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    """Return a planter that changes what comes back from the host for the backward pass, in the second step."""
    from torch.autograd.graph import save_on_cpu

    def initialise(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        unpack = self.unpack_hook
        self.unpack_hook = lambda packed: change(unpack(packed))

    return lambda: around(save_on_cpu, "__init__", initialise)


def _stale_activation() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that gives the tensor of the same shape from the call before."""
    before: dict[tuple[int, ...], torch.Tensor] = {}

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        stale = before.get(tuple(tensor.shape), tensor)
        before[tuple(tensor.shape)] = tensor.clone()
        return stale

    return change


def _on_one(seam: str, number: int, change: Callable[[torch.Tensor], Any]) -> Callable[[], None]:
    """Return a planter that changes one result of a collective on the last rank: that of a call of a number."""
    count = 0

    def spoil(output: torch.Tensor, given: torch.Tensor) -> None:
        nonlocal count
        count += 1
        if count == number and dist.get_rank() == dist.get_world_size() - 1:
            change(output)

    return _after(dist, seam, spoil)


def _stale_gather() -> None:
    """Let gathers after the first step return what the first one of the size returned: parameters on the host move."""
    first: dict[int, torch.Tensor] = {}

    def spoil(output: torch.Tensor, given: torch.Tensor) -> None:
        output.copy_(first.setdefault(output.numel(), output.clone()))

    _after(dist, "all_gather_single", spoil)()


def _rounded_state() -> None:
    """Let the optimizer keep its momenta in bfloat16."""

    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        for state in self.state.values():
            momentum = _local(state["momentum_buffer"])
            momentum.copy_(momentum.bfloat16().to(momentum.dtype))
        return result

    around(torch.optim.SGD, "step", step)


COMPILED, OFFLOADED = EXACT + "compiled_on_ranks[2]", EXACT + "offloaded_on_ranks[2]"
OF_WAYS = (
    Fault("exact: compiled code keeps the weights of its first call", COMPILED, _traced_once,
          place=r"(ddp|fsdp2) compiled: bent, rank \d, step 2: "),
    Fault("exact: a compiler takes one activation for another", COMPILED, _slope_lost,
          place=r"ddp compiled: bent, rank \d, step 1: the (loss|gradient of [\w.]+\[[\d, ]+\]) is "),
    Fault("exact: a compiled ddp reduces in its first step only", COMPILED, _first_step_only(),
          place=r"ddp compiled: bent, rank \d, step 2: the gradient of [\w.]+\["),
    Fault("exact: a compiled ddp loses one gradient on one rank", COMPILED, _at(3, _one_lost, last=True),
          place=r"ddp compiled: bent, rank 1, step \d: the gradient of [\w.]+\["),
    Fault("exact: a compiled fsdp2 gathers parts in the wrong order", COMPILED,
          _after(dist, "all_gather_single", _swapped),
          place=r"fsdp2 compiled: bent, rank \d, step 1: the weight [\w.]+ in the forward pass\["),
    Fault("exact: a compiled fsdp2 reduces half of a part once on one rank", COMPILED,
          _on_one("reduce_scatter_single", 2, lambda t: t[::2].div_(2)),
          place=r"fsdp2 compiled: bent, rank 1, step 2: the gradient of [\w.]+\["),
    Fault("exact: activations from the host are those of another layer", OFFLOADED, _unpacked(_stale_activation()),
          place=r"ddp offloaded: bent, rank \d, step \d: the gradient of [\w.]+\["),
    Fault("exact: parameters on the host move, and gathers are stale", OFFLOADED, _stale_gather,
          place=r"fsdp2 offloaded: bent, rank \d, step 2: the weight [\w.]+ in the forward pass\["),
    Fault("exact: a gradient reaches the host with one element lost", OFFLOADED,
          _on_one("reduce_scatter_single", 3, _one_lost),
          place=r"fsdp2 offloaded: bent, rank 1, step 3: the gradient of [\w.]+\["),
    Fault("exact: momenta on the host have 8 bits", OFFLOADED, _rounded_state,
          place=r"fsdp2 offloaded: bent, rank \d, step [23]: the weight [\w.]+ after the step\["),
)  # fmt: skip


# --- AutoTP ----------------------------------------------------------------------------------------------------------


def _sums(number: int, change: Callable[[torch.Tensor], Any], *, last: bool = False) -> Callable[[], None]:
    """Return a planter that changes all sums over ranks from a number on, or on the last rank that one alone."""
    count = 0

    def spoil(tensor: torch.Tensor) -> None:
        nonlocal count
        count += 1
        on_last = dist.get_rank() == dist.get_world_size() - 1
        if (count == number and on_last) if last else count >= number:
            change(tensor)

    return _reduced(spoil)


def _neighbours_weights() -> None:
    """Let each rank take its neighbour's part of a cut weight."""
    from deepspeed.module_inject import layers

    def cut(original: Any, self: Any, parameters: Any) -> Any:
        number = self.tp_index
        self.tp_index = (number + 1) % self.tp_world_size
        result = original(self, parameters)
        self.tp_index = number
        return result

    around(layers.LinearAllreduce, "uneven_partition", cut)


def _one_weight_stays() -> None:
    """Let one weight of the last rank miss its second step."""
    count = 0

    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        weights = [each for group in self.param_groups for each in group["params"]]
        before = [each.detach().clone() for each in weights]
        result = original(self, *args, **kwargs)
        if count == 2 and dist.get_rank() == dist.get_world_size() - 1:
            weight, old = next(pair for pair in zip(weights, before, strict=True) if not torch.equal(*pair))
            with torch.no_grad():
                weight.copy_(old)
        return result

    around(torch.optim.SGD, "step", step)


AUTO_TP = EXACT + "deepspeed_auto_tp[2]"
OF_AUTO_TP = (
    Fault("exact: autotp halves its sums", AUTO_TP, _reduced(lambda t: t.div_(2)),
          place=r"autotp: decoder-plain, rank \d, step 1: the (loss|gradient of [\w.]+\[[\d, ]+\]) is "),
    Fault("exact: autotp loses one element of one sum on one rank", AUTO_TP, _sums(6, _one_lost, last=True),
          place=r"autotp: decoder-plain, rank \d, step 1: the gradient of [\w.]+\["),
    Fault("exact: autotp loses the last bit of its sums", AUTO_TP, _sums(1, lambda t: t.mul_(1.0 + 2.0**-23)),
          place=r"autotp: decoder-plain, rank \d, step 1: "),
    Fault("exact: one weight of one rank under autotp misses a step", AUTO_TP, _one_weight_stays,
          place=r"autotp: decoder-plain, rank 1, step 2: the weight [\w.]+ after the step\["),
    Fault("exact: autotp gives each rank its neighbour's part", AUTO_TP, _neighbours_weights,
          place=r"autotp: decoder-plain, rank \d, step 1: the gradient of [\w.]+\["),
)  # fmt: skip
#: Faults that need DeepSpeed.
EXACT_UNDER_DEEPSPEED = (
    *OF_AUTO_TP,
    Fault("exact: zero reduces half of the gradients", ZERO, _reduced(lambda t: t[::2].div_(2)),
          place=r"zero \d: decoder-2, rank \d, step 1: the gradient of [\w.]+\["),
    Fault("exact: zero loses the last bit of a sum", ZERO, _reduced(lambda t: t.mul_(1.0 + 2.0**-23)),
          place=r"zero \d: decoder-2, rank \d, step 1: the gradient of [\w.]+\["),
    Fault("exact: zero gathers parts in the wrong order", ZERO, _after(dist, "all_gather_into_tensor", _swapped),
          place=r"zero \d: decoder-2, rank \d, step \d: "),
)  # fmt: skip
EXACT_FAULTS = (*OWN, *OF_WAYS, *(_twin(fault) for fault in FAULTS if fault.case.removeprefix(LLAMA) in _TWINS))
