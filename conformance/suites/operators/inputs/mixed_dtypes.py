"""Operands of two dtypes, also in a list: integers unlike in width and sign, integers and fractions, wide parameters.

PyTorch promotes both to one dtype first. A kernel that compares bytes, or promotes by the first operand, is right for
equal dtypes. The values are at the ends of the dtypes, and every pair of them is in one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import variants
from .comparing import check_supported
from .families import source
from .kinds import unlike

#: Numbers from 8000 on are no numbers of other samples.
_NUMBER, _WIDE, _BESIDE = 8000, 8100, 8050
_Numbers = tuple[float, ...]
_VALUES: dict[torch.dtype, _Numbers] = {
    torch.bool: (False, True),
    torch.uint8: (0, 1, 2, 127, 128, 255),
    torch.int8: (0, 1, 2, 127, -128, -1),
    torch.int16: (0, 1, 255, 256, -1, -32768),
    torch.int32: (1, 255, -1, (1 << 24) + 1, -(1 << 31)),
    torch.int64: (1, 255, -1, (1 << 24) + 1, (1 << 31) + 1, -(1 << 32)),
    # Beside integers that float32 holds: the promotion to float32 rounds none.
    torch.float32: (0.5, -1.5, 255.0, -1.0, 3.0),
}
#: Numbers of every dtype but truth values, for functions that are not defined at the ends.
_SMALL: _Numbers = (1, 2, 3)
_PAIRS = (
    (torch.uint8, torch.int8),
    (torch.int8, torch.uint8),
    (torch.bool, torch.int8),
    (torch.int16, torch.uint8),
    (torch.int32, torch.int64),
    (torch.int64, torch.int32),
    (torch.int64, torch.int16),
    (torch.float32, torch.int16),
    (torch.float32, torch.int64),
    (torch.uint8, torch.float32),
    (torch.int32, torch.float32),
)
#: Tensors without dimensions beside a number of Python, which promotes them by its kind alone.
_BESIDE_NUMBERS = (
    (torch.bool, 2),
    (torch.bool, 2.5),
    (torch.uint8, 3),
    (torch.int32, 2.5),
    (torch.int64, 2.5),
    (torch.float32, 2),
)
#: The same for tensors without dimensions, for which devices have kernels of their own.
_PAIRS_OF_NUMBERS = (
    (torch.int64, torch.bool),
    (torch.bool, torch.float32),
    (torch.float32, torch.int64),
    (torch.uint8, torch.int32),
)


def compare(cell: Cell, sample: Call) -> None:
    """Compare a call with the host's; a refusal of the device is a note, as the claim is for operands of one dtype."""
    check_supported(cell, sample, "mixed_dtypes", f"refused: {sample.source}")


def _compare_both(cell: Cell, sample: Call) -> None:
    """Compare a call, and its in-place form for operands with gaps if the first one's dtype is that of the result."""
    compare(cell, sample)
    variants.in_place_of(cell, sample, ("non-contiguous",))


@source(Mode.INFERENCE, _compare_both, once=True, values=False)
def mixed_dtypes(cell: Cell) -> Iterator[Call]:
    """Yield calls of a function of two tensors, or of a list, with operands of two dtypes that the device declares."""
    takes_list = bool(cell.fixed) and _is_list(cell.fixed[0].input)
    if not is_a(cell.info, "BinaryUfuncInfo") and not takes_list:
        return
    if facts(cell.info.name).degree:
        return
    # C leaves results open at the ends of integers, such as quotients by 0.
    values = dict.fromkeys(_VALUES, _SMALL) if facts(cell.info.name).open_at_ends else _VALUES
    for order, pair in enumerate(_PAIRS):
        if all(kind in cell.info.dtypes and cell.check.declares(kind) for kind in pair):
            sample = _sample(order, *pair, values)
            yield replace(sample, input=[sample.input, *sample.args], args=()) if takes_list else sample
    for order, (first, second) in enumerate(_PAIRS_OF_NUMBERS if not takes_list else ()):
        if all(kind in cell.info.dtypes and cell.check.declares(kind) for kind in (first, second)):
            yield _numbers(len(_PAIRS) + order, first, second)
    for order, (dtype, number) in enumerate(_BESIDE_NUMBERS if not takes_list else ()):
        if dtype in cell.info.dtypes and cell.check.declares(dtype):
            given = Call(_BESIDE + order, torch.tensor(1).to(dtype), (number,), source=f"one {dtype} and {number}")
            if host_call(cell.info.op, given).comparable:
                yield given


@source(Mode.INFERENCE, compare, dtypes=(torch.bfloat16, torch.float16), fixed=True, checked=True)
def wide_parameters(cell: Cell) -> Iterator[Call]:
    """Yield samples whose tensors behind the first are of float32, as models keep the weights of norms in 16 bits."""
    yield from with_wide_parameters(cell, unlike(cell, cell.fixed))


def with_wide_parameters(cell: Cell, samples: Iterable[Call]) -> Iterator[Call]:
    """Yield the samples that have tensors of the cell's dtype behind the first one, with these in float32."""
    for sample in samples:
        first, *others = sample.tensors or (None,)
        if first is not sample.input or not cell.check.declares(torch.float32):
            continue
        wide = sample
        for tensor in others:
            if tensor.dtype is cell.dtype and tensor.layout is torch.strided:
                wide = wide.with_tensor(tensor, tensor.detach().float().requires_grad_(tensor.requires_grad))
        if wide is not sample:
            yield replace(wide, number=_WIDE + sample.number, source="parameters in float32")


def _is_list(given: object) -> bool:
    """Return whether a value is a list of tensors."""
    return isinstance(given, (list, tuple)) and all(isinstance(each, torch.Tensor) for each in given)


def _numbers(order: int, first: torch.dtype, second: torch.dtype) -> Call:
    """Return the call for two tensors without dimensions, of two dtypes."""
    tier = f"numbers of {first} and {second}".replace("torch.", "")
    return Call(_NUMBER + order, torch.tensor(3).to(first), (torch.tensor(1).to(second),), {}, source=tier)


def _sample(order: int, first: torch.dtype, second: torch.dtype, values: Mapping[torch.dtype, _Numbers]) -> Call:
    """Return the call for all pairs of the values of two dtypes; ``order`` numbers it."""
    left, right = zip(*itertools.product(values[first], values[second]), strict=True)
    tier = f"{first} and {second}".replace("torch.", "")
    operands = torch.tensor(left, dtype=first), torch.tensor(right, dtype=second)
    return Call(_NUMBER + order, operands[0], (operands[1],), {}, source=tier)
