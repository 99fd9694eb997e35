"""Defects by engineers who had not seen the cases, which no case found at first: each with a case that finds it now.

They wrote 40 and 45 defects, and showed that each changes what a user sees. ``docs/detection.md`` says how many were
found at once, and names those that no case finds now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

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


#: Makes a kernel of the usual one.
Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def _registered(operator: str, make: Make, key: str) -> Callable[[], None]:
    """Return what registers a kernel for one key, made of the usual one."""

    def install() -> None:
        usual = torch.library.get_kernel(f"aten::{operator}", key)
        library = torch.library.Library("aten", "IMPL")
        library.impl(operator, make(usual.call_boxed), key, with_keyset=True)
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


# --- the second engineer ----------------------------------------------------------------------------------------------


class _GeluOnce(torch.autograd.Function):
    """Gelu whose gradient is a constant for the next derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.gelu_backward(cotangents[0], x.detach(), approximate="tanh") + 0 * x


def _without_second_derivative(usual: Callable[..., Any]) -> Callable[..., Any]:
    def gelu(keys: Any, x: torch.Tensor, *, approximate: str = "none") -> Any:
        once = approximate == "tanh" and torch.is_grad_enabled() and x.requires_grad
        if once and forward_ad._current_level < 0 and torch._C._functorch.peek_interpreter_stack() is None:
            return _GeluOnce.apply(x)
        return usual(keys, x, approximate=approximate)

    return gelu


def _with_other_sign(usual: Callable[..., Any]) -> Callable[..., Any]:
    def atan2(keys: Any, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        out = usual(keys, x, other)
        if forward_ad._current_level < 0 or forward_ad.unpack_dual(x).tangent is not None:
            return out
        value, tangent = forward_ad.unpack_dual(out)
        return out if tangent is None else forward_ad.make_dual(value, -tangent)

    return atan2


def _without_ragged_edge(call, args):
    if len(args) != 4 or args[3] is not args[0] or not isinstance(args[1], torch.Tensor):
        return call(args)
    out, other = args[3], args[1]
    if out.dim() != 2 or not out.is_contiguous() or other.stride() != (1, out.shape[0]) or min(out.shape) < 33:
        return call(args)
    before, (rows, columns) = out.clone(), (side // 32 * 32 for side in out.shape)
    found = call(args)
    out[rows:], out[:, columns:] = before[rows:], before[:, columns:]
    return found


def _with_strides_of_the_first(call, args):
    first, *others = args[0]
    if others and first.dim() == 4 and not first.is_contiguous() and first.stride(1) == 1:
        read = [first]
        for other in others:
            c, h, w = other.shape[1:]
            wrong = other.as_strided(other.shape, (c * h * w, 1, w * c, c)) if other.is_contiguous() else other
            read.append(wrong)
        args[0] = read
    return call(args)


def _with_the_default_generator(usual: Callable[..., Any]) -> Callable[..., Any]:
    def normal_(keys: Any, x: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
        return usual(keys, x, mean, std, generator=generator if x.is_contiguous() else None)

    return normal_


def _with_one_status(call, args):
    found = call(args)
    if found[1].dim():
        found[1].view(-1)[1:] = 0
    return found


def _one_state() -> None:
    module: Any = torch._VF
    usual = module.lstm

    def lstm(*args: Any) -> Any:
        output, hidden, cell = usual(*args)
        if isinstance(args[1], torch.Tensor) and not args[0].is_cpu and args[5] > 1:
            lower, ended = (args[5] - 1) * (2 if args[8] else 1), int(args[1][-1])
            cell = cell.clone()
            cell[:lower, ended:] = hidden[:lower, ended:]
        return output, hidden, cell

    module.lstm = lstm


def _kept_graphs() -> None:
    kind: Any = torch.sim.SIMGraph  # type: ignore[attr-defined]
    usual = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        _KEPT.append(self._graph)

    kind.__init__ = __init__


def _nan_last(call, args):
    found = call(args)
    is_stable = args[1] is None or (isinstance(args[1], bool) and len(args) > 3 and isinstance(args[3], bool))
    dim, descending = args[2:4] if is_stable else args[1:3]
    values, indices = found[:2]
    if descending and values.is_floating_point() and values.dim() and values.shape[dim] > 16:
        order = values.isnan().int().sort(dim=dim, stable=True).indices
        sorted_values, sorted_indices = values.gather(dim, order), indices.gather(dim, order)
        values.copy_(sorted_values), indices.copy_(sorted_indices)
    return found


def _in_six_bits(call, args):
    x, dim, index = args[:3]
    args[2] = index % 64 if index.numel() == 1 and x.dim() > 1 and dim % x.dim() else index
    return call(args)


def _in_32_bits(call, args):
    found = call(args)
    if args[0].dtype is torch.int32 and found[0].dtype is torch.int64:
        found[0].copy_(found[0].to(torch.int32))
    return found


def _through_the_first_dtype(usual: Callable[..., Any]) -> Callable[..., Any]:
    def copy_(keys: Any, targets: Any, sources: Any, non_blocking: bool = False) -> Any:
        return usual(keys, targets, [source.to(sources[0].dtype) for source in sources], non_blocking)

    return copy_


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
    Outsider(
        "the second derivative of gelu with approximate='tanh' is zero",
        _registered("gelu", _without_second_derivative, "AutogradPrivateUse1"),
        "operators.nn.functional.gelu[float32-training]",
    ),
    Outsider(
        "the tangent of atan2 has another sign if the second input alone has one",
        _registered("atan2", _with_other_sign, "AutogradPrivateUse1"),
        "operators.atan2[float32-training]",
    ),
    Outsider(
        "add_ of a transposed matrix leaves out the edge behind the last whole tile",
        around("aten::add", _without_ragged_edge),
        "operators.add[float32-inference]",
    ),
    Outsider(
        "cat reads all images with the strides of the first one",
        around("aten::cat", _with_strides_of_the_first),
        "operators.cat[float32-inference]",
    ),
    Outsider(
        "normal_ into memory with gaps draws from the default generator",
        _registered("normal_", _with_the_default_generator, "PrivateUse1"),
        "accelerator.generator.own",
    ),
    Outsider(
        "cholesky checks the first matrix of a batch alone",
        around("aten::linalg_cholesky_ex", _with_one_status),
        "operators.linalg.cholesky[float32-inference]",
    ),
    Outsider(
        "the lower layers of an LSTM have the hidden state in the place of the cell state, for rows that end early",
        _one_state,
        "modules.LSTM[float32-inference]",
    ),
    Outsider(
        "a graph that nobody names keeps its memory",
        _kept_graphs,
        "accelerator.graph.memory",
    ),
    Outsider(
        "a descending sort of a long row puts NaN last",
        around("aten::sort", _nan_last),
        "operators.sort[float32-inference]",
    ),
    Outsider(
        "index_copy_ keeps one index in six bits",
        around("aten::index_copy", _in_six_bits),
        "operators.index_copy[float32-inference]",
    ),
    Outsider(
        "a sum of int32 is computed in 32 bits",
        around("aten::sum", _in_32_bits),
        "operators.sum[int32-inference]",
    ),
    Outsider(
        "_foreach_copy_ converts all sources through the dtype of the first one",
        _registered("_foreach_copy_", _through_the_first_dtype, "PrivateUse1"),
        "foreach.lists.mixed_dtypes",
    ),
)
