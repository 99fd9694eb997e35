"""Lists of images in two memory formats: one has its channels last, the others are contiguous.

A kernel that takes the strides of one tensor for all of a list is right wherever all are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell

from .arrangements import transposed
from .settings import computes

#: Numbers from 9700 on are no numbers of other samples.
_NUMBER = 9700
#: Images, channels, rows and columns.
_SHAPE = (2, 3, 4, 5)
#: Places in a list whose image has its channels last, in turn.
_PLACES = (0, 1)


def mixed(cell: Cell) -> Iterator[Call]:
    """Yield samples of an operator on a list of tensors with images of two formats in their places."""
    for sample in cell.samples:
        if not _is_list(sample.input):
            continue
        made = [_with_one(sample, place) for place in _PLACES]
        if all(computes(cell, each) for each in made):
            yield from made
            return


def _is_list(value: Any) -> bool:
    """Return whether a value is a list of at least two dense tensors with elements."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 1
        and all(isinstance(item, torch.Tensor) and item.layout is torch.strided and item.numel() for item in value)
    )


def _with_one(sample: Call, place: int) -> Call:
    """Return the call with images for the tensors of its list, of which one is in channels_last."""
    images = [_image(tensor.detach()) for tensor in sample.input]
    images[place] = transposed(images[place])
    given = [image.requires_grad_(t.requires_grad) for image, t in zip(images, sample.input, strict=True)]
    changed = replace(sample, input=type(sample.input)(given))
    return replace(changed, number=_NUMBER + place, source=f"image {place} of a list in channels_last")


def _image(tensor: torch.Tensor) -> torch.Tensor:
    """Return an image of the tensor's values, in turn."""
    count = torch.Size(_SHAPE).numel()
    return tensor.flatten()[torch.arange(count) % tensor.numel()].view(_SHAPE)
