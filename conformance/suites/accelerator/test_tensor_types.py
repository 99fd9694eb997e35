"""Typed tensor constructors such as FloatTensor."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, TENSOR_TYPES, Cell, Mode
from conformance.judging.finding import require
from conformance.plan.case import case

CONSTRUCTORS = {
    "bfloat16": "BFloat16Tensor",
    "uint8": "ByteTensor",
    "float64": "DoubleTensor",
    "float32": "FloatTensor",
    "float16": "HalfTensor",
    "int32": "IntTensor",
    "int64": "LongTensor",
}


@case("accelerator.tensor_types.from_list", requires=[TENSOR_TYPES, DTYPE], axes={"dtype": list(CONSTRUCTORS)})
def test_from_list(accelerator, device, dtype):
    """Called with a list, the constructor builds a tensor of its dtype on the device with those values."""
    # A list means the same to every implementation; some read a number as a shape.
    name = CONSTRUCTORS[dtype]

    tensor = require(getattr(accelerator, name), name)([0, 1, 2, 3, 100])

    assert isinstance(tensor, torch.Tensor), f"{name}() returned {tensor!r}; it must return a tensor"
    assert tensor.dtype is getattr(torch, dtype), f"{name} builds {tensor.dtype}, not torch.{dtype}"
    assert tensor.device.type == device.type, f"{name} builds on {tensor.device}, not on {device.type}"
    assert tensor.cpu().tolist() == [0, 1, 2, 3, 100], f"{name}([0, 1, 2, 3, 100]) contains {tensor.cpu().tolist()}"


@case("accelerator.tensor_types.shapes", requires=[TENSOR_TYPES, DTYPE], axes={"dtype": list(CONSTRUCTORS)})
def test_shapes(accelerator, dtype):
    """A nested list builds a matrix, and an empty list builds an empty tensor."""
    build = getattr(accelerator, CONSTRUCTORS[dtype])

    matrix, empty, single = build([[1, 2, 3], [4, 5, 6]]), build([]), build([7])

    assert matrix.cpu().tolist() == [[1, 2, 3], [4, 5, 6]], f"a nested list gives {matrix.cpu().tolist()}"
    assert tuple(empty.shape) == (0,), f"an empty list gives the shape {tuple(empty.shape)}"
    assert single.cpu().tolist() == [7] and empty.dtype is matrix.dtype is getattr(torch, dtype)


@case(
    "accelerator.tensor_types.fresh",
    requires=[TENSOR_TYPES, DTYPE, Cell("operators.add", mode=Mode.INFERENCE.value)],
    axes={"dtype": list(CONSTRUCTORS)},
)
def test_fresh(accelerator, dtype):
    """Each call builds a separate tensor on the current device that takes part in arithmetic."""
    build = getattr(accelerator, CONSTRUCTORS[dtype])

    first, second = build([1, 2, 3]), build([1, 2, 3])
    first.add_(second)

    assert second.cpu().tolist() == [1, 2, 3], "two tensors share their memory"
    assert first.cpu().tolist() == [2, 4, 6], f"[1, 2, 3] and as much again are {first.cpu().tolist()}"
    assert second.device.index in (accelerator.current_device(), None), f"built on {second.device}"
