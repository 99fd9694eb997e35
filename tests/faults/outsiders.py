"""Defects by an engineer who had not seen the cases, which no case found at first: each with a case that finds it now.

He wrote 40 defects, and showed that each changes what a user sees. 28 were found at once, 10 are here, and
``docs/detection.md`` names the other two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_KEPT: list[Any] = []
#: Numbers by which a generator advances at most.
_LAUNCH = 4096


@dataclass(frozen=True)
class Outsider:
    """What is wrong, as a user sees it; what makes it so in this process; the case that has to fail."""

    title: str
    install: Callable[[], None]
    case: str

    def __str__(self) -> str:
        return self.title


def around(operator: str, change: Callable[[Any, list[Any]], Any]) -> Callable[[], None]:
    """Return what puts a function around the simulated device's kernels of an operator."""

    def install() -> None:
        from conformance.accelerators.simulated.simulator import started

        started().core.set_around(operator, change)

    return install


def _before_copies(change: Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]) -> Callable[[], None]:
    def install() -> None:
        usual = torch.library.get_kernel("aten::_copy_from", "PrivateUse1")
        library = torch.library.Library("aten", "IMPL")

        def copy(keys: Any, source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
            return usual.call_boxed(keys, change(source, target, non_blocking), target, non_blocking)

        library.impl("_copy_from", copy, "PrivateUse1", with_keyset=True)
        _KEPT.append(library)

    return install


def _without_last_block(call, args):
    x, dims = args[:2]
    if dims is not None and len(dims) == 1 and x.dim() > 1 and dims[0] % x.dim() != x.dim() - 1:
        length = x.shape[dims[0]]
        args[0] = x.narrow(dims[0], 0, length // 256 * 256) if length > 1024 else x
    return call(args)


def _once_per_place(call, args):
    x, indices, values, accumulate = args[:4]
    if accumulate and values.numel() == 1:
        args[2] = x[tuple(slice(None) if index is None else index for index in indices)] + values
        args[3] = False
    return call(args)


def _clamped(call, args):
    args[1] = args[1].clamp(-3, 3) if args[3] == 2 else args[1]
    return call(args)


def _with_its_neighbours(call, args):
    x = args[0]
    if x.dim() and x.stride(-1) == 2 and x.storage_offset() % 2 and x.numel():
        before = x.as_strided(x.shape, x.stride(), x.storage_offset() - 1)
        before.copy_(torch.as_tensor(args[1]))
    return call(args)


def _read_as_contiguous(call, args):
    given = args[0]
    if given.dim() > 1 and 0 in given.stride() and any(given.stride()):
        for dim, stride in enumerate(given.stride()):
            given = given.narrow(dim, 0, 1) if stride == 0 else given
        flat, count = given.reshape(-1), args[0].numel()
        args[0] = flat.repeat(count // flat.numel() + 1)[:count].view(args[0].shape)
    return call(args)


def _advancing_too_little(call, args):
    x, generator = args[0], args[3]
    if x.numel() <= _LAUNCH or generator is None:
        return call(args)
    state = generator.get_state()
    found = call(args)
    generator.set_state(state)
    torch.empty(_LAUNCH, dtype=x.dtype).uniform_(generator=generator)
    return found


_STAGING: list[torch.Tensor] = []


def _leaking(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    if non_blocking and source.is_cpu and not target.is_cpu:
        _STAGING.append(torch.empty(source.numel(), dtype=torch.uint8, device=target.device))
    return source


def _without_strides(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    if non_blocking and source.is_cpu and not source.is_contiguous() and source.is_pinned():
        return source.as_strided(source.shape, torch.empty(source.shape, device="meta").stride())
    return source


def _one_mask() -> None:
    usual = torch.nn.functional.multi_head_attention_forward

    def attention(query: torch.Tensor, *args: Any, key_padding_mask: Any = None, attn_mask: Any = None, **kwargs: Any):
        if query.device.type != "cpu" and attn_mask is not None:
            key_padding_mask = None
        return usual(query, *args, key_padding_mask=key_padding_mask, attn_mask=attn_mask, **kwargs)

    torch.nn.functional.multi_head_attention_forward = attention


def _without_version() -> None:
    usual = torch.Tensor.copy_

    def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if self.is_cpu or source.is_cpu or self.is_inference():
            return usual(self, source, non_blocking)
        with torch.autograd._unsafe_preserve_version_counter(self):
            return usual(self, source, non_blocking)

    torch.Tensor.copy_ = copy_  # type: ignore[method-assign]


OUTSIDERS = (
    Outsider(
        "a long sum over another dimension than the last lacks its last block",
        around("aten::sum", _without_last_block),
        "operators.sum[float32-inference]",
    ),
    Outsider(
        "index_put_ adds one value once per place, however often the place is repeated",
        around("aten::_index_put_impl_", _once_per_place),
        "operators.index_put[float32-inference]",
    ),
    Outsider(
        "grid_sample reflects coordinates once",
        around("aten::grid_sampler_2d", _clamped),
        "operators.nn.functional.grid_sample[float32-inference]",
    ),
    Outsider(
        "fill_ of a view with gaps also fills the gaps",
        around("aten::fill_", _with_its_neighbours),
        "operators.fill[float32-inference]",
    ),
    Outsider(
        "the backward of tanh reads an expanded gradient as a contiguous one",
        around("aten::tanh_backward", _read_as_contiguous),
        "operators.tanh[float32-training]",
    ),
    Outsider(
        "a long draw advances the generator by 4,096 numbers alone",
        around("aten::uniform_", _advancing_too_little),
        "accelerator.rng.advances[uniform]",
    ),
    Outsider(
        "every non-blocking copy to the device leaks a buffer",
        _before_copies(_leaking),
        "accelerator.memory.copies[yes]",
    ),
    Outsider(
        "a non-blocking copy of a pinned tensor ignores its strides",
        _before_copies(_without_strides),
        "accelerator.pin.strided",
    ),
    Outsider(
        "attention drops the mask of keys when there is one of pairs",
        _one_mask,
        "modules.MultiheadAttention[float32-inference]",
    ),
    Outsider(
        "copy_ between device tensors counts no version",
        _without_version,
        "accelerator.laws.accumulated_gradients",
    ),
)
