"""Sizes of images that models have, for convolutions, pooling and resizing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch

from . import arrangements
from .model_sizes import CHANNELS, ROWS, TERMS, Make, Size, named, positive, sizes_of, values, whole

# --- convolutions -----------------------------------------------------------------------------------------------------


def _convolutions(dims: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield shapes of images and weights, with groups."""
    ones, planes = (1,) * dims, {1: (ROWS,), 2: (223, 181), 3: (17, 33, 33)}[dims]
    yield (8 if dims == 2 else 2, 3, *planes), (4, 3, *ones), 1
    yield (1, 2, *planes), (3, 2, *(3,) * dims), 1
    yield (ROWS, 1, *ones), (2, 1, *ones), 1
    yield (2, CHANNELS, *(7,) * dims), (CHANNELS, 1, *(3,) * dims), CHANNELS
    yield (1, TERMS, *ones), (2, TERMS, *ones), 1


#: Kernels, strides and paddings of models: of patches, of halving and doubling, of first layers.
_KERNELS = ((2, 2, 0), (1, 2, 0), (3, 2, 1), (4, 2, 1), (4, 4, 0), (5, 1, 2), (7, 2, 3))
#: Dimensions of an image, and the longest side of a kernel over single channels of a volume that it sees as a whole.
_PLANE, _MOST_SIDE = 2, 4


def _kernels(dims: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor, tuple[tuple[str, Any], ...]]]:
    """Yield images, weights and keywords for each kernel of models, over all channels and over each one alone."""
    # Channels alone are more than one vector of a processor, and no power of two.
    for (side, stride, padding), (channels, groups) in itertools.product(_KERNELS, ((4, 1), (24, 24))):
        # A kernel of 3 with a stride of 2 ends within the rows, and beyond the columns.
        image = whole(2, channels, *range(10, 10 + dims), dtype=dtype, most=1)
        weight = whole(channels, channels // groups, *(side,) * dims, dtype=dtype, most=1)
        yield image, weight, named(groups=groups, stride=stride, padding=padding)


#: Channels that are taken, groups, and channels that are made: two of each one, and groups of several.
_GROUPED = ((3, 3, 6), (4, 2, 6))
#: Strides, dilations and paddings: a stride, a dilation, and both.
_STEPS = ((2, 1, 1), (1, 2, 0), (3, 2, 2))


def _single_windows(dims: int, dtype: torch.dtype) -> Iterator[Size]:
    """Yield the largest images of which a kernel of models makes one place, over all channels and over each one alone.

    Those of separate channels lie as one token does that was transposed: the stride of its single place is no 1.
    """
    for (side, stride, padding), (channels, groups) in itertools.product(_KERNELS, ((4, 1), (24, 24))):
        if dims > _PLANE and groups > 1 and side > _MOST_SIDE:
            continue  # PyTorch's CPU has another gradient of such a weight in bfloat16
        sides = (side + stride - 1 - 2 * padding,) * dims
        shape = (2, channels, *sides) if groups == 1 else (2, *sides, channels)
        image = whole(*shape, dtype=dtype, most=1).movedim(1 if groups == 1 else -1, 1)
        weight = whole(channels, channels // groups, *(side,) * dims, dtype=dtype, most=1)
        yield Size(image, (weight,), named(groups=groups, stride=stride, padding=padding))


#: Channels that a stage of a model takes and makes, and the side of its image; a kernel of three by three keeps it.
_STAGES = ((3, 64, 32), (16, 32, 64), (64, 64, 28), (128, 256, 14))


def _stages(dtype: torch.dtype) -> Iterator[Size]:
    """Yield one image for each stage."""
    for taken, made, side in _STAGES:
        weight = whole(made, taken, 3, 3, dtype=dtype)
        yield Size(whole(1, taken, side, side, dtype=dtype), (weight,), named(padding=1))


def _grouped(dims: int, dtype: torch.dtype, *, transposed: bool = False) -> Iterator[Size]:
    """Yield images with weights for groups that make more channels than they take, with a stride or a dilation."""
    # The database's transposed convolutions make two channels of each one.
    grouped = _GROUPED[1:] if transposed else _GROUPED
    for (taken, groups, made), (stride, dilation, padding) in itertools.product(grouped, _STEPS):
        channels = (taken, made // groups) if transposed else (made, taken // groups)
        image = whole(2, taken, *range(7, 7 + dims), dtype=dtype)
        weight = whole(*channels, *(3, 2, 3)[:dims], dtype=dtype)
        yield Size(image, (weight,), named(groups=groups, stride=stride, dilation=dilation, padding=padding))


def _formats(dims: int, dtype: torch.dtype, *, transposed: bool = False) -> Iterator[Size]:
    """Yield images of one place and of several, of which the weight, the image or both have their channels last."""
    channels = (4, 6) if transposed else (6, 4)
    for side, last in itertools.product((1, 5), ((False, True), (True, False), (True, True))):
        given = whole(2, 4, *(side,) * dims, dtype=dtype), whole(*channels, *(3,) * dims, dtype=dtype)
        image, weight = (
            arrangements.transposed(each) if turn else each for each, turn in zip(given, last, strict=True)
        )
        yield Size(image, (weight,), named(padding=1))


def _convolution(dims: int) -> Make:
    """Return a maker of sizes of convolutions with ``dims`` dimensions: images, patches, planes and long kernels."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        if not dtype.is_floating_point:
            return
        for image, weight, groups in _convolutions(dims):
            bias = whole(weight[0], dtype=dtype)
            given = (values(weight, dtype), bias)
            yield Size(values(image, dtype), given, named(groups=groups))
        if dims == _PLANE:  # patches of an image with one channel
            patches = whole(768, 1, 16, 16, dtype=dtype, most=1)
            yield Size(whole(1, 1, 26, 26, dtype=dtype, most=1), (patches,), named(stride=10))
            yield from _stages(dtype)
        for planes, kernel, given_by_name in _kernels(dims, dtype):
            yield Size(planes, (kernel,), given_by_name)
        yield from _single_windows(dims, dtype)
        if dtype is torch.float32:  # more channels than a launch has blocks in y and z
            yield Size(whole(1, 1, *(2,) * dims, dtype=dtype), (whole(ROWS, 1, *(1,) * dims, dtype=dtype),))
        if dtype is torch.float32:  # kernels as long as a signal, over several images; oneDNN takes a second in 16 bits
            long, sides = whole(4, 2, 257, *(1,) * (dims - 1), dtype=dtype, most=1), (3,) * (dims - 1)
            yield Size(whole(2, 4, 263, *sides, dtype=dtype, most=1), (long,), named(groups=2))
        yield from _grouped(dims, dtype)
        yield from _formats(dims, dtype)

    return make


def _transposed(dims: int) -> Make:
    """Return a maker of sizes of transposed convolutions with ``dims`` dimensions."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        if not dtype.is_floating_point:
            return
        for image, weight, groups in _convolutions(dims):
            # Their weights have the channels of the input first.
            turned = (weight[1] * groups, weight[0] // groups, *weight[2:])
            bias = whole(weight[0], dtype=dtype)
            yield Size(values(image, dtype), (values(turned, dtype), bias), named(groups=groups))
        if dtype is torch.float32:
            yield Size(whole(1, 1, *(2,) * dims, dtype=dtype), (whole(1, ROWS, *(1,) * dims, dtype=dtype),))
        for planes, kernel, given_by_name in _kernels(dims, dtype):
            yield Size(planes, (kernel,), given_by_name)
        yield from _grouped(dims, dtype, transposed=True)
        yield from _formats(dims, dtype, transposed=True)

    return make


for _dims in (1, 2, 3):
    sizes_of(f"nn.functional.conv{_dims}d")(_convolution(_dims))
    sizes_of(f"nn.functional.conv_transpose{_dims}d")(_transposed(_dims))


# --- images -----------------------------------------------------------------------------------------------------------


#: Channels that stand last, more than a group of threads has: not a multiple of a vector, and many.
_WIDE: Final = (264, 515)


def _wide_images(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield images with many channels, which stand last."""
    for channels in _WIDE:
        yield whole(2, channels, 5, 6, dtype=dtype).to(memory_format=torch.channels_last)


#: Windows of models: of one element, as the last level of a feature pyramid has it, of halving, of first layers.
_WINDOWS = ((1, 2, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2))


@sizes_of("nn.functional.max_pool2d", "nn.functional.avg_pool2d")
def _pool(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images to pool: large sides, large batches, many channels, and windows with strides and paddings."""
    for shape, last in (((2, 3, 257, 129), True), ((ROWS, 1, 2, 2), False), ((1, CHANNELS, 33, 5), True)):
        image = whole(*shape, dtype=dtype)
        yield Size(image.to(memory_format=torch.channels_last) if last else image, (2,))
    yield from _windows((2, 24, 9, 10), dtype)
    for image, (side, stride, padding) in itertools.product(_wide_images(dtype), ((2, 2, 0), (3, 2, 1))):
        yield Size(image, (side, stride, padding))


def _windows(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Size]:
    """Yield images of a shape to pool with each window, whose last place may be cut off or stand over the edge."""
    for (side, stride, padding), ceil in itertools.product(_WINDOWS, (False, True)):
        yield Size(whole(*shape, dtype=dtype), (side, stride, padding), named(ceil_mode=ceil))


@sizes_of("nn.functional.avg_pool2d")
def _long_windows(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images that are averaged in windows of more terms than 16 bits add up."""
    yield Size(positive(1, 2, 130, 67, dtype=dtype), ((65, 66), 1))


for _kind in ("max", "avg"):
    sizes_of(f"nn.functional.{_kind}_pool1d", large=False)(partial(_windows, (2, 24, 10)))
    sizes_of(f"nn.functional.{_kind}_pool3d", large=False)(partial(_windows, (2, 3, 6, 5, 8)))


@sizes_of("nn.functional.adaptive_avg_pool2d")
def _adaptive(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images that are averaged to one pixel: large ones, whose sum is long, many, and many channels."""
    for side in (1, 2):  # one pixel is a mean of its own
        yield Size(positive(1, 3, 129, 257, dtype=dtype), (side,))
    for shape in ((ROWS, 1, 2, 2), (1, CHANNELS, 33, 5)):
        yield Size(whole(*shape, dtype=dtype), (1,))
    for image in _wide_images(dtype):
        yield Size(image, (2,))


def _interpolation(mode: str) -> Make:
    """Return a maker of images to resize in this mode, to nearly twice the size."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for shape in ((1, 3, 33, 65), (ROWS, 1, 1, 2)):
            size, corners = tuple(2 * side - 1 for side in shape[2:]), None if mode == "nearest" else False
            yield Size(whole(*shape, dtype=dtype), (size, None, mode, corners))
        for image in _wide_images(dtype):
            yield Size(image, ((9, 11), None, mode, None if mode == "nearest" else False))

    return make


for _mode in ("nearest", "bilinear"):
    sizes_of(f"nn.functional.interpolate.{_mode}")(_interpolation(_mode))


#: Sides of images and of what they become: twice and half, nearly so, and between. The numbers are those of models and
#: primes. Where places are rounded, as for the nearest element, neighbours of such sides are open.
_SCALED = ((7, 14), (14, 37), (16, 24), (31, 61), (33, 65), (50, 151), (64, 63), (80, 33), (100, 150), (151, 300),
           (257, 64))  # fmt: skip


def _scaling(mode: str, dims: int) -> Make:
    """Return a maker of images with one long axis to resize in this mode, from and to lengths in ``_SCALED``."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for side, becomes in _SCALED if dtype.is_floating_point else ():
            # One axis is long; the others are as short as they can be without being one.
            image, size = whole(1, 3, *(2,) * (dims - 1), side, dtype=dtype), (*(3,) * (dims - 1), becomes)
            yield Size(image, (size, None, mode, False))

    return make


for _mode, _dims in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)):
    sizes_of(f"nn.functional.interpolate.{_mode}")(_scaling(_mode, _dims))


#: An axis beyond 2^12, with some behind it; a prime.
_LONG_SIDE: Final = 4159


def _of_long_axes(mode: str, dims: Sequence[int]) -> Make:
    """Return a maker of images with many channels, or with one long side that becomes twice as long."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for count in dims:
            for axis in range(count + 1):
                channels, *sides = (_LONG_SIDE if place == axis else 2 for place in range(count + 1))
                image = whole(1, channels, *sides, dtype=dtype)
                corners = None if mode.startswith("nearest") else False
                yield Size(image, (tuple(2 * side for side in sides), None, mode, corners))

    return make


for _mode, _every in (("nearest", (1, 2, 3)), ("nearest-exact", (1, 2, 3)), ("linear", (1,)), ("bilinear", (2,)),
                      ("bicubic", (2,)), ("trilinear", (3,))):  # fmt: skip
    sizes_of(f"nn.functional.interpolate.{_mode}")(_of_long_axes(_mode, _every))
