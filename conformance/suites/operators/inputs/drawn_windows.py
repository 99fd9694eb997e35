"""Small convolutions and pooled images: windows, steps, gaps, paddings, groups, channels and formats in all pairs.

Libraries choose a kernel by several of these at once: a window of one place with steps of two, an even number of
channels in a group, gaps in one direction alone. The database changes one of them at a time. For images of two
dimensions, each three of them take all combinations. Each dtype has rows of its own, as it has its own kernels.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from conformance.numerics.covering import covering_rows

from . import arrangements
from .model_sizes import Make, Size, named, sizes_of, whole

#: Draws of pooled images for each operator and dtype.
_POOLED: Final = 24
#: Sides, steps and gaps of windows in each dimension.
_WINDOWS: Final = ((1, 1, 1), (2, 2, 2), (3, 3, 3), (3, 2, 1), (1, 3, 2))
_STEPS: Final = ((1, 1, 1), (2, 2, 2), (2, 1, 3))
_GAPS: Final = ((1, 1, 1), (2, 2, 2), (2, 1, 1), (1, 2, 3))
_PADDINGS: Final = (0, 1)
#: Groups, and channels that each takes and makes.
_GROUPS: Final = (1, 2, 3)
_CHANNELS: Final = ((1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (3, 4))
#: Whether the image and the weight have their channels last.
_FORMATS: Final = ((False, False), (True, False), (False, True), (True, True))
#: Places that a window has along a dimension, and images.
_PLACES, _IMAGES = (1, 2, 3, 4), (1, 2, 3)
#: Dimensions of the images of which each three settings take all combinations.
_PLANE = 2


def _sides(windows: Sequence[int], steps: Sequence[int], paddings: Sequence[int], chance: random.Random) -> list[int]:
    """Return the sides of an image that has some places for a window, and sometimes elements behind the last one."""
    return [
        max(1, window + step * (chance.choice(_PLACES) - 1) + chance.randrange(step) - 2 * padding)
        for window, step, padding in zip(windows, steps, paddings, strict=True)
    ]


def _convolutions(dims: int, *, transposed: bool) -> Make:
    """Return a maker of convolutions with ``dims`` dimensions."""
    choices = len(_WINDOWS), len(_STEPS), len(_GAPS), len(_PADDINGS), len(_GROUPS), len(_CHANNELS), len(_FORMATS)

    def make(dtype: torch.dtype) -> Iterator[Size]:
        if not dtype.is_floating_point:
            return
        name = f"convolutions {dims} {transposed} {dtype}"
        chance, strength = random.Random(name), 3 if dims == _PLANE and not transposed else 2
        for window, step, gap, padding, group, channel, layout in covering_rows(choices, strength, name):
            sides, steps, gaps = _WINDOWS[window][:dims], _STEPS[step][:dims], _GAPS[gap][:dims]
            groups, (taken, made) = _GROUPS[group], _CHANNELS[channel]
            if dims > _PLANE and transposed and groups > 1 and taken == made == 1:
                continue  # PyTorch's CPU has another gradient of such a weight in bfloat16
            spans = [gap * (side - 1) + 1 for side, gap in zip(sides, gaps, strict=True)]
            # A padding is shorter than the window.
            paddings = [min(span - 1, _PADDINGS[padding]) for span in spans]
            # A transposed convolution makes a window of each place.
            places = [chance.choice(_PLACES) + 1 for _ in sides]
            planes = places if transposed else _sides(spans, steps, paddings, chance)
            if dims > 1 and dtype is torch.bfloat16 and 1 in planes:
                continue  # PyTorch's CPU has another gradient of such a weight for results with their channels last
            channels = (groups * taken, made) if transposed else (groups * made, taken)
            given = (
                whole(chance.choice(_IMAGES), groups * taken, *planes, dtype=dtype),
                whole(*channels, *sides, dtype=dtype),
            )
            image, weight = (
                arrangements.transposed(each) if turned else each
                for each, turned in zip(given, _FORMATS[layout], strict=True)
            )
            bias = (whole(groups * made, dtype=dtype),) if chance.random() < 1 / 2 else ()
            numbers = {"stride": steps, "padding": tuple(paddings), "dilation": gaps, "groups": groups}
            yield Size(image, (weight, *bias), named(**numbers))

    return make


def _pooled(kind: str, dims: int) -> Make:
    """Return a maker of images to pool in ``dims`` dimensions, each also with its channels last, in the next call."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        chance = random.Random(f"{kind} {dims} {dtype}")
        for _ in range(_POOLED if dtype.is_floating_point else 0):
            sides, steps = (chance.choice(values)[:dims] for values in (_WINDOWS, _STEPS))
            paddings = [min(side // 2, chance.choice((0, 0, 1))) for side in sides]
            planes = _sides(sides, steps, paddings, chance)
            if chance.random() < 1 / 4:
                planes, paddings = list(sides), [0] * dims  # the window is the whole image
            image = whole(chance.choice(_IMAGES), 4 * chance.choice(_GROUPS), *planes, dtype=dtype)
            settings: dict[str, Any] = {"ceil_mode": chance.random() < 1 / 3}
            if kind == "avg":
                settings["count_include_pad"] = chance.random() < 1 / 2
            for given in (image, arrangements.transposed(image)) if dims > 1 else (image,):
                yield Size(given, (sides, steps, tuple(paddings)), named(**settings))

    return make


for _dims in (1, 2, 3):
    sizes_of(f"nn.functional.conv{_dims}d", large=False)(_convolutions(_dims, transposed=False))
    sizes_of(f"nn.functional.conv_transpose{_dims}d", large=False)(_convolutions(_dims, transposed=True))
    for _kind in ("max", "avg"):
        sizes_of(f"nn.functional.{_kind}_pool{_dims}d", large=False)(_pooled(_kind, _dims))
