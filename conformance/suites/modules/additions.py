"""Inputs for modules of ``torch.nn`` that PyTorch's module database lacks, and more for some that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .call import ModuleCall
from .packed import Packed


def _x(*shape: int) -> torch.Tensor:
    """Return normal numbers that require a gradient."""
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def _call(kind: Callable[..., nn.Module], *inputs: Any, **options: Any) -> ModuleCall:
    return ModuleCall(kind, (), options, inputs, {})


def _dropouts() -> Iterator[tuple[str, list[ModuleCall]]]:
    shapes = {"Dropout": (7, 65), "Dropout1d": (9, 33, 4), "Dropout2d": (9, 33, 2, 3), "Dropout3d": (9, 33, 2, 1, 2)}
    shapes |= {"AlphaDropout": (7, 65), "FeatureAlphaDropout": (9, 33, 2, 2)}
    for name, shape in shapes.items():
        yield name, [_call(getattr(nn, name), _x(*shape), p=p) for p in (0.5, 0.2, 0.8)]


def _unpooled(d: int) -> list[ModuleCall]:
    """Return calls of MaxUnpool with the indices of a pooling on the host."""
    found = []
    kind, pool = getattr(nn, f"MaxUnpool{d}d"), getattr(nn, f"MaxPool{d}d")
    for lead in ((2, 3), (3,)):
        values, indices = pool(2, stride=2, return_indices=True)(_x(*lead, *(6, 4, 8)[:d]))
        found.append(_call(kind, values.detach().requires_grad_(), indices, kernel_size=2, stride=2))
    return found


def _lazy() -> Iterator[tuple[str, list[ModuleCall]]]:
    yield "LazyLinear", [_call(nn.LazyLinear, _x(3, 5), out_features=7), _call(nn.LazyLinear, _x(9), out_features=2)]
    for d in (1, 2, 3):
        shape = (4, 3, *(5, 4, 2)[:d])
        for kind in ("Batch", "Instance"):
            lazy = getattr(nn, f"Lazy{kind}Norm{d}d")
            options: list[dict[str, Any]] = [{}, {"affine": True, "momentum": 0.3, "eps": 0.1}]
            yield lazy.__name__, [_call(lazy, _x(*shape), **chosen) for chosen in options]


def _upsampled() -> Iterator[tuple[str, list[ModuleCall]]]:
    modes = {"nearest": (2, 3, 4, 5), "bilinear": (2, 3, 4, 5), "bicubic": (2, 3, 4, 5), "nearest-exact": (2, 3, 7)}
    modes |= {"linear": (2, 3, 7), "trilinear": (2, 2, 3, 2, 4)}
    calls = []
    for mode, shape in modes.items():
        aligned: dict[str, Any] = {"align_corners": True} if "linear" in mode or mode == "bicubic" else {}
        calls.append(_call(nn.Upsample, _x(*shape), scale_factor=1.7, mode=mode, **aligned))
        calls.append(_call(nn.Upsample, _x(*shape), size=(3, 7, 5)[: len(shape) - 2], mode=mode))
    yield "Upsample", calls
    for name in ("UpsamplingNearest2d", "UpsamplingBilinear2d"):
        kind, image = getattr(nn, name), _x(2, 3, 4, 5)
        yield name, [_call(kind, image, scale_factor=2), _call(kind, image, size=(3, 7))]


def _losses() -> Iterator[tuple[str, list[ModuleCall]]]:
    three = _x(5, 7), _x(5, 7), _x(5, 7)
    triplet: list[dict[str, Any]] = [
        {},
        {"margin": 3.0, "p": 1.0, "reduction": "sum"},
        {"swap": True, "reduction": "none"},
    ]
    yield "TripletMarginLoss", [_call(nn.TripletMarginLoss, *three, **options) for options in triplet]
    distance: list[dict[str, Any]] = [
        {},
        {"margin": 2.0, "swap": True, "distance_function": nn.PairwiseDistance(p=1.0)},
    ]
    kind = nn.TripletMarginWithDistanceLoss
    yield kind.__name__, [_call(kind, *three, **options) for options in distance]
    target = torch.tensor([0, 3, 4, 9, 14, 1])
    adaptive = {"in_features": 8, "n_classes": 15, "cutoffs": [3, 9], "div_value": 2.0}
    kinds = [{}, {"head_bias": True}]
    adapted = nn.AdaptiveLogSoftmaxWithLoss
    yield adapted.__name__, [_call(adapted, _x(6, 8), target, **adaptive, **options) for options in kinds]
    image = torch.log_softmax(torch.randn(2, 3, 4, 5, dtype=torch.float64), 1).requires_grad_()
    yield "NLLLoss2d", [_call(nn.NLLLoss2d, image, torch.randint(3, (2, 4, 5)))]


def _embedded() -> list[ModuleCall]:
    tokens, offsets = torch.randint(11, (13,)), torch.tensor([0, 4, 4, 9])
    found = [_call(nn.EmbeddingBag, tokens, offsets, num_embeddings=11, embedding_dim=5, mode=m) for m in _MODES]
    rows = torch.randint(11, (4, 6))
    weighted = {"num_embeddings": 11, "embedding_dim": 5, "mode": "sum"}
    found.append(ModuleCall(nn.EmbeddingBag, (), weighted, (rows,), {"per_sample_weights": _x(4, 6)}))
    found.append(_call(nn.EmbeddingBag, rows, num_embeddings=11, embedding_dim=5, padding_idx=3, mode="mean"))
    return found


_MODES = ("sum", "mean", "max")


def _decoder() -> list[ModuleCall]:
    found = []
    for first in (True, False):
        layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=first).double()
        mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        options = {"decoder_layer": layer, "num_layers": 2, "norm": nn.LayerNorm(8).double()}
        found.append(ModuleCall(nn.TransformerDecoder, (), options, (_x(3, 5, 8), _x(3, 7, 8)), {"tgt_mask": mask}))
    return found


def _attended() -> list[ModuleCall]:
    """Return attention with a mask of keys and one of pairs at once: neither may replace the other."""
    late = torch.arange(6) > torch.tensor([[5], [3]])
    pairs = torch.eye(6, dtype=torch.bool).roll(1, 0)
    found = []
    for options, batch in (({"batch_first": True}, _x(2, 6, 8)), ({"dropout": 0.0}, _x(6, 2, 8))):
        masks = {"key_padding_mask": late, "attn_mask": pairs, "need_weights": False}
        given = {"embed_dim": 8, "num_heads": 2, **options}
        found.append(ModuleCall(nn.MultiheadAttention, (), given, (batch, batch, batch), masks))
    return found


def _encoded() -> list[ModuleCall]:
    """Return layers that PyTorch computes in one kernel in eval(): batches come first, and no gradient is asked for."""
    late = torch.arange(5) > torch.tensor([[4], [2], [3]])
    found = []
    for activation, first, masks in (("gelu", False, {"src_key_padding_mask": late}), ("relu", True, {})):
        sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}
        options = {**sizes, "activation": activation, "norm_first": first}
        found.append(ModuleCall(nn.TransformerEncoderLayer, (), options, (_x(3, 5, 8),), masks))
    return found


def _sequences() -> Iterator[tuple[str, list[ModuleCall]]]:
    """Yield recurrent modules in both directions: with rows that end early, many and long rows, and without biases."""
    sizes = {"input_size": 4, "hidden_size": 3, "bidirectional": True}
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        early = {**sizes, "num_layers": 2}
        packed = ModuleCall(Packed, (kind,), early, (_x(4, 6, 4), [3, 6, 1, 4]), {}, "a packed sequence")
        many = [_call(kind, _x(*shape, 4), **sizes) for shape in ((2, 131), (131, 1))]
        # PyTorch's database has two layers, both directions and no biases, but none of these together.
        plain = [_call(kind, _x(5, 3, 4), **sizes, **options, bias=False) for options in _without_biases(kind)]
        # A backward may take the layers between the first and the last one another way.
        deep = [_call(kind, _x(4, 3, 4), **{**sizes, **options}) for options in _DEEP]
        yield kind.__name__, [packed, *many, *plain, *deep]


#: Options of recurrent modules with layers between the first and the last one.
_DEEP: tuple[dict[str, Any], ...] = ({"num_layers": 3, "bidirectional": False}, {"num_layers": 4})


def _without_biases(kind: type[nn.Module]) -> Iterator[dict[str, Any]]:
    """Yield options of a recurrent module beside no biases."""
    yield {}
    yield {"num_layers": 2, "batch_first": True}
    if kind is nn.RNN:
        yield {"nonlinearity": "relu"}
    if kind is nn.LSTM:
        yield {"proj_size": 2}


def _shapes() -> Iterator[tuple[str, list[ModuleCall]]]:
    image = _x(2, 12, 4, 6)
    yield "PixelShuffle", [_call(nn.PixelShuffle, image, upscale_factor=2)]
    yield "PixelUnshuffle", [_call(nn.PixelUnshuffle, image, downscale_factor=2)]
    yield "ChannelShuffle", [_call(nn.ChannelShuffle, image, groups=3)]
    yield "Flatten", [_call(nn.Flatten, image), _call(nn.Flatten, image, start_dim=2, end_dim=-1)]
    yield "Unflatten", [_call(nn.Unflatten, image, dim=1, unflattened_size=(3, 4))]
    yield "Identity", [_call(nn.Identity, image)]
    sizes: dict[str, Any] = {"kernel_size": (2, 3), "dilation": (1, 2), "padding": 1, "stride": (2, 1)}
    yield "Unfold", [_call(nn.Unfold, image, kernel_size=2), _call(nn.Unfold, image, **sizes)]
    columns = nn.Unfold(**sizes)(image).detach().requires_grad_()
    simple = nn.Unfold(2)(image).detach().requires_grad_()
    yield (
        "Fold",
        [
            _call(nn.Fold, columns, output_size=(4, 6), **sizes),
            _call(nn.Fold, simple, output_size=(4, 6), kernel_size=2),
        ],
    )
    pair = _x(3, 8), _x(3, 8)
    yield "CosineSimilarity", [_call(nn.CosineSimilarity, *pair, dim=d, eps=1e-6) for d in (0, 1)]
    yield (
        "PairwiseDistance",
        [_call(nn.PairwiseDistance, *pair, p=p, keepdim=keep) for p, keep in ((2.0, False), (1.0, True))],
    )
    yield "CrossMapLRN2d", [_call(nn.CrossMapLRN2d, _x(2, 6, 3, 4), size=3, alpha=0.3, beta=0.6)]


def _activations() -> Iterator[tuple[str, list[ModuleCall]]]:
    wide = (_x(7, 65) * 4).detach().requires_grad_()
    yield "Hardsigmoid", [_call(nn.Hardsigmoid, wide)]
    yield "RReLU", [_call(nn.RReLU, wide), _call(nn.RReLU, wide, lower=0.3, upper=0.9)]


def additions() -> dict[str, list[ModuleCall]]:
    """Return calls by the name of the module, all of which run; the numbers come from torch's generator."""
    found = {f"MaxUnpool{d}d": _unpooled(d) for d in (1, 2, 3)}
    found |= {"EmbeddingBag": _embedded(), "TransformerDecoder": _decoder(), "MultiheadAttention": _attended()}
    found["TransformerEncoderLayer"] = _encoded()
    for group in (_dropouts, _lazy, _upsampled, _losses, _sequences, _shapes, _activations):
        found |= dict(group())
    return found
