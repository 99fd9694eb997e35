"""Sizes that models have, by family of kernels: batches, rows, channels, heads, vocabularies, lengths of sums.

The database's samples have sizes of 5, and a large one grows along one dimension. Limits of a kernel lie elsewhere: a
launch has at most 65,535 blocks in y, a head of 80 numbers is no power of two, and a sum in 16 bits stays where it is
from 2,048 ones on. The values are small whole numbers, so that sums and products are exact in every order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.factors import with_positive_diagonal
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import arrangements
from .comparing import check_call
from .families import Stage, source

#: Numbers from 9700 on are no numbers of other samples with this source.
_NUMBER = 9750
#: One more than a launch has in y and z, and a prime.
_ROWS: Final = 65537
#: Rows beyond 2^19, where a grid of 8 rows in a block passes 65,535 blocks.
_MOST_ROWS: Final = (1 << 19) + 21
#: Terms of a sum: a sum of ones in 16 bits stays at 2,048, or at 256. A prime beyond a tile's multiple.
_TERMS: Final = 4099
#: Factor whose products with a count have no pattern in their middle bits.
_SCATTERS: Final = 40503
#: Words of a vocabulary, and a number of channels that is no power of two.
_WORDS, _CHANNELS = 32003, 80
#: Vocabularies of language models: their rows end behind other multiples of a block.
_VOCABULARIES: Final = (50257, 128256, 151936)
#: Rows or columns beside a single one: more than a group of 64 threads has, and no multiple of a vector.
_UNEVEN: Final = 67
#: Numbers per head.
_HEADS = (64, 80, 96, 128, 160, 256)
#: Numbers per head of keys and of values where they differ: some models compress the values, or add positions to keys.
_UNLIKE_HEADS = ((192, 128), (96, 64), (576, 512))
#: Equal indices.
_EQUAL = 5003
#: A mask that leaves a row no score near 0, and a whole number in every dtype beside other scores.
_LOW = -200.0
#: Widths of rows between two powers of two, where kernels change their tile.
_BETWEEN: Final = (41, 81, 161, 321, 641, 1281)
#: Widths of models: hidden and intermediate sizes of language, vision and speech models. Few are multiples of 1,024.
_WIDTHS: Final = (768, 896, 1152, 1536, 2304, 2816, 3584, 4608, 4864, 5632, 6144, 6912, 7168, 8960, 9216, 9728,
                  11008, 13824, 14336, 18944, 25600, 27648, 28672)  # fmt: skip
#: Truth values that are counted: a mask of a batch of long texts, and a few.
_TRUTHS: Final = (1 << 19) + 21
#: Dtypes that have one kernel each.
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_DTYPES = (*_FLOATS, torch.int64, torch.int32)
#: Dtypes whose sums and counts have another dtype: one that counts in the same bits passes its end.
_NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)
_COUNTING = ("sum", "nansum", "count_nonzero", "cumsum", "cumprod", "prod", "any", "all", "argmax", "argmin")


@dataclass(frozen=True)
class Size:
    """Input, other arguments and keywords of a call of these sizes; ``trained`` says that its backward is taken."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    trained: bool = True


#: What makes the sizes of an operator for a dtype.
Make = Callable[[torch.dtype], Iterator[Size]]
_MAKERS: Final[dict[str, list[Make]]] = {}


def sizes_of(*operators: str) -> Callable[[Make], Make]:
    """Register a maker of sizes of some operators, by their full names in PyTorch's database."""

    def register(make: Make) -> Make:
        for operator in operators:
            _MAKERS.setdefault(operator, []).append(make)
        return make

    return register


def has_sizes(info: Any) -> bool:
    """Return whether an operator has sizes that models have."""
    return info.full_name in _MAKERS


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE, dtypes=(*_DTYPES, *_NARROW))
def model_sizes(cell: Cell) -> Iterator[Call]:
    """Yield calls with the sizes that models have."""
    yield from calls(cell, trained=False)


def calls(cell: Cell, *, trained: bool) -> Iterator[Call]:
    """Yield the calls of an operator in the dtype of a cell, with gradients or without."""
    if not has_sizes(cell.info) or (trained and cell.dtype not in _FLOATS):
        return
    if cell.dtype in _NARROW and cell.info.full_name not in _COUNTING:
        return
    for order, size in enumerate(sizes(cell.info.full_name, cell.dtype)):
        if trained and not size.trained:
            continue
        found = Call(_NUMBER + order, size.input, size.args, dict(size.kwargs), source="sizes of models")
        if facts(cell.info.name).open_signs:
            found = replace(found, process=with_positive_diagonal)
        for tensor in found.tensors if trained else ():
            tensor.requires_grad_(tensor.is_floating_point())
        yield found


def sizes(operator: str, dtype: torch.dtype) -> Iterator[Size]:
    """Yield what the makers of an operator make for a dtype."""
    return itertools.chain.from_iterable(make(dtype) for make in _MAKERS[operator])


# --- values -----------------------------------------------------------------------------------------------------------


def whole(*shape: int, dtype: torch.dtype, most: int = 2) -> torch.Tensor:
    """Return integers from ``-most`` to ``most`` in an order without a period: also first and last rows differ."""
    steps = torch.arange(math.prod(shape))
    return ((steps * _SCATTERS >> 7) % (2 * most + 1) - most).to(dtype).view(shape)


def positive(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return ones and twos: a sum that stays where it is in 16 bits is far from theirs."""
    return (torch.arange(math.prod(shape)) % 5 % 2 + 1).to(dtype).view(shape)


def places(count: int, below: int) -> torch.Tensor:
    """Return indices in an order without a pattern, the last one among them."""
    return below - 1 - torch.arange(count) * 7919 % below


def _named(**kwargs: Any) -> tuple[tuple[str, Any], ...]:
    """Return keywords as a tuple of pairs, which can be hashed."""
    return tuple(kwargs.items())


# --- products of matrices ---------------------------------------------------------------------------------------------


def _products(dtype: torch.dtype) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield shapes of two matrices: many rows, many columns, a long sum, and an odd number of channels."""
    yield (_MOST_ROWS if dtype is torch.float32 else _ROWS, 2), (2, 3)
    yield (3, 2), (2, _ROWS)
    yield (2, _TERMS), (_TERMS, 3)
    yield (129, _CHANNELS), (_CHANNELS, 96)


def _narrow(dtype: torch.dtype, *batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield two matrices, or batches of them, with each choice of one and many rows, terms and columns.

    Such a product has kernels for a vector or for one number in the place of a matrix, in each dtype.
    """
    for rows, terms, columns in itertools.product((_UNEVEN, 1), repeat=3):
        if 1 in (rows, terms, columns):
            yield positive(*batch, rows, terms, dtype=dtype), positive(*batch, terms, columns, dtype=dtype)


def _values(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return values for a factor: of one sign, where the sum is long."""
    return positive(*shape, dtype=dtype) if _TERMS in shape else whole(*shape, dtype=dtype)


@sizes_of("mm", "matmul")
def _mm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with the matrix that each is multiplied by."""
    for left, right in _products(dtype):
        yield Size(_values(left, dtype), (_values(right, dtype),))
    for factor, other in _narrow(dtype):
        yield Size(factor, (other,), trained=False)


@sizes_of("addmm")
def _addmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a row with the two matrices whose product it is added to."""
    for left, right in _products(dtype):
        yield Size(whole(right[1], dtype=dtype), (_values(left, dtype), _values(right, dtype)))
    for factor, other in _narrow(dtype):
        yield Size(whole(other.shape[1], dtype=dtype), (factor, other), trained=False)


@sizes_of("nn.functional.linear")
def _linear(dtype: torch.dtype) -> Iterator[Size]:
    """Yield inputs of linear layers with weight and bias: many rows, long sums, a vocabulary, batches of one row."""
    for left, right in _products(dtype):
        bias = whole(right[1], dtype=dtype)
        yield Size(_values(left, dtype), (_values(right[::-1], dtype), bias))
    yield Size(whole(2, 3, 8, dtype=dtype), (whole(_WORDS, 8, dtype=dtype), whole(_WORDS, dtype=dtype)))
    yield Size(whole(_ROWS, 1, 2, dtype=dtype), (whole(3, 2, dtype=dtype), whole(3, dtype=dtype)))
    for factor, other in _narrow(dtype):
        yield Size(factor, (other.t().contiguous(),), trained=False)


def _batches() -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Yield shapes of two batches of matrices: many batches, a long sum, odd heads, and many rows."""
    yield (_ROWS, 1, 2), (_ROWS, 2, 1)
    yield (2, 1, _TERMS), (2, _TERMS, 3)
    yield (5, 77, _CHANNELS), (5, _CHANNELS, 77)
    yield (2, _ROWS, 2), (2, 2, 1)


@sizes_of("bmm")
def _bmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches of matrices with the batch that each is multiplied by."""
    for left, right in _batches():
        yield Size(_values(left, dtype), (_values(right, dtype),))
    for factor, other in _narrow(dtype, 3):
        yield Size(factor, (other,), trained=False)
        # Heads lie beside each other in the memory of a token.
        permuted = _permuted(factor), _permuted(other)
        for first, second in ((permuted[0], other), (factor, permuted[1]), permuted):
            yield Size(first, (second,), trained=False)


def _permuted(batch: torch.Tensor) -> torch.Tensor:
    """Return the same matrices with the rows of all of them side by side in memory."""
    return batch.transpose(0, 1).contiguous().transpose(0, 1)


@sizes_of("baddbmm")
def _baddbmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches with the two batches of matrices whose product they are added to."""
    for left, right in _batches():
        added = whole(left[0], left[1], right[2], dtype=dtype)
        yield Size(added, (_values(left, dtype), _values(right, dtype)))
    for factor, other in _narrow(dtype, 3):
        added = whole(3, factor.shape[1], other.shape[2], dtype=dtype)
        yield Size(added, (factor, other), trained=False)


@sizes_of("addbmm")
def _addbmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a matrix with two batches of matrices whose products are added to it: many columns, rows or batches."""
    for left, right in (((3, 2, 4), (3, 4, _ROWS)), ((3, _ROWS, 4), (3, 4, 2)), ((_ROWS, 2, 1), (_ROWS, 1, 3))):
        factors = whole(*left, dtype=dtype), whole(*right, dtype=dtype)
        yield Size(whole(left[1], right[2], dtype=dtype), factors, trained=False)


@sizes_of("mv")
def _mv(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a matrix of many rows and one of long sums, each with a vector."""
    yield Size(whole(_ROWS, 3, dtype=dtype), (whole(3, dtype=dtype),))
    yield Size(positive(3, _TERMS, dtype=dtype), (positive(_TERMS, dtype=dtype),))


@sizes_of("dot", "vdot", "inner")
def _dot(dtype: torch.dtype) -> Iterator[Size]:
    """Yield two vectors of 4,099 elements: their product is a long sum."""
    yield Size(positive(_TERMS, dtype=dtype), (positive(_TERMS, dtype=dtype),))


# --- convolutions -----------------------------------------------------------------------------------------------------


def _convolutions(dims: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield shapes of images and weights, with groups."""
    ones, planes = (1,) * dims, {1: (_ROWS,), 2: (223, 181), 3: (17, 33, 33)}[dims]
    yield (8 if dims == 2 else 2, 3, *planes), (4, 3, *ones), 1
    yield (1, 2, *planes), (3, 2, *(3,) * dims), 1
    yield (_ROWS, 1, *ones), (2, 1, *ones), 1
    yield (2, _CHANNELS, *(7,) * dims), (_CHANNELS, 1, *(3,) * dims), _CHANNELS
    yield (1, _TERMS, *ones), (2, _TERMS, *ones), 1


#: Kernels, strides and paddings of models: of patches, of halving and doubling, of first layers.
_KERNELS = ((2, 2, 0), (1, 2, 0), (3, 2, 1), (4, 2, 1), (4, 4, 0), (5, 1, 2), (7, 2, 3))
#: Dimensions of an image, and the longest side of a kernel over single channels of a volume that it sees as a whole.
_PLANE, _MOST_SIDE = 2, 4


def _kernels(dims: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor, tuple[tuple[str, Any], ...]]]:
    """Yield images, weights and keywords for each kernel of models, over all channels and over each one alone."""
    # Channels alone are more than one vector of a processor, and no power of two.
    for (side, stride, padding), (channels, groups) in itertools.product(_KERNELS, ((4, 1), (24, 24))):
        # A kernel of 3 with a stride of 2 ends within the rows, and beyond the columns.
        image = whole(2, channels, *range(10, 10 + dims), dtype=dtype, most=1)
        weight = whole(channels, channels // groups, *(side,) * dims, dtype=dtype, most=1)
        yield image, weight, _named(groups=groups, stride=stride, padding=padding)


#: Channels that are taken, groups, and channels that are made: two of each one, and groups of several.
_GROUPED = ((3, 3, 6), (4, 2, 6))
#: Strides, dilations and paddings: a stride, a dilation, and both.
_STEPS = ((2, 1, 1), (1, 2, 0), (3, 2, 2))


def _single_windows(dims: int, dtype: torch.dtype) -> Iterator[Size]:
    """Yield the largest images of which a kernel of models makes one place, over all channels and over each one alone.

    Those of separate channels lie as one token does that was transposed: the stride of its single place is no 1.
    """
    for (side, stride, padding), (channels, groups) in itertools.product(_KERNELS, ((4, 1), (24, 24))):
        if dims > _PLANE and groups > 1 and side > _MOST_SIDE:
            continue  # PyTorch's CPU has another gradient of such a weight in bfloat16
        sides = (side + stride - 1 - 2 * padding,) * dims
        shape = (2, channels, *sides) if groups == 1 else (2, *sides, channels)
        image = whole(*shape, dtype=dtype, most=1).movedim(1 if groups == 1 else -1, 1)
        weight = whole(channels, channels // groups, *(side,) * dims, dtype=dtype, most=1)
        yield Size(image, (weight,), _named(groups=groups, stride=stride, padding=padding))


#: Channels that a stage of a model takes and makes, and the side of its image; a kernel of three by three keeps it.
_STAGES = ((3, 64, 32), (16, 32, 64), (64, 64, 28), (128, 256, 14))


def _stages(dtype: torch.dtype) -> Iterator[Size]:
    """Yield one image for each stage."""
    for taken, made, side in _STAGES:
        weight = whole(made, taken, 3, 3, dtype=dtype)
        yield Size(whole(1, taken, side, side, dtype=dtype), (weight,), _named(padding=1))


def _grouped(dims: int, dtype: torch.dtype, *, transposed: bool = False) -> Iterator[Size]:
    """Yield images with weights for groups that make more channels than they take, with a stride or a dilation."""
    # The database's transposed convolutions make two channels of each one.
    grouped = _GROUPED[1:] if transposed else _GROUPED
    for (taken, groups, made), (stride, dilation, padding) in itertools.product(grouped, _STEPS):
        channels = (taken, made // groups) if transposed else (made, taken // groups)
        image = whole(2, taken, *range(7, 7 + dims), dtype=dtype)
        weight = whole(*channels, *(3, 2, 3)[:dims], dtype=dtype)
        yield Size(image, (weight,), _named(groups=groups, stride=stride, dilation=dilation, padding=padding))


def _formats(dims: int, dtype: torch.dtype, *, transposed: bool = False) -> Iterator[Size]:
    """Yield images of one place and of several, of which the weight, the image or both have their channels last."""
    channels = (4, 6) if transposed else (6, 4)
    for side, last in itertools.product((1, 5), ((False, True), (True, False), (True, True))):
        given = whole(2, 4, *(side,) * dims, dtype=dtype), whole(*channels, *(3,) * dims, dtype=dtype)
        image, weight = (
            arrangements.transposed(each) if turn else each for each, turn in zip(given, last, strict=True)
        )
        yield Size(image, (weight,), _named(padding=1))


def _convolution(dims: int) -> Make:
    """Return a maker of sizes of convolutions with ``dims`` dimensions: images, patches, planes and long kernels."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        if not dtype.is_floating_point:
            return
        for image, weight, groups in _convolutions(dims):
            bias = whole(weight[0], dtype=dtype)
            given = (_values(weight, dtype), bias)
            yield Size(_values(image, dtype), given, _named(groups=groups))
        if dims == _PLANE:  # patches of an image with one channel
            patches = whole(768, 1, 16, 16, dtype=dtype, most=1)
            yield Size(whole(1, 1, 26, 26, dtype=dtype, most=1), (patches,), _named(stride=10))
            yield from _stages(dtype)
        for planes, kernel, given_by_name in _kernels(dims, dtype):
            yield Size(planes, (kernel,), given_by_name)
        yield from _single_windows(dims, dtype)
        if dtype is torch.float32:  # kernels as long as a signal, over several images; oneDNN takes a second in 16 bits
            long, sides = whole(4, 2, 257, *(1,) * (dims - 1), dtype=dtype, most=1), (3,) * (dims - 1)
            yield Size(whole(2, 4, 263, *sides, dtype=dtype, most=1), (long,), _named(groups=2))
        yield from _grouped(dims, dtype)
        yield from _formats(dims, dtype)

    return make


def _transposed(dims: int) -> Make:
    """Return a maker of sizes of transposed convolutions with ``dims`` dimensions."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        if not dtype.is_floating_point:
            return
        for image, weight, groups in _convolutions(dims):
            # Their weights have the channels of the input first.
            turned = (weight[1] * groups, weight[0] // groups, *weight[2:])
            bias = whole(weight[0], dtype=dtype)
            yield Size(_values(image, dtype), (_values(turned, dtype), bias), _named(groups=groups))
        for planes, kernel, given_by_name in _kernels(dims, dtype):
            yield Size(planes, (kernel,), given_by_name)
        yield from _grouped(dims, dtype, transposed=True)
        yield from _formats(dims, dtype, transposed=True)

    return make


for _dims in (1, 2, 3):
    sizes_of(f"nn.functional.conv{_dims}d")(_convolution(_dims))
    sizes_of(f"nn.functional.conv_transpose{_dims}d")(_transposed(_dims))


# --- rows: norms, softmax, losses -------------------------------------------------------------------------------------


def _rows(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield matrices: many rows, a vocabulary, an odd number of channels, and the widths of models."""
    yield whole(_MOST_ROWS if dtype is torch.float32 else _ROWS, 3, dtype=dtype)
    yield whole(2, _WORDS, dtype=dtype)
    yield whole(129, _CHANNELS, dtype=dtype)
    for width in (*_BETWEEN, *_WIDTHS):
        yield whole(3, width, dtype=dtype)


def _scores(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield one token's scores of each word, for the vocabularies of models."""
    for words in _VOCABULARIES:
        yield whole(1, words, dtype=dtype)


@sizes_of("softmax", "log_softmax", "logsumexp")
def _softmax(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows to normalise along the last dimension, and images along their channels."""
    if dtype.is_floating_point:
        for rows in (*_rows(dtype), *_scores(dtype)):
            yield Size(rows, (-1,))
        yield Size(whole(2, _CHANNELS, 33, 3, dtype=dtype), (1,))


@sizes_of("nn.functional.layer_norm", "nn.functional.rms_norm")
def _row_norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows to normalise, with their shape and a weight; those of one input have two dimensions."""
    for rows in _rows(dtype):
        yield Size(rows, ((rows.shape[-1],), positive(rows.shape[-1], dtype=dtype)))
    yield Size(whole(_ROWS, 2, 3, dtype=dtype), ((2, 3), positive(2, 3, dtype=dtype)))


@sizes_of("nn.functional.group_norm")
def _group_norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images to normalise in groups of channels, with a weight: many small ones, and large ones."""
    yield Size(whole(_ROWS, 2, 3, dtype=dtype), (2,), _named(weight=positive(2, dtype=dtype)))
    yield Size(whole(2, 96, 33, 5, dtype=dtype), (8,), _named(weight=positive(96, dtype=dtype)))


@sizes_of("nn.functional.batch_norm")
def _batch_norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches to normalise in training: many rows, many channels, large images, and rows without statistics."""
    for shape in ((_ROWS, 3), (2, _ROWS), (2, _CHANNELS, 33, 5)):
        none = torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype)
        yield Size(whole(*shape, dtype=dtype), none, _named(training=True), trained=False)
    # Rows of features without pixels, as a recommender has them.
    yield Size(whole(1031, 5, dtype=dtype), (None, None), _named(weight=positive(5, dtype=dtype), training=True))


def _batch_norm_alone(*behind: Any, statistics: bool = True) -> Make:
    """Return a maker of one batch for operators that compute a batch norm alone, with what comes behind its tensors."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        ones, zeros = (each(_CHANNELS, dtype=dtype) for each in (torch.ones, torch.zeros))
        weights = positive(_CHANNELS, dtype=dtype), whole(_CHANNELS, dtype=dtype)
        given = (*weights, zeros, ones) if statistics else (None, None)
        yield Size(whole(2, _CHANNELS, 33, 5, dtype=dtype), (*given, *behind), trained=False)

    return make


sizes_of("native_batch_norm", "_native_batch_norm_legit")(_batch_norm_alone(True, 0.1, 1e-5))
sizes_of("_native_batch_norm_legit")(_batch_norm_alone(True, 0.1, 1e-5, statistics=False))
sizes_of("_batch_norm_with_update")(_batch_norm_alone(0.1, 1e-5))


@sizes_of("nn.functional.cross_entropy")
def _cross_entropy(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows of scores, with the index of the right class for each row."""
    for rows in (*_rows(dtype), *_scores(dtype)):
        yield Size(rows, (places(rows.shape[0], rows.shape[1]),), _named(reduction="none"))


# --- attention --------------------------------------------------------------------------------------------------------


@sizes_of("nn.functional.scaled_dot_product_attention")
def _attention(dtype: torch.dtype) -> Iterator[Size]:
    """Yield queries, keys and values by head width, masks, shared heads, a decoder's one row, and many batches."""

    def given(*shape: int) -> torch.Tensor:
        return whole(*shape, dtype=dtype) / 4

    for head, rows in zip(_HEADS, itertools.cycle((33, 5)), strict=False):
        # As models make them: heads lie beside each other in a row, and batches are several.
        query, key, value = (given(2, count, 2, head).transpose(1, 2) for count in (rows, 33, 33))
        yield Size(query, (key, value), _named(is_causal=True))
    for wide, narrow in _UNLIKE_HEADS:
        query, key, value = (given(1, 2, rows, width) for rows, width in ((5, wide), (33, wide), (33, narrow)))
        yield Size(query, (key, value), _named(scale=1 / wide))
    yield Size(given(1, 1, 5, 64), (given(1, 1, 1025, 64), given(1, 1, 1025, 64)))
    for heads, rows in ((4, 1), (8, 33)):  # several heads of queries for one of keys, with one row as in a decoder
        keys = given(1, heads // 2, 1031, 8)
        yield Size(given(1, heads, rows, 8), (keys, keys.flip(2)), _named(enable_gqa=True))
    yield from _masked_groups(dtype)
    yield Size(given(_ROWS, 1, 1, 8), (given(_ROWS, 1, 2, 8), given(_ROWS, 1, 2, 8)), trained=False)
    yield from _masked_attention(dtype)
    for batches, heads, rows in ((2, 1, 7), (1, 3, 7), (2, 1, 1), (2, 3, 1)):
        # A mask that repeats along an axis is another one along the others.
        bias = whole(batches, heads, rows, 9, dtype=dtype)
        yield Size(given(2, 3, 7, 8), (given(2, 3, 9, 8), given(2, 3, 9, 8)), _named(attn_mask=bias))
    seen = torch.ones(77, 77, dtype=torch.bool).tril()
    yield Size(given(1, 3, 77, 80), (given(1, 3, 77, 80), given(1, 3, 77, 80)), _named(attn_mask=seen))


def _masked_groups(dtype: torch.dtype) -> Iterator[Size]:
    """Yield attention of grouped heads with masks: one for each head of queries, and one for all; numbers and truth."""
    query, key = (whole(2, heads, rows, 8, dtype=dtype) / 4 for heads, rows in ((6, 5), (2, 9)))
    for batches, heads in ((2, 6), (1, 6), (2, 1)):
        bias = whole(batches, heads, 5, 9, dtype=dtype)
        yield Size(query, (key, key.flip(2)), _named(attn_mask=bias, enable_gqa=True))
        yield Size(query, (key, key.flip(2)), _named(attn_mask=bias > -2, enable_gqa=True))
    yield Size(query, (key, key.flip(2)), _named(is_causal=True, enable_gqa=True, scale=0.5))


def _masked_attention(dtype: torch.dtype) -> Iterator[Size]:
    """Yield attention with masks: over one head of keys that is expanded, and with rows whose scores are all low.

    The numbers of keys are one more than multiples of a tile, and half of one. The scores are whole numbers.
    """
    for keys in (33, 65, 97):
        heads = [whole(1, 1, keys, 8, dtype=dtype, most=1).expand(1, 4, keys, 8) for _ in "kv"]
        seen = whole(1, 1, 3, keys, dtype=torch.float32) > -1
        yield Size(whole(1, 4, 3, 8, dtype=dtype, most=1), tuple(heads), _named(attn_mask=seen, scale=1.0))
    for rows in (64, 192):
        # The sum of such a row is no number of 16 bits, and its logarithm is.
        low = torch.zeros(rows, rows, dtype=dtype)
        low[1::3] = _LOW
        given = [whole(1, 2, rows, 8, dtype=dtype, most=1) for _ in "qkv"]
        yield Size(given[0], tuple(given[1:]), _named(attn_mask=low, scale=1.0))


# --- Fourier transforms -----------------------------------------------------------------------------------------------

#: Lengths of a transform: those of audio, and a prime.
_LENGTHS: Final = (512, 8192, 1021)


@sizes_of("fft.fft", "fft.ifft", "fft.rfft", "fft.ihfft")
def _transforms(dtype: torch.dtype) -> Iterator[Size]:
    """Yield vectors to transform, of lengths that are no powers of two; none but in float32."""
    for length in _LENGTHS if dtype is torch.float32 else ():
        yield Size(whole(2, length, dtype=dtype), (), _named(n=length), trained=False)


@sizes_of("fft.irfft", "fft.hfft")
def _to_real(dtype: torch.dtype) -> Iterator[Size]:
    """Yield spectra whose frequency zero has an imaginary part, which these transforms ignore."""
    for length in _LENGTHS if dtype is torch.float32 else ():
        parts = whole(2, length // 2 + 1, dtype=dtype), whole(2, length // 2 + 1, dtype=dtype).flip(1)
        yield Size(torch.complex(*parts), (), _named(n=length), trained=False)


# --- many small matrices ----------------------------------------------------------------------------------------------


def _matrices(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield a batch of positive definite matrices, longer than a launch has blocks in y and z."""
    if dtype is torch.float32:
        yield torch.tensor([[3.0, 1.0], [1.0, 2.0]]) + torch.eye(2) * whole(_ROWS, 1, 1, dtype=dtype, most=1)


@sizes_of("cholesky", "cholesky_inverse", "linalg.cholesky", "linalg.cholesky_ex", "linalg.det",
          "linalg.eigvalsh", "linalg.inv", "linalg.inv_ex", "linalg.slogdet", "linalg.svdvals")  # fmt: skip
def _factors(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches of matrices to factorise or to invert."""
    for matrices in _matrices(dtype):
        yield Size(matrices, trained=False)


@sizes_of("linalg.solve", "linalg.solve_ex")
def _solutions(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches of matrices with the right-hand sides of their equations."""
    for matrices in _matrices(dtype):
        yield Size(matrices, (whole(_ROWS, 2, 1, dtype=dtype),), trained=False)


@sizes_of("cholesky_solve", "triangular_solve")
def _solutions_behind(dtype: torch.dtype) -> Iterator[Size]:
    """Yield right-hand sides of equations with their batch of matrices, which these operators take second."""
    for matrices in _matrices(dtype):
        yield Size(whole(_ROWS, 2, 1, dtype=dtype), (matrices,), trained=False)


# --- matrices around the blocks of factorisations ---------------------------------------------------------------------

#: Sides of matrices just beyond the blocks in which libraries factorise: one more than 32, 64 and 256.
_BEYOND_BLOCKS: Final = (33, 65, 257)
#: Columns of right-hand sides, and those by which a matrix is longer than wide.
_FEW: Final = 3


def _well_conditioned(side: int, dtype: torch.dtype) -> torch.Tensor:
    """Return two symmetric positive definite matrices, whose diagonals are larger than the rest of their rows.

    Their determinants are numbers of float32. The diagonal has all numbers from 1/2 to 3/2, and the second matrix has
    other numbers beside it than the first.
    """
    around = whole(2, side, side, dtype=dtype) / (8 * side)
    return torch.diag(torch.linspace(0.5, 1.5, side, dtype=dtype)) + (around + around.mT) / 2


def _in_blocks(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield pairs of such matrices for each block."""
    for side in _BEYOND_BLOCKS if dtype is torch.float32 else ():
        yield _well_conditioned(side, dtype)


@sizes_of("cholesky", "cholesky_inverse", "linalg.cholesky", "linalg.cholesky_ex", "linalg.det", "linalg.eigvalsh",
          "linalg.inv", "linalg.inv_ex", "linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.pinv", "linalg.slogdet",
          "linalg.svdvals", "logdet", "matrix_exp")  # fmt: skip
def _symmetric_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices; the first one of a batch may be right alone."""
    for matrices in _in_blocks(dtype):
        yield Size(matrices, trained=False)


@sizes_of("linalg.lu", "linalg.lu_factor", "linalg.lu_factor_ex", "lu")
def _exchanged_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices whose rows a factorisation exchanges, square ones and ones with more rows or columns."""
    for matrices in _in_blocks(dtype):
        for given in (matrices.roll(1, -2), matrices[..., :-_FEW], matrices[:, :-_FEW].roll(1, -2)):
            yield Size(given, trained=False)


@sizes_of("linalg.qr", "qr", "geqrf")
def _long_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices, and of ones with more rows than columns."""
    for matrices in _in_blocks(dtype):
        yield Size(matrices, trained=False)
        yield Size(matrices[..., :-_FEW], trained=False)


@sizes_of("linalg.solve", "linalg.solve_ex")
def _solved_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices whose rows a solution exchanges, with right-hand sides."""
    for matrices in _in_blocks(dtype):
        yield Size(matrices.roll(1, -2), (whole(2, matrices.shape[-1], _FEW, dtype=dtype),), trained=False)


@sizes_of("cholesky_solve", "triangular_solve")
def _solved_behind_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield right-hand sides with pairs of triangular matrices."""
    for matrices in _in_blocks(dtype):
        yield Size(whole(2, matrices.shape[-1], _FEW, dtype=dtype), (matrices.triu(), True), trained=False)


@sizes_of("linalg.solve_triangular")
def _solved_triangles(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of triangular matrices with right-hand sides."""
    for matrices in _in_blocks(dtype):
        right = whole(2, matrices.shape[-1], _FEW, dtype=dtype)
        for upper, given in ((True, matrices.triu()), (False, matrices.tril())):
            yield Size(given, (right,), _named(upper=upper), trained=False)


def _solved_by_factors(*, first: bool) -> Make:
    """Return a maker of pairs of factors, of which neighbours are exchanged, with right-hand sides before or behind."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for factors in _in_blocks(dtype):
            side = factors.shape[-1]
            pivots = (torch.arange(side, dtype=torch.int32) + 2).clamp(max=side).repeat(2, 1)
            right = whole(2, side, _FEW, dtype=dtype)
            given, *rest = (right, factors, pivots) if first else (factors, pivots, right)
            yield Size(given, tuple(rest), trained=False)

    return make


sizes_of("lu_solve")(_solved_by_factors(first=True))
sizes_of("linalg.lu_solve")(_solved_by_factors(first=False))


@sizes_of("linalg.householder_product")
def _reflected_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices of reflections with their factors: as many as columns, and fewer."""
    for side in _BEYOND_BLOCKS if dtype is torch.float32 else ():
        vectors = whole(2, side + _FEW, side, dtype=dtype) / side
        factors = positive(2, side, dtype=dtype) / 4
        yield Size(vectors, (factors,), trained=False)
        yield Size(vectors, (factors[..., : side // 2],), trained=False)


@sizes_of("ormqr")
def _multiplied_by_reflections(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices of reflections with their factors and what they multiply."""
    for side in _BEYOND_BLOCKS if dtype is torch.float32 else ():
        vectors, factors = whole(2, side, side, dtype=dtype) / side, positive(2, side, dtype=dtype) / 4
        yield Size(vectors, (factors, whole(2, side, _FEW, dtype=dtype)), trained=False)


# --- reductions and scans ---------------------------------------------------------------------------------------------


def _lines(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield tensors of one sign, and the dimension along which they are added up."""
    yield positive(_TERMS, dtype=dtype), 0
    yield positive(3, _TERMS, dtype=dtype), 1
    yield positive(_TERMS, 3, dtype=dtype), 0
    yield positive(_MOST_ROWS if dtype is torch.float32 else _ROWS, 3, dtype=dtype), 1
    yield positive(2, 3, _ROWS, dtype=dtype), 1
    for width in _BETWEEN:
        yield positive(3, width, dtype=dtype), 1


@sizes_of("argmax", "argmin")
def _chosen(dtype: torch.dtype) -> Iterator[Size]:
    """Yield long lines and many lines, each with the dimension along which an element is chosen."""
    for given, dim in _lines(dtype):
        yield Size(given, (dim,))


@sizes_of("sum", "nansum", "mean", "amax", "amin", "any", "all", "count_nonzero", "cumsum", "cummax", "cummin",
          "logcumsumexp")  # fmt: skip
def _reduced(dtype: torch.dtype) -> Iterator[Size]:
    """Yield long lines and many lines, each with the dimension to reduce; in int64 also a line of truth values."""
    yield from _chosen(dtype)
    if dtype is torch.int64:  # truth values are counted in this dtype, also by operators without a cell of them
        for count in (_TERMS, _TRUTHS):
            yield Size(torch.ones(count, dtype=torch.bool), (0,))


@sizes_of("linalg.vector_norm")
def _norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield long lines and many lines, each with order 1 of a norm and its dimension."""
    for given, dim in _lines(dtype):
        yield Size(given, (1, dim))


@sizes_of("cumprod", "prod")
def _multiplied(dtype: torch.dtype) -> Iterator[Size]:
    """Yield long lines and many lines of 1 and -1, whose products do not grow, with the dimension to multiply."""
    for given, dim in _lines(dtype):
        yield Size(3 - 2 * given, (dim,))


@sizes_of("cdist")
def _distances(dtype: torch.dtype) -> Iterator[Size]:
    """Yield more points than are compared pair by pair for each order of a norm, the largest difference among them."""
    # Differences of the coordinates of two points are all unlike: of equal ones, the gradient of the largest is open.
    near = torch.tensor([0, 100, 300]) + torch.arange(31).view(-1, 1)
    far = torch.tensor([40, 170, 1000]) + torch.arange(29).view(-1, 1)
    for order in (1.0, 2.0, 3.0, math.inf, 0.5, 1.5):  # kernels have formulas for ranges of them
        yield Size(near.to(dtype), (far.to(dtype), order))


# --- places: embeddings, gathers, writes ------------------------------------------------------------------------------


@sizes_of("nn.functional.embedding")
def _embedding(dtype: torch.dtype) -> Iterator[Size]:
    """Yield tables with indices of rows: a vocabulary, many indices, wide rows, and equal indices with padding."""
    # The database's function takes the weight first.
    yield Size(whole(_WORDS, 4, dtype=dtype), (places(77, _WORDS),))
    yield Size(whole(5, 3, dtype=dtype), (places(_ROWS, 5),), trained=dtype is torch.float32)
    for width in (_TERMS, *_WIDTHS):
        yield Size(whole(3, width, dtype=dtype), (places(5, 3),))
    # The gradient of one word is left out, or is less for words that are frequent.
    yield Size(whole(7, 2, dtype=dtype), (places(_EQUAL, 7),), _named(padding_idx=3, scale_grad_by_freq=True))
    yield Size(whole(7, 2, dtype=dtype), (places(_EQUAL, 7),), _named(padding_idx=-2))


@sizes_of("index_select")
def _index_select(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with a dimension and indices along it: of many rows, and of many columns."""
    yield Size(whole(_ROWS, 3, dtype=dtype), (0, places(_ROWS, _ROWS)))
    yield Size(whole(3, _ROWS, dtype=dtype), (1, places(77, _ROWS)))


@sizes_of("gather")
def _gather(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with a dimension and an index for each element: of many rows, and of many columns."""
    for dim, rows in ((0, whole(_ROWS, 3, dtype=dtype)), (1, whole(3, _ROWS, dtype=dtype))):
        yield Size(rows, (dim, places(rows.numel(), _ROWS).view(rows.shape)), trained=False)


@sizes_of("index_add")
def _index_add(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with rows to add to them: all to one place, and to many places."""
    if dtype.itemsize > 2:  # in 16 bits, PyTorch's CPU adds up in 16 bits
        yield Size(whole(3, 2, dtype=dtype), (0, places(_EQUAL, 1) + 1, positive(_EQUAL, 2, dtype=dtype)))
    yield Size(whole(_ROWS, 2, dtype=dtype), (0, places(_ROWS, _ROWS), whole(_ROWS, 2, dtype=dtype)))


@sizes_of("scatter_add")
def _scatter_add(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with elements to add to them and the place of each: all in one row, and in many rows."""
    if dtype.itemsize > 2:
        index = (places(_EQUAL, 1) + 1).view(-1, 1).expand(-1, 2).contiguous()
        yield Size(whole(3, 2, dtype=dtype), (0, index, positive(_EQUAL, 2, dtype=dtype)))
    index = places(_ROWS, _ROWS).view(-1, 1).expand(-1, 2).contiguous()
    yield Size(whole(_ROWS, 2, dtype=dtype), (0, index, whole(_ROWS, 2, dtype=dtype)))


@sizes_of("index_put")
def _index_put(dtype: torch.dtype) -> Iterator[Size]:
    """Yield tensors with values to write: added up at one place, and each at its own of many places."""
    if dtype.itemsize > 2:
        yield Size(whole(3, dtype=dtype), ((places(_EQUAL, 1) + 1,), positive(_EQUAL, dtype=dtype), True))
    yield Size(whole(_ROWS, 2, dtype=dtype), ((places(_ROWS, _ROWS),), whole(_ROWS, 2, dtype=dtype)))
    # One row of values for all places of a cache.
    for adds_up in (False, True):
        values = whole(3, dtype=dtype)
        yield Size(whole(5, 4, 3, dtype=dtype), ((torch.tensor([[0, 2], [1, 3]]),), values, adds_up))


@sizes_of("bincount")
def _counted(dtype: torch.dtype) -> Iterator[Size]:
    """Yield numbers to count: each one of many, and few numbers that are beyond many others."""
    yield Size(places(_ROWS, _ROWS).to(dtype), trained=False)
    yield Size((places(7, 7) + _ROWS).to(dtype), trained=False)


@sizes_of("__getitem__")
def _picked(dtype: torch.dtype) -> Iterator[Size]:
    """Yield tensors of three dimensions with indices of rows of the second one: few, and many."""
    # Rows that are picked from each of many images: the gradient writes them at their places.
    yield Size(whole(300, 3, 2, dtype=dtype), ((slice(None), torch.tensor([2, 0, 1])),))
    yield Size(whole(3, 300, 2, dtype=dtype), ((slice(None), places(299, 300)),))


@sizes_of("nn.functional.silu", "nn.functional.gelu", "sigmoid", "tanh", "exp")
def _activated(dtype: torch.dtype) -> Iterator[Size]:
    """Yield two rows in each of the widths of models."""
    for width in _WIDTHS if dtype.is_floating_point else ():
        yield Size(whole(2, width, dtype=dtype))


@sizes_of("flip")
def _flipped(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a row, a column and many rows, each with either dimension to flip along."""
    for shape, dim in itertools.product(((1, 7), (7, 1), (_ROWS, 2)), (0, 1)):
        yield Size(whole(*shape, dtype=dtype), ((dim,),))


#: Equations of attention, of positions of an image, of routed tokens, of angles, and of three factors, with shapes.
_EQUATIONS: Final = (
    ("bqhd,bkhd->bhqk", ((2, 9, 3, 8), (2, 7, 3, 8))),
    ("bhqk,bkhd->bqhd", ((2, 3, 9, 7), (2, 7, 3, 8))),
    ("bhwc,hkc->bhwk", ((2, 4, 5, 6), (4, 7, 6))),
    ("bhwc,wkc->bhwk", ((2, 4, 5, 6), (5, 7, 6))),
    ("sec,sm->ecm", ((8, 3, 4), (8, 6))),
    ("sec,ecm->sm", ((8, 3, 4), (3, 4, 6))),
    ("blhp,bhpn,bln->blh", ((2, 5, 3, 4), (2, 3, 4, 6), (2, 5, 6))),
    ("...ij,...kj->...ik", ((2, 3, 4, 6), (3, 5, 6))),
    ("i,j->ij", ((9,), (5,))),
    ("ij,kj,kl->il", ((4, 5), (3, 5), (3, 6))),
    ("iij->ji", ((4, 4, 6),)),
    ("abc->cab", ((2, 3, 5),)),
    ("ab,ab->", ((7, 9), (7, 9))),
)


@sizes_of("einsum")
def _einsum(dtype: torch.dtype) -> Iterator[Size]:
    """Yield equations that models have: their products read permuted factors, and broadcast some."""
    for equation, shapes in _EQUATIONS:
        yield Size([whole(*shape, dtype=dtype) for shape in shapes], (equation,))


#: Integers that float32 does not hold, beside each other.
_NEIGHBOURS: Final = {torch.int64: 1 << 40, torch.int32: 1 << 25}


def _range(last: int) -> Make:
    """Return a maker of the ends of a range of integers that float32 does not hold; ``last`` is the last argument."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        if dtype in _NEIGHBOURS:
            first = _NEIGHBOURS[dtype]
            yield Size(first, (first + 8, last), _named(dtype=dtype, device="cpu"), trained=False)

    return make


sizes_of("linspace")(_range(9))  # places
sizes_of("arange")(_range(1))  # a step


@sizes_of("roll")
def _rolled(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a row, a column, many rows and vectors, each with a shift forward and back."""
    for shape, dim in itertools.product(((1, 7), (7, 1), (_ROWS, 2)), (0, 1)):
        yield Size(whole(*shape, dtype=dtype), (3, dim))
        yield Size(whole(*shape, dtype=dtype), (-1, dim))
    for length, shift in itertools.product((8, 1024, 1000), (-1, 3, -5)):
        yield Size(whole(length, dtype=dtype), (shift,))


# --- images -----------------------------------------------------------------------------------------------------------


#: Channels that stand last, more than a group of threads has: not a multiple of a vector, and many.
_WIDE: Final = (264, 515)


def _wide_images(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield images with many channels, which stand last."""
    for channels in _WIDE:
        yield whole(2, channels, 5, 6, dtype=dtype).to(memory_format=torch.channels_last)


#: Windows of models: of one element, as the last level of a feature pyramid has it, of halving, of first layers.
_WINDOWS = ((1, 2, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2))


@sizes_of("nn.functional.max_pool2d", "nn.functional.avg_pool2d")
def _pool(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images to pool: large sides, large batches, many channels, and windows with strides and paddings."""
    for shape, last in (((2, 3, 257, 129), True), ((_ROWS, 1, 2, 2), False), ((1, _CHANNELS, 33, 5), True)):
        image = whole(*shape, dtype=dtype)
        yield Size(image.to(memory_format=torch.channels_last) if last else image, (2,))
    for (side, stride, padding), ceil in itertools.product(_WINDOWS, (False, True)):
        yield Size(whole(2, 24, 9, 10, dtype=dtype), (side, stride, padding), _named(ceil_mode=ceil))
    for image, (side, stride, padding) in itertools.product(_wide_images(dtype), ((2, 2, 0), (3, 2, 1))):
        yield Size(image, (side, stride, padding))


@sizes_of("nn.functional.adaptive_avg_pool2d")
def _adaptive(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images that are averaged to one pixel: large ones, whose sum is long, many, and many channels."""
    yield Size(positive(1, 3, 129, 257, dtype=dtype), (1,))
    for shape in ((_ROWS, 1, 2, 2), (1, _CHANNELS, 33, 5)):
        yield Size(whole(*shape, dtype=dtype), (1,))
    for image in _wide_images(dtype):
        yield Size(image, (2,))


def _interpolation(mode: str) -> Make:
    """Return a maker of images to resize in this mode, to nearly twice the size."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for shape in ((1, 3, 33, 65), (_ROWS, 1, 1, 2)):
            size, corners = tuple(2 * side - 1 for side in shape[2:]), None if mode == "nearest" else False
            yield Size(whole(*shape, dtype=dtype), (size, None, mode, corners))
        for image in _wide_images(dtype):
            yield Size(image, ((9, 11), None, mode, None if mode == "nearest" else False))

    return make


for _mode in ("nearest", "bilinear"):
    sizes_of(f"nn.functional.interpolate.{_mode}")(_interpolation(_mode))


#: Sides of images and of what they become: twice and half, nearly so, and between. The numbers are those of models and
#: primes. Where places are rounded, as for the nearest element, neighbours of such sides are open.
_SCALED = ((7, 14), (14, 37), (16, 24), (31, 61), (33, 65), (50, 151), (64, 63), (80, 33), (100, 150), (151, 300),
           (257, 64))  # fmt: skip


def _scaling(mode: str, dims: int) -> Make:
    """Return a maker of images with one long axis to resize in this mode, from and to lengths in ``_SCALED``."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for side, becomes in _SCALED if dtype.is_floating_point else ():
            # One axis is long; the others are as short as they can be without being one.
            image, size = whole(1, 3, *(2,) * (dims - 1), side, dtype=dtype), (*(3,) * (dims - 1), becomes)
            yield Size(image, (size, None, mode, False))

    return make


for _mode, _dims in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)):
    sizes_of(f"nn.functional.interpolate.{_mode}")(_scaling(_mode, _dims))


#: An axis beyond 2^12, with some behind it; a prime.
_LONG_SIDE: Final = 4159


def _of_long_axes(mode: str, dims: Sequence[int]) -> Make:
    """Return a maker of images with many channels, or with one long side that becomes twice as long."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for count in dims:
            for axis in range(count + 1):
                channels, *sides = (_LONG_SIDE if place == axis else 2 for place in range(count + 1))
                image = whole(1, channels, *sides, dtype=dtype)
                corners = None if mode.startswith("nearest") else False
                yield Size(image, (tuple(2 * side for side in sides), None, mode, corners))

    return make


for _mode, _every in (("nearest", (1, 2, 3)), ("nearest-exact", (1, 2, 3)), ("linear", (1,)), ("bilinear", (2,)),
                      ("bicubic", (2,)), ("trilinear", (3,))):  # fmt: skip
    sizes_of(f"nn.functional.interpolate.{_mode}")(_of_long_axes(_mode, _every))


# --- lists, orders, single elements -----------------------------------------------------------------------------------


@sizes_of("cat", "stack", "hstack", "vstack")
def _cat(dtype: torch.dtype) -> Iterator[Size]:
    """Yield lists of tensors to join: 257 small ones, and two of many rows."""
    yield Size([whole(3, 2, dtype=dtype) + number % 7 for number in range(257)])
    yield Size([whole(_ROWS, 1, dtype=dtype), positive(_ROWS, 1, dtype=dtype)])


@sizes_of("sort", "argsort", "msort")
def _sort(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows to sort without equal elements: many rows, a vocabulary, and a long vector."""
    for shape in ((_ROWS, 3), (2, _WORDS), (_TERMS,)):
        yield Size(_all_unlike(shape, dtype), trained=False)


@sizes_of("topk")
def _topk(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows without equal elements, each with a number of largest elements to find."""
    words = [((1, words), 50) for words in _VOCABULARIES]
    for shape, most in (((_ROWS, 3), 2), ((2, _WORDS), 50), ((_TERMS,), 2049), *words):
        yield Size(_all_unlike(shape, dtype), (most,), trained=False)


def _all_unlike(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return numbers without an order, which all differ where the dtype has so many."""
    count = math.prod(shape)
    return (torch.arange(count) * 7919 % count).to(dtype).view(shape)


def _channels_last(dtype: torch.dtype) -> torch.Tensor:
    """Return two images of 80 channels in channels_last."""
    return positive(2, _CHANNELS, 37, 5, dtype=dtype).to(memory_format=torch.channels_last)


@sizes_of("add", "mul", "sub", "div.no_rounding_mode", "maximum", "eq", "pow")
def _pairs(dtype: torch.dtype) -> Iterator[Size]:
    """Yield two operands: images with a number for each channel, a column with a row, and rows in widths of models."""
    yield Size(_channels_last(dtype), (positive(_CHANNELS, 1, 1, dtype=dtype),))
    yield Size(positive(_ROWS, 1, dtype=dtype), (positive(1, 3, dtype=dtype),))
    for width in _WIDTHS:
        yield Size(positive(2, width, dtype=dtype), (positive(2, width, dtype=dtype).flip(1),))


@sizes_of("where")
def _where(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images with a condition for each channel and a number to take elsewhere."""
    # The database's function takes the condition second.
    seen = positive(_CHANNELS, 1, 1, dtype=torch.int64) > 1
    yield Size(_channels_last(dtype), (seen, torch.zeros((), dtype=dtype)))
