"""Attention weights: masks, biases and softmax of the scores, in float32 or wider."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.kernels.arguments import check_number, wrong


def hidden_keys(queries: int, keys: int, triangular: bool, window: int, device: torch.device) -> Tensor | None:
    """Return a bool tensor (queries, keys), True where a query must not attend to a key; None if no key is hidden.

    The last query is at the position of the last key. ``window`` is the number of keys that a query attends to, its
    own included; 0 means all.
    """
    if not triangular and not window:
        return None
    position = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None]
    hidden = (key > position) & triangular
    return hidden | (key <= position - window) if window else hidden


def weights(scores: Tensor, mask: Tensor | None, alibi: Tensor | None, hidden: Tensor | None) -> Tensor:
    """Return exp(s) / sum exp(s) over the last dimension, with s = scores + alibi + mask, in the scores' dtype.

    Hidden keys get exactly 0. A row in which every s is -inf gets zeros instead of NaN.
    """
    total = scores if alibi is None else scores + alibi
    total = total if mask is None else total + mask
    total = total if hidden is None else total.masked_fill(hidden, -torch.inf)
    top = total.amax(-1, keepdim=True)
    # The row's maximum is subtracted, so that exp does not overflow. -inf - -inf would be NaN.
    powers = (total - top.masked_fill(top == -torch.inf, 0.0)).exp()
    sums = powers.sum(-1, keepdim=True)
    return powers / sums.masked_fill(sums == 0, 1.0)


def mask_of(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return ``mask`` in a shape that fits scores (batch, heads, queries, keys), or None if it is no mask.

    A mask has shape (batch, keys), or dimensions in between. DeepSpeed passes a tensor of fewer dimensions for no mask.
    """
    if mask is None or mask.dim() < 2:
        return None
    return mask[:, None, None] if mask.dim() == 2 else mask.reshape(mask.shape[0], -1, *mask.shape[-2:])


def check_mask(name: str, mask: object, batch: int, queries: int, keys: int, like: Tensor) -> None:
    """Raise UsageError unless ``mask`` is (batch, keys) or (batch, 1, 1 or queries, keys) in the scores' dtype.

    None, or a tensor of fewer than two dimensions, is no mask and passes.
    """
    if mask is None or (isinstance(mask, Tensor) and mask.dim() < 2):
        return
    if not isinstance(mask, Tensor):
        raise wrong(name, "a tensor", type(mask).__name__)
    shapes = [(batch, keys), *((batch, 1, rows, keys) for rows in (1, queries))]
    if tuple(mask.shape) not in shapes:
        raise wrong(name, " or ".join(map(str, shapes)), tuple(mask.shape))
    _check_alike(name, mask, like)


def check_alibi(name: str, alibi: object, rows: int, keys: int, like: Tensor) -> None:
    """Raise UsageError unless ``alibi`` is (rows, 1, keys), with ``rows`` the batch times all ranks' heads.

    None, or a tensor of fewer than two dimensions, is no alibi and passes.
    """
    if alibi is None or (isinstance(alibi, Tensor) and alibi.dim() < 2):
        return
    if not isinstance(alibi, Tensor) or tuple(alibi.shape) != (rows, 1, keys):
        got = tuple(alibi.shape) if isinstance(alibi, Tensor) else type(alibi).__name__
        raise wrong(name, f"shape {(rows, 1, keys)}", got)
    _check_alike(name, alibi, like)


def check_window(local_attention: bool, window_size: object) -> None:
    """Raise UsageError for a window below 1 where attention is local."""
    if local_attention:
        check_number("window_size", window_size, at_least=1)


def _check_alike(name: str, tensor: Tensor, like: Tensor) -> None:
    """Raise ``UsageError`` if dtype or device differ from those of ``like``."""
    if tensor.dtype is not like.dtype:
        raise wrong(name, str(like.dtype), tensor.dtype)
    if tensor.device != like.device:
        raise wrong(name, f"a tensor on {like.device}", f"one on {tensor.device}")
