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

from .comparing import check_call
from .families import Stage, source

#: Numbers from 11000 on are no numbers of other samples.
_NUMBER = 11_000
#: One more than a launch has in y and z, and a prime.
ROWS: Final = 65537
#: Rows beyond 2^19, where a grid of 8 rows in a block passes 65,535 blocks.
MOST_ROWS: Final = (1 << 19) + 21
#: Terms of a sum: a sum of ones in 16 bits stays at 2,048, or at 256. A prime beyond a tile's multiple.
TERMS: Final = 4099
#: Factor whose products with a count have no pattern in their middle bits.
_SCATTERS: Final = 40503
#: Terms of a sum beyond the counters of 16 bits, signed ones and others.
MANY_TERMS: Final = 65_599
#: Words of a vocabulary, and a number of channels that is no power of two.
WORDS, CHANNELS = 32003, 80
#: Vocabularies of language models: their rows end behind other multiples of a block.
_VOCABULARIES: Final = (50257, 128256, 151936)
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
#: Rows of a column that is sorted: more than a kernel has in memory for a block, and no multiple of one.
_COLUMN: Final = 131_101
#: Truth values that are counted: a mask of a batch of long texts, and a few.
_TRUTHS: Final = (1 << 19) + 21
#: Dtypes that have one kernel each.
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_DTYPES = (*_FLOATS, torch.int64, torch.int32)
#: Dtypes whose sums and counts have another dtype: one that counts in the same bits passes its end.
_NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)
_COMPLEX, _SPECTRA = (torch.complex64, torch.complex128), ("fft.fft", "fft.ifft")
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
#: Operators of which some sizes are large.
_LARGE: Final[set[str]] = set()


def sizes_of(*operators: str, large: bool = True) -> Callable[[Make], Make]:
    """Register a maker of sizes of some operators, by their full names in PyTorch's database."""

    def register(make: Make) -> Make:
        for operator in operators:
            _MAKERS.setdefault(operator, []).append(make)
        _LARGE.update(operators if large else ())
        return make

    return register


def has_large_sizes(info: Any) -> bool:
    """Return whether an operator has sizes that models have, and some of them are large."""
    return info.full_name in _LARGE


def has_sizes(info: Any) -> bool:
    """Return whether an operator has sizes that models have."""
    return info.full_name in _MAKERS


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE, dtypes=(*_DTYPES, *_NARROW, *_COMPLEX))
def model_sizes(cell: Cell) -> Iterator[Call]:
    """Yield calls with the sizes that models have."""
    yield from calls(cell, trained=False)


def calls(cell: Cell, *, trained: bool) -> Iterator[Call]:
    """Yield the calls of an operator in the dtype of a cell, with gradients or without."""
    if not has_sizes(cell.info) or (trained and cell.dtype not in _FLOATS):
        return
    few = _COUNTING if cell.dtype in _NARROW else _SPECTRA if cell.dtype in _COMPLEX else (cell.info.full_name,)
    if cell.info.full_name not in few:
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


def named(**kwargs: Any) -> tuple[tuple[str, Any], ...]:
    """Return keywords as a tuple of pairs, which can be hashed."""
    return tuple(kwargs.items())


def values(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return values for a factor: of one sign, where the sum is long."""
    return positive(*shape, dtype=dtype) if TERMS in shape else whole(*shape, dtype=dtype)


# --- rows: norms, softmax, losses -------------------------------------------------------------------------------------


def _rows(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield matrices: many rows, a vocabulary, an odd number of channels, and the widths of models."""
    yield whole(MOST_ROWS if dtype is torch.float32 else ROWS, 3, dtype=dtype)
    yield whole(2, WORDS, dtype=dtype)
    yield whole(129, CHANNELS, dtype=dtype)
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
        yield Size(whole(2, CHANNELS, 33, 3, dtype=dtype), (1,))


@sizes_of("nn.functional.layer_norm", "nn.functional.rms_norm")
def _row_norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows to normalise, with their shape and a weight; those of one input have two dimensions."""
    for rows in _rows(dtype):
        yield Size(rows, ((rows.shape[-1],), positive(rows.shape[-1], dtype=dtype)))
    yield Size(whole(ROWS, 2, 3, dtype=dtype), ((2, 3), positive(2, 3, dtype=dtype)))


@sizes_of("nn.functional.group_norm")
def _group_norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images to normalise in groups of channels, with a weight: many small ones, and large ones."""
    yield Size(whole(ROWS, 2, 3, dtype=dtype), (2,), named(weight=positive(2, dtype=dtype)))
    yield Size(whole(2, 96, 33, 5, dtype=dtype), (8,), named(weight=positive(96, dtype=dtype)))


@sizes_of("nn.functional.batch_norm")
def _batch_norm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches to normalise in training: many rows, many channels, large images, and rows without statistics."""
    for shape in ((ROWS, 3), (2, ROWS), (2, CHANNELS, 33, 5)):
        none = torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype)
        yield Size(whole(*shape, dtype=dtype), none, named(training=True), trained=False)
    # Rows of features without pixels, as a recommender has them.
    yield Size(whole(1031, 5, dtype=dtype), (None, None), named(weight=positive(5, dtype=dtype), training=True))


def _batch_norm_alone(*behind: Any, statistics: bool = True) -> Make:
    """Return a maker of one batch for operators that compute a batch norm alone, with what comes behind its tensors."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        ones, zeros = (each(CHANNELS, dtype=dtype) for each in (torch.ones, torch.zeros))
        weights = positive(CHANNELS, dtype=dtype), whole(CHANNELS, dtype=dtype)
        given = (*weights, zeros, ones) if statistics else (None, None)
        yield Size(whole(2, CHANNELS, 33, 5, dtype=dtype), (*given, *behind), trained=False)

    return make


sizes_of("native_batch_norm", "_native_batch_norm_legit")(_batch_norm_alone(True, 0.1, 1e-5))
sizes_of("_native_batch_norm_legit")(_batch_norm_alone(True, 0.1, 1e-5, statistics=False))
sizes_of("_batch_norm_with_update")(_batch_norm_alone(0.1, 1e-5))


@sizes_of("nn.functional.cross_entropy")
def _cross_entropy(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows of scores, with the index of the right class for each row."""
    for rows in (*_rows(dtype), *_scores(dtype)):
        yield Size(rows, (places(rows.shape[0], rows.shape[1]),), named(reduction="none"))


# --- attention --------------------------------------------------------------------------------------------------------


@sizes_of("nn.functional.scaled_dot_product_attention")
def _attention(dtype: torch.dtype) -> Iterator[Size]:
    """Yield queries, keys and values by head width, masks, shared heads, a decoder's one row, and many batches."""

    def given(*shape: int) -> torch.Tensor:
        return whole(*shape, dtype=dtype) / 4

    for head, rows in zip(_HEADS, itertools.cycle((33, 5)), strict=False):
        # As models make them: heads lie beside each other in a row, and batches are several.
        query, key, value = (given(2, count, 2, head).transpose(1, 2) for count in (rows, 33, 33))
        yield Size(query, (key, value), named(is_causal=True))
    for wide, narrow in _UNLIKE_HEADS:
        query, key, value = (given(1, 2, rows, width) for rows, width in ((5, wide), (33, wide), (33, narrow)))
        yield Size(query, (key, value), named(scale=1 / wide))
    yield Size(given(1, 1, 5, 64), (given(1, 1, 1025, 64), given(1, 1, 1025, 64)))
    for heads, rows in ((4, 1), (8, 33)):  # several heads of queries for one of keys, with one row as in a decoder
        keys = given(1, heads // 2, 1031, 8)
        yield Size(given(1, heads, rows, 8), (keys, keys.flip(2)), named(enable_gqa=True))
    yield from _masked_groups(dtype)
    yield Size(given(ROWS, 1, 1, 8), (given(ROWS, 1, 2, 8), given(ROWS, 1, 2, 8)), trained=False)
    yield from _masked_attention(dtype)
    for batches, heads, rows in ((2, 1, 7), (1, 3, 7), (2, 1, 1), (2, 3, 1)):
        # A mask that repeats along an axis is another one along the others.
        bias = whole(batches, heads, rows, 9, dtype=dtype)
        yield Size(given(2, 3, 7, 8), (given(2, 3, 9, 8), given(2, 3, 9, 8)), named(attn_mask=bias))
    seen = torch.ones(77, 77, dtype=torch.bool).tril()
    yield Size(given(1, 3, 77, 80), (given(1, 3, 77, 80), given(1, 3, 77, 80)), named(attn_mask=seen))


def _masked_groups(dtype: torch.dtype) -> Iterator[Size]:
    """Yield attention of grouped heads with masks: one for each head of queries, and one for all; numbers and truth."""
    query, key = (whole(2, heads, rows, 8, dtype=dtype) / 4 for heads, rows in ((6, 5), (2, 9)))
    for batches, heads in ((2, 6), (1, 6), (2, 1)):
        bias = whole(batches, heads, 5, 9, dtype=dtype)
        yield Size(query, (key, key.flip(2)), named(attn_mask=bias, enable_gqa=True))
        yield Size(query, (key, key.flip(2)), named(attn_mask=bias > -2, enable_gqa=True))
    yield Size(query, (key, key.flip(2)), named(is_causal=True, enable_gqa=True, scale=0.5))


def _masked_attention(dtype: torch.dtype) -> Iterator[Size]:
    """Yield attention with masks: over one head of keys that is expanded, and with rows whose scores are all low.

    The numbers of keys are one more than multiples of a tile, and half of one. The scores are whole numbers.
    """
    for keys in (33, 65, 97):
        heads = [whole(1, 1, keys, 8, dtype=dtype, most=1).expand(1, 4, keys, 8) for _ in "kv"]
        seen = whole(1, 1, 3, keys, dtype=torch.float32) > -1
        yield Size(whole(1, 4, 3, 8, dtype=dtype, most=1), tuple(heads), named(attn_mask=seen, scale=1.0))
    for rows in (64, 192):
        # The sum of such a row is no number of 16 bits, and its logarithm is.
        low = torch.zeros(rows, rows, dtype=dtype)
        low[1::3] = _LOW
        given = [whole(1, 2, rows, 8, dtype=dtype, most=1) for _ in "qkv"]
        yield Size(given[0], tuple(given[1:]), named(attn_mask=low, scale=1.0))


# --- Fourier transforms -----------------------------------------------------------------------------------------------

#: Lengths of a transform: those of audio, and a prime.
_LENGTHS: Final = (512, 8192, 1021)


@sizes_of("fft.fft", "fft.ifft", "fft.rfft", "fft.ihfft")
def _transforms(dtype: torch.dtype) -> Iterator[Size]:
    """Yield vectors to transform, of lengths that are no powers of two; none but in float32."""
    for length in _LENGTHS if dtype is torch.float32 else ():
        yield Size(whole(2, length, dtype=dtype), (), named(n=length), trained=False)


@sizes_of("fft.fft", "fft.ifft")
def _columns_of_spectra(dtype: torch.dtype) -> Iterator[Size]:
    """Yield complex columns to transform."""
    for length in (*_LENGTHS, 4096) if dtype.is_complex else ():
        real, imaginary = whole(length, 2, dtype=torch.float64), whole(2, length, dtype=torch.float64).t()
        yield Size(torch.complex(real, imaginary).to(dtype), (), named(dim=0), trained=False)


@sizes_of("fft.irfft", "fft.hfft")
def _to_real(dtype: torch.dtype) -> Iterator[Size]:
    """Yield spectra whose frequency zero has an imaginary part, which these transforms ignore."""
    for length in _LENGTHS if dtype is torch.float32 else ():
        parts = whole(2, length // 2 + 1, dtype=dtype), whole(2, length // 2 + 1, dtype=dtype).flip(1)
        yield Size(torch.complex(*parts), (), named(n=length), trained=False)


# --- reductions and scans ---------------------------------------------------------------------------------------------


def _lines(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield tensors of one sign, and the dimension along which they are added up."""
    yield positive(TERMS, dtype=dtype), 0
    yield positive(3, TERMS, dtype=dtype), 1
    yield positive(TERMS, 3, dtype=dtype), 0
    yield positive(MOST_ROWS if dtype is torch.float32 else ROWS, 3, dtype=dtype), 1
    yield positive(2, 3, ROWS, dtype=dtype), 1
    if dtype in (torch.float32, torch.int64):
        yield positive(_COLUMN, 2, dtype=dtype), 0
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
        for count in (TERMS, _TRUTHS):
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
    yield Size(whole(WORDS, 4, dtype=dtype), (places(77, WORDS),))
    yield Size(whole(5, 3, dtype=dtype), (places(ROWS, 5),), trained=dtype is torch.float32)
    for width in (TERMS, *_WIDTHS):
        yield Size(whole(3, width, dtype=dtype), (places(5, 3),))
    # The gradient of one word is left out, or is less for words that are frequent.
    yield Size(whole(7, 2, dtype=dtype), (places(_EQUAL, 7),), named(padding_idx=3, scale_grad_by_freq=True))
    yield Size(whole(7, 2, dtype=dtype), (places(_EQUAL, 7),), named(padding_idx=-2))


@sizes_of("index_select")
def _index_select(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with a dimension and indices along it: of many rows, and of many columns."""
    yield Size(whole(ROWS, 3, dtype=dtype), (0, places(ROWS, ROWS)))
    yield Size(whole(3, ROWS, dtype=dtype), (1, places(77, ROWS)))


@sizes_of("gather")
def _gather(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with a dimension and an index for each element: of many rows, and of many columns."""
    for dim, rows in ((0, whole(ROWS, 3, dtype=dtype)), (1, whole(3, ROWS, dtype=dtype))):
        yield Size(rows, (dim, places(rows.numel(), ROWS).view(rows.shape)), trained=False)


@sizes_of("index_add")
def _index_add(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with rows to add to them: all to one place, and to many places."""
    if dtype.itemsize > 2:  # in 16 bits, PyTorch's CPU adds up in 16 bits
        yield Size(whole(3, 2, dtype=dtype), (0, places(_EQUAL, 1) + 1, positive(_EQUAL, 2, dtype=dtype)))
    yield Size(whole(ROWS, 2, dtype=dtype), (0, places(ROWS, ROWS), whole(ROWS, 2, dtype=dtype)))


@sizes_of("scatter_add")
def _scatter_add(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with elements to add to them and the place of each: all in one row, and in many rows."""
    if dtype.itemsize > 2:
        index = (places(_EQUAL, 1) + 1).view(-1, 1).expand(-1, 2).contiguous()
        yield Size(whole(3, 2, dtype=dtype), (0, index, positive(_EQUAL, 2, dtype=dtype)))
    index = places(ROWS, ROWS).view(-1, 1).expand(-1, 2).contiguous()
    yield Size(whole(ROWS, 2, dtype=dtype), (0, index, whole(ROWS, 2, dtype=dtype)))


@sizes_of("index_put")
def _index_put(dtype: torch.dtype) -> Iterator[Size]:
    """Yield tensors with values to write: added up at one place, and each at its own of many places."""
    if dtype.itemsize > 2:
        yield Size(whole(3, dtype=dtype), ((places(_EQUAL, 1) + 1,), positive(_EQUAL, dtype=dtype), True))
    yield Size(whole(ROWS, 2, dtype=dtype), ((places(ROWS, ROWS),), whole(ROWS, 2, dtype=dtype)))
    # One row of values for all places of a cache.
    for adds_up in (False, True):
        values = whole(3, dtype=dtype)
        yield Size(whole(5, 4, 3, dtype=dtype), ((torch.tensor([[0, 2], [1, 3]]),), values, adds_up))


@sizes_of("bincount")
def _counted(dtype: torch.dtype) -> Iterator[Size]:
    """Yield numbers to count: each one of many, and few numbers that are beyond many others."""
    yield Size(places(ROWS, ROWS).to(dtype), trained=False)
    yield Size((places(7, 7) + ROWS).to(dtype), trained=False)


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
    for shape, dim in itertools.product(((1, 7), (7, 1), (ROWS, 2)), (0, 1)):
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
            yield Size(first, (first + 8, last), named(dtype=dtype, device="cpu"), trained=False)

    return make


sizes_of("linspace")(_range(9))  # places
sizes_of("arange")(_range(1))  # a step


@sizes_of("roll")
def _rolled(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a row, a column, many rows and vectors, each with a shift forward and back."""
    for shape, dim in itertools.product(((1, 7), (7, 1), (ROWS, 2)), (0, 1)):
        yield Size(whole(*shape, dtype=dtype), (3, dim))
        yield Size(whole(*shape, dtype=dtype), (-1, dim))
    for length, shift in itertools.product((8, 1024, 1000), (-1, 3, -5)):
        yield Size(whole(length, dtype=dtype), (shift,))


# --- lists, orders, single elements -----------------------------------------------------------------------------------


@sizes_of("cat", "stack", "hstack", "vstack")
def _cat(dtype: torch.dtype) -> Iterator[Size]:
    """Yield lists of tensors to join: 257 small ones, and two of many rows."""
    yield Size([whole(3, 2, dtype=dtype) + number % 7 for number in range(257)])
    yield Size([whole(ROWS, 1, dtype=dtype), positive(ROWS, 1, dtype=dtype)])


@sizes_of("sort", "argsort", "msort")
def _sort(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows to sort without equal elements: many rows, a vocabulary, and a long vector."""
    for shape in ((ROWS, 3), (2, WORDS), (TERMS,)):
        yield Size(_all_unlike(shape, dtype), trained=False)


@sizes_of("sort", "argsort")
def _sorted_columns(dtype: torch.dtype) -> Iterator[Size]:
    """Yield long columns to sort without equal elements."""
    if dtype in (torch.float32, torch.int64):
        yield Size(_all_unlike((_COLUMN, 2), dtype), (0,), trained=False)


@sizes_of("topk")
def _topk(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows without equal elements, each with a number of largest elements to find."""
    words = [((1, words), 50) for words in _VOCABULARIES]
    for shape, most in (((ROWS, 3), 2), ((2, WORDS), 50), ((TERMS,), 2049), *words):
        yield Size(_all_unlike(shape, dtype), (most,), trained=False)
    if dtype in (torch.float32, torch.int64):
        yield Size(_all_unlike((_COLUMN, 2), dtype), (50, 0), trained=False)


@sizes_of("kthvalue")
def _kth(dtype: torch.dtype) -> Iterator[Size]:
    """Yield rows without equal elements, with a place in their order: many rows, also with NaN, and long ones."""
    for shape, place in (((ROWS, 3), 2), ((2, WORDS), 50), ((1, TERMS), 2049)):
        yield Size(_all_unlike(shape, dtype), (place,), trained=False)
    if dtype in (torch.float32, torch.int64):
        yield Size(_all_unlike((_COLUMN, 2), dtype), (50, 0), trained=False)
    if dtype.is_floating_point:
        rows = _all_unlike((600, 8), torch.float32).remainder(8)
        rows[::7, 3] = math.nan
        yield Size(rows.to(dtype), (8,), trained=False)


def _all_unlike(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return numbers without an order, which all differ where the dtype has so many."""
    count = math.prod(shape)
    return (torch.arange(count) * 7919 % count).to(dtype).view(shape)


def _channels_last(dtype: torch.dtype) -> torch.Tensor:
    """Return two images of 80 channels in channels_last."""
    return positive(2, CHANNELS, 37, 5, dtype=dtype).to(memory_format=torch.channels_last)


@sizes_of("add", "mul", "sub", "div.no_rounding_mode", "maximum", "eq", "pow")
def _pairs(dtype: torch.dtype) -> Iterator[Size]:
    """Yield two operands: images with a number for each channel, a column with a row, and rows in widths of models."""
    for shape in ((CHANNELS, 1, 1), (1, CHANNELS, 1, 1)):
        yield Size(_channels_last(dtype), (positive(*shape, dtype=dtype),))
    yield Size(positive(ROWS, 1, dtype=dtype), (positive(1, 3, dtype=dtype),))
    for width in _WIDTHS:
        yield Size(positive(2, width, dtype=dtype), (positive(2, width, dtype=dtype).flip(1),))


@sizes_of("where")
def _where(dtype: torch.dtype) -> Iterator[Size]:
    """Yield images with a condition for each channel and a number to take elsewhere."""
    # The database's function takes the condition second.
    seen = positive(CHANNELS, 1, 1, dtype=torch.int64) > 1
    yield Size(_channels_last(dtype), (seen, torch.zeros((), dtype=dtype)))
