"""Shape checks with letters: ``{"input": "bsh", "gamma": "h"}``. Equal letters mean equal sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.specification import Arguments

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8,)


def check_shapes(given: Arguments, shapes: Mapping[str, str], integers: Collection[str] = ()) -> dict[str, int]:
    """Return the sizes by letter; raise UsageError for a tensor that does not fit its letters.

    All tensors must be contiguous, on one device and of the first one's dtype; those named in ``integers`` are int8. A
    leading dot stands for any number of dimensions.
    """
    sizes: dict[str, int] = {}
    leading: Tensor | None = None
    for name, letters in shapes.items():
        dtypes = FLOATING if leading is None else (leading.dtype,)
        device = None if leading is None else leading.device
        tensor = check_tensor(name, given[name], dtypes=INTEGERS if name in integers else dtypes, device=device)
        _match(name, tensor, letters, sizes)
        leading = tensor if leading is None and name not in integers else leading
    return sizes


def _match(name: str, tensor: Tensor, letters: str, sizes: dict[str, int]) -> None:
    """Add the tensor's sizes to ``sizes``; raise UsageError where a letter has another size already."""
    fixed = letters.lstrip(".")
    shape = tuple(tensor.shape)
    matches = len(shape) >= len(fixed) if letters != fixed else len(shape) == len(fixed)
    last = shape[len(shape) - len(fixed) :] if fixed else ()
    if not matches or any(sizes.get(letter, size) != size for letter, size in zip(fixed, last, strict=True)):
        expected = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in fixed)
        begin = "..., " if letters != fixed else ""
        raise wrong(name, f"shape ({begin}{expected})", shape)
    sizes.update(zip(fixed, last, strict=True))
