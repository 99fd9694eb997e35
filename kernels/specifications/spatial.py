"""Bias additions for images in channels-last memory format, as diffusion models use them.

Implementations in use leave some points open. This specification decides: float32 and bfloat16 work as float16 does. A
tensor in another memory format is refused, because a kernel would read its elements in the wrong order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Property,
    Refusal,
)

_DTYPES = ("float32", "float16", "bfloat16")
_STORED = (torch.float32, torch.float16, torch.bfloat16)
_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=3.0,
    source="each addition rounds once to the storage dtype, in any order, as kernels in use do: within u of the sum "
    "of the magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 4.2), which the oracle gives",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def nhwc_bias_add(input: Tensor, bias: Tensor) -> Tensor:
    """Return ``input`` plus the bias of each channel, in ``input``'s dtype and memory format.

    ``input`` is (batch, channels, height, width) in channels-last format, or (batch, pixels, channels). It stays
    unchanged. Each addition may round to the storage dtype.
    """
    return _sum(input, bias)


def nhwc_bias_add_add(input: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """Return ``input`` plus the bias plus ``other``, which has the shape and memory format of ``input``."""
    return _sum(input, bias, other)


def nhwc_bias_add_bias_add(input: Tensor, bias: Tensor, other: Tensor, other_bias: Tensor) -> Tensor:
    """Return ``input`` plus the bias plus ``other`` plus the bias of ``other`` for each channel."""
    return _sum(input, bias, other, other_bias)


def _sum(input: Tensor, bias: Tensor, *others: Tensor) -> Tensor:
    """Return the sum in float32, rounded once, in the input's dtype and memory format."""
    total = input.float() + _for_channels(bias, input)
    for other in others:
        total = total + (_for_channels(other, input) if other.dim() == 1 else other.float())
    return torch.empty_like(input).copy_(total)


def _for_channels(bias: Tensor, input: Tensor) -> Tensor:
    return bias.float().view(1, -1, 1, 1) if input.dim() == 4 else bias.float()


# --- oracle, in float64 on the host ---------------------------------------------------------------------------------


def _channel_by_channel(given: Arguments) -> Mapping[str, Expected]:
    """Add the biases channel by channel. The bound allows one rounding for each addition."""
    dim, info = (1 if given["input"].dim() == 4 else 2), torch.finfo(given["input"].dtype)
    value, scale = given["input"].double(), given["input"].double().abs()
    if "other" in given:
        value, scale = value + given["other"].double(), scale + given["other"].double().abs()
    for channel in range(given["input"].shape[dim]):
        for name in ("bias", "other_bias"):
            if name in given:
                added = given[name][channel].double()
                value.select(dim, channel).add_(added)
                scale.select(dim, channel).add_(added.abs())
    # One rounding for each added tensor, and the smallest normal number where subnormal results are flushed.
    allowed = (len(given) - 1) * info.eps / 2 * scale + info.tiny
    return {"result": Expected(value, allowed=allowed, dtype=given["input"].dtype)}


# --- samples ----------------------------------------------------------------------------------------------------------

#: Samples for every dtype. The others show nothing new after the first dtype.
_EVERYWHERE = ("image", "sequence")
_SHAPES: Mapping[str, tuple[int, ...]] = {
    "image": (2, 64, 9, 7),
    "odd": (3, 5, 1, 3),
    "pixel": (2, 320, 1, 1),
    "sequence": (2, 63, 40),
    "empty": (0, 8, 3, 3),
}
_TERMS: Mapping[Callable[..., Tensor], tuple[str, ...]] = {
    nhwc_bias_add: ("input", "bias"),
    nhwc_bias_add_add: ("input", "bias", "other"),
    nhwc_bias_add_bias_add: ("input", "bias", "other", "other_bias"),
}


def _arguments(
    generator: torch.Generator, dtype: torch.dtype, *, shape: tuple[int, ...], names: tuple[str, ...]
) -> Arguments:
    """Return the named tensors; four dimensions are in channels-last format."""
    channels = shape[1] if len(shape) == 4 else shape[2]
    made = {}
    for name in names:
        bias = name.endswith("bias")
        values = torch.randn((channels,) if bias else shape, generator=generator).to(dtype)
        # torch.channels_last exists for four dimensions only.
        made[name] = values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values
    return made


def _layout(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Check that the result has the strides of ``input``, which the next layer expects, and memory of its own."""
    given = _arguments(generator, dtype, shape=(2, 6, 5, 3), names=("input", "bias"))
    image = given["input"].to(device)

    result = functions.nhwc_bias_add(image, given["bias"].to(device))

    yield "strides", torch.tensor(result.stride()), Expected(torch.tensor(image.stride()))
    apart = result.untyped_storage().data_ptr() != image.untyped_storage().data_ptr()
    yield "some element is not 0", result.any().cpu().view(1), Expected(torch.tensor([True]))
    yield "the result has memory of its own", torch.tensor([apart]), Expected(torch.tensor([True]))


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check(given: Arguments) -> None:
    """Raise ``UsageError`` for images that are not in channels-last format, or biases of another size."""
    image = check_tensor("input", given["input"], dtypes=_STORED, contiguous=False)
    if image.dim() not in (3, 4):
        raise wrong("input", "4 dimensions in channels-last format, or 3", tuple(image.shape))
    for name in ("bias", "other_bias"):
        if name in given:
            bias = check_tensor(name, given[name], dtypes=(image.dtype,), device=image.device)
            channels = image.shape[1 if image.dim() == 4 else 2]
            if tuple(bias.shape) != (channels,):
                raise wrong(name, f"shape ({channels},), one value per channel", tuple(bias.shape))
    for name in ("input", "other"):
        if name in given:
            tensor = check_tensor(
                name, given[name], dtypes=(image.dtype,), like=image, device=image.device, contiguous=image.dim() == 3
            )
            if image.dim() == 4 and not tensor.is_contiguous(memory_format=torch.channels_last):
                raise wrong(
                    name, "channels-last memory format", f"strides {tensor.stride()} for shape {tuple(tensor.shape)}"
                )


def _channels_first(given: Arguments, name: str) -> Arguments:
    return {**given, name: given[name].contiguous()}


def _shortened(given: Arguments, name: str) -> Arguments:
    return {**given, name: given[name][:-1]}


def _kernel(reference: Callable[..., Tensor]) -> KernelSpecification:
    """Return the specification of a sum of images and biases."""
    names = _TERMS[reference]
    samples = (
        KernelSample(
            name, functools.partial(_arguments, shape=shape, names=names), () if name in _EVERYWHERE else _DTYPES[:1]
        )
        for name, shape in _SHAPES.items()
    )
    images = [name for name in names if not name.endswith("bias")]
    return KernelSpecification(
        name=reference.__name__,
        builder="SpatialInferenceBuilder",
        mode=Mode.INFERENCE,
        dtypes=_DTYPES,
        samples=tuple(samples),
        oracle=_channel_by_channel,
        budget=_BUDGET,
        reference=reference,
        validate=_check,
        refusals=(
            *(Refusal(f"{name}-format", name, functools.partial(_channels_first, name=name)) for name in images),
            *(
                Refusal(f"{name}-size", name, functools.partial(_shortened, name=name))
                for name in names
                if name not in images
            ),
        ),
        properties=(Property("layout", _layout),) if reference is nhwc_bias_add else (),
    )


SPECIFICATIONS = tuple(_kernel(reference) for reference in _TERMS)
