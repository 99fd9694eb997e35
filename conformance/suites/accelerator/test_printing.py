"""Printing: the text of a tensor on the device has the numbers of the host's text."""

from __future__ import annotations

import re

import torch

from conformance.accelerators.capabilities import DTYPE, FLOATING_DTYPES, Cell, Mode
from conformance.plan.case import case

#: Operators by which PyTorch writes the numbers of a tensor.
_OF_FLOATS = ("abs", "amax", "amin", "ceil", "div.no_rounding_mode", "isfinite", "masked_select", "ne")
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool", "complex64")


def _needs(dtype: str) -> tuple[Cell, ...]:
    real = "float32" if dtype == "complex64" else dtype
    operators = _OF_FLOATS if real in FLOATING_DTYPES else ()
    return DTYPE.on(dtype), *(Cell(f"operators.{name}", real, Mode.INFERENCE.value) for name in operators)


def _made(dtype):
    """Return tensors on the host by name, whose texts have signs, fractions, exponents and dots for omitted numbers."""
    kind = getattr(torch, dtype)
    numbers = (torch.arange(-12, 12) * 5).to(torch.float64)
    numbers = numbers / 8 if kind.is_floating_point or kind.is_complex else numbers
    matrix = (numbers > 0 if kind is torch.bool else numbers.to(kind)).view(4, 6)
    found = {
        "a matrix": matrix,
        "a transposed matrix": matrix.t(),
        "a column": matrix[:, 2],
        "a batch of rows": matrix.view(4, 1, 6),
        "a batch of matrices": matrix.view(2, 3, 4),
        "images": matrix.view(2, 2, 3, 2),
        "an empty tensor": matrix[:0],
        "a number": matrix[3, 4],
        "a long vector": torch.arange(1500).remainder(97).to(kind),
        "a long matrix": torch.arange(1517).remainder(97).to(kind).view(37, 41),
        "a long batch of matrices": torch.arange(1001).remainder(97).to(kind).view(7, 11, 13),
    }
    if kind.is_floating_point:
        special = torch.tensor([1.5, -0.0, float("nan"), float("inf"), -float("inf"), 1e-4, 30000.0])
        found |= {"special values": special.to(kind), "a leaf": matrix.clone().requires_grad_()}
    return found


@case("accelerator.printing", axes={"dtype": {name: _needs(name) for name in _DTYPES}})
def test_printing(check, device, dtype):
    """repr() of a tensor on the device is that of the host with the name of the device."""
    made = _made(dtype)
    for name, host in made.items():
        there = host.detach().to(device).requires_grad_(host.requires_grad)

        text = repr(there)
        _check_text(check, name, text, repr(host))
        check.that(
            device.type == "cpu" or f"device='{device.type}" in text, f"{name} is printed without a device: {text}"
        )
        check.equal(str(there.detach().cpu()), str(host.detach()), f"the text of {name} back on the host")
    matrix = made["a matrix"]
    for name, part in _PARTS.items():
        _check_text(check, name, repr(part(matrix.to(device))), repr(part(matrix)))


#: Parts of a matrix that lie behind the start of its memory on the device.
_PARTS = {
    "an element of a matrix": lambda matrix: matrix[3, 4],
    "a row of a matrix": lambda matrix: matrix[2],
    "every second column of a matrix": lambda matrix: matrix[:, 1::2],
}


def _check_text(check, name, text, right):
    """Check that the text of a tensor on the device is that of the host, but for the name of the device."""
    same = _words(re.sub(r",\s+device='[^']*'", "", text)) == _words(right)
    check.that(same, f"{name} is printed as {text}, not as {right}")


def _words(text):
    """Return the words of a text: where lines are broken depends on the length of the device's name."""
    return text.replace("tensor(", "tensor( ").split()
