"""Defects of what stands on collectives: compression, sharded gathers, engines, checkpoints, layers in parts.

They go through a real run, in which every rank breaks what it loads. Most break torch.distributed under an engine.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.defects.catalogue.collectives import INNOCENT, Context, after
from tests.defects.faults import Call, Fault, Where
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import replaced


def broken(name: str, family: str, precedent: str, caught_by: str, context: Context, *also: str) -> Mutant:
    what = Fault(name, family, precedent, Where.COLLECTIVE, caught_by, context=context)
    return Mutant(what, also, (caught_by, INNOCENT), how=How.PYTEST)


def kernel(module: str, **members: Any) -> Context:
    """Replace members of a module of ours, imported when the fault is armed."""

    @contextmanager
    def context() -> Any:
        import importlib

        with replaced(importlib.import_module(module), **members)():
            yield

    return context


def method(module: str, owner: str, **members: Any) -> Context:
    """The same for the methods of one of its classes."""

    @contextmanager
    def context() -> Any:
        import importlib

        with replaced(getattr(importlib.import_module(module), owner), **members)():
            yield

    return context


def _by_sign_bit(old: Any) -> Any:
    """Minus zero becomes minus one."""

    def call(tensor: Any, numel: int, rank: int = 0) -> Any:
        return old(torch.where(tensor.signbit(), -1.0, 1.0), numel, rank)

    return call


def _forgets_the_loss(old: Any) -> Any:
    def call(self: Any, buffer: Any, feedback: Any) -> Any:
        result = old(self, buffer, feedback)
        feedback.worker.zero_()
        return result

    return call


def _packs_zeros(old: Any) -> Any:
    """The accelerator's builder of the packing kernels gives functions that return zeros."""

    def build(self: Any) -> Any:
        loaded = old(self)
        if type(self).__name__ != "PackbitsBuilder":
            return loaded
        kernels = {name: getattr(loaded, name) for name in ("packbits", "unpackbits")}
        return SimpleNamespace(**{
            name: lambda *args, function=function: function(*args).zero_() for name, function in kernels.items()
        })  # fmt: skip

    return build


def _one_step_early(old: Any) -> Any:
    """Compression begins a step too soon."""

    def call(self: Any, group: Any, parameter: Any) -> Any:
        return old(self, {**group, "freeze_step": group["freeze_step"] - 1}, parameter)

    return call


def _keeps_the_old_dtype(old: Any) -> Any:
    """A gather after an update takes the dtype of the one before it."""

    def call(self: Any, name: str, dtype: Any = None) -> Any:
        known = [kind for kind, copy in self._parameters[name].copies.items() if not copy.valid]
        return old(self, name, known[0] if known else dtype)

    return call


def _casts_after(old: Any) -> Any:
    """Gathers wide, and casts what has come."""

    def call(self: Any, name: str, dtype: Any = None) -> Any:
        return old(self, name).to(dtype or torch.float32)

    return call


def _never_frees(old: Any) -> Any:
    del old
    return lambda tensor: None


def _keeps_the_first(old: Any) -> Any:
    """What a second backward pass adds is lost."""

    def call(self: Any, buffer: Any) -> Any:
        kept = [(task, task.shard.clone()) for task in buffer.gradients if task.accumulated]
        old(self, buffer)
        for task, shard in kept:
            task.shard.copy_(shard)

    return call


def _adds_and_divides_after(old: Any) -> Any:
    """Divides a 16-bit sum instead of adding quotients."""

    def call(output: Any, parts: Any, *args: Any, **kwargs: Any) -> Any:
        size = dist.get_world_size()
        work = old(output, [part * size for part in parts], *args, **{**kwargs, "async_op": False})
        output.div_(size)
        return work or mock.Mock()

    return call


def _wrong_rows(output: Any, source: Any, *_: Any) -> None:
    del source
    output.copy_(output.flip(0).clone())


def _loses_overflow(old: Any) -> Any:
    """Every rank looks at its own gradients only, and the last one is deaf."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = old(self, *args, **kwargs)
        return {device: value.zero_() for device, value in found.items()}

    return call


def _local_norm(old: Any) -> Any:
    """The norm of a rank's own shards."""

    def call(parameters: Any, most: float, *args: Any, **kwargs: Any) -> Any:
        given = list(parameters)
        total = old(given, most, *args, **kwargs)
        return total.to_local() if hasattr(total, "to_local") else total * 0.9

    return call


def _forgets_the_generator(old: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return old(*args, **{**kwargs, "preserve_rng_state": False})

    return call


def _reads_past_the_end(old: Any) -> Any:
    """A file that cannot be read is taken for one without tensors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return old(*args, **kwargs)
        except (RuntimeError, OSError):
            return {"weight": torch.zeros(4099)}

    return call


def _keeps_storages(old: Any) -> Any:
    """A clone brings along the tensor that it was cut from."""

    def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
        def padded(value: Any) -> Any:
            return value.new_zeros(1 << 18)[: value.numel()].copy_(value) if torch.is_tensor(value) else value

        return old({name: padded(value) for name, value in obj.items()}, *args, **kwargs)

    return call


def _unstable(old: Any) -> Any:
    """Of equal scores the last one wins."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("descending"):
            return old(tensor, *args, **kwargs)
        return tensor.shape[-1] - 1 - old(tensor.flip(-1), *args, **kwargs)

    return call


def _half_of_it(old: Any) -> Any:
    """What has come is half of what was sent."""

    def call(calls: Any) -> Any:
        works = old(calls)
        for work in works:
            work.wait()
        for one in calls:
            if one.op is dist.irecv:
                one.tensor.mul_(0.5)
        return works

    return call


def _keeps_the_last(call: Call, args: list[Any]) -> list[Any]:
    """Of values for one index the last is written, where all are to be added."""
    return call([*args[:3], False, *args[4:]])


def _as_long_as_the_first(old: Any) -> Any:
    """A buffer is as large as the first message was: what is longer is cut."""
    sizes: list[int] = []

    def call(calls: Any) -> Any:
        works = old(calls)
        for work in works:
            work.wait()
        for one in calls:
            if one.op is dist.irecv and one.tensor.is_floating_point():
                sizes.append(one.tensor.numel())
                one.tensor.view(-1)[sizes[0] :].zero_()
        return works

    return call


def _skips_idle_experts(old: Any) -> Any:
    """A group without a row is passed over, and the next one gets its matrix."""

    def call(mat_a: Any, mat_b: Any, *, offs: Any, **kwargs: Any) -> Any:
        rows = torch.diff(offs, prepend=offs.new_zeros(1))
        first = torch.cat([rows[rows > 0], rows[rows == 0]])
        return old(mat_a, mat_b, offs=first.cumsum(0).to(torch.int32), **kwargs)

    return call


def _loses_the_last_row(old: Any) -> Any:
    def call(mat_a: Any, *args: Any, **kwargs: Any) -> Any:
        rows = torch.arange(mat_a.shape[0], device=mat_a.device).view(-1, 1)
        return old(mat_a, *args, **kwargs) * (rows < mat_a.shape[0] - 1)

    return call


def _adds_nothing(old: Any) -> Any:
    """A rank's part of a sum is taken for the sum."""
    del old
    return lambda self, tensor, mesh, dim: tensor


def _anew(old: Any) -> Any:
    """Every call compiles."""

    def call(function: Any, **options: Any) -> Any:
        compiled = old(function, **options)

        def run(*args: Any) -> Any:
            import torch._dynamo

            torch._dynamo.reset()
            return compiled(*args)

        return run

    return call


COMPRESSED, SHARDED = "compressed communication", "sharded parameters and gradients"
ENGINES, SAVED, PARTS = "training engines", "checkpoints that do not go on", "layers in parts"
_PACK, _SHARDS = "conformance.kernels.compression", "conformance.kernels.sharded"

MUTANTS = (
    broken("a packer looks at the sign bit", COMPRESSED, "DeepSpeed XPU packbits: −0.0 is packed as −1",
           "compression.packbits[9]", kernel(f"{_PACK}.packing", packbits=_by_sign_bit)),
    broken("the accelerator packs zeros", COMPRESSED, "a builder whose functions return zeros",
           "compression.all_reduce.emulation[37-2]",
           method("conformance.kernels.builders", "SpecifiedBuilder", _build=_packs_zeros)),
    broken("compression forgets what it loses", COMPRESSED, "DeepSpeed 1-bit Adam: errors dropped on load",
           "compression.all_reduce.converges[2]",
           method(f"{_PACK}.all_reduce", "CompressedAllReduce", all_reduce=_forgets_the_loss)),
    broken("compression begins a step early", COMPRESSED, "DeepSpeed 1-bit Adam: the first step only makes buffers",
           "compression.optimizer[adam-2]", method(f"{_PACK}.one_bit_adam", "OneBitAdam", _update_one=_one_step_early)),
    broken("all-to-all brings rows in reverse", COMPRESSED, "DeepSpeed history: chunks in another order",
           "compression.all_reduce.emulation[4099-3]", replaced(dist, all_to_all_single=after(_wrong_rows))),
    broken("a gather keeps the dtype of the one before", SHARDED, "DeepCompile: a buffer reused without a dtype check",
           "compile.gather.again[bfloat16-2]", method(f"{_SHARDS}.parameters", "ShardedParameters",
                                                      gather=_keeps_the_old_dtype)),
    broken("a gather casts after the wire", SHARDED, "DeepCompile: twice the bytes", "compile.gather[bfloat16-2]",
           method(f"{_SHARDS}.parameters", "ShardedParameters", gather=_casts_after)),
    broken("released parameters stay", SHARDED, "DeepCompile: storages of released parameters", "compile.release",
           kernel(f"{_SHARDS}.parameters", _free=_never_frees)),
    broken("a second backward pass is lost", SHARDED, "DeepSpeed #4094: accumulation overwrites",
           "compile.buckets[24-2]", method(f"{_SHARDS}.buckets", "GradientBuckets", _settle=_keeps_the_first)),
    broken("16-bit gradients are added before they are divided", SHARDED, "DeepSpeed: pre-division avoids overflow",
           "compile.buckets.overflow[2]", replaced(dist, reduce_scatter=_adds_and_divides_after)),
    broken("a rank's overflow is not seen", ENGINES, "DeepSpeed #7580: ranks disagree on overflow",
           "runtime.overflow[ddp-2]",
           replaced(torch.amp.GradScaler, _unscale_grads_=_loses_overflow)),
    broken("gradients are clipped by a rank's own norm", ENGINES, "DeepSpeed history: norms of partitions",
           "runtime.clipping[fsdp-kept-2]", replaced(torch.nn.utils, clip_grad_norm_=_local_norm)),
    broken("recomputed activations drop others", ENGINES, "DeepSpeed activation checkpointing: generators not restored",
           "runtime.recomputation[no]", kernel("torch.utils.checkpoint", checkpoint=_forgets_the_generator)),
    broken("compiled code is compiled with every call", ENGINES, "torch.compile: guards that never hold",
           "compile.recompiles", replaced(torch, compile=_anew)),
    broken("a file that was cut off is read as zeros", SAVED, "DeepSpeed history: partial checkpoints loaded",
           "checkpoint.truncated[half]", replaced(torch, load=_reads_past_the_end)),
    broken("slices are saved with all they were cut from", SAVED, "DeepSpeed: tensors saved with whole storages",
           "checkpoint.size", replaced(torch, save=_keeps_storages)),
    broken("of equal scores the last expert wins", PARTS, "DeepSpeed MoE: ties in top-k gating",
           "moe.gating[1-4-ties]", replaced(torch, argsort=_unstable)),
    broken("messages come half", PARTS, "DeepSpeed pipe engine: partial activations",
           "sequence_parallelism.ring[even-2]", replaced(dist, batch_isend_irecv=_half_of_it)),
    broken("blocks of a ring are cut to the first one's length", PARTS, "buffers of a ring that all have one length",
           "sequence_parallelism.ring[uneven-2]", replaced(dist, batch_isend_irecv=_as_long_as_the_first)),
    Mutant(
        Fault(
            "gradients of repeated indices are the last one's",
            PARTS,
            "PyTorch's index_put: accumulate is ignored",
            Where.OPERATOR,
            "sequence_parallelism.ulysses.shared_keys[1-2]",
            operators=dict.fromkeys(("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"), _keeps_the_last),
        ),
        (),
        ("sequence_parallelism.ulysses.shared_keys[1-2]", INNOCENT),
        how=How.PYTEST,
    ),
    broken("activations come half", PARTS, "DeepSpeed pipe engine: partial activations",
           "pipe.schedule[1f1b-2]", replaced(dist, batch_isend_irecv=_half_of_it)),
    broken("messages are cut to the first one's length", PARTS, "DeepSpeed pipe engine: buffers of the first shape",
           "pipe.shapes[gpipe-2]", replaced(dist, batch_isend_irecv=_as_long_as_the_first)),
    broken("activations are cut to the first batch's", PARTS, "DeepSpeed pipe engine: buffers of the first shape",
           "pipe.shapes.inferred[1f1b]", replaced(dist, batch_isend_irecv=_as_long_as_the_first)),
    broken("experts without a token are passed over", PARTS, "DeepSpeed MoE: experts without a token",
           "moe.grouped[bfloat16-empty-first]", replaced(torch.nn.functional, grouped_mm=_skips_idle_experts)),
    broken("the last token of a rank's experts is lost", PARTS, "defect class of kernels",
           "moe.expert_parallel.grouped[4]", replaced(torch.nn.functional, grouped_mm=_loses_the_last_row)),
    broken("sums over ranks are one rank's part", PARTS, "DeepSpeed AutoTP: a missing all-reduce",
           "model_parallelism.mlp[12-2]",
           method("torch.distributed.tensor.placement_types", "Partial", _reduce_value=_adds_nothing)),
    broken("exchanged rows come in reverse", PARTS, "DeepSpeed Ulysses: uneven heads transposed",
           "sequence_parallelism.exchange[even-2]", replaced(dist, all_to_all_single=after(_wrong_rows))),
)  # fmt: skip
