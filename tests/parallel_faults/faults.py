"""The faults. Each is planted in the processes of the ranks, below the engine or at a seam of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

LLAMA, MIXTRAL, DEEPSPEED = "workloads.llama.", "workloads.mixtral.", "workloads.deepspeed."


@dataclass(frozen=True)
class Fault:
    """Fault of a name. ``plant`` is called on every rank before the case; the case has to fail as wrong.

    With ``hangs``, one rank leaves the others alone in a collective, so that the case has no end. ``place`` is a
    pattern that the message has to contain.
    """

    name: str
    case: str
    plant: Callable[[], None]
    hangs: bool = False
    place: str = ""

    def is_found(self, outcome: str) -> bool:
        """Tell whether the outcome of the case is what the fault has to cause."""
        return (
            outcome == "no end"
            if self.hangs
            else (outcome.startswith("AssertionError") and re.search(self.place, outcome) is not None)
        )


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by a function that gets the original function and the arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(original, *args, **kwargs)

    setattr(owner, name, changed)


def _after(owner: Any, name: str, spoil: Callable[[torch.Tensor, torch.Tensor], None]) -> Callable[[], None]:
    """Return a planter that spoils the output of ``owner.name``, a collective of two tensors, when it is complete."""

    def change(original: Any, output: torch.Tensor, given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kwargs["async_op"] = False
        work = original(output, given, *args, **kwargs)
        spoil(output, given)
        return work

    def named(original: Any, *args: Any, **kwargs: Any) -> Any:
        output = kwargs.pop("output_tensor", None) if "output_tensor" in kwargs else kwargs.pop("output", None)
        given = kwargs.pop("input_tensor", None) if "input_tensor" in kwargs else kwargs.pop("input", None)
        rest = list(args)
        output = rest.pop(0) if output is None else output
        given = rest.pop(0) if given is None else given
        return change(original, output, given, *rest, **kwargs)

    return lambda: around(dist, name, named)


def _functional(name: str, spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    """Return a planter that changes the result of a functional collective, as DTensor calls it."""

    def change(original: Any, *args: Any, **kwargs: Any) -> Any:
        return spoil(functional.wait_tensor(original(*args, **kwargs)))

    return lambda: around(functional, name, change)


def _swapped(output: torch.Tensor, given: torch.Tensor) -> None:
    halves = output.flatten().chunk(2)
    output.copy_(torch.cat(halves[::-1]).view_as(output))


def _on_last(spoil: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function so that only the last rank is changed."""
    return lambda output, *rest: spoil(output, *rest) if dist.get_rank() == dist.get_world_size() - 1 else output


def _stale() -> None:
    """Let every all-gather after the first of a size return the first one's values."""
    first: dict[int, torch.Tensor] = {}
    count: dict[int, int] = {}

    def spoil(output: torch.Tensor, given: torch.Tensor) -> None:
        size = output.numel()
        count[size] = count.get(size, 0) + 1
        first.setdefault(size, output.clone())
        if count[size] > 4:  # two layers gather twice in the first step
            output.copy_(first[size])

    _after(dist, "all_gather_single", spoil)()


def _own_part(output: torch.Tensor, given: torch.Tensor) -> None:
    output.copy_(given.view(dist.get_world_size(), -1)[dist.get_rank()].view_as(output))


def _without_last(output: torch.Tensor, given: torch.Tensor) -> None:
    last = given.view(dist.get_world_size(), -1).clone()
    everyone = [torch.empty_like(last) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, last)
    output.copy_((sum(everyone[:-1])[dist.get_rank()] / dist.get_world_size()).view_as(output))


def _ddp(hook: Callable[[Any], Any]) -> Callable[[], None]:
    """Return a planter that gives every DDP a hook in place of its reduction of gradients."""
    from torch.nn.parallel import DistributedDataParallel

    def change(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, lambda state, bucket: _done(hook(bucket.buffer())))

    def plant() -> None:
        initialise = DistributedDataParallel.__init__
        DistributedDataParallel.__init__ = lambda self, *a, **k: change(initialise, self, *a, **k)  # type: ignore[method-assign]

    return plant


def _done(tensor: torch.Tensor) -> Any:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def _mean(buffer: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(buffer)
    return buffer.div_(dist.get_world_size())


def _sum(buffer: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(buffer)
    return buffer


def _from_first(buffer: torch.Tensor) -> torch.Tensor:
    dist.broadcast(buffer, 0)
    return buffer


def _rounded(buffer: torch.Tensor) -> torch.Tensor:
    return _mean(buffer).bfloat16().float()


def _tail_lost(buffer: torch.Tensor) -> torch.Tensor:
    local = buffer.clone()
    _mean(buffer)[-64:] = local[-64:]
    return buffer


def _skipped_on_last(buffer: torch.Tensor) -> torch.Tensor:
    local, reduced = buffer.clone(), _mean(buffer)
    return local if dist.get_rank() == dist.get_world_size() - 1 else reduced


def _edge(change: Callable[[torch.Tensor], Any], gradients: bool) -> Callable[[], None]:
    """Return a planter that changes what a pipeline stage sends: activations, or gradients."""

    def plant() -> None:
        from torch.distributed.pipelining.stage import _PipelineStageBase

        name = "get_bwd_send_ops" if gradients else "get_fwd_send_ops"

        def spoil(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            calls = original(self, *args, **kwargs)
            for call in calls:
                with torch.no_grad():
                    call.tensor = change(call.tensor.detach().clone())
            return calls

        around(_PipelineStageBase, name, spoil)

    return plant


def _unscaled() -> None:
    from torch.distributed.pipelining.stage import _PipelineStageBase

    around(_PipelineStageBase, "scale_grads", lambda original, self, factor: None)


def _late_micro_batch() -> None:
    from torch.distributed.pipelining import schedules

    def rolled(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        parts, named = original(self, *args, **kwargs)
        return [*parts[1:], parts[0]], named

    around(schedules._PipelineSchedule, "_split_inputs", rolled)


def _dropped_micro_batch() -> None:
    from torch.distributed.pipelining.stage import _PipelineStageBase

    def skip(original: Any, self: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        before = [None if p.grad is None else p.grad.clone() for p in self.submod.parameters()]
        result = original(self, chunk, *args, **kwargs)
        if chunk == (self.chunks or 0) - 1:
            for parameter, gradient in zip(self.submod.parameters(), before, strict=True):
                parameter.grad = gradient
        return result

    around(_PipelineStageBase, "backward_one_chunk", skip)


def _loaded(change: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Return a planter that changes a state dictionary after it was loaded."""

    def plant() -> None:
        import torch.distributed.checkpoint as dcp

        def spoil(original: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            original(state, *args, **kwargs)
            change(state)

        around(dcp, "load", spoil)

    return plant


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _swap_shards(state: dict[str, Any]) -> None:
    shard = _local(state["model"]["model.layers.1.mlp.up_proj.weight"])
    shard.copy_(shard.flip(0))


def _no_momentum(state: dict[str, Any]) -> None:
    for name, value in state["optimizer"].items():
        if name.endswith("momentum_buffer"):
            _local(value).zero_()


def _last_layer_new(state: dict[str, Any]) -> None:
    _local(state["model"]["model.layers.1.self_attn.o_proj.weight"]).normal_(std=0.02)


def _layers_swapped(state: dict[str, Any]) -> None:
    one, two = (_local(state["model"][f"model.layers.{n}.mlp.down_proj.weight"]) for n in (0, 1))
    kept = one.clone()
    one.copy_(two)
    two.copy_(kept)


def _tokens_lost(result: torch.Tensor) -> torch.Tensor:
    return (
        torch.cat((result[:-1], torch.zeros_like(result[-1:])))
        if len(result) and result.is_floating_point()
        else result
    )


def _experts(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    def plant() -> None:
        from transformers.distributed import expert_parallel

        around(expert_parallel, "all_to_all_single_autograd",
               lambda original, *a, **k: change(functional.wait_tensor(original(*a, **k))))  # fmt: skip

    return plant


def _half_of_norms() -> None:
    """Let the optimizer of the last rank forget the momentum of its norms: shards drift apart."""

    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == dist.get_world_size() - 1:
            for state in self.state.values():
                if "momentum_buffer" in state and state["momentum_buffer"].dim() == 1:
                    _local(state["momentum_buffer"]).zero_()
        return original(self, *args, **kwargs)

    around(torch.optim.SGD, "step", step)


def _missed_overflow() -> None:
    """Let every rank keep its own maximum: a scaler then misses the overflow of another rank."""

    def keep(original: Any, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
        return None if op == dist.ReduceOp.MAX else original(tensor, op, *args, **kwargs)

    around(dist, "all_reduce", keep)


def _reduced(change: Callable[[torch.Tensor], Any]) -> Callable[[], None]:
    """Return a planter that changes the sums of floating-point numbers over ranks."""

    def plant() -> None:
        def reduce(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            kwargs["async_op"] = False
            work = original(tensor, *args, **kwargs)
            if tensor.is_floating_point() and tensor.numel() > 64:
                change(tensor)
            return work

        around(dist, "all_reduce", reduce)

    return plant


def _stale_file() -> None:
    """Let a file keep what was written into it first."""
    from conformance.kernels.async_io.handle import Handle

    first: dict[str, torch.Tensor] = {}

    def write(original: Any, self: Any, buffer: torch.Tensor, name: Any, *args: Any, **kwargs: Any) -> Any:
        kept = first.setdefault(str(name), buffer.detach().clone())
        return original(self, kept, name, *args, **kwargs)

    for name in ("sync_pwrite", "async_pwrite"):
        around(Handle, name, write)


def _moments(change: Callable[[torch.Tensor], Any]) -> Callable[[], None]:
    """Return a planter that changes the moments in a universal checkpoint."""

    def plant() -> None:
        def load(original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(path, *args, **kwargs)
            if str(path).endswith("exp_avg.pt"):
                change(found["param"] if isinstance(found, dict) else found)
            return found

        around(torch, "load", load)

    return plant


FAULTS = (
    Fault("ddp reduces no gradient", LLAMA + "ddp[2]", _ddp(lambda b: b)),
    Fault("ddp sums gradients instead of averaging", LLAMA + "ddp[2]", _ddp(_sum)),
    Fault("ddp takes the first rank's gradients", LLAMA + "ddp[2]", _ddp(_from_first)),
    Fault("ddp rounds gradients to bfloat16", LLAMA + "ddp[2]", _ddp(_rounded)),
    Fault("ddp leaves the end of a bucket out", LLAMA + "ddp[2]", _ddp(_tail_lost)),
    Fault("the last rank keeps its own gradients", LLAMA + "ddp[2]", _ddp(_skipped_on_last)),
    Fault("fsdp2 gathers shards in the wrong order", LLAMA + "fsdp2[2]", _after(dist, "all_gather_single", _swapped)),
    Fault("fsdp2 gathers stale parameters", LLAMA + "fsdp2[2]", _stale),
    Fault("fsdp2 loses the last element of a gather", LLAMA + "fsdp2[2]",
          _after(dist, "all_gather_single", lambda o, g: o.flatten()[-1:].zero_())),
    Fault("fsdp2 reduces no gradient", LLAMA + "fsdp2[2]", _after(dist, "reduce_scatter_single", _own_part)),
    Fault("reduce_scatter drops the last rank", LLAMA + "fsdp2[2]",
          _after(dist, "reduce_scatter_single", _without_last)),
    Fault("reduce_scatter sums instead of averaging", LLAMA + "fsdp2[2]",
          _after(dist, "reduce_scatter_single", lambda o, g: o.mul_(2))),
    Fault("reduce_scatter swaps halves of a shard", LLAMA + "fsdp2[2]",
          _after(dist, "reduce_scatter_single", _swapped)),
    Fault("the last rank gets zero gradients", LLAMA + "fsdp2[2]",
          _after(dist, "reduce_scatter_single", _on_last(lambda o, g: o.zero_()))),
    Fault("an optimizer forgets momentum on one rank", LLAMA + "fsdp2[2]", _half_of_norms),
    Fault("all_reduce averages instead of summing", LLAMA + "tp[2]", _functional("all_reduce", lambda t: t / 2)),
    Fault("all_reduce rounds to bfloat16", LLAMA + "tp[2]",
          _functional("all_reduce", lambda t: t.bfloat16().to(t.dtype))),
    Fault("all_reduce gives the last rank half", LLAMA + "tp[2]",
          _functional("all_reduce", _on_last(lambda t: t / 2))),
    Fault("a gather of logits swaps the parts of the vocabulary", LLAMA + "tp[2]",
          _functional("all_gather_single", lambda t: torch.cat(t.chunk(2, 0)[::-1], 0))),
    Fault("a reduce-scatter of sequences averages", LLAMA + "sp[2]",
          _functional("reduce_scatter_single", lambda t: t / 2)),
    Fault("a gather of sequences swaps the parts", LLAMA + "sp[2]",
          _functional("all_gather_single", lambda t: torch.cat(t.chunk(2, 0)[::-1], 0))),
    Fault("a pipeline edge scales activations", LLAMA + "1f1b[2]", _edge(lambda t: t * 1.01, gradients=False)),
    Fault("a pipeline edge rounds activations", LLAMA + "gpipe[2]",
          _edge(lambda t: t.bfloat16().float(), gradients=False)),
    Fault("a pipeline edge scales gradients", LLAMA + "1f1b[2]", _edge(lambda t: t * 0.5, gradients=True)),
    Fault("a pipeline edge sends no gradient", LLAMA + "interleaved-1f1b[2]", _edge(torch.zeros_like, gradients=True)),
    Fault("gradients of micro-batches are not divided", LLAMA + "gpipe[2]", _unscaled),
    Fault("micro-batches arrive in another order than targets", LLAMA + "1f1b[2]", _late_micro_batch),
    Fault("the last micro-batch adds no gradient", LLAMA + "1f1b[2]", _dropped_micro_batch),
    Fault("a shard is turned round after resume", LLAMA + "fsdp2.resume[2-tp@2]", _loaded(_swap_shards)),
    Fault("momentum is lost on resume", LLAMA + "fsdp2.resume[2-tp@2]", _loaded(_no_momentum)),
    Fault("a layer is not restored", LLAMA + "1f1b.resume[2-fsdp2@2]", _loaded(_last_layer_new)),
    Fault("two layers are swapped on resume", LLAMA + "1f1b.resume[2-fsdp2@2]", _loaded(_layers_swapped)),
    Fault("an exchange of tokens loses the last one", MIXTRAL + "ep[2]", _experts(_tokens_lost)),
    Fault("an exchange of tokens turns them round", MIXTRAL + "ep[2]", _experts(lambda t: t.flip(0))),
)  # fmt: skip
#: Faults that a case of DeepSpeed's engine has to find; they need DeepSpeed.
UNDER_DEEPSPEED = (
    Fault("a scaler misses the overflow of another rank", DEEPSPEED + "overflow[2]", _missed_overflow, hangs=True),
    Fault("zero reduces half of the gradients", DEEPSPEED + "user_backward[1]", _reduced(lambda t: t[::2].div_(2))),
    Fault("zero reduces half of the gradients in bfloat16", DEEPSPEED + "zero[1-bfloat16-2]",
          _reduced(lambda t: t[::2].div_(2))),
    Fault("zero reduces half of the gradients in float16", DEEPSPEED + "zero[1-float16-2]",
          _reduced(lambda t: t[::2].div_(2))),
    Fault("hooked gradients are summed instead of averaged", DEEPSPEED + "hooks[1]", _reduced(lambda t: t.mul_(2))),
    Fault("automatic tensor parallelism halves its sums", DEEPSPEED + "auto_tp[2]", _reduced(lambda t: t.div_(2))),
    Fault("a compiled engine loses the end of a sum", DEEPSPEED + "compiled[1]",
          _reduced(lambda t: t.flatten()[-512:].zero_())),
    Fault("a gathered parameter has its parts swapped", DEEPSPEED + "gathered[2]",
          _after(dist, "all_gather_into_tensor", _swapped)),
    Fault("a file keeps what was written first", DEEPSPEED + "nvme[3]", _stale_file),
    Fault("a universal checkpoint loses its moments", DEEPSPEED + "universal[1-1]", _moments(lambda t: t.zero_())),
    Fault("a universal checkpoint scales its moments", DEEPSPEED + "universal[3-1]", _moments(lambda t: t.mul_(1.05))),
)  # fmt: skip
