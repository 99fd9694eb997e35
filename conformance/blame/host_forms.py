"""What a device's kernel computes, written with kernels that the host has: fused attention and recurrent cells."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.suites.calls.kernels import base_name, bound

#: Kernels that compute attention at once; each kind of device has others.
_ATTENTION = re.compile(r"_scaled_dot_product_\w*attention\w*")


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with torch.utils._python_dispatch._disable_current_modes():
        yield


def on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, own: bool = True) -> Any:
    """Make a call on the host, and return its result, or the first of its outputs where the host's form has no others.

    A kernel that the host lacks is computed by others. Raises NotImplementedError where there are none. Without
    ``own``, a kernel that computes attention is always computed by others: by products and a softmax.
    """
    args, kwargs = _with_narrow_statistics(func, args, kwargs)
    is_attention = _ATTENTION.fullmatch(base_name(func)) is not None
    if own or not is_attention:
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            pass
    if is_attention:
        names = bound(func, args, kwargs)
        return _attention_backward(names) if "grad_out" in names else _attention(names)
    if (cell := _CELLS.get(base_name(func))) is not None:
        return cell(bound(func, args, kwargs))
    found = func.decompose(*args, **kwargs)
    if found is NotImplemented:
        raise NotImplementedError(f"{func} has no kernel on the host")
    return found


def _attention(names: dict[str, Any]) -> tuple[Any, ...]:
    return (_attended(names["query"], names["key"], names["value"], names),)


def _attention_backward(names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the gradients of query, key and value, and of the bias if there is one."""
    with torch.enable_grad(), _without_modes():
        inputs = [names[name].detach().requires_grad_() for name in ("query", "key", "value")]
        query, key, value = inputs
        result = _attended(query, key, value, names)
        return torch.autograd.grad(result, inputs, names["grad_out"])


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, names: dict[str, Any]) -> torch.Tensor:
    mask = next((names[name] for name in ("attn_mask", "attn_bias") if names.get(name) is not None), None)
    math: Callable[..., Any] = torch.ops.aten._scaled_dot_product_attention_math.default
    groups = query.shape[-3] // key.shape[-3]
    found: torch.Tensor = math(
        query,
        key,
        value,
        mask,
        0.0,
        bool(names.get("is_causal", False)),
        scale=names.get("scale"),
        **({"enable_gqa": True} if groups > 1 else {}),
    )[0]
    return found


def _gates(names: dict[str, Any], bias: str, gates: str) -> torch.Tensor:
    found: torch.Tensor = names[gates] if names[bias] is None else names[gates] + names[bias]
    return found


def _lstm_cell(names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the new hidden state, the new cell state, and the gates that the backward needs."""
    gates = _gates(names, "input_bias", "input_gates") + _gates(names, "hidden_bias", "hidden_gates")
    into, keep, new, out = gates.chunk(4, 1)
    into, keep, new, out = into.sigmoid(), keep.sigmoid(), new.tanh(), out.sigmoid()
    cell = keep * names["cx"] + into * new
    return out * cell.tanh(), cell, torch.cat((into, keep, new, out), 1)


def _lstm_cell_backward(names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the gradients of the gates, of the old cell state, and of the bias if there is one."""
    if names["grad_hy"] is None and names["grad_cy"] is None:
        return None, None, None
    into, keep, new, out = names["workspace"].chunk(4, 1)
    squashed = names["cy"].tanh()
    of_state = torch.zeros_like(squashed) if names["grad_hy"] is None else names["grad_hy"]
    of_cell = of_state * out * (1 - squashed * squashed)
    of_cell = of_cell if names["grad_cy"] is None else of_cell + names["grad_cy"]
    gates = (
        of_cell * new * into * (1 - into),
        of_cell * names["cx"] * keep * (1 - keep),
        of_cell * into * (1 - new * new),
        of_state * squashed * out * (1 - out),
    )
    found = torch.cat(gates, 1)
    return found, of_cell * keep, found.sum(0) if names["has_bias"] else None


def _gru_cell(names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the new hidden state, and what the backward needs."""
    of_input = _gates(names, "input_bias", "input_gates").chunk(3, 1)
    of_state = _gates(names, "hidden_bias", "hidden_gates").chunk(3, 1)
    reset, update = ((a + b).sigmoid() for a, b in zip(of_input[:2], of_state[:2], strict=True))
    new = (of_input[2] + reset * of_state[2]).tanh()
    return new + update * (names["hx"] - new), torch.cat((reset, update, new, names["hx"], of_state[2]), 1)


def _gru_cell_backward(names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the gradients of both kinds of gates, of the old state, and of the biases if there are any."""
    reset, update, new, state, of_state = names["workspace"].chunk(5, 1)
    grad = names["grad_hy"]
    of_new = grad * (1 - update) * (1 - new * new)
    of_reset, of_update = of_new * of_state * reset * (1 - reset), grad * (state - new) * update * (1 - update)
    inside, hidden = torch.cat((of_reset, of_update, of_new), 1), torch.cat((of_reset, of_update, of_new * reset), 1)
    biases = (inside.sum(0), hidden.sum(0)) if names["has_bias"] else (None, None)
    return inside, hidden, grad * update, *biases


#: Statistics that the backward of a normalisation reads, and parameters of the layer.
_STATISTICS = frozenset({"mean", "rstd", "save_mean", "save_invstd"})
_PARAMETERS = frozenset({"weight", "bias", "running_mean", "running_var"})
_OF_NORMS = frozenset({"native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"})


def _with_narrow_statistics(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a normalisation's backward with statistics in the dtype that the host's kernel takes.

    A device may keep those of 16-bit inputs in float32. The host takes them so only with parameters in float32.
    """
    if base_name(func) not in _OF_NORMS:
        return args, kwargs
    names = bound(func, args, kwargs)
    dtype = names["input"].dtype
    if any(isinstance(names.get(name), torch.Tensor) and names[name].dtype != dtype for name in _PARAMETERS):
        return args, kwargs

    def narrowed(name: str, value: Any) -> Any:
        return value.to(dtype) if name in _STATISTICS and isinstance(value, torch.Tensor) else value

    positions = [argument.name for argument in func._schema.arguments]
    changed = tuple(narrowed(name, value) for name, value in zip(positions, args, strict=False))
    return changed, {name: narrowed(name, value) for name, value in kwargs.items()}


#: Position of the result in which a fused cell keeps what its backward needs. CUDA's kernels keep the gates behind
#: their sigmoid and tanh; a device may keep something else.
WORKSPACES = {"_thnn_fused_lstm_cell": 2, "_thnn_fused_gru_cell": 1}

_CELLS = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
