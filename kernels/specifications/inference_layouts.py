"""Rotary position embeddings, and the memory layout of heads for flash attention.

Implementations in use disagree on some points. This specification decides: tensors are (batch, tokens, heads *
channels), as their sizes say. Without ``rotate_half`` adjacent channels are rotated; CUDA's kernel ignores the flag.
bfloat16 is not read as float16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_number, wrong
from conformance.kernels.inference.decoding import turned
from conformance.kernels.inference.drawing import Draw, elsewhere, other_dtype, put, samples, spoiled, strided
from conformance.kernels.inference.formulas import rotated, wide
from conformance.kernels.inference.shapes import ROWS, check_shapes, heads_first, padded, padded_width, split_heads
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification

_MOVED = ErrorBudget(rounding=0.0, conditioning=0.0, source="elements are moved, not computed")
_TURNED = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="a rotation in float32 by an angle that is known to a few roundings of its own size "
    "(kernels/inference/decoding.py), and one rounding to the dtype",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def apply_rotary_pos_emb(
    mixed_query: Tensor,
    key_layer: Tensor,
    rotary_dim: int,
    offset: int,
    num_heads: int,
    rotate_half: bool,
    rope_theta: float,
) -> list[Tensor]:
    """Rotate queries and keys (batch, tokens, heads * channels) in place, and return both.

    Su et al., 2021, arXiv:2104.09864. Token t has position ``offset`` + t. Pair i of the first ``rotary_dim`` channels
    of a head is rotated by the angle position / rope_theta^(2i / rotary_dim). A pair is channels i and
    i + rotary_dim / 2 with ``rotate_half`` (as in Llama), and channels 2i and 2i + 1 without (as in GPT-J).
    """
    positions = torch.arange(offset, offset + mixed_query.shape[1], device=mixed_query.device)
    width = mixed_query.shape[2] // num_heads
    for tensor in (mixed_query, key_layer):
        heads = split_heads(wide(tensor), width)
        tensor.copy_(rotated(heads, positions, rotary_dim, rotate_half, rope_theta).transpose(1, 2).flatten(2))
    return [mixed_query, key_layer]


def add_padding(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Return tensors (batch, heads, tokens, channels) padded with zeros to 32, 64 or 128 channels.

    Fewer than 32 channels become 32, fewer than 64 become 64, all others 128. Keys and values are also padded to 128
    tokens.
    """
    width = padded_width(query.shape[3])
    return [padded(query, query.shape[2], width), padded(key, ROWS, width), padded(value, ROWS, width)]


def pad_transform(query: Tensor, key: Tensor, value: Tensor, heads: int, add_padding: bool) -> list[Tensor]:
    """Return tensors (batch, tokens, heads * channels) as (batch, heads, tokens, channels).

    With ``add_padding`` they are padded as the kernel of that name does.
    """
    width = query.shape[2] // heads
    wanted, rows = (padded_width(width), ROWS) if add_padding else (width, 0)
    return [
        heads_first(query, heads, wanted),
        heads_first(key, heads, wanted, rows),
        heads_first(value, heads, wanted, rows),
    ]


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def _rotary_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return queries and keys, each head turned by the angles of its positions."""
    found: dict[str, Expected] = {}
    for index, name in enumerate(("mixed_query", "key_layer")):
        batch, tokens, channels = given[name].shape
        width = given["mixed_query"].shape[2] // given["num_heads"]
        heads = given[name].reshape(batch, tokens, channels // width, width).permute(0, 2, 1, 3)
        positions = torch.arange(tokens) + given["offset"]
        settings = (given["rotary_dim"], given["rotate_half"], given["rope_theta"])
        back = turned(heads, positions, *settings).moved(
            lambda part: part.permute(0, 2, 1, 3).reshape(part.shape[0], part.shape[2], -1)
        )
        found[name] = found[f"result[{index}]"] = back.expected(given[name].dtype)
    return found


def _layout_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Copy each tensor into a larger tensor of zeros."""
    found = {}
    for index, name in enumerate(("query", "key", "value")):
        tensor, padding = given[name].double(), given.get("add_padding", True)
        if "heads" in given:
            batch, tokens, channels = tensor.shape
            tensor = tensor.reshape(batch, tokens, given["heads"], channels // given["heads"]).permute(0, 2, 1, 3)
        width = next(size for size, least in ((128, 64), (64, 32), (32, 0)) if tensor.shape[3] >= least)
        rows = tensor.shape[2] if name == "query" else 128
        whole = torch.zeros(*tensor.shape[:2], rows, width, dtype=torch.float64)
        whole[:, :, : tensor.shape[2], : tensor.shape[3]] = tensor
        exact = whole if padding else tensor
        found[f"result[{index}]"] = Expected(exact, allowed=torch.zeros(exact.shape).double(), dtype=given[name].dtype)
    return found


# --- samples ----------------------------------------------------------------------------------------------------------


def _turning(
    draw: Draw, dtype: torch.dtype, *, halves: bool = True, offset: int = 0, rotary: int = 6, keys: int = 3
) -> Arguments:
    """Return the arguments of a rotation of three query heads of width 10, and ``keys`` key heads."""
    return {
        "mixed_query": draw(2, 5, 3 * 10), "key_layer": draw(2, 5, keys * 10), "rotary_dim": rotary, "offset": offset,
        "num_heads": 3, "rotate_half": halves, "rope_theta": 10000.0,
    }  # fmt: skip


def _padding(draw: Draw, dtype: torch.dtype, *, width: int = 24, rows: int = 7) -> Arguments:
    return {"query": draw(2, 3, 5, width), "key": draw(2, 3, rows, width), "value": draw(2, 3, rows, width)}


def _transform(
    draw: Draw, dtype: torch.dtype, *, width: int = 24, heads: int = 3, pad: bool = True, rows: int = 7
) -> Arguments:
    channels = heads * width
    tensors = {"query": draw(2, 5, channels), "key": draw(2, rows, channels), "value": draw(2, rows, channels)}
    return {**tensors, "heads": heads, "add_padding": pad}


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def _validate_rotary(given: Arguments) -> None:
    """Raise ``UsageError`` for heads or a rotated width that do not fit the tensors."""
    check_shapes(given, {"mixed_query": "bsq", "key_layer": "bsk"})
    check_number("offset", given["offset"], at_least=0)
    check_number("num_heads", given["num_heads"], at_least=1)
    width = given["mixed_query"].shape[2] // given["num_heads"]
    if given["mixed_query"].shape[2] % given["num_heads"] or given["key_layer"].shape[2] % width:
        raise wrong("num_heads", "heads of one width in mixed_query and key_layer", given["num_heads"])
    if given["rotary_dim"] % 2 or not 0 < given["rotary_dim"] <= width:
        raise wrong("rotary_dim", f"an even number up to {width}", given["rotary_dim"])


def _validate_padding(given: Arguments) -> None:
    sizes = check_shapes(given, {"query": "bhqc", "key": "bhkc", "value": "bhkc"})
    _check_room(sizes["c"], sizes["k"])


def _validate_transform(given: Arguments) -> None:
    """Raise ``UsageError`` for heads that do not fit, or are too large to be padded."""
    sizes = check_shapes(given, {"query": "bqc", "key": "bkc", "value": "bkc"})
    if given["heads"] < 1 or sizes["c"] % given["heads"]:
        raise wrong("heads", f"a divisor of {sizes['c']}", given["heads"])
    if given["add_padding"]:
        _check_room(sizes["c"] // given["heads"], sizes["k"])


def _check_room(width: int, rows: int) -> None:
    """Raise ``UsageError`` for heads or rows beyond what flash attention's padding has."""
    if width > 128:
        raise wrong("query", "heads of at most 128 channels", width)
    if rows > ROWS:
        raise wrong("key", f"at most {ROWS} rows", rows)


_COMMON: dict[str, Any] = {
    "builder": "InferenceBuilder", "mode": Mode.INFERENCE, "dtypes": ("float32", "float16", "bfloat16"),
}  # fmt: skip
_TURNS: dict[str, dict[str, Any]] = {
    "halves": {}, "pairs": {"halves": False}, "halves-later": {"offset": 1027, "rotary": 10},
    "pairs-later": {"offset": 1027, "rotary": 10, "halves": False, "keys": 1},
}  # fmt: skip
_WIDTHS: dict[str, dict[str, Any]] = {
    "24": {}, "32": {"width": 32}, "64": {"width": 64, "rows": 128}, "80": {"width": 80, "rows": 1},
}  # fmt: skip

SPECIFICATIONS = (
    KernelSpecification(
        name="apply_rotary_pos_emb", samples=samples(_turning, _TURNS), oracle=_rotary_oracle, budget=_TURNED,
        reference=apply_rotary_pos_emb, changes=("mixed_query", "key_layer"), validate=_validate_rotary,
        refusals=(
            spoiled("strides", "key_layer", strided), spoiled("dtypes", "key_layer", other_dtype),
            spoiled("devices", "key_layer", elsewhere), spoiled("odd", "rotary_dim", put(5)),
        ),
        **_COMMON,
    ),
    KernelSpecification(
        name="add_padding", attribute="add_padding_{dtype}", samples=samples(_padding, _WIDTHS), oracle=_layout_oracle,
        budget=_MOVED, reference=add_padding, validate=_validate_padding,
        refusals=(
            spoiled("dtypes", "key", other_dtype), spoiled("devices", "value", elsewhere),
            spoiled("shapes", "value", lambda value: value[:, :, :-1].contiguous()),
        ),
        **_COMMON,
    ),
    KernelSpecification(
        name="pad_transform", attribute="pad_transform_{dtype}", oracle=_layout_oracle, budget=_MOVED,
        samples=samples(_transform, {**_WIDTHS, "unpadded": {"pad": False}}), reference=pad_transform,
        validate=_validate_transform,
        refusals=(
            spoiled("dtypes", "key", other_dtype), spoiled("devices", "value", elsewhere),
            spoiled("divisors", "heads", put(5)),
        ),
        **_COMMON,
    ),
)  # fmt: skip
