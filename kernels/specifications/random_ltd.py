"""Random layerwise token dropping (random-LTD, Yao et al., 2022, arXiv:2211.11586): sort, gather and scatter tokens.

Values are moved and never changed, so every result is exact. Implementations in use leave one point open. This
specification decides: an index outside the sequence is refused, because a device kernel would read or overwrite other
memory.
"""

from __future__ import annotations

import functools
import math
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
_EXACT = ErrorBudget(rounding=0.0, conditioning=0.0, source="values are moved, not computed")


# --- semantics ------------------------------------------------------------------------------------------------------


def token_sort_(unsorted_token_ids: Tensor, original_tokens: int) -> Tensor:
    """Sort the last dimension of int32 ids (layers, batch, kept) in place, ascending. Returns the same tensor.

    All ids are below ``original_tokens``, the length of the sequence.
    """
    return unsorted_token_ids.copy_(unsorted_token_ids.sort(dim=-1).values)


def token_gather(activations: Tensor, sorted_indices: Tensor, batch_first: bool) -> Tensor:
    """Return the tokens of ``activations`` at ``sorted_indices`` (batch, kept; int32), in that order.

    Activations are (batch, sequence, channels) if ``batch_first``, else (sequence, batch, channels). The result has the
    same layout, with kept instead of sequence.
    """
    index, dim = _spread(sorted_indices, activations, batch_first)
    return torch.gather(activations, dim, index)


def token_scatter_(
    all_activations: Tensor, layer_activations: Tensor, sorted_indices: Tensor, batch_first: bool
) -> Tensor:
    """Write tokens back to the positions where ``token_gather`` read them, in place. Returns ``all_activations``.

    Tokens at other positions stay unchanged.
    """
    index, dim = _spread(sorted_indices, all_activations, batch_first)
    return all_activations.scatter_(dim, index, layer_activations)


def mask_gather_bert(dense_mask: Tensor, sorted_indices: Tensor) -> Tensor:
    """Return the rows and columns of attention masks for the tokens that each layer keeps.

    ``dense_mask`` is (batch, 1, sequence, sequence), ``sorted_indices`` is (layers, batch, kept) of int32. The result
    is (layers, batch, 1, kept, kept).
    """
    batch = torch.arange(dense_mask.shape[0], device=dense_mask.device)
    ids = sorted_indices.long()
    return dense_mask[batch[None, :, None, None], 0, ids[..., :, None], ids[..., None, :]].unsqueeze(2)


def mask_gather_gpt(dense_mask: Tensor, truncated_seq_len: int) -> Tensor:
    """Return a copy of the first rows and columns of masks (batch, 1, sequence, sequence).

    The first ones are right for any tokens: a causal mask depends on the order of the tokens only.
    """
    return dense_mask[:, :, :truncated_seq_len, :truncated_seq_len].clone(memory_format=torch.contiguous_format)


def _spread(sorted_indices: Tensor, activations: Tensor, batch_first: bool) -> tuple[Tensor, int]:
    """Return the indices expanded to every channel, and the dimension of the sequence."""
    index = (sorted_indices if batch_first else sorted_indices.t()).long()
    return index.unsqueeze(-1).expand(-1, -1, activations.shape[2]), 1 if batch_first else 0


# --- oracles, token by token in Python ------------------------------------------------------------------------------


def _sorted(given: Arguments) -> Mapping[str, Expected]:
    layers = [[sorted(row) for row in layer] for layer in given["unsorted_token_ids"].tolist()]
    value = torch.tensor(layers, dtype=torch.int32).reshape(given["unsorted_token_ids"].shape)
    return {"unsorted_token_ids": Expected(value), "result": Expected(value, dtype=torch.int32)}


def _gathered(given: Arguments) -> Mapping[str, Expected]:
    """Return the chosen tokens, copied one by one from the definition."""
    source, ids = given["activations"], given["sorted_indices"].tolist()
    rows = [[_token(source, batch, at, given["batch_first"]) for at in row] for batch, row in enumerate(ids)]
    value = torch.stack([torch.stack(row) for row in rows]).double()
    return {"result": Expected(value if given["batch_first"] else value.transpose(0, 1), dtype=source.dtype)}


def _scattered(given: Arguments) -> Mapping[str, Expected]:
    """Return all tokens with the layer's tokens in their places."""
    value = given["all_activations"].double().clone()
    for batch, row in enumerate(given["sorted_indices"].tolist()):
        for position, at in enumerate(row):
            _token(value, batch, at, given["batch_first"]).copy_(
                _token(given["layer_activations"], batch, position, given["batch_first"])
            )
    return {"all_activations": Expected(value), "result": Expected(value, dtype=given["all_activations"].dtype)}


def _masks(given: Arguments) -> Mapping[str, Expected]:
    """Return the mask of the chosen tokens, for each layer and sequence."""
    mask, ids = given["dense_mask"].double(), given["sorted_indices"].tolist()
    value = torch.stack(
        [torch.stack([mask[batch, :, row][:, :, row] for batch, row in enumerate(layer)]) for layer in ids]
    )
    return {"result": Expected(value, dtype=given["dense_mask"].dtype)}


def _first_masks(given: Arguments) -> Mapping[str, Expected]:
    """Return the mask of the first tokens."""
    kept = given["truncated_seq_len"]
    value = torch.stack([given["dense_mask"][..., at, :].double() for at in range(kept)], dim=2)
    return {
        "result": Expected(torch.stack([value[..., at] for at in range(kept)], dim=3), dtype=given["dense_mask"].dtype)
    }


def _token(tensor: Tensor, batch: int, at: int, batch_first: bool) -> Tensor:
    return tensor[batch, at] if batch_first else tensor[at, batch]


# --- samples ----------------------------------------------------------------------------------------------------------


def _ids(generator: torch.Generator, *shape: int, tokens: int) -> Tensor:
    """Return int32 ids of that shape below ``tokens``; each row is ascending without repeats."""
    rows = [
        torch.randperm(tokens, generator=generator)[: shape[-1]].sort().values for _ in range(math.prod(shape[:-1]))
    ]
    return torch.stack(rows).reshape(shape).to(torch.int32)


def _sort(generator: torch.Generator, dtype: torch.dtype, *, tokens: int, kept: int) -> Arguments:
    rows = [torch.randperm(tokens, generator=generator)[:kept] for _ in range(6)]
    return {"unsorted_token_ids": torch.stack(rows).reshape(2, 3, kept).to(torch.int32), "original_tokens": tokens}


def _activations(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    batch_first: bool,
    tokens: int,
    channels: int,
    strided: bool = False,
) -> Tensor:
    """Return activations of three sequences, with a NaN and a negative zero in them."""
    shape = (3, tokens, channels) if batch_first != strided else (tokens, 3, channels)
    values = torch.randn(shape, generator=generator).to(dtype)
    # Moved values keep every bit: NaN and the sign of zero survive.
    values[1, 1, 0], values[0, 1, -1] = float("nan"), -0.0
    return values.transpose(0, 1) if strided else values


def _gather(
    generator: torch.Generator, dtype: torch.dtype, *, batch_first: bool = True, tokens: int = 33, kept: int = 17,
    channels: int = 8, strided: bool = False,
) -> Arguments:  # fmt: skip
    """Return the arguments of a gather of ``kept`` tokens."""
    return {
        "activations": _activations(
            generator, dtype, batch_first=batch_first, tokens=tokens, channels=channels, strided=strided
        ),
        "sorted_indices": _ids(generator, 3, kept, tokens=tokens),
        "batch_first": batch_first,
    }


def _scatter(generator: torch.Generator, dtype: torch.dtype, *, kept: int = 17, **shape: Any) -> Arguments:
    """Return the arguments of a scatter, with a layer's tokens of other values."""
    given = _gather(generator, dtype, kept=kept, **shape)
    batch_first, all_activations = given["batch_first"], given["activations"]
    layer = _activations(generator, dtype, batch_first=batch_first, tokens=kept, channels=all_activations.shape[2])
    return {
        "all_activations": all_activations,
        "layer_activations": layer,
        "sorted_indices": given["sorted_indices"],
        "batch_first": batch_first,
    }


#: Samples for every dtype. The others show nothing new after the first dtype.
_EVERYWHERE = ("batch-first", "odd-channels")
_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "batch-first": {},
    "sequence-first": {"batch_first": False},
    "odd-channels": {"channels": 65, "kept": 5},
    "all-kept": {"tokens": 9, "kept": 9},
    "strided": {"strided": True},
}


def _samples(make: Callable[..., Arguments]) -> tuple[KernelSample, ...]:
    """Return the samples. Most shapes run with one dtype only."""
    return tuple(
        KernelSample(name, functools.partial(make, **shape), () if name in _EVERYWHERE else _DTYPES[:1])
        for name, shape in _SHAPES.items()
    )


def _bert(generator: torch.Generator, dtype: torch.dtype, *, tokens: int, kept: int) -> Arguments:
    mask = torch.randn(3, 1, tokens, tokens, generator=generator).to(dtype)
    return {"dense_mask": mask, "sorted_indices": _ids(generator, 2, 3, kept, tokens=tokens)}


def _gpt(generator: torch.Generator, dtype: torch.dtype, *, tokens: int, kept: int) -> Arguments:
    return {"dense_mask": torch.randn(3, 1, tokens, tokens, generator=generator).to(dtype), "truncated_seq_len": kept}


def _round_trip(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Check that gathered tokens return to their positions, and that scatter writes to exactly these positions."""
    for batch_first in (True, False):
        given = _gather(generator, dtype, batch_first=batch_first)
        whole, ids = given["activations"].to(device, copy=True), given["sorted_indices"].to(device)

        taken = functions.token_gather(whole, ids, batch_first)
        back = functions.token_scatter_(whole.clone(), taken, ids, batch_first)
        zeroed = functions.token_scatter_(whole.clone(), torch.zeros_like(taken), ids, batch_first)

        yield "activations after gather and scatter", back, Expected(given["activations"].double(), dtype=dtype)
        kept = functions.token_gather(zeroed, ids, batch_first)
        yield (
            "tokens gathered after zeros were scattered",
            kept,
            Expected(torch.zeros(taken.shape).double(), dtype=dtype),
        )


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check_ids(given: Arguments, dims: int, tokens: int, batch: int, device: torch.device) -> None:
    """Raise ``UsageError`` for token ids of another shape or beyond ``tokens``."""
    ids = check_tensor("sorted_indices", given["sorted_indices"], dtypes=(torch.int32,), device=device)
    if ids.dim() != dims or ids.shape[dims - 2] != batch:
        raise wrong("sorted_indices", f"{dims} dimensions, the second last of size {batch}", tuple(ids.shape))
    _check_range("sorted_indices", ids, tokens)


def _check_range(argument: str, ids: Tensor, tokens: int) -> None:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < tokens:
        raise wrong(argument, f"ids from 0 to {tokens - 1}", f"{int(ids.min())} to {int(ids.max())}")


def _check_sort(given: Arguments) -> None:
    """Raise ``UsageError`` for ids of another shape or beyond the sequence."""
    ids = check_tensor("unsorted_token_ids", given["unsorted_token_ids"], dtypes=(torch.int32,))
    if ids.dim() != 3:
        raise wrong("unsorted_token_ids", "3 dimensions (layers, batch, kept)", tuple(ids.shape))
    _check_range("unsorted_token_ids", ids, given["original_tokens"])


def _check_tokens(given: Arguments, argument: str) -> None:
    """Raise ``UsageError`` for tokens that are not floats of 3 dimensions, or ids that do not fit."""
    tensor = check_tensor(argument, given[argument], contiguous=False)
    if tensor.dim() != 3 or not tensor.is_floating_point():
        raise wrong(argument, "3 dimensions of a floating-point dtype", f"{tuple(tensor.shape)} of {tensor.dtype}")
    batch, tokens = tensor.shape[:2] if given["batch_first"] else (tensor.shape[1], tensor.shape[0])
    _check_ids(given, 2, tokens, batch, tensor.device)


def _check_scatter(given: Arguments) -> None:
    """Raise ``UsageError`` if the layer's tokens do not fit all tokens and the ids."""
    _check_tokens(given, "all_activations")
    whole, (batch, kept) = given["all_activations"], given["sorted_indices"].shape
    layer = check_tensor(
        "layer_activations", given["layer_activations"], dtypes=(whole.dtype,), device=whole.device, contiguous=False
    )
    shape = (batch, kept, whole.shape[2]) if given["batch_first"] else (kept, batch, whole.shape[2])
    if tuple(layer.shape) != shape:
        raise wrong("layer_activations", f"shape {shape}", tuple(layer.shape))


def _check_masks(given: Arguments) -> None:
    """Raise ``UsageError`` for masks that are not square, or ids that do not fit."""
    mask = check_tensor("dense_mask", given["dense_mask"])
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] != mask.shape[3]:
        raise wrong("dense_mask", "shape (batch, 1, sequence, sequence)", tuple(mask.shape))
    if "sorted_indices" in given:
        _check_ids(given, 3, mask.shape[3], mask.shape[0], mask.device)
    elif not 0 <= given["truncated_seq_len"] <= mask.shape[3]:
        raise wrong("truncated_seq_len", f"a length from 0 to {mask.shape[3]}", given["truncated_seq_len"])


def _last_beyond(given: Arguments) -> Arguments:
    ids = given["sorted_indices"].clone()
    ids[..., -1] = 1 << 20  # beyond the sequences of all samples
    return {**given, "sorted_indices": ids}


_BAD_IDS = (
    Refusal("beyond", "sorted_indices", _last_beyond),
    Refusal("wide", "sorted_indices", lambda given: {**given, "sorted_indices": given["sorted_indices"].long()}),
)


def _kernel(name: str, **fields: Any) -> KernelSpecification:
    return KernelSpecification(
        name=name, builder="RandomLTDBuilder", mode=Mode.TRAINING, budget=_EXACT, **{"dtypes": _DTYPES, **fields}
    )


SPECIFICATIONS = (
    _kernel(
        "token_sort_",
        # The kernel takes int32 ids only; float32 is the dtype of activations under which it is claimed.
        dtypes=("float32",),
        samples=(
            KernelSample("2048", functools.partial(_sort, tokens=2048, kept=1025)),
            KernelSample("5", functools.partial(_sort, tokens=5, kept=5)),
            KernelSample("one", functools.partial(_sort, tokens=70, kept=1)),
        ),
        oracle=_sorted,
        reference=token_sort_,
        changes=("unsorted_token_ids",),
        validate=_check_sort,
        refusals=(
            Refusal(
                "beyond",
                "unsorted_token_ids",
                lambda given: {**given, "original_tokens": given["original_tokens"] // 2},
            ),
        ),
    ),
    _kernel(
        "token_gather",
        samples=_samples(_gather),
        oracle=_gathered,
        reference=token_gather,
        validate=functools.partial(_check_tokens, argument="activations"),
        refusals=_BAD_IDS,
        properties=(Property("round-trip", _round_trip),),
    ),
    _kernel(
        "token_scatter_",
        samples=_samples(_scatter),
        oracle=_scattered,
        reference=token_scatter_,
        changes=("all_activations",),
        validate=_check_scatter,
        refusals=(
            *_BAD_IDS,
            Refusal(
                "shapes", "layer_activations", lambda given: {**given, "layer_activations": given["all_activations"]}
            ),
        ),
    ),
    _kernel(
        "mask_gather_bert",
        samples=(
            KernelSample("33", functools.partial(_bert, tokens=33, kept=17)),
            KernelSample("one", functools.partial(_bert, tokens=5, kept=1)),
        ),
        oracle=_masks,
        reference=mask_gather_bert,
        validate=_check_masks,
        refusals=_BAD_IDS,
    ),
    _kernel(
        "mask_gather_gpt",
        samples=(
            KernelSample("33", functools.partial(_gpt, tokens=33, kept=17)),
            KernelSample("all", functools.partial(_gpt, tokens=5, kept=5)),
        ),
        oracle=_first_masks,
        reference=mask_gather_gpt,
        validate=_check_masks,
        refusals=(Refusal("longer", "truncated_seq_len", lambda given: {**given, "truncated_seq_len": 34}),),
    ),
)
