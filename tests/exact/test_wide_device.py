"""A device that computes every operator in float64 and rounds once fails nothing, whatever the host rounds between.

A fused kernel with a wide accumulator is such a device. ``CONFORMANCE_EXACT=1`` takes every operator, in some minutes.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

from conformance.numerics.trees import leaves
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.inputs import families
from conformance.suites.operators.judge.oracle import wide_defaults
from tests.layers import longer
from tests.suites.test_operators_detect import planned, run

DTYPES = ("float32", "bfloat16", "float16")
#: Cells of each dtype, drawn with a fixed seed.
DRAWN = 30
#: Results that are numbers of the dtype itself: float64 has other ones.
OF_THE_DTYPE = ("operators.nan_to_num[", "operators.nextafter[")


class WideDevice:
    """Calls of operators. ``replaced`` counts the outputs that float64 has computed, times ``factor``."""

    def __init__(self, factor: float = 1.0) -> None:
        self.replaced, self._factor = 0, factor

    def execute(self, function: Any, sample: Call, **extra: Any) -> Any:
        before, state = sample.wide(torch.clone), torch.get_rng_state()
        result = call(function, sample, **extra)
        if torch.equal(state, torch.get_rng_state()):
            wide = self._in_float64(function, before, {name: extra[name] for name in extra if name != "out"})
            self._replace(extra.get("out", result), wide, sample)
        return result

    def _in_float64(self, function: Any, sample: Call, extra: dict[str, Any]) -> Any:
        try:
            with torch.no_grad(), wide_defaults():
                return call(function, sample, **extra)
        except Exception:  # the kernel has no float64: the device computes as the host does
            return None

    def _replace(self, result: Any, wide: Any, sample: Call) -> None:
        """Write what was computed in float64 into the outputs that share no memory with an input."""
        ours, theirs = leaves(result), leaves(wide)
        given = {tensor.untyped_storage().data_ptr() for tensor in sample.tensors if _is_dense(tensor)}
        for output, exact in zip(ours, theirs, strict=False) if len(ours) == len(theirs) else ():
            if not (_is_dense(output) and _is_dense(exact) and output.shape == exact.shape and output.numel()):
                continue
            has_rounded = output.is_floating_point() and exact.dtype is torch.float64
            if has_rounded and output.untyped_storage().data_ptr() not in given:
                with torch.no_grad():
                    output.copy_(exact * self._factor)
                self.replaced += 1


def _is_dense(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_quantized


def cells(dtype: str) -> list[str]:
    """Return some cells of inference in this dtype, or all."""
    every = sorted(
        case.id
        for case in planned().values()
        if case.id.endswith(f"[{dtype}-inference]") and case.in_reference and not case.id.startswith(OF_THE_DTYPE)
    )
    return every if os.environ.get("CONFORMANCE_EXACT") else random.Random(14).sample(every, DRAWN)


def failures(dtype: str, device: WideDevice, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(execution, "execute", device.execute)
    monkeypatch.setattr(families, "left_to_deep", dict)  # the device is right in all families
    failed = {}
    for id in cells(dtype):
        try:
            run(id)
        except AssertionError as error:
            failed[id] = str(error)
    return failed


@pytest.mark.parametrize("dtype", longer(DTYPES, "bfloat16"))
def test_one_rounding_at_the_end_fails_nothing(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = WideDevice()

    assert failures(dtype, device, monkeypatch) == {}
    assert device.replaced > 20 * DRAWN


def test_results_that_are_two_percent_too_large_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the cells only moves or selects numbers, so that nothing was replaced."""
    assert len(failures("bfloat16", WideDevice(1.02), monkeypatch)) > DRAWN / 2
