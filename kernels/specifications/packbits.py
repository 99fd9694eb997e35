"""Packing of signs into bits and back, as 1-bit communication needs it.

Implementations in use disagree on special values. This specification decides: zero is positive, whatever its sign bit
is, and NaN is negative. A packer that reads the sign bit makes sums of compressed communication wrong by twice the
scale.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.compression import packing
from conformance.kernels.native import WHAT
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Native,
    Property,
    Refusal,
)

_EXACT = ErrorBudget(rounding=0.0, conditioning=0.0, source="a sign is right or wrong; nothing is rounded")
#: Values for which the sign bit, or arithmetic on the value, gives a wrong sign; and two ordinary values.
_SPECIAL = (0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), float("nan"), 3.0, -2.0)


# --- oracles, element by element in Python ----------------------------------------------------------------------------


def _packed(given: Arguments) -> Mapping[str, Expected]:
    """Return the bytes, computed number by number from the definition."""
    numbers = given["tensor"].reshape(-1)[: given["numel"]].tolist()
    # NaN pads the last byte: its sign is negative, so the bits are 0.
    whole = numbers + [float("nan")] * (-len(numbers) % 8)
    # The first number is in the highest bit.
    codes = [
        sum((number >= 0) << (7 - index) for index, number in enumerate(whole[at : at + 8]))
        for at in range(0, len(whole), 8)
    ]
    return {"result": Expected(torch.tensor(codes, dtype=torch.uint8), dtype=torch.uint8)}


def _unpacked(given: Arguments) -> Mapping[str, Expected]:
    """Return the signs, read digit by digit from the bytes."""
    codes = given["packed"].reshape(-1)[: given["n_bytes"]].tolist()
    values = [1.0 if digit == "1" else -1.0 for code in codes for digit in f"{code:08b}"]
    exact = torch.tensor(values, dtype=torch.float64)
    return {"result": Expected(exact, allowed=torch.zeros_like(exact), dtype=torch.float32)}


# --- samples ----------------------------------------------------------------------------------------------------------


def _floats(
    generator: torch.Generator, dtype: torch.dtype, *, size: int, taken: int = -1, across: bool = False
) -> Arguments:
    """Return numbers with special values at the start; ``across`` makes them a transposed view."""
    numbers = torch.randn(size, generator=generator)
    numbers[: len(_SPECIAL)] = torch.tensor(_SPECIAL)[:size]
    tensor = numbers.view(-1, 8).t() if across else numbers
    return {"tensor": tensor, "numel": size if taken < 0 else taken, "rank": 0}


def _bytes(
    generator: torch.Generator, dtype: torch.dtype, *, size: int, taken: int = -1, across: bool = False
) -> Arguments:
    codes = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
    return {"packed": codes.view(-1, 8).t() if across else codes, "n_bytes": size if taken < 0 else taken, "rank": 0}


#: Sizes around one byte and a vector of eight floats; one that a launch takes in parts; a part of a tensor; a view
#: that is not in memory order.
_FLOATS: dict[str, dict[str, Any]] = {
    "1001": {"size": 1001}, "0": {"size": 0}, "1": {"size": 1}, "7": {"size": 7}, "8": {"size": 8}, "9": {"size": 9},
    "65537": {"size": 65537}, "1048653": {"size": 1048653},
    "part": {"size": 48, "taken": 21}, "transposed": {"size": 48, "across": True},
}  # fmt: skip
_BYTES: dict[str, dict[str, Any]] = {
    "256": {"size": 256}, "131083": {"size": 131083}, "0": {"size": 0}, "1": {"size": 1},
    "part": {"size": 33, "taken": 5}, "transposed": {"size": 48, "across": True},
}  # fmt: skip


def _signs_come_back(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Check that unpacking returns the packed signs, and -1 for the padding bits, on the tensor's own device."""
    given = _floats(generator, dtype, size=1001)
    signs = torch.full((1008,), -1.0).double()
    signs[:1001][given["tensor"] >= 0] = 1.0

    packed = functions.packbits(given["tensor"].to(device), 1001, 0)
    unpacked = functions.unpackbits(packed, packed.numel(), 0)

    yield "signs of 1001 floats", unpacked, Expected(signs, allowed=torch.zeros_like(signs), dtype=torch.float32)
    on_device = torch.tensor([tensor.device.type == device.type for tensor in (packed, unpacked)])
    yield "bits and signs are on the device", on_device, Expected(torch.tensor([True, True]))


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def _put(argument: str, value: int) -> Refusal:
    return Refusal(f"{argument}-{value}", argument, lambda given: {**given, argument: value})


_COMMON: dict[str, Any] = {
    "builder": "PackbitsBuilder", "mode": Mode.TRAINING, "dtypes": ("float32",), "budget": _EXACT,
}  # fmt: skip

SPECIFICATIONS = (
    KernelSpecification(
        name="packbits",
        samples=tuple(KernelSample(name, functools.partial(_floats, **settings)) for name, settings in _FLOATS.items()),
        oracle=_packed,
        reference=packing.packbits,
        validate=lambda given: packing.check_floats(given["tensor"], given["numel"]),
        refusals=(
            _put("numel", 1002),
            _put("numel", -1),
            Refusal("dtype", "tensor", lambda given: {**given, "tensor": given["tensor"].half()}),
        ),
        properties=(Property("round-trip", _signs_come_back),),
        native=(Native(packing.compiled_packbits, WHAT),),
        **_COMMON,
    ),
    KernelSpecification(
        name="unpackbits",
        samples=tuple(KernelSample(name, functools.partial(_bytes, **settings)) for name, settings in _BYTES.items()),
        oracle=_unpacked,
        reference=packing.unpackbits,
        validate=lambda given: packing.check_bytes(given["packed"], given["n_bytes"]),
        refusals=(
            _put("n_bytes", 257),
            _put("n_bytes", -1),
            Refusal("dtype", "packed", lambda given: {**given, "packed": given["packed"].to(torch.int8)}),
        ),
        native=(Native(packing.compiled_unpackbits, WHAT),),
        **_COMMON,
    ),
)
