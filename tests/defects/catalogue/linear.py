"""Frozen, quantized and shared weights, and the small matrices beside them: what is lost, trained, or not scaled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conformance.kernels.linear import FrozenLinear, LoRALinear
from conformance.kernels.specification import Arguments
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import Spoil, constant, on_device, replaced, spoiled

from .kernels import around
from .parallel import broken, method

FAMILY = "linear layers of few parameters"
_UPSTREAM = "DeepSpeed deepspeed/linear"


def layers(name: str, caught_by: str, context: Any, *also: str) -> Mutant:
    touch = ("linear.*", *also)
    # Cases on ranks go through runs of their own.
    ran = tuple(f"linear.{one}" for one in ("lora*", "merged*", "frozen*", "quantized*", "saved*", "dtype*", "refuses",
                                            "waiting*"))  # fmt: skip
    return Mutant(Fault(name, FAMILY, _UPSTREAM, Where.KERNEL, f"linear.{caught_by}", context=context), touch, ran)


def _with_scaling(change: Any) -> Any:
    def of(old: Any) -> Any:
        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            old(self, *args, **kwargs)
            self.scaling = change(self.scaling)

        return initialise

    return replaced(LoRALinear, __init__=of)


def _trains_the_base(old: Any) -> Any:
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **kwargs)
        self.base.requires_grad_(True)

    return initialise


def _decays_the_base(old: Any) -> Any:
    """The weight is a parameter, and an optimizer finds it."""

    def forward(self: Any, source: Any) -> Any:
        if self.codec is None:
            self.weight.mul_(0.9)
        return old(self, source)

    return forward


def _around_the_small_ones(old: Any) -> Any:
    """The input's gradient passes A and B by."""
    del old

    def forward(self: Any, source: Any) -> Any:
        if self.merged:
            return functional.linear(source, self._merged, self.base.bias)
        beside = functional.linear(functional.linear(source.detach(), self.down), self.up)
        return self.base(source) + self.scaling * beside

    return forward


def _merges_once_more(old: Any) -> Any:
    """B A is added without its factor."""

    def merge(self: Any) -> None:
        kept, self.scaling = self.scaling, 1.0
        old(self)
        self.scaling = kept

    return merge


def _in_float32(old: Any) -> Any:
    return lambda self, source: old(self, source).float()


def _half_of_the_bytes(old: Any) -> Any:
    """Whatever a module holds is converted with it."""

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        answer = old(self, fn, recurse)
        if self.weight.dtype is torch.uint8:
            self.weight = self.weight // 2
        return answer

    return apply


def _fresh_noise(old: Any) -> Any:
    """B begins with numbers."""

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **kwargs)
        nn.init.ones_(self.up)

    return initialise


def _neighbours(call: Any, given: Arguments) -> Any:
    """Every weight is its neighbour's, in what comes back of bytes."""
    answer = call(given)
    if "val" in given and isinstance(given["val"], torch.Tensor):
        given["val"].copy_(given["val"].roll(1, -1))
    return answer


def _as_they_come(old: Any) -> Any:
    del old
    return nn.Module._load_from_state_dict


def _backwards(old: Any) -> Any:
    """The last rank's part comes first."""

    def gathered(self: Any, own: Any) -> Any:
        return old(self, own).view(self.size, -1).flip(0).reshape(-1, *own.shape[1:])

    return gathered


def _first_copies() -> Spoil:
    """A copy of host memory is kept by its address, and given again when the host has written there."""
    kept: dict[int, Tensor] = {}

    def spoil(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result, source = call(*args, **kwargs), args[0]
        if source.device.type != "cpu" or not on_device(result) or not 1000 < source.numel() < 1100:
            return result
        return kept.setdefault(source.data_ptr(), result).clone()

    return spoil


def _held_copies() -> Spoil:
    """Memory of the last copies from the host is not given back."""
    held: list[Tensor] = []

    def spoil(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and args[0].device.type == "cpu":
            held.append(result)
            del held[:-3]
        return result

    return spoil


_QUANTIZERS = ("ops.fp_*", "ops.dequantize*", "ops.quantize*", "compression.weights*")
_STORAGE = "conformance.kernels.linear.storage"

MUTANTS = (
    layers("small matrices without their factor", "lora[float32]", _with_scaling(lambda scaling: 1.0)),
    layers("the input's gradient passes small matrices by", "lora[bfloat16]",
           replaced(LoRALinear, forward=_around_the_small_ones)),
    layers("a fresh layer that is not its base", "lora[float32]", replaced(LoRALinear, __init__=_fresh_noise)),
    layers("a base whose bias is trained", "frozen[whole]", replaced(LoRALinear, __init__=_trains_the_base)),
    layers("a base that decays", "frozen[whole]", replaced(FrozenLinear, forward=_decays_the_base)),
    layers("merging that forgets the factor", "merged[float32]", replaced(LoRALinear, merge=_merges_once_more)),
    layers("what is merged stays merged", "merged[bfloat16]", replaced(LoRALinear, unmerge=constant(None))),
    layers("stored weights come back one place on", "quantized[fp8]", around("dequantize", _neighbours), *_QUANTIZERS),
    layers("outputs of another dtype", "dtype[int8]", replaced(FrozenLinear, forward=_in_float32)),
    layers("bytes are converted with the layer", "dtype[fp8]", replaced(FrozenLinear, _apply=_half_of_the_bytes)),
    layers("a checkpoint is taken as it comes", "saved[int8]",
           replaced(FrozenLinear, _load_from_state_dict=_as_they_come)),
    layers("a weight that waits is copied once", "waiting[float32-pageable]", spoiled(_to_copy=_first_copies())),
    layers("copies of weights that wait are held", "waiting.memory", spoiled(_to_copy=_held_copies())),
    broken("parts of a weight in another order", FAMILY, _UPSTREAM, "linear.sharded[whole]",
           method(_STORAGE, "Shards", gathered=_backwards)),
)  # fmt: skip
