"""Truth values whose bytes are other than 0 and 1, as views of bytes, files and other libraries make them.

Each byte but 0 is true. A kernel that compares with 1, multiplies, adds bytes up or reads one bit takes some of them
for false, or for several. Where PyTorch's CPU itself answers otherwise than for bytes of 1, nobody is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, perform, processed
from conformance.suites.operators.judge import choices
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import of_forward

from . import forms
from .families import source
from .kinds import unlike

#: Bytes of true values, in turn: even, with the sign bit alone, with all bits, odd.
_BYTES: Final = (2, 128, 255, 3)
_NAME = "true values whose bytes are not 1"


@dataclass(frozen=True)
class Pair:
    """A call with other bytes, and the same one with bytes of 1."""

    odd: Call
    usual: Call


def _compare(cell: Cell, pair: Pair) -> None:
    """Compare a call and its forms with the host's for bytes of 1, as far as the host gives the same for both."""
    expected = attempt(call, cell.info, pair.usual.on(HOST))
    if expected.error is not None:
        return
    others = zip(*(forms.others(cell.info, each, expected.value) for each in (pair.odd, pair.usual)), strict=True)
    for odd, usual in ((pair.odd, pair.usual), *others):
        due, on_host = (attempt(call, cell.info, each.on(HOST)) for each in (usual, odd))
        if due.error is not None or on_host.error is not None:
            continue
        wanted = _leaves(usual, due.value)
        if not _agree(_leaves(odd, on_host.value), wanted):
            continue
        try:
            device = cell.on(odd)
        except Exception:  # a device without views of bytes as another dtype has no such truth values
            cell.check.metric("truth_bytes", "no views of bytes")
            return
        found = perform(execution.execute, cell.info, device)
        cell.judge.metadata(odd, found, due.value, own=False)
        ours = _leaves(odd, found)
        n, oracle = cell.judge.length(usual, due.value), of_forward(cell.info, pair.usual)
        settled = choices.settled(cell.info, pair.usual, ours, wanted)
        for position, (actual, one) in enumerate(zip(ours, settled, strict=True)):
            cell.judge.leaf(odd, actual, one, oracle, position, n, part=f"output {position}")


def _leaves(sample: Call, value: Any) -> list[Any]:
    """Return the results, with bytes of 1 for all true values."""
    return [_of_ones(leaf) for leaf in processed(sample, value)]


def _of_ones(leaf: Any) -> Any:
    """Return truth values whose bytes for true are all 1; another value as it is."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.dtype is not torch.bool:
        return leaf
    return plain(leaf).view(torch.uint8) != 0


def _agree(left: list[Any], right: list[Any]) -> bool:
    """Return whether two lists of results are the same, to the bit."""
    pairs = list(zip(left, right, strict=True)) if len(left) == len(right) else [(0, 1)]
    return all(_is_same(one, other) for one, other in pairs)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two results are tensors of the same bits, or equal values of one type."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and one == other
    return one.layout is torch.strided and same_bits(plain(one), plain(other))


@source(Mode.INFERENCE, _compare, fixed=True, checked=True)
def truth_bytes(cell: Cell) -> Iterator[Pair]:
    """Yield samples with truth values in other bytes: of a bool operator, and of masks beside other dtypes."""
    for sample in unlike(cell, [each for each in cell.fixed if any(map(_is_truth, each.tensors))]):
        usual = sample.with_arguments(mapped(sample.arguments, _with_some)).named(change=_NAME)
        # A mask may be on the device also where the database makes it on the host.
        stay = frozenset(place for place in sample.on_host if not _is_truth(sample.tensors[place]))
        usual = replace(usual, on_host=stay)
        odd = usual.with_arguments(mapped(usual.arguments, _with_bytes))
        yield Pair(odd, usual)


def _is_truth(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has truth values in dense memory."""
    return tensor.dtype is torch.bool and tensor.layout is torch.strided and tensor.numel() > 0


def _with_bytes(leaf: Any) -> Any:
    """Return truth values whose bytes for true are not 1 alone; another value as it is."""
    if not isinstance(leaf, torch.Tensor) or not _is_truth(leaf):
        return leaf
    turns = torch.arange(leaf.numel()).view(leaf.shape) % len(_BYTES)
    return (torch.tensor(_BYTES, dtype=torch.uint8)[turns] * leaf).view(torch.bool)


def _with_some(leaf: Any) -> Any:
    """Return a tensor of truth values with two of three true, if all are false."""
    if not isinstance(leaf, torch.Tensor) or not _is_truth(leaf) or bool(leaf.any()):
        return leaf
    return (torch.arange(leaf.numel()) % 3 < 2).view(leaf.shape)
