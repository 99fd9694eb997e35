"""Evoformer attention that mixes up rows and pairs, and gradients that lack a part."""

from __future__ import annotations

import math
from typing import Any

from conformance.kernels.specification import Arguments
from tests.defects.mutant import Mutant

from .host_kernels import unchecked
from .inference import spoiled
from .kernels import Broken, refusal, with_numbers

_UPSTREAM = "DeepSpeed csrc/deepspeed4science/evoformer_attn"
_FORWARD, _BACKWARD = "evoformer_attention", "evoformer_attention_bwd"


def _forward(name: str, case: str, broken: Broken) -> Mutant:
    return spoiled(name, _UPSTREAM, f"{_FORWARD}{case}", broken, "attention")


def _backward(name: str, case: str, broken: Broken) -> Mutant:
    return spoiled(name, _UPSTREAM, f"{_BACKWARD}{case}", broken, "attention_bwd")


def _of_the_first_row(given: Arguments) -> Any:
    return given["bias1"][:, :1].expand_as(given["bias1"]).contiguous() if given["bias1"].numel() else given["bias1"]


def _pairs_turned(given: Arguments) -> Any:
    return given["bias2"].transpose(-1, -2).contiguous() if given["bias2"].numel() else given["bias2"]


def _unscaled(given: Arguments) -> Any:
    return given["q"] * math.sqrt(given["q"].shape[-1])


def _behind(name: str, change: Any) -> Broken:
    """After the call, ``change`` makes something else of one of its results."""

    def broken(call: Any, given: Arguments) -> Any:
        answer = call(given)
        if given[name].numel():
            given[name].copy_(change(given[name]))
        return answer

    return broken


def _last_row_alone(call: Any, given: Arguments) -> Any:
    """What the last row adds to the pairs' gradient is all there is."""
    zeroed = given["do"].clone()
    answer = call(given)
    if given["db2"].numel():
        zeroed[:, :-1] = 0
        others = {name: given[name].clone() for name in ("delta", "dq", "dk", "dv", "db1")}
        given["db2"].zero_()
        call({**given, **others, "do": zeroed})
    return answer


def _never_nan(call: Any, given: Arguments) -> Any:
    """0 / 0 where a query sees nothing."""
    answer = call(given)
    hidden = given["lse"][..., : given["q"].shape[2]].isposinf().unflatten(0, given["q"].shape[:2])
    given["o"].masked_fill_(hidden.transpose(2, 3)[..., None], math.nan)
    return answer


_ATTENTION = (
    _forward("one row's bias for all rows", "[float32-training-first]", with_numbers(bias1=_of_the_first_row)),
    _forward("pairs the other way round", "[bfloat16-training-second]", with_numbers(bias2=_pairs_turned)),
    _forward("scores without the root of the channels", "[float32-training-none]", with_numbers(q=_unscaled)),
    _forward("a query that sees nothing is NaN", "[float16-training-hidden]", _never_nan),
    _forward("sums by the logarithm to base 2", "[float32-training-both]",
             _behind("lse", lambda one: one / math.log(2))),
    _forward("sums that the way back cannot use", ".property[float32-training-trains]",
             _behind("lse", lambda one: one * 0)),
    refusal("a bias of another shape is spread", _UPSTREAM,
            "ops.evoformer_attention.refuses[float32-training-second-shape]", unchecked("attention")),
)  # fmt: skip
_GRADIENTS = (
    _backward("the pairs' gradient is one row's", "[float32-training-both]", _last_row_alone),
    _backward("a gradient without the output's share", "[float32-training-none]",
              with_numbers(o=lambda given: given["o"] * 0)),
    _backward("keys' gradient without the root of the channels", "[float16-training-both]",
              _behind("dk", lambda one: one * 2)),
    _backward("the first bias's gradient is a mean over heads", "[float32-training-both]",
              _behind("db1", lambda one: one / 2)),
    _backward("values' gradient is not written", "[bfloat16-training-both]", _behind("dv", lambda one: one * 0 + 7)),
    refusal("a gradient in 16 bits is added up", _UPSTREAM,
            "ops.evoformer_attention_bwd.refuses[float32-training-narrow]", unchecked("attention_bwd")),
)  # fmt: skip

MUTANTS = (*_ATTENTION, *_GRADIENTS)
