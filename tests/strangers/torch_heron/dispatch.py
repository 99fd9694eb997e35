"""Heron tensors, and what an operator does with them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch_heron import device as heron
from torch_heron import files

aten = torch.ops.aten
#: Storages without an address, as wrappers have them whose memory is not in this process.
OPAQUE = os.environ.get("TORCH_HERON_OPAQUE") == "1"
_HOST = torch.device("cpu")
_HERON = torch.device("heron", 0)

#: Operators that take tensors of both devices.
_MIXED = {
    "copy_",
    "_to_copy",
    "copy",
    "_copy_from",
    "_copy_from_and_resize",
    "_foreach_copy_",
    "_foreach_copy",
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
    "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate",
    "_pack_padded_sequence",
    "_pad_packed_sequence",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "_ctc_loss",
    "_ctc_loss_backward",
    "ctc_loss",
    "tensor_split",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_amp_update_scale_",
}
#: Operators that answer about a tensor's form, which the policy "sizes" asks for.
_FORM: dict[Any, Callable[[torch.Tensor], Any]] = {
    aten.sym_size.default: lambda held: held.size(),
    aten.size.default: lambda held: held.size(),
    aten.sym_stride.default: lambda held: held.stride(),
    aten.stride.default: lambda held: held.stride(),
    aten.sym_storage_offset.default: lambda held: held.storage_offset(),
    aten.storage_offset.default: lambda held: held.storage_offset(),
    aten.sym_numel.default: lambda held: held.numel(),
    aten.numel.default: lambda held: held.numel(),
    aten.dim.default: lambda held: held.dim(),
    aten.is_contiguous.default: lambda held: held.is_contiguous(),
}


class HeronTensor(torch.Tensor):
    """A tensor on a heron device. ``_held`` is the tensor of the host that has its numbers."""

    _held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, requires_grad: bool = False) -> HeronTensor:
        if held.layout is not torch.strided:
            raise NotImplementedError(f"heron has no tensors of layout {held.layout}")
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=_HERON,
            requires_grad=requires_grad,
            dispatch_sizes_strides_policy="sizes",
            storage_size=held.untyped_storage().nbytes(),
        )
        tensor._hold(held)
        return tensor

    def _hold(self, held: torch.Tensor) -> None:
        self._held = held
        self._block = heron._block_of(held)
        torch._C._set_conj(self, held.is_conj())
        torch._C._set_neg(self, held.is_neg())

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, *args, **(kwargs or {}))

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], meta: None, size: Any, stride: Any) -> HeronTensor:
        return HeronTensor(inner["_held"])

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        text = repr(self._held.detach())
        grad = f", grad_fn=<{type(self.grad_fn).__name__}>" if self.grad_fn else ""
        grad = grad or (", requires_grad=True" if self.requires_grad else "")
        return f"{text[:-1]}, device='{self.device}'{grad})"

    @property
    def data(self) -> torch.Tensor:
        # Not detach(), which would share the version counter.
        result = HeronTensor(self._held.detach())
        torch._functionalize_unsafe_set(result, self)
        return result

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, HeronTensor):
            raise RuntimeError(f"Attempted to set the data of a heron tensor to a tensor on {other.device}")
        if other.dtype is not self.dtype:
            raise RuntimeError(f"Attempted to set the data of a {self.dtype} tensor to a {other.dtype} tensor")
        self._hold(other._held.detach())

    def untyped_storage(self) -> torch.UntypedStorage:
        if OPAQUE:
            return super().untyped_storage()
        return files.storage_on_heron(self._held.untyped_storage())

    def data_ptr(self) -> int:
        return self._held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert heron:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self.detach().cpu().resolve_conj().resolve_neg().numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> HeronTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        # The host's deepcopy keeps storages that several tensors share.
        import copy

        result = type(self)(copy.deepcopy(self._held.detach(), memo))
        result = result.requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            result._is_param = True
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = result
        return result

    def __reduce_ex__(self, protocol: int) -> Any:
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        return files.reduce(self._held.detach(), self.requires_grad)


def call(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator on the host's tensors, and return heron tensors."""
    if func in _FORM:
        return _FORM[func](args[0]._held)
    name = func._schema.name.removeprefix("aten::")
    if name in _KERNELS:
        return _KERNELS[name](*args, **kwargs)
    if func in _METADATA:
        return _METADATA[func](*args, **kwargs)
    return _computed(func, name, args, kwargs)


def _set_storage(tensor: HeronTensor, *place: Any) -> HeronTensor:
    tensor._hold(torch.empty(0, dtype=tensor.dtype).set_(*place))
    return tensor


def _set_tensor(tensor: HeronTensor, other: HeronTensor) -> HeronTensor:
    tensor._hold(other._held)
    return tensor


def _zeros(size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> HeronTensor:
    """Return zeros in memory: a kernel that reads PyTorch's zeros without memory ends the process.

    Autograd makes these for the second derivatives and the tangents of many operators.
    """
    return HeronTensor(torch.zeros(size, dtype=dtype))


_METADATA: dict[Any, Callable[..., Any]] = {
    aten.is_pinned.default: lambda tensor, device=None: False,
    aten.is_contiguous.memory_format: lambda tensor, layout: tensor._held.is_contiguous(memory_format=layout),
    aten.is_strides_like_format.default: lambda tensor, layout: None,
    aten.is_non_overlapping_and_dense.default: lambda tensor: aten.is_non_overlapping_and_dense(tensor._held),
    aten._efficientzerotensor.default: _zeros,
    aten.set_.source_Storage: _set_storage,
    aten.set_.source_Storage_storage_offset: _set_storage,
    aten.set_.source_Tensor: _set_tensor,
}


def _computed(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    wrapped: dict[int, HeronTensor] = {}
    foreign: list[torch.Tensor] = []

    def unwrap(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, HeronTensor):
            wrapped[id(tensor._held)] = tensor
            return tensor._held
        foreign.append(tensor)
        return tensor

    inner_args, inner_kwargs = tree_map_only(torch.Tensor, unwrap, (args, kwargs))
    _refuse_foreign(name, func, wrapped, foreign)
    _refuse_generators(args, kwargs)
    if inner_kwargs.pop("pin_memory", None):
        raise RuntimeError("only host tensors can be pinned")
    inner_args, inner_kwargs = tree_map_only(torch.device, _on_host, (inner_args, inner_kwargs))
    random = torch.Tag.nondeterministic_seeded in func.tags
    with heron._random_numbers() if random else contextlib.nullcontext():
        result = func(*inner_args, **inner_kwargs)
    for tensor in wrapped.values():
        if tensor._block.size != tensor._held.untyped_storage().nbytes():
            tensor._block = heron._block_of(tensor._held)
    if name in _LENGTHS_ON_HOST:
        return _wrap(func, result[0], wrapped), result[1]
    return _wrap(func, result, wrapped) if _stays(kwargs) else result


#: Operators whose second result, the lengths of sequences, lies on the host for every device.
_LENGTHS_ON_HOST = ("_pack_padded_sequence", "_pad_packed_sequence")


def _on_host(device: torch.device) -> torch.device:
    return _HOST if device.type == "heron" else device


def _stays(kwargs: dict[str, Any]) -> bool:
    """Return whether the result lies on heron: it does unless the call names another device."""
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "heron"


def _refuse_foreign(name: str, func: Any, wrapped: dict[int, Any], foreign: list[torch.Tensor]) -> None:
    """Raise if the call mixes heron tensors with tensors of the host that are not numbers."""
    if not wrapped or name in _MIXED:
        return
    for tensor in foreign:
        if tensor.dim() > 0:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"heron:0 and {tensor.device}! (when calling {func})"
            )


def _refuse_generators(args: Any, kwargs: Any) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Generator):
            raise RuntimeError(f"Expected a 'heron' device type for generator but found '{value.device.type}'")


def _wrap(func: Any, result: Any, wrapped: dict[int, HeronTensor]) -> Any:
    """Replace the host's tensors in a result: an argument by its wrapper, a new tensor by a new wrapper."""
    aliases = any(argument.alias_info is not None for argument in func._schema.arguments)

    def wrap(held: torch.Tensor) -> torch.Tensor:
        if id(held) in wrapped:
            outer = wrapped[id(held)]
            torch._C._set_conj(outer, held.is_conj())
            torch._C._set_neg(outer, held.is_neg())
            return outer
        tensor = HeronTensor(held)
        if aliases:
            for other in wrapped.values():
                if torch._C._is_alias_of(other._held, held):
                    torch._functionalize_unsafe_set(tensor, other)
                    break
        return tensor

    return tree_map_only(torch.Tensor, wrap, result)


def register_kernels() -> torch.library.Library:
    """Register a kernel of this device for every operator that has one for the host."""
    library = torch.library.Library("aten", "IMPL")
    for qualified in torch._C._dispatch_get_all_op_names():
        if not qualified.startswith("aten::") or not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU"):
            continue
        name, _, overload = qualified.removeprefix("aten::").partition(".")
        with contextlib.suppress(AttributeError):
            operator = getattr(getattr(aten, name), overload or "default")
            library.impl(qualified.removeprefix("aten::"), functools.partial(call, operator), "PrivateUse1")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    # PyTorch's own composition of these does not write the given output if the input is a subclass of Tensor.
    for overload in ("tol_tensor_out", "atol_rtol_tensor_out", "atol_rtol_float_out", "out", "out_tol_tensor"):
        operator = getattr(aten.linalg_matrix_rank, overload, None)
        if operator is not None:
            library.impl(f"linalg_matrix_rank.{overload}", functools.partial(call, operator), "PrivateUse1")
    return library


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return call(aten.copy_.default, target, source, non_blocking)


# --- cells of recurrent networks: PyTorch calls these fused kernels on every device but the host --------------------


def _lstm_cell(input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    gates = _joined(input_gates, input_bias) + _joined(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    inner = torch.zeros_like(cy) if grad_cy is None else grad_cy
    outer = torch.zeros_like(cy) if grad_hy is None else grad_hy
    inner = inner + outer * o * (1 - tanh * tanh)
    grads = [inner * g * i * (1 - i), inner * cx * f * (1 - f), inner * i * (1 - g * g), outer * tanh * o * (1 - o)]
    grad_gates = torch.cat(grads, 1)
    return grad_gates, inner * f, grad_gates.sum(0) if has_bias else None


def _gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    ir, iz, new = _joined(input_gates, input_bias).chunk(3, 1)
    hr, hz, hn = _joined(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> Any:
    r, z, n, hx, hn = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * hn * r * (1 - r)
    to_input = torch.cat([grad_r, grad_z, grad_n], 1)
    to_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (to_input.sum(0), to_hidden.sum(0)) if has_bias else (None, None)
    return to_input, to_hidden, grad_hy * z, *biases


def _joined(gates: Any, bias: Any) -> Any:
    return gates if bias is None else gates + bias


_KERNELS: dict[str, Callable[..., Any]] = {
    "_copy_from": _copy_from,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
