"""Faults that drawn programs show: layouts that other calls made, writes through views, and gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.defects.bench import Bench, is_red
from tests.rows import every_row


class _Ops(TorchDispatchMode):
    """Goes around an overload on the device; ``spoil(call, args, kwargs)`` returns the result."""

    def __init__(self, name: str, spoil: Any) -> None:
        super().__init__()
        self._name, self._spoil = name, spoil

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next((x for x in args if isinstance(x, torch.Tensor)), None)
        if str(func).removeprefix("aten.") == self._name and first is not None and first.device.type == "sim":
            return self._spoil(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class Row(NamedTuple):
    """A fault, the case that has to fail, and a part of its message."""

    name: str
    overload: str
    spoil: Any
    case: str
    said: str


def _reads_from_the_start(call: Any, args: Any, kwargs: Any) -> Any:
    """Read a transposed operand with an offset as if it began where its memory does."""
    x = args[0]
    if x.storage_offset() and x.dim() > 1 and not x.is_contiguous():
        args = (x.as_strided(x.shape, x.stride(), 0), *args[1:])
    return call(*args, **kwargs)


def _fills_dense_memory(call: Any, args: Any, kwargs: Any) -> Any:
    """Fill as many elements from the first one on as a view with steps has."""
    x = args[0]
    if x.dim() == 1 and x.numel() > 1 and x.stride(0) == 2:
        call(x.as_strided(x.shape, (1,), x.storage_offset()), *args[1:], **kwargs)
        return x
    return call(*args, **kwargs)


def _writes_its_input(call: Any, args: Any, kwargs: Any) -> Any:
    found = call(*args, **kwargs)
    args[0].zero_()
    return found


def _wraps(call: Any, args: Any, kwargs: Any) -> Any:
    """Compute integers of 16 bits in 8."""
    found = call(*args, **kwargs)
    return found.to(torch.int8).to(found.dtype) if found.dtype == torch.int16 else found


def _half(call: Any, args: Any, kwargs: Any) -> Any:
    return call(*args, **kwargs) / 2


def _refuses(call: Any, args: Any, kwargs: Any) -> Any:
    raise NotImplementedError("no kernel for bool")


ROWS = (
    Row("an offset", "mul.Tensor", _reads_from_the_start, "accelerator.programs[float32-inference]", "*"),
    Row("steps", "fill_.Scalar", _fills_dense_memory, "accelerator.programs[int64-inference]", "[::2]"),
    Row("an input", "roll.default", _writes_its_input, "accelerator.programs[bfloat16-inference]", ".roll("),
    Row("one dtype", "add.Tensor", _wraps, "accelerator.programs[int16-inference]", "+"),
    Row("a refusal", "flip.default", _refuses, "accelerator.programs[bool-inference]", "refused: NotImplementedError"),
    Row("a gradient", "abs.default", None, "accelerator.programs[float32-training]", "the gradient of"),
)


def _signs_halved() -> Any:
    return _Ops("sgn.default", _half)


def test_a_device_without_an_operator_of_an_assignment_is_right() -> None:
    for overload in ("bitwise_not.default", "add_.Tensor", "add.Tensor"):
        with _Ops(overload, _refuses):
            verdict = Bench().run("operators.__getitem__[int64-inference]")

        assert not is_red(verdict), verdict.message


@every_row(ROWS, lambda row: row.name)
def test_a_fault_is_seen(row: Row) -> None:
    place = Bench()
    assert not is_red(sound := place.run(row.case)), f"without the fault: {sound.message}"

    with _signs_halved() if row.spoil is None else _Ops(row.overload, row.spoil):
        verdict = place.run(row.case)

    assert is_red(verdict), f"{row.case} is {verdict.reason.value}"
    assert row.said in verdict.message, verdict.message
