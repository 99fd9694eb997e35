"""Shapes of a call's tensors as letters: ``{"input": "bsh", "gamma": "h"}``. Equal letters are equal sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.specification import Arguments

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8,)


def check_shapes(given: Arguments, shapes: Mapping[str, str], integers: Collection[str] = ()) -> dict[str, int]:
    """The sizes by letter. All tensors lie on one device, are contiguous, and have the first one's dtype.

    Those named in ``integers`` are int8 instead. A leading dot stands for any number of dimensions.
    """
    sizes: dict[str, int] = {}
    leading: Tensor | None = None
    for name, letters in shapes.items():
        dtypes = FLOATING if leading is None else (leading.dtype,)
        device = None if leading is None else leading.device
        tensor = check_tensor(name, given[name], dtypes=INTEGERS if name in integers else dtypes, device=device)
        _fit(name, tensor, letters, sizes)
        leading = tensor if leading is None and name not in integers else leading
    return sizes


def _fit(name: str, tensor: Tensor, letters: str, sizes: dict[str, int]) -> None:
    fixed = letters.lstrip(".")
    shape = tuple(tensor.shape)
    matches = len(shape) >= len(fixed) if letters != fixed else len(shape) == len(fixed)
    last = shape[len(shape) - len(fixed) :] if fixed else ()
    if not matches or any(sizes.get(letter, size) != size for letter, size in zip(fixed, last, strict=True)):
        told = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in fixed)
        begin = "..., " if letters != fixed else ""
        raise wrong(name, f"shape ({begin}{told})", shape)
    sizes.update(zip(fixed, last, strict=True))
