"""Parts of a call that are judged in place of the whole: smaller calls, and the elements of the result that they give.

A part depends on the same numbers as the elements of the whole call, so its exact value is theirs. Parts always have
the first and the last elements, and those around powers of two, where kernels change their ways. A call without a rule
here is judged whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.numerics.trees import mapped

from .kernels import base_name, bound, is_pointwise

#: Elements of all results and inputs up to which a call is judged whole.
WHOLE: Final = 1 << 16
#: Rows, or columns, of one part, besides those around powers of two.
_ROWS: Final = 32
#: Elements of the rows that are judged together: of short rows, more are.
_IN_ROWS: Final = 1 << 17
#: Runs of elements of a pointwise result, and their length. The runs begin at odd places: at no tile's begin alone.
_RUNS, _RUN = 96, 67


@dataclass(frozen=True)
class Part:
    """A smaller call, and what the whole call has given in its place."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    after: list[torch.Tensor]
    function: Any = None  # the kernel of the smaller call, if it is another one


def parts_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], after: list[torch.Tensor]) -> list[Part]:
    """Return the parts by which a call is judged; the whole call where there is no rule."""
    whole = Part(args, kwargs, after)
    if not after or max(tensor.numel() for tensor in after) < WHOLE:
        return [whole] if not _is_long_product(function, args) else _ruled(function, whole)
    return _ruled(function, whole)


def has_rule(function: Any) -> bool:
    """Return whether calls of a kernel are judged by parts."""
    return is_pointwise(function) or base_name(function).removesuffix("_") in _RULES


def _is_long_product(function: Any, args: tuple[Any, ...]) -> bool:
    tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor)]
    return base_name(function) in _RULES and sum(tensor.numel() for tensor in tensors) > WHOLE


def _ruled(function: Any, whole: Part) -> list[Part]:
    name = base_name(function).removesuffix("_")
    if is_pointwise(function) and len(whole.after) == 1:
        return [_elements(whole)]
    rule = _RULES.get(name)
    found = rule(function, whole) if rule is not None else None
    return [whole] if found is None else found if isinstance(found, list) else [found]


def chosen(size: int, most: int = _ROWS) -> torch.Tensor:
    """Return some positions below ``size``: the ends, those around powers of two, and others at even distances."""
    powers = [position for power in range(4, size.bit_length()) for position in (2**power - 1, 2**power)]
    ends = torch.tensor([0, size - 1, *(position for position in powers if position < size)])
    return _sorted(torch.cat((torch.arange(0, size, max(1, size // most)), ends)))


def runs(size: int) -> torch.Tensor:
    """Return positions below ``size`` in runs: at both ends, around powers of two, and at even distances."""
    powers = [2**power - _RUN // 2 for power in range(7, size.bit_length())]
    starts = torch.tensor([0, max(0, size - _RUN), *range(0, size, max(1, size // _RUNS)), *powers])
    return _sorted((starts.unsqueeze(1) + torch.arange(_RUN)).clamp(0, size - 1))


def _sorted(positions: torch.Tensor) -> torch.Tensor:
    """Return each position once, in order."""
    found: torch.Tensor = positions.unique()  # type: ignore[no-untyped-call]  # torch has no types here
    return found


def _elements(whole: Part) -> Part:
    """Take runs of elements of a result that depends on its inputs element by element."""
    result = whole.after[0]
    places = torch.unravel_index(runs(result.numel()), result.shape)

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        return leaf.expand(result.shape)[places]

    args, kwargs = mapped((whole.args, whole.kwargs), taken)
    return Part(args, kwargs, [result[places]])


# --- products ---------------------------------------------------------------------------------------------------------


def _of_matrices(function: Any, whole: Part) -> Part:
    """Take some rows and some columns of a product, whose dot products keep their full length."""
    names = bound(function, whole.args, whole.kwargs)
    is_added = "mat1" in names
    left, right = (names["mat1"], names["mat2"]) if is_added else (names["self"], names["mat2"])
    rows, columns = chosen(left.shape[0]), chosen(right.shape[1])
    args: tuple[Any, ...] = (left[rows], right[:, columns])
    if is_added:
        args = (names["self"].expand(left.shape[0], right.shape[1])[rows][:, columns], *args)
    return Part(args, whole.kwargs, [whole.after[0][rows][:, columns]])


def _of_batches(function: Any, whole: Part) -> Part:
    """Take some matrices, rows and columns of a batched product."""
    names = bound(function, whole.args, whole.kwargs)
    is_added = "batch1" in names
    left, right = (names["batch1"], names["batch2"]) if is_added else (names["self"], names["mat2"])
    shape = (left.shape[0], left.shape[1], right.shape[2])
    batches, rows, columns = chosen(shape[0], 6), chosen(shape[1], 8), chosen(shape[2], 8)
    args: tuple[Any, ...] = (left[batches][:, rows], right[batches][:, :, columns])
    if is_added:
        args = (names["self"].expand(shape)[batches][:, rows][:, :, columns], *args)
    return Part(args, whole.kwargs, [whole.after[0][batches][:, rows][:, :, columns]])


def _of_groups(function: Any, whole: Part) -> Part | None:
    """Take some rows and some columns of a grouped product, in which each group of rows has its own right matrix."""
    names = bound(function, whole.args, whole.kwargs)
    left, right, ends = names["self"], names["mat2"], names["offs"]
    if (left.dim(), right.dim()) != (2, 3) or ends is None or names["bias"] is not None:
        return None
    rows, columns = chosen(left.shape[0], 2 * _ROWS), chosen(right.shape[2])
    groups = torch.searchsorted(ends.long(), rows, right=True)
    args = (left[rows].unsqueeze(1), right[:, :, columns][groups])
    return Part(args, {}, [whole.after[0][rows][:, columns].unsqueeze(1)], torch.ops.aten.bmm.default)


def _of_convolution(function: Any, whole: Part) -> Part | None:
    """Take some images and some channels of a convolution's result."""
    names = bound(function, whole.args, whole.kwargs)
    if names["groups"] != 1 or names["transposed"] or names["input"].dim() != whole.after[0].dim():
        return None
    images, channels = chosen(names["input"].shape[0], 2), chosen(names["weight"].shape[0], 4)
    bias = None if names["bias"] is None else names["bias"][channels]
    others = [value for name, value in names.items() if name not in ("input", "weight", "bias")]
    args = (names["input"][images], names["weight"][channels], bias, *others)
    return Part(args, {}, [whole.after[0][images][:, channels]])


def _of_attention(function: Any, whole: Part) -> Part | None:
    """Take some heads and some queries of fused attention, with all of their keys."""
    names = bound(function, whole.args, whole.kwargs)
    query, key, value = names["query"], names["key"], names["value"]
    if query.dim() != 4 or names["dropout_p"]:
        return None
    batches, heads, rows = chosen(query.shape[0], 4), chosen(query.shape[1], 64), chosen(query.shape[2], 8)
    of_keys = heads // (query.shape[1] // key.shape[1])
    mask = names["attn_mask"]
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])[batches][:, heads][:, :, rows]
    elif names["is_causal"]:
        mask = torch.arange(key.shape[2]) <= rows.unsqueeze(1)
    keys = (key[batches][:, of_keys], value[batches][:, of_keys])
    args = (query[batches][:, heads][:, :, rows], *keys, mask, 0.0, False)
    return Part(args, {"scale": names["scale"]}, [whole.after[0][batches][:, heads][:, :, rows]])


# --- rows -------------------------------------------------------------------------------------------------------------


def _of_rows(function: Any, whole: Part) -> Part | None:
    """Take rows along the last dimension, which alone the function goes along."""
    first = next(leaf for leaf in whole.args if isinstance(leaf, torch.Tensor))
    names = bound(function, whole.args, whole.kwargs)
    lead, own = first.shape[:-1], first.dim()
    if not lead or names.get("dim", -1) not in (-1, own - 1) or len(names.get("normalized_shape", [0])) != 1:
        return None
    places = torch.unravel_index(chosen(math.prod(lead), max(_ROWS, _IN_ROWS // max(1, first.shape[-1]))), lead)

    def taken(leaf: Any) -> Any:
        return (
            leaf[places] if isinstance(leaf, torch.Tensor) and leaf.dim() == own and leaf.shape[:-1] == lead else leaf
        )

    args, kwargs = mapped((whole.args, whole.kwargs), taken)
    position = next((i for i, argument in enumerate(function._schema.arguments) if argument.name == "dim"), None)
    if position is not None and position < len(args):
        args = (*args[:position], -1, *args[position + 1 :])
    elif "dim" in kwargs:
        kwargs = {**kwargs, "dim": -1}
    after = [
        tensor[places] for tensor in whole.after if tensor.dim() >= len(lead) and tensor.shape[: len(lead)] == lead
    ]
    return Part(args, kwargs, after) if len(after) == len(whole.after) else None


def _of_norm_backward(function: Any, whole: Part) -> list[Part] | None:
    """Take the gradients of some rows, and of some columns of the weight and the bias, which sum over all rows."""
    names = bound(function, whole.args, whole.kwargs)
    grad, source, shape, mean, rstd, weight, bias, mask = names.values()
    if len(shape) != 1 or not all(mask) or weight is None or bias is None:
        return None
    grad, source, due = (tensor.reshape(-1, shape[0]) for tensor in (grad, source, whole.after[0]))
    mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    rows, columns = chosen(len(source), max(_ROWS, _IN_ROWS // shape[0])), chosen(shape[0])
    of_rows = (grad[rows], source[rows], shape, mean[rows], rstd[rows], weight, bias, [True, False, False])
    few = [len(columns)]
    own = (weight[columns], bias[columns], [False, True, True])
    of_columns = (grad[:, columns], source[:, columns], few, mean, rstd, *own)
    return [Part(of_rows, {}, [due[rows]]), Part(of_columns, {}, [tensor[columns] for tensor in whole.after[1:]])]


def _of_reduction(function: Any, whole: Part) -> Part | None:
    """Take some positions of the largest dimension that a reduction keeps."""
    names = bound(function, whole.args, whole.kwargs)
    source, dims = names["self"], names.get("dim")
    if not dims:
        return None
    reduced = {dim % source.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    kept = [dim for dim in range(source.dim()) if dim not in reduced]
    if not kept:
        return None
    dim = max(kept, key=lambda one: source.shape[one])
    places = chosen(source.shape[dim], max(_ROWS, _IN_ROWS * source.shape[dim] // max(1, source.numel())))
    result = dim if names.get("keepdim") else kept.index(dim)
    args = tuple(leaf.index_select(dim, places) if leaf is source else leaf for leaf in whole.args)
    return Part(args, whole.kwargs, [tensor.index_select(result, places) for tensor in whole.after])


def _of_embedding(function: Any, whole: Part) -> Part:
    """Take some of the rows that are looked up."""
    weight, indices = whole.args[:2]
    places = chosen(indices.numel(), max(_ROWS, _IN_ROWS // max(1, weight.shape[1])))
    rows = indices.reshape(-1)[places]
    result = whole.after[0].reshape(-1, weight.shape[1])[places]
    return Part((weight[rows], torch.arange(len(rows))), {}, [result])


def _of_embedding_backward(function: Any, whole: Part) -> Part | None:
    """Take the gradients of some rows of an embedding: of the ends, and of some that were looked up."""
    names = bound(function, whole.args, whole.kwargs)
    if names["scale_grad_by_freq"]:
        return None
    indices, grad = names["indices"].reshape(-1), names["grad_output"].reshape(-1, names["grad_output"].shape[-1])
    some = chosen(names["num_weights"], max(_ROWS, _IN_ROWS // grad.shape[1]))
    rows = torch.tensor(sorted({*some.tolist(), *indices[chosen(len(indices))].tolist()}))
    used = torch.isin(indices, rows)
    padding = int((rows == names["padding_idx"]).nonzero()[0]) if (rows == names["padding_idx"]).any() else -1
    args = (grad[used], torch.searchsorted(rows, indices[used]), len(rows), padding, False)
    return Part(args, {}, [whole.after[0][rows]])


def _of_losses(function: Any, whole: Part) -> Part | None:
    """Take the gradients of some rows of a negative log likelihood; each depends on its own target."""
    names = bound(function, whole.args, whole.kwargs)
    grad, source = names["grad_output"], names["self"]
    if source.dim() != 2:
        return None
    places = chosen(source.shape[0], max(_ROWS, _IN_ROWS // source.shape[1]))
    others = (names["weight"], names["reduction"], names["ignore_index"], names["total_weight"])
    args = (grad[places] if grad.dim() else grad, source[places], names["target"][places], *others)
    return Part(args, {}, [whole.after[0][places]])


_RULES: Final[dict[str, Callable[[Any, Part], Part | list[Part] | None]]] = {
    "mm": _of_matrices,
    "addmm": _of_matrices,
    "bmm": _of_batches,
    "baddbmm": _of_batches,
    "_grouped_mm": _of_groups,
    "convolution": _of_convolution,
    "scaled_dot_product_attention": _of_attention,
    "embedding": _of_embedding,
    "embedding_dense_backward": _of_embedding_backward,
    "nll_loss_backward": _of_losses,
    "native_layer_norm_backward": _of_norm_backward,
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "cumsum",
         "native_layer_norm", "_fused_rms_norm", "topk", "sort"), _of_rows,
    ),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "var", "linalg_vector_norm", "logsumexp", "max", "argmax"), _of_reduction,
    ),
}  # fmt: skip
