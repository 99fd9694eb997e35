"""Functions that compilers write anew: halves, signs, negative indices, integers, and sizes that change.

Each has the operator and the dtype that a device has to claim. ``EXACT`` and ``WRITING`` have exact results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Operands(NamedTuple):
    """Inputs of the exact functions: nine rows of nine elements, an index of nine, and three or four long rows."""

    special: torch.Tensor
    halves: torch.Tensor
    integers: torch.Tensor
    divisors: torch.Tensor
    bytes: torch.Tensor
    index: torch.Tensor
    terms: torch.Tensor
    factors: torch.Tensor
    climbing: torch.Tensor
    infinite: torch.Tensor


#: Elements of a long row.
_ROW = 4096


def operands() -> Operands:
    """Return the inputs on the host. No divisor is zero, and no signed result overflows but where it is to wrap."""
    steps = torch.arange(-40, 41).view(9, 9)
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.25, 1e-30, 3e38])
    divisors = steps % 7 - 3
    long = torch.arange(3 * _ROW).view(3, _ROW)
    factors = torch.tensor([2, 2, 2, 0.5, 0.5, 0.5, 1])[long % 7]  # no product of the first ones is large or small
    column = long % _ROW
    infinite = (torch.arange(1, _ROW + 1) * 128).repeat(4, 1).float()  # float32 holds each of their sums
    infinite[0, 40] = infinite[2, 30] = math.inf
    infinite[1, 20] = infinite[2, 700] = -math.inf
    infinite[3, :2] = -math.inf
    return Operands(
        special=values.repeat(9).view(9, 9).t().contiguous(),
        halves=steps / 4,
        integers=steps + (steps.sign() << 24),  # float32 does not hold the odd ones
        divisors=torch.where(divisors == 0, -5, divisors),
        bytes=(steps * 3 + 128).to(torch.uint8),
        index=torch.tensor([-1, 3, -9, 0, 8, -4, 2, -2, -7]),
        terms=(long * 37 % 81 - 40).float(),
        factors=torch.where(long * 1009 % 4099 % 2 == 0, factors, -factors),
        # Distinct numbers that become larger; the smaller of two adds nothing in a logsumexp.
        climbing=((long * 37 % 101 + column // 16) * _ROW + column).float() * 128,
        infinite=infinite,
    )


Function = Callable[[Operands], torch.Tensor]
#: A function of two matrices, which may write to them.
Writes = Callable[[torch.Tensor, torch.Tensor], Any]
#: (name, operator, dtype, function)
Row = tuple[str, str, str, Function]


def _written(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return a copy with rows and elements written at negative indices."""
    found = x.clone()
    found[index[:3]] = 0.5
    found[:, -2] = 7.0
    found[index, index.flip(0)] = -1.0
    return found


def _added_to_itself(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return a copy whose rows at these indices are added to themselves."""
    found = x.clone()
    found[index[:4]] = found[index[:4]] + found[index[:4]]
    return found


def _long(operands: Operands) -> torch.Tensor:
    """Return 3,240 computed numbers, all unlike: the largest and the smallest lie beyond a block of 1,024."""
    steps = torch.arange(3240, device=operands.halves.device)
    return ((steps + 1700) * 1009 % 3240 + operands.integers[4, 4]).to(torch.float32)


def _long_rows(operands: Operands) -> torch.Tensor:
    """Return three computed rows of 9,001 numbers, whose sums float32 holds."""
    steps = torch.arange(27003, device=operands.halves.device).view(3, 9001)
    return (steps * 1009 % 31 + operands.divisors[0, :3, None]).to(torch.float32)


def _pooled(operands: Operands) -> torch.Tensor:
    """Return pooled images of 2,049 channels: quarters, whose sums float32 holds."""
    steps = torch.arange(2 * 2049 * 64, device=operands.halves.device).view(2, 2049, 8, 8)
    return F.adaptive_avg_pool2d((steps * 1009 % 31 + operands.divisors[0, 0]).to(torch.float32), 7)


def _gathered_sums(operands: Operands) -> torch.Tensor:
    """Return elements of one row of sums at the places whose terms were added up, each with one number added to it."""
    index = (operands.index.abs() // 2)[None]
    row = (operands.halves[:1] * 2).contiguous()
    return row.scatter_add(1, index, operands.halves[1:2] + operands.halves[4, 5]).gather(1, index.flip(1)) + 1


def _largest_of_equals(operands: Operands, dtype: torch.dtype) -> torch.Tensor:
    """Return the places of the largest numbers of rows, each of which occurs several times."""
    return (operands.integers % 3).to(dtype).argmax(-1)


def _equal_bytes(operands: Operands) -> torch.Tensor:
    """Return which bytes are equal to those of the third row."""
    given = operands.divisors.to(torch.int8)
    return given == given[2:3]


def _reduced_by_index(operands: Operands, reduction: str) -> torch.Tensor:
    """Return rows reduced into those that indices name: some twice or more often, some never."""
    index = (operands.index.abs() // 2)[:, None].expand(9, 9)
    return (operands.halves / 8).scatter_reduce(0, index, operands.halves.flip(1), reduction)


def _one_by_index(operands: Operands, dtype: torch.dtype) -> torch.Tensor:
    """Return one number to which others were added by index, with a factor."""
    given = operands.halves[2, :3].to(dtype)
    return given.new_zeros(1).index_add(0, operands.index[:3] * 0, given, alpha=2) + 1


#: Lengths at which running results end: groups of threads hold a power of two.
_LENGTHS = (65, 100, 129, 257, 1025, _ROW)


#: Functions with a running result along long rows. A compiler that has no kernel of its own for them calls the
#: device's, so nothing stands beside them that it would have to write: each graph with a new kernel takes a second.
_SCANS: tuple[tuple[str, str, Callable[[Operands, int], torch.Tensor]], ...] = (
    ("cumsum", "cumsum", lambda o, length: o.terms[:, :length].cumsum(-1)),
    ("cumsum of columns", "cumsum", lambda o, length: o.terms.t()[:length].cumsum(0)),
    ("cumprod", "cumprod", lambda o, length: o.factors[:, :length].cumprod(-1)),
    ("cummax", "cummax", lambda o, length: o.climbing[:, :length].cummax(-1).values),
    ("places of cummax", "cummax", lambda o, length: o.climbing[:, :length].cummax(-1).indices),
    ("cummin", "cummin", lambda o, length: o.climbing[:, :length].cummin(-1).values),
    ("logcumsumexp", "logcumsumexp", lambda o, length: o.climbing[:, :length].logcumsumexp(-1)),
    # The last row has two equal infinities in front: either place of them is right for a cummax or a cummin.
    ("cumsum with infinities", "cumsum", lambda o, length: o.infinite[:, :length].cumsum(-1)),
    ("cumsum of columns with infinities", "cumsum", lambda o, length: o.infinite.t()[:length].cumsum(0)),
    ("cumprod with infinities", "cumprod", lambda o, length: o.infinite[:, :length].cumprod(-1)),
    ("cummax with infinities", "cummax", lambda o, length: o.infinite[:3, :length].cummax(-1).values),
    ("places of cummax with infinities", "cummax", lambda o, length: o.infinite[:3, :length].cummax(-1).indices),
    ("cummin with infinities", "cummin", lambda o, length: o.infinite[:3, :length].cummin(-1).values),
    ("places of cummin with infinities", "cummin", lambda o, length: o.infinite[:3, :length].cummin(-1).indices),
    ("logcumsumexp with infinities", "logcumsumexp", lambda o, length: o.infinite[:, :length].logcumsumexp(-1)),
)  # fmt: skip


def _running() -> Iterator[Row]:
    for name, operator, run in _SCANS:
        for length in _LENGTHS if name == operator == "cumsum" else (65, 1025):
            yield f"{name} of {length} numbers", operator, "float32", partial(run, length=length)
    yield "cumsum with infinities in float64", "cumsum", "float64", _infinite_in_float64


def _infinite_in_float64(operands: Operands) -> torch.Tensor:
    """Return running sums that a kernel computes in float64."""
    return operands.infinite.cumsum(-1, dtype=torch.float64)


#: Functions with a running result of integers.
_WHOLE_SCANS: tuple[tuple[str, str, str, Callable[[torch.Tensor, int], torch.Tensor]], ...] = (
    ("cumsum", "cumsum", "int64", lambda x, dim: x.cumsum(dim)),
    ("cumsum", "cumsum", "int32", lambda x, dim: x.cumsum(dim)),
    ("cumsum", "cumsum", "int8", lambda x, dim: x.cumsum(dim)),
    ("cumprod of signs", "cumprod", "int64", lambda x, dim: (x % 2 * 2 - 1).cumprod(dim)),
    ("places of cummax", "cummax", "int64", lambda x, dim: x.cummax(dim).indices),
)


def _running_integers() -> Iterator[Row]:
    """Yield running results of integers, along rows and columns: short ones, and ones behind a group of threads."""
    for (name, operator, dtype, run), dim in itertools.product(_WHOLE_SCANS, (-1, 0)):
        scan = partial(_scanned, run=run, dtype=getattr(torch, dtype), dim=dim)
        yield f"{name} of {dtype} along {dim}", operator, dtype, scan


def _scanned(operands: Operands, run: Any, dtype: torch.dtype, dim: int) -> torch.Tensor:
    given = operands.terms[:, :257].to(dtype)
    return run(given if dim else given.t(), dim)


def _counted(operands: Operands, dim: int) -> torch.Tensor:
    return (operands.terms[:, :257] % 4 > 1).cumsum(dim)


#: Quotients and remainders of a tensor: (name, operator, function).
_DIVISIONS: tuple[tuple[str, str, Callable[[torch.Tensor, Any], torch.Tensor]], ...] = (
    ("floor_divide", "floor_divide", torch.floor_divide),
    ("remainder", "remainder", torch.remainder),
    ("floored div", "div.floor_rounding", lambda x, divisor: torch.div(x, divisor, rounding_mode="floor")),
    ("truncated div", "div.trunc_rounding", lambda x, divisor: torch.div(x, divisor, rounding_mode="trunc")),
)


def _dividends(operands: Operands) -> torch.Tensor:
    """Return integers of both signs: small ones, and some that float64 does not hold."""
    return torch.where(operands.index > 0, (operands.integers << 35) + operands.divisors, operands.integers % 41 - 20)


def _by_number(operands: Operands, divide: Any, number: int) -> torch.Tensor:
    return divide(_dividends(operands), number)


def _by_tensor(operands: Operands, divide: Any, number: int) -> torch.Tensor:
    """Divide by a tensor without dimensions, which holds this number."""
    return divide(_dividends(operands), operands.divisors[0, 4] - 3 + number)


def _of_tensor(operands: Operands, divide: Any, number: int) -> torch.Tensor:
    """Divide a tensor without dimensions by many."""
    return divide(operands.integers[0, 0] * number, operands.divisors)


def _divided() -> Iterator[Row]:
    """Yield quotients and remainders by numbers, by tensors without dimensions, and of such tensors."""
    ways = (
        ("by a number", _by_number, (3, -4)),  # for a power of two, compilers shift
        ("by one tensor", _by_tensor, (3,)),
        ("of one tensor", _of_tensor, (1,)),
    )
    for (name, operator, divide), (how, run, numbers) in itertools.product(_DIVISIONS, ways):
        for number in numbers:
            yield f"{name} {how}, {number}", operator, "int64", partial(run, divide=divide, number=number)


def _far_places(operands: Operands) -> torch.Tensor:
    """Return the places of nine by nine elements in a matrix whose rows are longer than 32 bits count."""
    steps = _range(operands, 9)
    return steps[:, None] * _FAR + (steps + operands.index) % 9


def _signs(operands: Operands) -> torch.Tensor:
    """Return rows of 576 numbers 1 and -1 in turn, computed: their mean is 0, and their variance 1."""
    parity = (operands.integers[:, :8] % 2).to(torch.float32) * 2 - 1
    return parity.flatten().repeat(2, 8)


#: Truths that stand for rows and for columns, by the words for it.
_MASKS: dict[str, Callable[[Operands, int], torch.Tensor]] = {
    "row": lambda o, width: o.index[:3, None] > 0,
    "column": lambda o, width: o.terms[:1, :width] > 0,
}


def _filled() -> Iterator[Row]:
    """Yield fills of rows that end a vector and of some that do not."""
    for width, how in itertools.product((9, 64), _MASKS):
        run = partial(_fill, how=how, width=width)
        yield f"{width} columns filled by one truth for each {how}", "masked_fill", "float32", run


def _fill(operands: Operands, how: str, width: int) -> torch.Tensor:
    return (operands.terms[:, :width] + 1).masked_fill(_MASKS[how](operands, width), 0)


def _largest_quotients(operands: Operands) -> torch.Tensor:
    """Return which quotients are the largest ones of their rows: each is rounded before it is compared."""
    quotients = operands.divisors.to(torch.bfloat16) / 3
    return quotients == quotients.amax(-1, keepdim=True)


#: Functions of a tensor and of numbers that stand in the code: a compiler writes these down, and compares them with
#: zero. (name, operator, numbers, function.) The first ones copy a number or its sign; that of NaN is open.
_COPIES: tuple[tuple[str, str, tuple[float, ...], Callable[[torch.Tensor, float], torch.Tensor]], ...] = (
    ("signs of numbers", "copysign", (-0.0, -math.inf), torch.copysign),
    ("numbers or a tensor", "where", (-0.0, math.nan), lambda x, number: torch.where(x > 0, number, x)),
    ("numbers filled in", "masked_fill", (-0.0, -math.inf), lambda x, number: x.masked_fill(x > 0, number)),
    ("tensors of numbers", "full_like", (-0.0, -math.inf), torch.full_like),
    ("numbers around a tensor", "constant_pad_nd", (-0.0, math.inf), lambda x, number: F.pad(x, (1, 2), value=number)),
)
_ARITHMETIC: tuple[tuple[str, str, tuple[float, ...], Callable[[torch.Tensor, float], torch.Tensor]], ...] = (
    ("sums with numbers", "add", (math.inf, math.nan), lambda x, number: x + number),
    ("products with numbers", "mul", (-0.0, -math.inf), lambda x, number: x * number),
    ("quotients by numbers", "true_divide", (-0.0, math.inf), lambda x, number: x / number),
    ("quotients of numbers", "true_divide", (-0.0, -math.inf), lambda x, number: number / x),
)


def _with_numbers(operands: Operands, run: Any, numbers: tuple[float, ...]) -> torch.Tensor:
    return torch.stack([run(operands.special, number) for number in numbers])


def _numbered() -> Iterator[Row]:
    """Yield functions of a tensor and of numbers that are zero with a sign, infinite, or NaN."""
    for name, operator, numbers, run in (*_COPIES, *_ARITHMETIC):
        yield name, operator, "float32", partial(_with_numbers, run=run, numbers=numbers)
    for dtype in ("bfloat16", "int64"):
        yield f"signs of zero for {dtype}", "copysign", dtype, partial(_signs_of_zero, dtype=getattr(torch, dtype))


def _signs_of_zero(operands: Operands, dtype: torch.dtype) -> torch.Tensor:
    return torch.copysign(operands.divisors.to(dtype), -0.0)


def _of_other_floats() -> Iterator[Row]:
    """Yield the signs of zeros and infinities, and which numbers are finite, of each other dtype of floats."""
    for dtype in ("float64", "float16", "bfloat16"):
        yield (
            f"kinds of numbers of {dtype}",
            "signbit isfinite isnan",
            dtype,
            partial(_kinds, dtype=getattr(torch, dtype)),
        )


def _kinds(operands: Operands, dtype: torch.dtype) -> torch.Tensor:
    """Return which numbers have a sign, are finite, and are NaN. A NaN has either sign.

    The largest are left out, which float16 lacks. Truths are made numbers: inductor 2.13 itself cannot stack them.
    """
    given = torch.where(operands.special > 1e38, 2.0, operands.special).to(dtype)
    signs = torch.where(given.isnan(), 1.0, given).signbit()
    return torch.stack([signs.long(), given.isfinite().long(), given.isnan().long()])


def _of_two_integers() -> Iterator[Row]:
    """Yield comparisons, choices and places of bytes without a sign and of integers of which some are negative."""
    for other in ("int8", "int64"):
        dtype = getattr(torch, other)
        yield f"comparisons of bytes and {other}", "lt eq maximum where", "uint8", partial(_of_two, dtype=dtype)
        yield f"places of bytes between {other}", "bucketize sort", "uint8", partial(_between, dtype=dtype)


def _of_two(operands: Operands, dtype: torch.dtype) -> torch.Tensor:
    """Return what two functions of two dtypes of integers give in either order."""
    x, y = operands.bytes, operands.divisors.to(dtype)
    found = (x < y, y < x, x == y, torch.maximum(x, y), torch.where(x > 100, y, x))
    return torch.stack([each.to(torch.int64) for each in found])


def _between(operands: Operands, dtype: torch.dtype) -> torch.Tensor:
    """Return the places of bytes between others, and of others between bytes."""
    x, y = operands.bytes, operands.divisors.to(dtype) * 13
    pairs = ((x, y[0].sort().values), (y, x[0].sort().values))
    return torch.stack([torch.bucketize(*pair) for pair in pairs])


_PAIRED: tuple[tuple[str, str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]], ...] = (
    ("product", "mul", torch.mul),
    ("difference", "sub", torch.sub),
)


def _with_rows(operands: Operands, run: Any, dtype: torch.dtype) -> torch.Tensor:
    """Combine a vector and eleven rows in both orders, with one or two dimensions of one place in front of the rows."""
    vector, rows = (operands.terms[0, : 64 * 12] % 13 - 6).to(dtype).split((64, 64 * 11))
    given = rows.view(1, 11, 64)
    return torch.cat([run(vector, given), run(given[None], vector)[0]])


def _broadcast() -> Iterator[Row]:
    """Yield functions of a vector and rows, of small integers that each dtype holds."""
    for (name, operator, run), dtype in itertools.product(_PAIRED, ("float16", "bfloat16")):
        combined = partial(_with_rows, run=run, dtype=getattr(torch, dtype))
        yield f"{name} of a vector and rows of {dtype}", operator, dtype, combined


def _with_nan(operands: Operands, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return rows with a NaN or two in each, not at the ends of all."""
    return torch.where(operands.integers % 7 == 3, math.nan, operands.halves.to(dtype))


def _places(operands: Operands, find: Any) -> torch.Tensor:
    """Return the places that are found in rows, in columns and in the whole of numbers with NaN."""
    given = _with_nan(operands)
    return torch.stack([find(given, -1), find(given, 0), find(given).expand(9)])


def _of_nan(operands: Operands, find: Any, dtype: torch.dtype = torch.float32, **where: int) -> torch.Tensor:
    return find(_with_nan(operands, dtype), **where)


def _place_in_long(operands: Operands) -> torch.Tensor:
    """Return the place of the first of two NaN among many numbers, of which no block of 1,024 holds both."""
    given = _long(operands)
    return torch.where((given == given[1501]) | (given == given[2999]), math.nan, given).argmax()


def _best(operands: Operands, find: Any) -> torch.Tensor:
    """Return the values and the places that are found in rows and in columns of numbers with NaN."""
    given = _with_nan(operands)
    return torch.stack([part.to(given) for dim in (-1, 0) for part in find(given, dim)])


def _chosen() -> Iterator[Row]:
    """Yield choices among numbers with NaN, which is the largest one and the smallest one."""
    for which in ("max", "min"):
        place, best, value = (getattr(torch, name) for name in (f"arg{which}", which, f"a{which}"))
        yield f"arg{which} of NaN", f"arg{which}", "float32", partial(_places, find=place)
        yield f"{which} of NaN", f"{which}.reduction_with_dim", "float32", partial(_best, find=best)
        yield f"{which} of all of NaN", f"{which}.reduction_no_dim", "float32", partial(_of_nan, find=best)
        yield f"a{which} of NaN", f"a{which}", "float32", partial(_of_nan, find=value, dim=0)
    for dtype in ("float16", "bfloat16"):
        run = partial(_of_nan, find=torch.argmax, dtype=getattr(torch, dtype), dim=-1)
        yield f"argmax of NaN in {dtype}", "argmax", dtype, run
    yield "argmax of NaN in a long row", "argmax", "float32", _place_in_long


#: Functions of integers that a compiler writes into the loop that finds a place, by name.
_BEFORE_PLACES: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("inverted numbers", torch.bitwise_not),
    ("negated numbers", torch.neg),
    ("magnitudes", torch.abs),
    ("masked numbers", lambda x: x ^ 21),
)


def _places_of_computed(operands: Operands, run: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the places of the largest and of the smallest computed integer, of the whole, of rows and of columns."""
    given = run((operands.integers % 97 - 40).to(dtype))
    whole = torch.stack([given.argmax(), given.argmin()]).expand(9, 2).t()
    return torch.cat([whole, torch.stack([given.argmax(-1), given.argmin(0), given.max(0).indices])])


def _found_places() -> Iterator[Row]:
    """Yield the places of computed integers; in int32, those that have all bits inverted."""
    for (name, run), dtype in itertools.product(_BEFORE_PLACES, ("int64", "int32")):
        if dtype == "int64" or run is torch.bitwise_not:
            found = partial(_places_of_computed, run=run, dtype=getattr(torch, dtype))
            yield f"places of {name} of {dtype}", "argmax", dtype, found


#: Functions of two matrices of small numbers in float64 whose results float32 does not hold, so that a computation in
#: float32 shows: (name, operator, function). No result is nearly halfway between two numbers of ``_wide_between`` or
#: ``_kept_wide``, but exactly or not at all, so a rounding of float64 changes none.
_IN_FLOAT64: tuple[tuple[str, str, Writes], ...] = (
    ("quotients", "true_divide", lambda x, y: x / y),
    ("quotients of a number", "true_divide", lambda x, y: 1 / y),
    ("products", "mul", lambda x, y: (x * 2.0**-22 + 1) * (y * 2.0**-22 + 1) - 1),
    ("sums with a large number", "add", lambda x, y: (x + 2.0**33) - 2.0**33 + y),
    ("roots", "sqrt", lambda x, y: (x * x + 1).sqrt()),
)
#: A power of two that makes integers of digits which float32 does not hold.
_DIGITS = 2.0**40


def _wide_between(operands: Operands, run: Any) -> torch.Tensor:
    """Return float32 that was made wide, computed with, and made narrow again."""
    return run(operands.halves.double(), operands.divisors.float().double()).float()


def _kept_wide(operands: Operands, run: Any) -> torch.Tensor:
    """Return digits behind those of float32, as integers."""
    return (run(operands.halves.double(), operands.divisors.double()) * _DIGITS).round().long()


def _wide_between_narrow() -> Iterator[Row]:
    for name, operator, run in _IN_FLOAT64:
        yield f"{name} in float64 made narrow", operator, "float64", partial(_wide_between, run=run)
        yield f"{name} in float64", operator, "float64", partial(_kept_wide, run=run)


def _of_whole(operands: Operands, run: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a function of two matrices of integers that floats of the dtype's size do not hold, and of small ones."""
    small = operands.divisors.to(dtype)
    large = operands.integers.to(dtype) * (_FAR >> 4 if dtype is torch.int64 else 1)
    return run(large, large - small, small, small + 2)


#: Functions of two matrices of large integers, and of two of small ones: (name, operator, dtypes, function). No result
#: overflows.
_WHOLE: tuple[tuple[str, str, tuple[str, ...], Callable[..., torch.Tensor]], ...] = (
    ("sum of two products of matrices", "mm", ("int32", "int64"), lambda a, b, x, y: a @ x + b @ y),
    ("multiple of a product of matrices and a matrix", "mm", ("int32",), lambda a, b, x, y: (x @ y) * 3 + a),
    ("sum of two products", "mul", ("int32", "int64"), lambda a, b, x, y: a * x + b * y),
    ("sum with a product and a factor", "addcmul", ("int64",), lambda a, b, x, y: torch.addcmul(a, b, x, value=3)),
)  # fmt: skip


def _fused() -> Iterator[Row]:
    for name, operator, dtypes, run in _WHOLE:
        for dtype in dtypes:
            yield f"{name} in {dtype}", operator, dtype, partial(_of_whole, run=run, dtype=getattr(torch, dtype))


#: Functions whose results 32 bits do not hold for large numbers: (name, operator, function).
_WRAPPING: tuple[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("a sum", "add", lambda x: x + x),
    ("a difference", "sub", lambda x: -3 - x - x),
    ("a product", "mul", lambda x: x * 5),
    ("a square", "mul", lambda x: x * x),
    ("a shift", "bitwise_left_shift", lambda x: x << 3),
)


def _wrapped(operands: Operands, run: Any) -> torch.Tensor:
    """Return a function of int32 near both ends, of which both 32 bits and more would go into int64."""
    return run((operands.integers * 119).to(torch.int32)).to(torch.int64)


def _one(operands: Operands) -> torch.Tensor:
    """Return a matrix of one number."""
    return operands.halves[4:5, 2:3]


#: Functions of a tensor that has one place in each dimension, or in one of them, and that becomes larger or moves.
_SINGLE: tuple[Row, ...] = (
    ("one number between zeros", "constant_pad_nd", "float32", lambda o: F.pad(_one(o)[None], (10, 10))),
    ("one computed number between others", "constant_pad_nd", "float32",
     lambda o: F.pad(_one(o) * 2 + 3, (1, 2, 2, 1), value=3.0)),
    ("a sum between zeros", "constant_pad_nd", "float32", lambda o: F.pad(o.halves[1:].sum().view(1), (2, 3))),
    ("one integer between zeros", "constant_pad_nd", "int64", lambda o: F.pad(o.integers[:1, :1], (1, 2))),
    ("one truth between others", "constant_pad_nd", "bool", lambda o: F.pad(o.halves[:1, :1] < 0, (1, 2, 0, 1))),
    ("a row between zeros", "constant_pad_nd", "float32", lambda o: F.pad(o.halves[:1], (0, 0, 2, 3))),
    ("a column between zeros", "constant_pad_nd", "float32", lambda o: F.pad(o.halves[:, :1], (2, 3))),
    ("single numbers in a row", "cat", "float32", lambda o: torch.cat([_one(o), o.halves[:1, :1], _one(o) * 3])),
    ("a number before rows", "cat", "float32", lambda o: torch.cat([_one(o), o.halves[:, :1]])),
    ("numbers without dimensions in a row", "stack", "float32",
     lambda o: torch.stack([o.halves[1:].sum(), o.halves[0, 0], o.halves.amax()])),
    ("one number rolled and mirrored", "roll", "float32", lambda o: (_one(o) + 1).roll(1, 0).flip(0, 1) * 2),
    ("one number many times", "__getitem__", "float32", lambda o: (_one(o) + 1)[0][o.index * 0]),
    ("one number repeated", "repeat", "float32", lambda o: (_one(o) * 2).repeat(2, 3)),
    ("one number beside a diagonal", "diag_embed", "float32", lambda o: torch.diag_embed(_one(o), 1)),
    ("one number below the diagonal", "tril", "float32", lambda o: torch.tril((_one(o) + 1).expand(3, 3), -1)),
    ("one number at an index", "index_put", "float32",
     lambda o: _one(o).new_zeros(5).index_put((o.index[1:2],), _one(o)[0])),
)  # fmt: skip


EXACT: tuple[Row, ...] = (
    ("round", "round", "float32", lambda o: torch.round(o.halves)),
    ("floor", "floor", "float32", lambda o: torch.floor(o.halves)),
    ("ceil", "ceil", "float32", lambda o: torch.ceil(o.halves)),
    ("trunc", "trunc", "float32", lambda o: torch.trunc(o.halves)),
    ("frac", "frac", "float32", lambda o: torch.frac(o.halves)),
    ("fmod", "fmod", "float32", lambda o: torch.fmod(o.halves, 1.5)),
    ("remainder", "remainder", "float32", lambda o: torch.remainder(o.halves, -1.5)),
    ("floor division", "div.floor_rounding", "float32", lambda o: torch.div(o.halves, 0.75, rounding_mode="floor")),
    ("truncated division", "div.trunc_rounding", "float32",
     lambda o: torch.div(o.halves, 0.75, rounding_mode="trunc")),
    ("cast to integers", "trunc", "int64", lambda o: o.halves.to(torch.int64)),
    ("round of special values", "round", "float32", lambda o: torch.round(o.special)),
    ("abs", "abs", "float32", lambda o: torch.abs(o.special)),
    ("neg", "neg", "float32", lambda o: -o.special),
    ("where", "where", "float32", lambda o: torch.where(o.halves > 0, o.special, o.special.t())),
    ("copysign", "copysign", "float32", lambda o: torch.copysign(o.halves, o.special)),
    ("signbit", "signbit", "float32", lambda o: torch.signbit(torch.where(o.special.isnan(), 1.0, o.special))),
    ("sign", "sign", "float32", lambda o: torch.sign(torch.where(o.special.isnan(), 1.0, o.special))),
    ("clamp with a tensor", "clamp", "float32", lambda o: torch.clamp(o.special, o.halves - 1, o.halves)),
    ("clamp_min", "clamp_min", "float32", lambda o: torch.clamp_min(o.special, 0.25)),
    ("isfinite", "isfinite", "float32", lambda o: torch.isfinite(o.special)),
    ("nan_to_num", "nan_to_num", "float32", lambda o: torch.nan_to_num(o.special, 2.0, 3.0, -4.0)),
    ("rows at negative indices", "__getitem__", "float32", lambda o: o.halves[o.index]),
    ("columns at negative indices", "__getitem__", "float32", lambda o: o.halves[:, o.index]),
    ("elements at negative indices", "__getitem__", "float32", lambda o: o.halves[o.index, o.index.flip(0)]),
    ("a negative row", "__getitem__", "float32", lambda o: o.halves[-2] + 1),
    # A list of one index is one number of compiled code, and a list of several is a tensor.
    ("the last column by a list", "__getitem__", "float32", lambda o: o.halves.view(9, 3, 3)[:, [-1], :] + 1),
    ("a row from the end by a list", "__getitem__", "float32", lambda o: o.halves[[-3]] * 2),
    ("rows from the end by a list", "__getitem__", "float32", lambda o: o.halves[[-1, 2, -9]] - 1),
    ("elements from the end by lists", "__getitem__", "float32", lambda o: o.halves[[-1, -5], [-9]] + 1),
    ("roll", "roll", "float32", lambda o: torch.roll(o.halves, -2, -1)),
    ("flip", "flip", "float32", lambda o: torch.flip(o.halves, (-1,))),
    ("one row reversed and doubled", "flip", "float32", lambda o: o.halves[2].flip(0) * 2),
    ("one long column reversed and doubled", "flip", "float32", lambda o: _long(o).flip(0) * 2),
    ("argmax of ties", "argmax", "float32", lambda o: torch.argmax(o.halves.abs().floor(), -1)),
    *((f"argmax of ties in {dtype}", "argmax", dtype, partial(_largest_of_equals, dtype=getattr(torch, dtype)))
      for dtype in ("float16", "int16", "int64")),
    ("argmin of ties", "argmin", "float32", lambda o: torch.argmin(o.halves.abs().floor(), -1)),
    ("argmax of ties in long rows", "argmax", "float32", lambda o: _long_rows(o).argmax(-1)),
    ("argmax of ties in long columns", "argmax", "float32", lambda o: _long_rows(o).t().argmax(0)),
    ("argmin of ties in long columns", "argmin", "float32", lambda o: _long_rows(o).t().argmin(0)),
    ("// of integers", "floor_divide", "int64", lambda o: o.integers // o.divisors),
    ("truncated division of integers", "div.trunc_rounding", "int64",
     lambda o: torch.div(o.integers, o.divisors, rounding_mode="trunc")),
    ("% of integers", "remainder", "int64", lambda o: o.integers % o.divisors),
    ("fmod of integers", "fmod", "int64", lambda o: torch.fmod(o.integers, o.divisors)),
    (">> of integers", "bitwise_right_shift", "int64", lambda o: o.integers >> 3),
    ("~ of integers", "bitwise_not", "int64", lambda o: ~o.integers),
    ("& of integers", "bitwise_and", "int64", lambda o: o.integers & o.divisors),
    ("product of integers", "mul", "int64", lambda o: o.integers * (o.integers + 1)),
    ("largest integer", "amax", "int64", lambda o: torch.amax(o.integers * o.integers.abs() + o.divisors, -1)),
    ("sum of integers", "sum", "int64", lambda o: (o.integers * o.integers).sum(-1)),
    ("sum of int32", "sum", "int32", lambda o: o.integers.to(torch.int32).sum(0)),
    ("% of int32", "remainder", "int32", lambda o: o.integers.to(torch.int32) % o.divisors.to(torch.int32)),
    ("// of int32", "floor_divide", "int32", lambda o: o.integers.to(torch.int32) // o.divisors.to(torch.int32)),
    ("sum of bools", "sum", "bool", lambda o: (o.halves > 0).sum(-1)),
    ("bytes that wrap", "add", "uint8", lambda o: o.bytes + o.bytes),
    ("bytes that wrap before they are wide", "add", "uint8", lambda o: (o.bytes + o.bytes).to(torch.int16)),
    ("negative bytes", "neg", "uint8", lambda o: (-o.bytes).to(torch.int32)),
    ("int8 that wraps before it is wide", "mul", "int8",
     lambda o: (o.bytes.view(torch.int8) * 3 - o.bytes.view(torch.int8).t()).to(torch.int64)),
    *((f"int32 that wraps in {name} before it is wide", operator, "int32", partial(_wrapped, run=run))
      for name, operator, run in _WRAPPING),
    ("int16 that wraps before it is a float", "mul", "int16",
     lambda o: (o.integers.to(torch.int16) * 1009 + 7).to(torch.float32)),
    # No cosine of a byte is nearer to 0 than 0.004.
    ("signs of cosines of powers of bytes", "pow", "uint8", lambda o: o.bytes.pow(5).cos() > 0),
    ("bytes with int8", "add", "int8", lambda o: o.bytes + o.divisors.to(torch.int8)),
    ("bytes and a number", "mul", "uint8", lambda o: o.bytes * 3),
    ("less of bytes", "lt", "uint8", lambda o: o.bytes < o.bytes.t()),
    ("negated bytes above a number", "gt", "uint8", lambda o: -o.bytes > 100),
    ("negated bytes below others", "lt", "uint8", lambda o: -o.bytes < o.bytes.t()),
    ("rows of equal bytes", "all", "int8", lambda o: _equal_bytes(o).all(-1)),
    ("rows with unequal bytes", "any", "int8", lambda o: _equal_bytes(o).logical_not().any(-1)),
    ("sums of rows of bytes", "sum", "int8", lambda o: o.bytes.view(torch.int8).sum(-1)),
    ("integers and a half", "add", "int64", lambda o: o.divisors + 0.5),
    ("integers and floats", "mul", "int64", lambda o: o.divisors * o.halves),
    ("integers over a power of two", "true_divide", "int64", lambda o: o.divisors / 4),
    ("int32 and int64", "add", "int32", lambda o: o.divisors.to(torch.int32) + o.integers),
    ("clamp of integers", "clamp", "int64", lambda o: torch.clamp(o.integers, -3, (1 << 24) + 5)),
    *_numbered(),
    *_broadcast(),
    *_of_other_floats(),
    *_of_two_integers(),
)  # fmt: skip

#: Exact functions whose results are below the normal numbers, for a device that keeps these.
SUBNORMAL: tuple[Row, ...] = (("products below the normal numbers", "mul", "float32", lambda o: o.special * 1e-10),)

#: Functions whose result has the numbers of its argument, in memory of its own: (operator, function).
_OF_THEIR_OWN: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("constant_pad_nd", lambda x: F.pad(x, (0, 0))),
    ("cat", lambda x: torch.cat([x])),
    ("stack", lambda x: torch.stack([x])[0]),
    ("repeat", lambda x: x.repeat(1, 1)),
    ("roll", lambda x: x.roll(0, 0)),
    ("tril", lambda x: x.tril(9)),
    ("clone", lambda x: x.clone()),
    ("to", lambda x: x.to(x.dtype, copy=True)),
    ("mul", lambda x: x * 1),
    ("add", lambda x: x + 0.0),
    ("div.no_rounding_mode", lambda x: x / 1),
    ("clamp", lambda x: x.clamp(-99, 99)),
    ("masked_fill", lambda x: x.masked_fill(x > 99, 0.0)),
    ("sum", lambda x: x[None].sum(0)),
    ("amax", lambda x: x[None].amax(0)),
    ("cumsum", lambda x: x[None].cumsum(0)[0]),
    ("nn.functional.avg_pool1d", lambda x: F.avg_pool1d(x, 1)),
    ("nn.functional.interpolate.nearest", lambda x: F.interpolate(x[None], scale_factor=1.0)[0]),
)


def _same_numbers() -> Iterator[Row]:
    """Yield functions that a compiler may leave out, but not give the argument itself in their place."""
    for operator, run in _OF_THEIR_OWN:
        yield f"{operator} that changes no number", operator, "float32", partial(_of_halves, run=run)


def _of_halves(operands: Operands, run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return run(operands.halves)


#: Exact functions that write. They have a graph of their own: beside fifty others, inductor 2.13 once ended the process
#: on the host, and once gave wrong sums there.
WRITING: tuple[Row, ...] = (
    ("writes at negative indices", "index_put", "float32", lambda o: _written(o.halves, o.index)),
    ("sums at negative indices", "index_put", "float32",
     lambda o: o.halves.index_put((o.index,), o.halves, accumulate=True)),
    ("one number of int64 by index", "index_add", "int64", partial(_one_by_index, dtype=torch.int64)),
    ("rows added by index to a row that stands for several", "index_add", "float32",
     lambda o: torch.index_add(o.halves[:1].expand(4, -1), 0, o.index[:3].abs() % 3, o.halves[:3])),
    ("rows written by index in a row that stands for several", "index_copy", "float32",
     lambda o: torch.index_copy(o.halves[:1].expand(4, -1), 0, o.index[:1].abs() % 3, o.halves[1:2])),
    ("sums by index in a row that stands for several", "scatter_add", "float32",
     lambda o: torch.scatter_add(o.halves[:1].expand(4, -1), 0, o.index[:9].abs().expand(3, -1) % 4, o.halves[:3])),
    ("numbers at places of a row that stands for several", "index_put", "float32",
     lambda o: torch.index_put(o.halves[:1].expand(4, -1), (o.index[:2].abs() % 4,), o.halves[1:3])),
    ("a masked row that stands for several", "masked_fill", "float32",
     lambda o: torch.masked_fill(o.halves[:1].expand(4, -1), o.halves[1:5] > 0, 5.0)),
    *_same_numbers(),
)  # fmt: skip


def _pairs_of_columns(operands: Operands, count: int) -> torch.Tensor:
    """Return sums of so many products: of each column of a matrix and each row of another one."""
    left, right = operands.terms[0, : 6 * count].view(count, 6), operands.terms[1, : 4 * count].view(4, count)
    return (left.t().unsqueeze(1) * right.unsqueeze(0)).sum(-1)


def _turned_products(operands: Operands) -> torch.Tensor:
    """Return rows of 18 sums of products, one factor of which lies in memory in the reverse order."""
    left, right = operands.terms[:2, :216]
    return (left.view(3, 18, 4) * right.view(4, 18, 3).transpose(0, 2)).sum(-1)


#: Heads of an attention, and as many keys; elements of a head; what spreads its scores until one weight is 1.
_HEADS, _OF_A_HEAD, _APART = 4, 8, 128.0


def _attention(operands: Operands) -> Iterator[torch.Tensor]:
    """Yield queries, keys and values of an attention, of which no dimension tells heads and keys apart by its size.

    The scores of a query are integers, and one of them is larger than the others: the result is the values of its key.
    """
    for row in operands.terms:
        yield row[: 2 * _HEADS * _HEADS * _OF_A_HEAD].view(2, _HEADS, _HEADS, _OF_A_HEAD)


#: Dtypes of integers, and those that they pass on the way to a float.
_ON_THE_WAY = (("uint8", "int32"), ("uint8", "int16"), ("int8", "int64"), ("int16", "int32"), ("bool", "uint8"))


def _cast_products() -> Iterator[Row]:
    """Yield products of matrices, of integers that were made wide and then floats."""
    for dtype, between in _ON_THE_WAY:
        run = partial(_product_of_cast, dtype=getattr(torch, dtype), between=getattr(torch, between))
        yield f"a product of {dtype} made {between} and a float", "mm", dtype, run


def _product_of_cast(operands: Operands, dtype: torch.dtype, between: torch.dtype) -> torch.Tensor:
    given = operands.bytes > 100 if dtype is torch.bool else operands.bytes.to(dtype)
    return operands.halves @ given.to(between).to(torch.float32)


def _joined_again(operands: Operands, parts: Any, dim: int = 1) -> torch.Tensor:
    """Join parts of what was joined before."""
    return torch.cat(parts(torch.cat([operands.halves, operands.halves * 2 + 1], dim)), dim)


def _turned_round(operands: Operands, turn: Any) -> torch.Tensor:
    """Negate what was divided into equal parts and stacked along another dimension."""
    return -turn(operands.halves * 2)


def _signs_turned_round(operands: Operands, turn: Any) -> torch.Tensor:
    """Return the signs of such parts by a function that is 1 for all large numbers."""
    return turn(operands.divisors.to(torch.float32) * 64).tanh()


#: What is done with parts, by name: all are joined or stacked in another order than they lie in memory.
_PARTS = (
    ("parts stacked in a new last dimension", "stack", lambda x: torch.stack(x.split(3), -1)),
    ("columns stacked in a new last dimension", "stack", lambda x: torch.stack(x.split(3, 1), -1)),
    ("chunks stacked between", "stack", lambda x: torch.stack(x.chunk(3, 1), 1)),
    ("rows stacked as columns", "stack", lambda x: torch.stack(x.unbind(0), 1)),
    ("columns joined as rows", "cat", lambda x: torch.cat(x.split(3, 1), 0)),
    ("parts joined in turn", "stack", lambda x: torch.stack(x.split(3), 1).flatten(0, 1)),
    ("a dimension divided and turned", "permute", lambda x: x.view(3, 3, 9).permute(1, 2, 0).contiguous()),
)
_JOINS = (
    ("a joined tensor and its front", lambda c: [c, c[:, :-3]]),
    ("the end of a joined tensor and all of it", lambda c: [c[:, -2:], c]),
    ("a joined tensor without its ends, twice", lambda c: [c[:, 1:-1], c[:, 1:-1] + 1]),
    ("a joined tensor and one column", lambda c: [c, c[:, -10:-9]]),
)


def _rearranged() -> Iterator[Row]:
    """Yield what is joined or stacked of parts, which a compiler writes into one kernel with what follows."""
    for name, operator, turn in _PARTS:
        yield name, operator, "float32", partial(_turned_round, turn=turn)
        if "last" in name:
            yield f"signs of {name}", f"tanh {operator}", "float32", partial(_signs_turned_round, turn=turn)
    for name, parts in _JOINS:
        yield name, "cat", "float32", partial(_joined_again, parts=parts)


def _attended(operands: Operands, *, masked: bool = False) -> torch.Tensor:
    """Return an attention by its formula.

    Queries and values that are permuted like the keys are left out: inductor 2.13 itself is then wrong on the host, and
    refuses them where heads and keys differ in number (pytorch #195320).
    """
    query, key, value = _attention(operands)
    scores = query @ key.permute(0, 2, 3, 1) * _APART
    if masked:
        scores = scores.masked_fill(torch.ones(_HEADS, _HEADS, device=key.device).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ value


def _attended_by_torch(operands: Operands, *, causal: bool) -> torch.Tensor:
    """Return an attention by PyTorch's function, whose inputs have their heads behind their places."""
    query, key, value = (each.transpose(1, 2) for each in _attention(operands))
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=_APART)


def _turned_cubes(operands: Operands) -> torch.Tensor:
    """Return sums of a cube with itself in the two orders in which each dimension is another one."""
    cube = operands.terms[0, :729].view(9, 9, 9)
    return cube + 81 * cube.permute(1, 2, 0) + 6561 * cube.permute(2, 0, 1)


def _quotients_by_themselves(operands: Operands) -> torch.Tensor:
    """Return quotients of numbers by themselves, and the first places of the largest and the smallest of them."""
    given = operands.halves.sin() + 2
    ones = given / given
    return torch.cat([ones, ones.argmin(0, keepdim=True).to(ones), ones.argmax(0, keepdim=True).to(ones)])


#: Tokens, heads and numbers of a head that are moved.
_MOVED = ((64, 2, 8), (64, 4, 16), (100, 3, 7))


def _heads() -> Iterator[Row]:
    """Yield heads that are moved before their tokens, in each dtype of models."""
    for dtype, sizes in itertools.product(("float32", "float16", "bfloat16"), _MOVED):
        run = partial(_moved_heads, dtype=getattr(torch, dtype), sizes=sizes)
        yield f"heads before {sizes[0]} tokens of {sizes[1]} in {dtype}", "transpose", dtype, run


def _moved_heads(operands: Operands, dtype: torch.dtype, sizes: tuple[int, int, int]) -> torch.Tensor:
    given = (operands.terms.flatten()[: math.prod(sizes)] % 251).to(dtype) + 1
    return given.view(1, *sizes).transpose(1, 2)


def _means_beside_others(operands: Operands) -> torch.Tensor:
    """Return the sums of other rows and means of rows, which have as many numbers as a power of two: they are exact."""
    given = operands.terms[:, :128]
    return given.mean(-1, keepdim=True) + torch.zeros_like(given) + operands.terms[:, 128:256]


def _compared_with_itself(operands: Operands, compare: Any) -> torch.Tensor:
    """Return how a computed row, and a computed column, compares with itself where one side is expanded."""
    row, column = operands.halves[2:3].sin(), operands.halves[:, 4:5].sin()
    return torch.stack([compare(row, row.expand(9, 9)).expand(9, 9), compare(column.expand(9, 9), column)])


def _itself() -> Iterator[Row]:
    for name in ("lt", "gt", "ne"):
        run = partial(_compared_with_itself, compare=getattr(torch, name))
        yield f"{name} of computed numbers with themselves", f"{name} sin", "float32", run


#: Exact functions of computed values, each of several operators that a compiler joins. The place of the smallest truth
#: value is left out: inductor 2.13 gives 0 for it on the host.
CHAINED: tuple[Row, ...] = (
    ("sum of the differences of pairs", "sum", "float32",
     lambda o: (o.halves[0][:, None] - o.halves[1][None, :]).sum()),
    ("sums of the products of columns and rows", "sum", "float32", lambda o: _pairs_of_columns(o, 5)),
    ("long sums of the products of columns and rows", "sum", "float32", lambda o: _pairs_of_columns(o, 21)),
    ("sums of products of turned operands", "sum", "float32", _turned_products),
    ("sum of the products of pairs", "sum", "float32", lambda o: (o.halves[0][:, None] * o.halves[8][None, :]).sum(0)),
    ("quotients by themselves and their first places", "argmin", "float32", _quotients_by_themselves),
    *_heads(),
    ("means of rows beside zeros and other rows", "mean", "float32", _means_beside_others),
    ("reciprocals of normalized rows", "nn.functional.layer_norm", "float32",
     lambda o: torch.round(64 * torch.reciprocal(F.layer_norm(_signs(o), _signs(o).shape[-1:], eps=0.0).abs() + 1))),
    ("variance of a long row", "var", "float32", lambda o: torch.round(8 * _signs(o).var(-1, correction=0))),
    ("mean and variance of a long row", "var_mean", "float32",
     lambda o: torch.round(8 * torch.stack(torch.var_mean(_signs(o), -1, correction=0))).abs()),
    ("place of the largest truth value", "max.reduction_with_dim", "bool",
     lambda o: (o.integers > o.integers[5]).max(0, keepdim=True).indices),
    ("place of the largest integer", "argmax", "int64", lambda o: (o.integers * 3 + o.divisors).argmax(0)),
    ("place of the largest of a long row", "argmax", "float32", lambda o: _long(o).argmax()),
    ("place of the smallest of long rows", "argmin", "float32", lambda o: _long(o).view(2, -1).argmin(-1)),
    ("place of the largest sum with a transpose", "max.reduction_with_dim", "float32",
     lambda o: (o.halves + 8 * o.divisors.t()).max(1).indices),
    ("rows added to themselves", "index_put", "float32", lambda o: _added_to_itself(o.halves, o.index)),
    ("largest of the larger row", "amax", "float32", lambda o: torch.maximum(o.halves, o.halves.t() + 1).amax((0, 1))),
    *_filled(),
    ("largest of rows by index", "scatter_reduce.amax", "float32", lambda o: _reduced_by_index(o, "amax")),
    ("smallest of rows by index", "scatter_reduce.amin", "float32", lambda o: _reduced_by_index(o, "amin")),
    ("sums of long rows behind a zero", "constant_pad_nd", "float32", lambda o: F.pad(_long_rows(o).sum(-1), (1, 0))),
    ("elements gathered behind their sums", "scatter_add", "float32", _gathered_sums),
    ("sums of long rows of pooled images", "sum", "float32", lambda o: _pooled(o).flatten(1).sum(-1)),
    ("sums of long rows in another order", "sum", "float32", lambda o: _long_rows(o).view(3, 1, 9001).mT.sum((1, 2))),
    ("products of rows by index", "scatter_reduce.prod", "float32", lambda o: _reduced_by_index(o, "prod")),
    # What stands around a product is often done in its kernel.
    ("a multiple of a product and a bias", "mm", "float32", lambda o: (o.halves @ o.halves.t() + o.halves[0]) * 2),
    ("a product less a matrix", "mm", "float32", lambda o: torch.relu(o.halves @ o.halves - o.halves.t() * 4) / 2),
    # Inductor calls a library for the running sums. It writes what comes before them as one kernel.
    ("running sums of products", "cumsum", "float32", lambda o: (o.halves * 2).cumsum(-1)),
    ("turned running sums of one number", "cumsum", "float32",
     lambda o: o.terms[:1, :1].expand(3, 70).cumsum(-1).flip(-1)),
    ("which quotients of bfloat16 are the largest", "amax", "bfloat16", _largest_quotients),
    ("running sums of the sums of long rows", "cumsum", "float32",
     lambda o: F.pad(_long_rows(o).sum(-1).cumsum(0), (2, 1), value=3.0)),
    ("attention to as many keys as heads", "matmul", "float32", _attended),
    ("masked attention to as many keys as heads", "matmul", "float32", partial(_attended, masked=True)),
    *((f"scaled_dot_product_attention{', causal' * causal}", "nn.functional.scaled_dot_product_attention", "float32",
       partial(_attended_by_torch, causal=causal)) for causal in (False, True)),
    ("cubes in two orders", "permute", "float32", _turned_cubes),
    *_chosen(),
    *_SINGLE,
    *_found_places(),
    *_itself(),
    *_wide_between_narrow(),
    *_cast_products(),
    *_rearranged(),
)  # fmt: skip

#: A number beyond 32 bits, and one that float64 does not hold.
_FAR, _FARTHEST = (1 << 33) + 5, (1 << 53) + 1


def _range(operands: Operands, count: int = 300) -> torch.Tensor:
    return torch.arange(count, device=operands.integers.device)


#: How float64 and int64 that narrower dtypes do not tell apart become larger before they are compared.
_ENLARGED: tuple[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("padded", "constant_pad_nd", lambda x: F.pad(x, (1, 2), value=1)),
    ("joined", "cat", lambda x: torch.cat([x, x.flip(0)])),
    ("stacked", "stack", lambda x: torch.stack([x, x.t()])),
    ("chosen", "where", lambda x: torch.where(x > 0, x, -x)),
)


def _nearly_equal() -> Iterator[Row]:
    """Yield comparisons of numbers that only their last bits tell apart."""
    for dtype, (how, operator, enlarge) in itertools.product(("float64", "int64"), _ENLARGED):
        run = partial(_compared, enlarge=enlarge, dtype=getattr(torch, dtype))
        yield f"comparisons of {how} {dtype}", f"lt eq maximum {operator}", dtype, run


def _compared(operands: Operands, enlarge: Any, dtype: torch.dtype) -> torch.Tensor:
    given = operands.integers.to(dtype) * (_FAR >> 8)
    x, y = enlarge(given), enlarge(given + (operands.divisors % 3 - 1).to(dtype))
    return torch.stack([(x < y).to(dtype), (x == y).to(dtype), torch.maximum(x, y)])


#: Exact functions of integers beyond 32 bits, of ranges and of places that a compiler computes. A range times a
#: constant is left out if both fit into 32 bits: inductor 2.13 itself multiplies them in 32 bits (pytorch #175966).
WIDE: tuple[Row, ...] = (
    ("a range times an integer", "mul", "int64", lambda o: _range(o) * o.integers[8, 7]),
    ("an integer times a range", "mul", "int64", lambda o: o.integers[0, :, None] * _range(o)),
    ("a range times a far number", "mul", "int64", lambda o: _range(o) * _FAR + o.integers[8, 8]),
    ("a range times a sum with a range", "mul", "int64", lambda o: _range(o) * (_range(o) + o.integers[8, 8])),
    ("a range of far steps", "arange", "int64",
     lambda o: torch.arange(-5 * _FAR, 4 * _FAR, _FAR, device=o.integers.device) + o.integers),
    ("a product in int32 made wide", "mul", "int64", lambda o: o.integers.to(torch.int32).to(torch.int64) * 1009),
    ("the sum of a range and a far number", "add", "int64", lambda o: _range(o, 9) + _FARTHEST + o.divisors),
    ("the difference of far numbers", "sub", "int64", lambda o: o.integers * _FAR - (o.integers * _FAR + _range(o, 9))),
    ("<< beyond 32 bits", "bitwise_left_shift", "int64", lambda o: (_range(o, 9) + o.divisors) << 40),
    (">> from beyond 32 bits", "bitwise_right_shift", "int64", lambda o: (o.integers * _range(o, 9) * _FAR) >> 33),
    ("elements at computed far places", "__getitem__", "float32",
     lambda o: o.halves.flatten()[_far_places(o) // _FAR * 9 + _far_places(o) % _FAR]),
    ("less of far numbers", "lt", "int64", lambda o: o.integers * _FAR < o.divisors),
    ("clamp of far numbers", "clamp", "int64", lambda o: torch.clamp(o.integers * _FAR, -_FAR * 3, _FARTHEST)),
    ("// of a number by integers", "floor_divide", "int64", lambda o: -(10**12) // o.divisors),
    ("% of a number by integers", "remainder", "int64", lambda o: -(10**12) % o.divisors),
    *_divided(),
    *_fused(),
    *_nearly_equal(),
)  # fmt: skip

#: Exact functions with a running result: the last numbers of a row lie behind the first group of threads.
RUNNING: tuple[Row, ...] = (
    *_running(),
    *_running_integers(),
    *((f"cumsum of truths along {dim}", "cumsum", "bool", partial(_counted, dim=dim)) for dim in (-1, 0)),
)

#: Exact functions whose zeros have a sign that PyTorch defines: it is copied or taken from the other operand.
SIGNED = ("neg", "where", "copysign", *(name for name, *_ in _COPIES), "signs of zero for bfloat16",
          "signs of zero for int64")  # fmt: skip

#: Exact functions that inductor 2.13 itself gets wrong on every device: ranges (pytorch #175966), quotients (#197895).
CONSTANT: tuple[Row, ...] = (
    ("a range times a number", "mul", "int64", lambda o: _range(o) * 10**9 + o.integers[8, 8]),
    ("a range of int32 made wide", "mul", "int64", lambda o: _range(o).to(torch.int32).to(torch.int64) * 10**9),
    ("floats // a number", "floor_divide", "float32", lambda o: torch.floor_divide(o.halves.floor(), 0.1)),
    ("floats % a number", "remainder", "float32", lambda o: torch.remainder(o.halves.floor(), 0.1)),
)


#: Exact functions that inductor 2.13 itself gets wrong, or refuses to compile, on hosts with several threads.
FRAGILE: tuple[Row, ...] = (
    ("one number of float64 by index", "index_add", "float64", partial(_one_by_index, dtype=torch.float64)),
    ("largest bytes of rows", "amax", "int8", lambda o: o.bytes.view(torch.int8).amax(-1)),
    ("places of inverted numbers of int8", "argmax", "int8",
     partial(_places_of_computed, run=torch.bitwise_not, dtype=torch.int8)),
)  # fmt: skip
