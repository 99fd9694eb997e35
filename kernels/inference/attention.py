"""Attention weights: scores with all that hides or shifts them, normalised; wide."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.kernels.arguments import check_number, wrong


def hidden_keys(queries: int, keys: int, triangular: bool, window: int, device: torch.device) -> Tensor | None:
    """True where a query must not look: (queries, keys), the last query at the last key; None if it may everywhere.

    ``window`` is how many keys a query sees, itself included; 0 for all.
    """
    if not triangular and not window:
        return None
    place = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None]
    hidden = (key > place) & triangular
    return hidden | (key <= place - window) if window else hidden


def weights(scores: Tensor, mask: Tensor | None, alibi: Tensor | None, hidden: Tensor | None) -> Tensor:
    """exp(s) / sum exp(s) over the last dimension, s = scores + alibi + mask, in float32 or wider.

    Hidden keys get exactly 0, and a row in which every s is -inf gets zeros: nobody is looked at, and nothing is NaN.
    """
    total = scores if alibi is None else scores + alibi
    total = total if mask is None else total + mask
    total = total if hidden is None else total.masked_fill(hidden, -torch.inf)
    top = total.amax(-1, keepdim=True)
    risen = (total - top.masked_fill(top == -torch.inf, 0.0)).exp()
    whole = risen.sum(-1, keepdim=True)
    return risen / whole.masked_fill(whole == 0, 1.0)


def mask_of(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """The mask, for scores (batch, heads, queries, keys): (batch, keys) or with dimensions in between; else none."""
    if mask is None or mask.dim() < 2:
        return None
    return mask[:, None, None] if mask.dim() == 2 else mask.reshape(mask.shape[0], -1, *mask.shape[-2:])


def check_mask(name: str, mask: object, batch: int, queries: int, keys: int, like: Tensor) -> None:
    """(batch, keys) or (batch, 1, 1 or queries, keys) in the scores' dtype; a tensor of fewer dimensions is no mask."""
    if mask is None or (isinstance(mask, Tensor) and mask.dim() < 2):
        return
    if not isinstance(mask, Tensor):
        raise wrong(name, "a tensor", type(mask).__name__)
    shapes = [(batch, keys), *((batch, 1, rows, keys) for rows in (1, queries))]
    if tuple(mask.shape) not in shapes:
        raise wrong(name, " or ".join(map(str, shapes)), tuple(mask.shape))
    _check_alike(name, mask, like)


def check_alibi(name: str, alibi: object, rows: int, keys: int, like: Tensor) -> None:
    """(batch * all ranks' heads, 1, keys); a tensor of fewer than two dimensions is none."""
    if alibi is None or (isinstance(alibi, Tensor) and alibi.dim() < 2):
        return
    if not isinstance(alibi, Tensor) or tuple(alibi.shape) != (rows, 1, keys):
        got = tuple(alibi.shape) if isinstance(alibi, Tensor) else type(alibi).__name__
        raise wrong(name, f"shape {(rows, 1, keys)}", got)
    _check_alike(name, alibi, like)


def check_window(local_attention: bool, window_size: object) -> None:
    if local_attention:
        check_number("window_size", window_size, at_least=1)


def _check_alike(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.dtype is not like.dtype:
        raise wrong(name, str(like.dtype), tensor.dtype)
    if tensor.device != like.device:
        raise wrong(name, f"a tensor on {like.device}", f"one on {tensor.device}")
