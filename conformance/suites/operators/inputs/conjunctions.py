"""Calls in which several things are unusual at once: a setting, the layout of each input, a size, the form, the place.

The other families change one thing of a call, or two that belong together. A kernel that goes wrong where two are
unusual is right for each of them alone. The pairs are too many for one operator: each gets a few, drawn by its name, so
that every pair is in the cells of many operators.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls import execution, repeated_writes
from conformance.suites.operators.calls.calls import Around, Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import arrangements, elsewhere, large, statements, variants
from .families import Stage, source
from .kinds import unlike

#: Numbers from 9950 on are no numbers of other samples.
NUMBER, SOURCE = 9950, "unusual in several ways"
#: Calls of a cell: in the dtype of further calls, in those of models, and in the others.
_CALLS, _SOME, _FEW = 6, 3, 2
#: Elements of the largest tensor, without gradients and with them, and axes that get other lengths at once.
_MOST, _MOST_TRAINED, _AXES = 1 << 16, 1 << 13, 2
#: The longest axis with which a result grows faster than the inputs, or in number.
_MOST_OF_SQUARES = 257
#: Exponents of the powers of two at which kernels split an axis, the longest of short axes, and the longest axis.
_POWERS, _FEWEST, _LONGEST = range(3, 14), 16, 10_000
#: Dtypes whose kernels are written most often, each in a way of its own.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


@dataclass(frozen=True)
class Conjunction:
    """A call, which says what is before and around it, and whether its other forms are compared too."""

    call: Call
    in_form: bool = False


def _compare(cell: Cell, drawn: Conjunction) -> None:
    """Compare a call, and if asked its other forms, after calls whose results are not looked at."""
    given = drawn.call
    host_call(cell.info.op, given)  # the host computes it as usual: what is kept of a call is not computed again

    def work() -> None:
        for other in given.before:
            # It may be refused, and other families compare it.
            with contextlib.suppress(Exception):
                execution.execute(cell.info.op, cell.on(other))
        variants.check_arranged(cell, [given])
        if drawn.in_form:
            variants.forms_of(cell, given)

    asked = elsewhere.deterministically(cell) if Around.DETERMINISTIC in given.around else contextlib.nullcontext()
    with asked:
        if Around.THREAD in given.around:
            elsewhere.do_elsewhere(work)
        else:
            work()


@source(Mode.INFERENCE, _compare, stage=Stage.SEVERAL, fixed=True, checked=True)
def conjunctions(cell: Cell) -> Iterator[Conjunction]:
    """Yield calls that are unusual in several ways at once, drawn by the operator's name: the same in every run."""
    chance = random.Random(f"{cell.info.full_name} {cell.dtype}")
    pool = [*cell.kept("settings", list[Call]), *unlike(cell, cell.fixed, most=len(cell.fixed))]
    calls = _CALLS if cell.is_first_dtype else _SOME if cell.dtype in DTYPES else _FEW
    for number in range(calls if pool else 0):
        sample = chance.choice(pool)
        given = unusual(cell, sample, chance)
        if not host_call(cell.info.op, given).comparable:
            continue
        on_a_thread, deterministic, in_form = (chance.random() < share for share in (1 / 3, 1 / 4, 1 / 2))
        # PyTorch replaces some operators by deterministic compositions, which round integers otherwise.
        deterministic &= cell.dtype.is_floating_point or cell.dtype.is_complex
        words, before = chance.choice([("", ()), *_before(cell, sample)])
        around = (*(elsewhere.ELSEWHERE if on_a_thread else ()), *((Around.DETERMINISTIC,) if deterministic else ()))
        where = [words, elsewhere.CHANGE * on_a_thread, elsewhere.DETERMINISTIC * deterministic]
        call = given.named(
            number=NUMBER + number, source=SOURCE, change=", ".join(filter(None, where)),
            around=around, before=before,
        )  # fmt: skip
        # Deterministic algorithms are asked of the host too, which has none for some forms.
        yield Conjunction(call, in_form and not deterministic)


def unusual(cell: Cell, sample: Call, chance: random.Random) -> Call:
    """Return the sample with each tensor in a drawn arrangement, half of the times with drawn lengths of some axes."""
    given = _resized(cell, sample, chance) if chance.random() < 1 / 2 else sample
    return arrangements.each(cell.info, given, chance.choice) or given


def _resized(cell: Cell, sample: Call, chance: random.Random) -> Call:
    """Return the sample with drawn lengths of some axes; an axis that cannot have the drawn one stays as it is."""
    known, is_short = facts(cell.info.name), cell.dtype in (torch.bfloat16, torch.float16)
    stays = known.resizes or (known.short_in_16_bits and is_short)
    if cell.op_class is OpClass.ITERATIVE or stays or not large.fits(cell.info, sample):
        return sample
    for _ in range(chance.randint(1, _AXES)):
        growths = list(large.growths(sample, channels=True))
        if not growths:
            return sample
        growth, length = chance.choice(growths), _length(chance)
        if known.unsigned:
            # Of a short dimension, a number below zero leaves nothing.
            length += max(sample.tensors[0].shape)
        if large.plan_of(cell.info, sample, growth) is None:
            length = min(length, _MOST_OF_SQUARES)
        found = large.extended(cell.info, sample, growth, length)
        most = _MOST_TRAINED if any(tensor.requires_grad for tensor in found.tensors) else _MOST
        too_large = max(tensor.numel() for tensor in found.tensors) > most
        if not too_large and not repeated_writes.are_in(cell.info, found) and host_call(cell.info.op, found).comparable:
            sample = found
    return sample


def _length(chance: random.Random) -> int:
    """Return a length: 1, a few, at or beside a power of two, or any; of the last, short ones are as likely as long."""
    beside_a_power = (1 << chance.choice(_POWERS)) + chance.randint(-1, 1)
    any_length = int(math.exp(chance.uniform(math.log(2), math.log(_LONGEST))))
    return chance.choice((1, chance.randint(2, _FEWEST), beside_a_power, any_length))


def _before(cell: Cell, sample: Call) -> Iterator[tuple[str, tuple[Call, ...]]]:
    """Yield what may be called before, with the words for it."""
    first = sample.input
    if not isinstance(first, torch.Tensor) or first.layout is not torch.strided or first.dim() == 0:
        return
    yield "after other shapes and a refusal", tuple(statements.between(cell, sample))
    turned = sample.with_tensor(first, first.detach().flip(tuple(range(first.dim()))))
    yield "after other data", (turned.named(change="called before, with other data"),)
    kinds = [dtype for dtype in DTYPES if dtype is not cell.dtype and dtype in cell.info.dtypes]
    for dtype in kinds[:1]:
        other = _as(sample, cell.dtype, dtype).named(change=f"called before, in {dtype}")
        yield "after another dtype", (other,)


def _as(sample: Call, old: torch.dtype, new: torch.dtype) -> Call:
    """Return the sample with tensors of one dtype in another one."""

    def change(leaf: Any) -> Any:
        return leaf.detach().to(new) if isinstance(leaf, torch.Tensor) and leaf.dtype is old else leaf

    return sample.with_arguments(mapped(sample.arguments, change))
