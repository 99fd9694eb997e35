"""Operands of two dtypes: integers of unlike width and sign, and integers beside floating-point numbers.

PyTorch promotes both to one dtype first. A kernel that compares bytes, or promotes by the first operand, is right for
equal dtypes. The values are at the ends of the dtypes, and every pair of them is in one call.
"""

from __future__ import annotations

import itertools

import torch

from . import execution, sampling
from .execution import HOST, OperatorSample, call
from .oracle import of_forward
from .sampling import limits
from .variants import attempt, settled

#: Numbers from 8000 on are no numbers of other samples.
_NUMBER = 8000
_VALUES = {
    torch.bool: (False, True),
    torch.uint8: (0, 1, 2, 127, 128, 255),
    torch.int8: (0, 1, 2, 127, -128, -1),
    torch.int16: (0, 1, 255, 256, -1, -32768),
    torch.int32: (1, 255, -1, (1 << 24) + 1, -(1 << 31)),
    torch.int64: (1, 255, -1, (1 << 24) + 1, (1 << 31) + 1, -(1 << 32)),
    # Beside integers that float32 holds: the promotion to float32 rounds none.
    torch.float32: (0.5, -1.5, 255.0, -1.0, 3.0),
}
_PAIRS = (
    (torch.uint8, torch.int8),
    (torch.int8, torch.uint8),
    (torch.bool, torch.int8),
    (torch.int16, torch.uint8),
    (torch.int32, torch.int64),
    (torch.int64, torch.int32),
    (torch.int64, torch.int16),
    (torch.float32, torch.int16),
    (torch.uint8, torch.float32),
)


def check(info, judge, dtype: torch.dtype) -> None:
    """Compare a function of two tensors with the host's for operands of two dtypes, which the device declares."""
    kinds = {kind.__name__ for kind in type(info).__mro__}
    if "BinaryUfuncInfo" not in kinds or not sampling.is_first_dtype(info, dtype):
        return
    # The degree of a polynomial is a number of steps.
    if info.name in limits().mixed.undefined or "polynomial" in info.name:
        return
    for order, pair in enumerate(_PAIRS):
        if all(kind in info.dtypes and _is_declared(judge, kind) for kind in pair):
            _compare(info, judge, _sample(order, *pair))


def _is_declared(judge, dtype: torch.dtype) -> bool:
    return judge.check.dtypes is None or str(dtype).removeprefix("torch.") in judge.check.dtypes


def _sample(order: int, first: torch.dtype, second: torch.dtype) -> OperatorSample:
    left, right = zip(*itertools.product(_VALUES[first], _VALUES[second]), strict=True)
    tier = f"{first} and {second}".replace("torch.", "")
    operands = torch.tensor(left, dtype=first), torch.tensor(right, dtype=second)
    return OperatorSample(_NUMBER + order, operands[0], (operands[1],), {}, tier=tier)


def _compare(info, judge, sample: OperatorSample) -> None:
    expected = attempt(call, info.op, sample.on(HOST))
    if expected.error is not None:
        return
    found = settled(attempt(execution.execute, info.op, sample.on(judge.device)))
    if found.error is not None:
        judge.check.metric("mixed_dtypes", f"refused: {sample.tier}")  # a note: the claim is for operands of one dtype
        return
    n = judge.length(sample, expected.value)
    judge.result(str(sample), sample, found.value, expected.value, of_forward(info, sample), n)
