"""Kinds of generated faults that had survived, one of each kind that a general check has closed since."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.faults import Call, Fault, Where
from tests.defects.mutant import Mutant


def generated(name: str, precedent: str, caught_by: str, touch: str, **fault: Any) -> Mutant:
    what = Fault(name, "generated faults that had survived", precedent, Where.OPERATOR, caught_by, **fault)
    return Mutant(what, (touch,), (caught_by,))


def _without_its_rate(call: Call, args: list[Any]) -> list[Any]:
    """Numbers beyond 2^20 of a draw are twice as large."""
    results = call(args)
    if results[0].numel() > 1 << 20:
        results[0].view(-1)[1 << 20 :] *= 2
    return results


def _one_scale_for_all(call: Call, args: list[Any]) -> list[Any]:
    """The scale of the rows is taken for the columns as well."""
    return call([*args[:4], args[3], *args[5:]])


def _without_beta(call: Call, args: list[Any]) -> list[Any]:
    """The second moment is not averaged: its factor is taken for one."""
    return call([*args[:8], 1.0, *args[9:]])


def _without_its_tail(call: Call, args: list[Any]) -> list[Any]:
    """Elements beyond 2^14 are not filled where the value is a tensor."""
    before = args[0].clone()
    results = call(args)
    if args[0].numel() > 1 << 14 and args[0].is_contiguous() and isinstance(args[2], torch.Tensor):
        args[0].view(-1)[1 << 14 :] = before.view(-1)[1 << 14 :]
    return results


MUTANTS = (
    generated("a long draw loses its rate", "a second launch with the defaults of its distribution",
              "operators.exponential[float32-inference]", "operators.exponential*",
              operators={"aten::exponential_": _without_its_rate}),
    generated("a resize of images has one scale", "a kernel that was written for squares",
              "operators.nn.functional.interpolate.bilinear[float32-*]", "operators.*bilinear*",
              operators={"aten::upsample_bilinear2d": _one_scale_for_all}),
    generated("fused Adam ignores its second beta", "an argument of a fused kernel in the wrong place",
              "optimizers.steps[Adam-fused]", "*[[]Adam-fused]", operators={"aten::_fused_adam_": _without_beta}),
    generated("masked_fill_ with a tensor ends at 2^14", "an overload with a launch of its own",
              "operators.masked_fill[float32-inference]", "operators.masked_*",
              operators={"aten::masked_fill_": _without_its_tail}),
)  # fmt: skip
