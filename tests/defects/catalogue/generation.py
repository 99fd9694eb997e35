"""Caches, padding, tiles and shared weights that hold something else than what was put there."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from conformance.base.errors import UsageError
from conformance.kernels.inference.workspace import WORKSPACE, Workspace
from conformance.kernels.kernel import Kernel
from conformance.kernels.linear import LoRALinear
from conformance.kernels.specification import Arguments
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import on_device, replaced, spoiled

from .inference import UPSTREAM, always, one_place_early
from .kernels import around, with_numbers
from .parallel import broken, kernel

CACHED, TILED, TURNS = "generation with a cache", "tiles of tokens", "training and generating in turns"
#: Cases on ranks go through runs of their own.
_IN_ONE_PROCESS = {
    CACHED: tuple(
        f"inference.{one}*"
        for one in ("decode", "ragged", "reuse", "rollback", "refuses", "empty_prompt", "weight_only", "int8_model")
    ),
    TILED: ("ulysses_alst.mlp*", "ulysses_alst.loss*", "ulysses_alst.peak*"),
    TURNS: ("hybrid_engine.*",),
}


def mutant(
    family: str, name: str, precedent: str, caught_by: str, context: Any = None, *touch: str, **fault: Any
) -> Mutant:
    what = Fault(name, family, precedent, Where.KERNEL, caught_by, context=context, **fault)
    area = caught_by.partition(".")[0]
    return Mutant(what, (f"{area}.*", *touch), _IN_ONE_PROCESS[family])


# --- caches -----------------------------------------------------------------------------------------------------------


def _keeps_what_was_there(old: Any) -> Any:
    """A prompt of a second sequence finds its places taken."""

    def keep(self: Workspace, layer: int, first: int, keys: Tensor, values: Tensor) -> Any:
        if first or layer not in self.caches:
            return old(self, layer, first, keys, values)
        batch, total = keys.shape[0], keys.shape[2]
        held, valued = self.caches[layer]
        return held[:batch, :, :total], valued[:batch, :, :total]

    return keep


def _forgets_when_it_refuses(old: Any) -> Any:
    def call(self: Kernel, *args: Any) -> Any:
        try:
            return old(self, *args)
        except UsageError:
            WORKSPACE.seen = 0
            raise

    return call


def _overwrites_the_last(old: Any) -> Any:
    """A full workspace takes the next token all the same."""

    def call(self: Kernel, *args: Any) -> Any:
        size = WORKSPACE.size
        if "softmax_context" in self.__name__ and size is not None and WORKSPACE.seen == size.tokens:
            WORKSPACE.seen -= 1
        return old(self, *args)

    return call


def _written_once(call: Any, args: Any, kwargs: Any) -> Any:
    """What is written over something else is not written."""
    if not on_device(args[0]):
        return call(*args, **kwargs)
    before = args[0].clone()
    call(*args, **kwargs)
    return args[0].copy_(torch.where(before == 0, args[0], before))


def _refuses_without_a_word(old: Any) -> Any:
    def call(self: Kernel, *args: Any) -> Any:
        try:
            return old(self, *args)
        except UsageError:
            raise ValueError from None

    return call


# --- few bits ---------------------------------------------------------------------------------------------------------


def _rounded_down(call: Any, given: Arguments) -> Any:
    codes, steps = call(given)
    if given["num_bits"] == 8:
        exact = given["vals"].float().reshape(len(steps), -1) / steps
        codes.copy_(exact.floor().clamp(-128, 127).reshape(codes.shape))
    return [codes, steps]


def _first_of(name: str) -> Any:
    """The first group's step for all of them."""
    return lambda given: given[name][:1].expand_as(given[name]).contiguous()


# --- ranks ------------------------------------------------------------------------------------------------------------


def _adds_nothing(old: Any) -> Any:
    """A rank's part of a sum of floats is taken for the sum."""

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return None if tensor.is_floating_point() else old(tensor, *args, **kwargs)

    return all_reduce


# --- tiles ------------------------------------------------------------------------------------------------------------


def _keeps_everything(old: Any) -> Any:
    return lambda function, *args, **kwargs: function(*args)


def _counts_the_ignored(old: Any) -> Any:
    """A target that does not count is taken for the first word."""

    def cross_entropy(logits: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> Any:
        return old(logits, targets.clamp(min=0) if on_device(logits) else targets, *args, **kwargs)

    return cross_entropy


def _first_tile_alone(call: Any, args: Any, kwargs: Any) -> Any:
    """Rows behind the first eight get no gradient."""
    found = call(*args, **kwargs)
    if on_device(found) and found.dim() == 2:
        found[8:] = 0
    return found


# --- turns ------------------------------------------------------------------------------------------------------------


def _first_weights() -> Any:
    """Products with a weight go on with what it was when it was first seen."""
    seen: dict[int, Tensor] = {}

    def broken_call(call: Any, given: Arguments) -> Any:
        kept = seen.setdefault(given["weight"].data_ptr(), given["weight"].detach().clone())
        return call({**given, "weight": kept if kept.shape == given["weight"].shape else given["weight"]})

    return broken_call


def _by_the_default_generator(call: Any, args: Any, kwargs: Any) -> Any:
    return call(*args, **{**kwargs, "generator": None}) if on_device(args[0]) else call(*args, **kwargs)


def _added_in_place(old: Any) -> Any:
    def merge(self: LoRALinear) -> None:
        old(self)
        assert self._merged is not None
        self.base.weight.copy_(self._merged)

    return merge


def _subtracted_again(old: Any) -> Any:
    def unmerge(self: LoRALinear) -> None:
        if self.merged:
            self.base.weight.sub_(self.scaling * (self.up.detach() @ self.down.detach()))
        old(self)

    return unmerge


_CONTEXT = "softmax_context"
_HYBRID, _ALST = "DeepSpeed hybrid engine", "DeepSpeed ALST"

MUTANTS = (
    mutant(CACHED, "padding that is looked at", UPSTREAM, "inference.ragged[float32-*]",
           around(f"{_CONTEXT}_fp32", with_numbers(no_masking=always(True)))),
    mutant(CACHED, "tokens placed by where they are in the batch", "rotary positions of padded prompts",
           "inference.ragged[bfloat16-*]", around(f"{_CONTEXT}_bf16", with_numbers(position_ids=always(None)))),
    mutant(CACHED, "single tokens one place early", "KV cache shifted", "inference.decode[float16]",
           around(f"{_CONTEXT}_fp16", one_place_early)),
    mutant(CACHED, "keys of the sequence before", "DeepSpeed's NPU builder: reset_cache does nothing",
           "inference.reuse[*]", replaced(Workspace, keep=_keeps_what_was_there), "hybrid_engine.*"),
    mutant(CACHED, "a refusal that forgets the sequence", "state changed before arguments are checked",
           "inference.refuses[batch]", replaced(Kernel, __call__=_forgets_when_it_refuses)),
    mutant(CACHED, "a full cache that takes another token", "DeepSpeed inference: tokens beyond max_out_tokens",
           "inference.refuses[next_token]", replaced(Kernel, __call__=_overwrites_the_last)),
    mutant(CACHED, "a cache that is written once", "guessed tokens that stay", "inference.rollback[*]",
           spoiled(index_copy_=_written_once), "hybrid_engine.*", "operators.*", "utils.*"),
    mutant(CACHED, "an empty prompt refused without a word", "defect class of kernels", "inference.empty_prompt",
           replaced(Kernel, __call__=_refuses_without_a_word)),
    mutant(CACHED, "codes that are rounded down", "DeepSpeed quantizer: casts that cut off",
           "inference.weight_only[8-*]", around("quantize", _rounded_down), "ops.quantize*", "linear.*"),
    mutant(CACHED, "one step for all groups of int4", "DeepSpeed 9bf77782b: grouped weights",
           "inference.weight_only[4-*]", around("dequantize_fp32", with_numbers(params=_first_of("params"))),
           "ops.dequantize*"),
    mutant(CACHED, "one scale for a network's way down", "DeepSpeed 9bf77782b: grouped weights",
           "inference.int8_model[float32]", around("rms_mlp_gemm_fp32", with_numbers(q_scale1=_first_of("q_scale1"))),
           "ops.rms_mlp_gemm*"),
    broken("heads of one rank alone", CACHED, "DeepSpeed AutoTP: a missing all-reduce",
           "inference.tensor_parallel[bfloat16]", replaced(dist, all_reduce=_adds_nothing)),
    mutant(TILED, "tiles that keep what is inside them", _ALST, "ulysses_alst.peak[*]",
           kernel("torch.utils.checkpoint", checkpoint=_keeps_everything)),
    mutant(TILED, "targets that do not count are counted", _ALST, "ulysses_alst.loss[*]",
           replaced(functional, cross_entropy=_counts_the_ignored)),
    mutant(TILED, "a gradient of the first tile alone", _ALST, "ulysses_alst.mlp[*]",
           spoiled(silu_backward=_first_tile_alone), "operators.nn.functional.silu*"),
    broken("a loss of one rank's tiles", TILED, _ALST, "ulysses_alst.ranks", replaced(dist, all_reduce=_adds_nothing)),
    mutant(TURNS, "kernels with the weights of before", f"{_HYBRID}: containers hold copies",
           "hybrid_engine.step_is_seen[float32]", around("vector_matmul_fp32", _first_weights())),
    mutant(TURNS, "sampling with the training's random numbers", f"{_HYBRID}: generate() between steps",
           "hybrid_engine.generating_changes_nothing", spoiled(multinomial=_by_the_default_generator),
           "accelerator.rng.*", "accelerator.generator.*"),
    mutant(TURNS, "graphs with the tokens of the capture", f"{_HYBRID}: CUDA graphs of generate()",
           "hybrid_engine.graph[*]", None, "accelerator.graph.*", "capabilities.graph.*",
           switches={"graph_replay_stale": 1}),
    mutant(TURNS, "small matrices fused in place", f"{_HYBRID}: fuse_lora_weight, unfuse_lora_weight",
           "hybrid_engine.lora[*]", replaced(LoRALinear, merge=_added_in_place, unmerge=_subtracted_again), "linear.*"),
)  # fmt: skip
