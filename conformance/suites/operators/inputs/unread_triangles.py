"""Matrices of which an operator reads one triangle, with other numbers in the other one.

The database's matrices are symmetric or triangular: a kernel that reads the wrong half of them is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.trees import tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_call
from .families import source

#: Numbers from 9720 on are no numbers of other samples.
_NUMBER = 9720
#: The number in the triangle that is not read.
_OTHER = 3.5
#: Samples of an operator, each with other words such as ``upper``.
_SAMPLES = 4


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.complex64), fixed=True)
def unread_triangles(cell: Cell) -> Iterator[Call]:
    """Yield samples with another number in the triangle that the host does not read."""
    number, places = _NUMBER, facts(cell.info.name).one_triangle
    for sample in _of_each_kind(cell) if places else ():
        matrix = sample.tensors[places[0]]
        for name, keep in (("upper", torch.tril), ("lower", torch.triu)):
            kept = keep(torch.ones(matrix.shape[-2:], dtype=torch.bool))
            other = sample.with_tensor(matrix, matrix.detach().where(kept, torch.tensor(_OTHER, dtype=matrix.dtype)))
            if _has_result_of(cell, other, sample):
                yield replace(other, number=number, source=f"other numbers in the {name} triangle")
                number += 1


def _has_result_of(cell: Cell, call: Call, other: Call) -> bool:
    """Return whether the host's results of two calls are equal to the bit."""
    found, due = (host_call(cell.info.op, each) for each in (call, other))
    pairs = zip(tensors(found.value), tensors(due.value), strict=False)
    return found.comparable and due.comparable and all(same_bits(plain(one), plain(two)) for one, two in pairs)


def _of_each_kind(cell: Cell) -> list[Call]:
    """Return large samples, of which no two have the same keywords."""
    found: dict[str, Call] = {}
    for sample in sorted(cell.fixed, key=lambda sample: -sample.elements):
        words = {name: value for name, value in sample.kwargs.items() if not isinstance(value, torch.Tensor)}
        if sample.tensors and all(tensor.numel() > 1 for tensor in sample.tensors):
            found.setdefault(str(sorted(words.items())), sample)
    return list(found.values())[:_SAMPLES]
