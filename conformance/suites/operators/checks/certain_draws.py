"""Draws of random numbers that leave no freedom: a spread of 0, probabilities of 0 and 1, a range of one number.

The statistics of a draw do not show a parameter that is read in another layout, or rounded. These draws do: the host
and the device have to give the same numbers, whatever their generators are. And draws of one seed from two normal
distributions with equal means differ by the ratio of their spreads, as those from others by the ratio of their scales.
What other draws give has a form at least: places without replacement are distinct, and dropout makes numbers zero or
scales them, or their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain
from conformance.numerics.trees import mapped, tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, perform
from conformance.suites.operators.calls.passes import Pass
from conformance.suites.operators.inputs import arrangements, forms
from conformance.suites.operators.inputs.families import check
from conformance.suites.operators.judge.cells import Cell

#: Numbers from 9450 on are no numbers of other samples.
_SAMPLE_NUMBER, _NUMBER, _SPREAD_NUMBER = 9450, 9500, 9600
#: The one number of a range.
_FIRST = 3
#: Elements of a draw that is a sample of the cell.
_FEW = 400
#: Integers that need more than 32 bits.
_WIDE_RANGE = 1 << 40
#: Three quarters of a power of two, and of 31 bits: remainders of so many random bits are a third twice as often.
_THREE_QUARTERS = {
    torch.int64: (3 << 29, 3 << 30, 3 << 38, 3 << 51),
    torch.int32: (3 << 29,),
    torch.float64: (3 << 29, 3 << 30),
}
#: A number that bfloat16 does not hold.
_ODD = 1.2345678
_INF = float("inf")
#: Numbers of a draw in which something rare occurs.
_MANY = 100_003
#: Places of which numbers of float16 reach few, and standard errors that a share of so many draws does not exceed.
_MANY_PLACES, _SIGMAS = 200_003, 7.0
#: A prime beyond 2^12, with numbers behind it.
_LONG = 4159
#: A cotangent of ones: the gradient is the derivative.
_ONES = Pass(torch.ones_like)
#: Input, other arguments and keywords of a call.
Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]
#: Numbers from 9430 on are no numbers of other samples. Places, as many as a vocabulary has, those that are drawn, and
#: seeds; what is kept of a dropout of one half is twice as large.
_FORM_NUMBER, _PLACES, _PICKED, _SEEDS, _HALF = 9430, 32_003, 1021, 8, 0.5
#: A ratio of draws that is so near to the spread follows it; it is exact within so many roundings.
_NEAR, _ROUNDINGS = 0.02, 8


@check(Mode.INFERENCE, dtypes=(torch.float32,), values=False)
def certain_draws(cell: Cell) -> None:
    """Compare draws with one possible result with the host's, in float32: in every arrangement and form of the call."""
    if cell.info.full_name in _SPREADS:
        _check_spread(cell)
        _check_every_spread(cell)
    if cell.info.full_name in _SCALES:
        _check_scale(cell, *_SCALES[cell.info.full_name])
    make = _DRAWS.get(cell.info.full_name)
    for order, (given, args, kwargs) in enumerate(make() if make else ()):
        sample = Call(_NUMBER + order, given, args, kwargs, source="a draw without freedom")
        for arranged in (sample, *arrangements.of(cell.info, sample)):
            _compare(cell, arranged)


def samples(info: Any, dtype: torch.dtype) -> list[Call]:
    """Return small draws of finite numbers in a dtype, to be samples of a cell: each family takes them as any call."""
    make = _DRAWS.get(info.full_name)
    if make is None or dtype not in info.dtypes or not dtype.is_floating_point:
        return []
    found = []
    for order, arguments in enumerate(make()):
        given = [leaf for leaf in tensors(arguments) if leaf.numel() > _FEW or not leaf.isfinite().all()]
        if not given:
            first, args, kwargs = mapped(
                arguments, lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) else leaf
            )
            source = "a draw without freedom, as a sample"
            found.append(Call(_SAMPLE_NUMBER + order, first, args, kwargs, source=source, certain=True))
    return found


def _compare(cell: Cell, sample: Call) -> None:
    """Compare the call and its other forms with the host, to the bit: the draw has one result."""
    usual = attempt(call, cell.info, sample.on(HOST)).value
    if not isinstance(usual, torch.Tensor):
        return
    others = forms.others(cell.info, sample, usual)
    for form in (sample, *others):
        try:
            expected = plain(perform(call, cell.info, form.on(HOST)))
        except Exception:  # the host has no such form of this call
            continue
        cell.judge.equal(form, plain(perform(execution.execute, cell.info, cell.on(form))), expected)


@check(Mode.INFERENCE, dtypes=(torch.float32, torch.bfloat16), values=False)
def forms_of_draws(cell: Cell) -> None:
    """Check what every draw keeps: each place is drawn once, and dropout leaves numbers where they are."""
    if cell.info.full_name == "multinomial":
        weights = (torch.arange(2 * _PLACES) * 7919 % 97 + 1).to(cell.dtype).view(2, _PLACES)
        sample = Call(_FORM_NUMBER, weights, (_PICKED,), source="many places without replacement")
        for seed in range(_SEEDS):
            drawn = _seeded(cell, sample, seed).sort(-1).values
            distinct = bool((drawn.diff() > 0).all() and drawn[:, 0].min() >= 0 and drawn[:, -1].max() < _PLACES)
            cell.judge.claim(sample, distinct, "places are drawn twice, or do not exist")
        if cell.dtype is torch.float32:
            _check_many_places(cell)
    if cell.info.full_name == "nn.functional.dropout":
        image = (torch.arange(2 * 3 * 4 * 6) % 61 + 1).to(cell.dtype).view(2, 3, 4, 6)
        sample = Call(_FORM_NUMBER, image, (_HALF, True), source="dropout of an image")
        for arranged in (sample, *arrangements.of(cell.info, sample)):
            drawn, kept = _seeded(cell, arranged, 1), plain(arranged.input) / _HALF
            cell.judge.claim(arranged, bool(((drawn == 0) | (drawn == kept)).all()), "a number is another one's")


@check(Mode.TRAINING, dtypes=(torch.float32, torch.bfloat16, torch.float16), values=False)
def gradients_of_zeros(cell: Cell) -> None:
    """Check that dropout drops the gradients of as many zeros as of other numbers: a zero that is a result was kept."""
    if (shape := _DROPOUTS.get(cell.info.full_name)) is None:
        return
    numbers = (torch.arange(math.prod(shape)) % 5 + 1).to(cell.dtype).view(shape)
    numbers[:, ::4], numbers[:, 2::4] = 0.0, -0.0
    sample = Call(_FORM_NUMBER, numbers.requires_grad_(), (_DROPPED, True), source="dropout of zeros", backward=_ONES)
    _, (gradient,) = _ONES.run(cell.info, execution.execute, execution.gradients, cell.on(sample), cell.seed)
    _, (usual,) = _ONES.run(cell.info, call, execution.host_gradients, sample.on(HOST), cell.seed)
    found, kept = plain(gradient).double(), float(usual.max())
    is_kept = (found - kept).abs() <= _ROUNDINGS * torch.finfo(cell.dtype).eps * kept
    cell.judge.claim(sample, bool((is_kept | (found == 0)).all()), f"a gradient is neither 0 nor {kept:g}")
    # Numbers of one channel may be dropped together.
    for first, name in enumerate(("zeros", "other numbers")):
        part = is_kept.flatten(2)[:, first::2, 0] if is_kept.dim() > 2 else is_kept[:, first::2]
        share, due = float(part.double().mean()), 1 - _DROPPED
        errors = abs(share - due) / math.sqrt(due * (1 - due) / part.numel())
        said = f"{share:.1%} of the gradients of {name} are kept: {errors:.1f} standard errors from {due:.1%}"
        cell.judge.claim(sample, errors <= _SIGMAS, said)


@check(Mode.INFERENCE, dtypes=tuple(_THREE_QUARTERS), values=False)
def wide_draws(cell: Cell) -> None:
    """Check integers drawn from wide ranges: all parts are reached as often as others, and the last bits differ."""
    make = _WIDE_DRAWS.get(cell.info.full_name)
    if make is None:
        return
    for order, lowest in enumerate((0, -_WIDE_RANGE) if cell.dtype is torch.int64 else ()):
        arguments = make(lowest, lowest + _WIDE_RANGE, _FEW, cell.dtype)
        sample = Call(_FORM_NUMBER + order, *arguments, source=f"{_FEW} integers from {lowest} on, of 40 bits")
        numbers = _seeded(cell, sample, 1)
        drawn, last = (numbers - lowest).double() / _WIDE_RANGE, numbers & 0xFF
        inside = bool(drawn.min() >= 0 and drawn.max() < 1)
        cell.judge.claim(sample, inside, "a number is outside of the range")
        # For 400 uniform numbers, either has a probability below 1e-8.
        spread = bool(drawn.min() < 0.05 and drawn.max() > 0.95)
        cell.judge.claim(sample, spread, "the numbers do not reach both ends of the range")
        cell.judge.claim(sample, len(set(last.tolist())) > _FEW // 4, "the last 8 bits of most numbers are the same")
    for order, width in enumerate(_THREE_QUARTERS[cell.dtype]):
        low = -(width // 3)
        arguments = make(low, low + width, _LONG, cell.dtype)
        source = f"{_LONG} integers from {low} on, below {low + width}"
        sample = Call(_FORM_NUMBER + 2 + order, *arguments, source=source)
        errors = _errors_of_thirds(_seeded(cell, sample, 1), low, width)
        said = f"a third of the range has {errors:.1f} standard errors more or fewer numbers than it is due"
        cell.judge.claim(sample, errors <= _SIGMAS, said)


def _errors_of_thirds(drawn: torch.Tensor, low: int, width: int) -> float:
    """Return the most standard errors by which a third of a range has more or fewer numbers than a third of them."""
    # A number outside of the range is in none.
    shares = torch.stack([((drawn.double() - low) // (width // 3) == part).double().mean() for part in range(3)])
    return float((shares - 1 / 3).abs().max()) / math.sqrt(2 / 9 / drawn.numel())


def _check_many_places(cell: Cell) -> None:
    """Check that draws reach all of many places: as many as expected are a multiple of 2, of 4, and so on."""
    for replacement in (True, False):
        sample = Call(_FORM_NUMBER, torch.ones(_MANY_PLACES), (_LONG, replacement), source="draws among many places")
        drawn = _seeded(cell, sample, 1)
        cell.judge.claim(sample, int(drawn.max()) > _MANY_PLACES - _MANY, "no place is behind the first half")
        for factor in (2, 4, 8, 16, 3):
            share, due = float((drawn % factor == 0).double().mean()), 1 / factor
            errors = abs(share - due) / math.sqrt(due * (1 - due) / _LONG)
            said = f"{share:.1%} of the places are multiples of {factor}: {errors:.1f} standard errors from {due:.1%}"
            cell.judge.claim(sample, errors <= _SIGMAS, said)


def _seeded(cell: Cell, sample: Call, seed: int) -> torch.Tensor:
    """Return the device's result of a call after seeding."""
    execution.reseed(seed, cell.device)
    return plain(execution.execute(cell.info.op, cell.on(sample)))


def _check_spread(cell: Cell) -> None:
    """Compare draws of one seed for odd spreads with those for a spread of 1: the ratio is the spread."""
    odd = 1 + torch.rand(6, 4)
    drawn, usual = (
        _drawn(cell, _SPREADS[cell.info.full_name](spread), "draws of one seed") for spread in (odd, torch.ones(6, 4))
    )
    for (form, numbers), (_, ones) in zip(drawn, usual, strict=True):
        _check_ratio(cell, form, numbers / ones / odd)


def _check_scale(cell: Cell, odd: tuple[float, ...], usual: tuple[float, ...], ratio: float) -> None:
    """Compare draws of one seed for a number that bfloat16 does not hold with those for 1."""
    numbers, ones = (_drawn(cell, (torch.zeros(6, 4), args), "draws of one seed") for args in (odd, usual))
    for (form, drawn), (_, usual_drawn) in zip(numbers, ones, strict=True):
        _check_ratio(cell, form, drawn / usual_drawn / ratio)


def _check_ratio(cell: Cell, form: Call, ratio: torch.Tensor) -> None:
    """Check that ratios to what they should be are 1 as exactly as float32 has it, if they are near to 1."""
    # A device may draw other numbers for other arguments. Then no ratio is near.
    error = (ratio - 1).abs()
    follows = bool((error < _NEAR).all())
    exact = bool((error < _ROUNDINGS * torch.finfo(torch.float32).eps).all())
    cell.judge.claim(form, exact or not follows, "the spreads were rounded to fewer digits")


def _check_every_spread(cell: Cell) -> None:
    """Check that no number is the mean for positive spreads that are expanded, or one number without dimensions."""
    spreads = {"an expanded spread": (1 + torch.rand(1, 4)).expand(6, 4), "one spread": torch.tensor(_ODD)}
    for name, spread in spreads.items():
        for form, numbers in _drawn(cell, _SPREADS[cell.info.full_name](spread), name):
            cell.judge.claim(form, bool((numbers != 0).all()), "numbers are the mean, as for a spread of 0")
    infinite = _SPREADS[cell.info.full_name](torch.full((6, 4), _INF))
    for form, numbers in _drawn(cell, infinite, "an infinite spread"):
        cell.judge.claim(form, not numbers.isfinite().any(), "some numbers are finite")


def _drawn(cell: Cell, arguments: tuple[Any, tuple[Any, ...]], name: str) -> list[tuple[Call, torch.Tensor]]:
    """Return each form of the call for an input and other arguments, with the device's numbers of one seed."""
    given, args = arguments
    sample = Call(_SPREAD_NUMBER, given, args, {}, source=name)
    found = []
    for form in (sample, *forms.others(cell.info, sample, call(cell.info.op, sample.on(HOST)))):
        execution.reseed(1, cell.device)
        found.append((form, plain(perform(execution.execute, cell.info, cell.on(form))).double()))
    return found


def _numbers(*shape: int) -> torch.Tensor:
    """Return normal random numbers in this shape."""
    return torch.randn(shape)


def _normal() -> Iterator[Arguments]:
    """Yield means with deviations of 0, where ``normal`` returns the mean."""
    means = _numbers(5, 3)
    means[1, 1], means[2, 0], means[3, 2] = _INF, -_INF, float("nan")
    yield means, (torch.zeros(5, 3),), {}
    yield means, (0.0,), {}
    yield _numbers(6, 4), (torch.zeros(6, 4),), {}
    yield _numbers(6, 4), (0.0,), {}
    yield torch.tensor(_ODD), (torch.zeros(4),), {}
    yield _numbers(6, 4), (torch.zeros(4),), {}
    for shape in ((_LONG,), (_LONG, 1), (1, _LONG)):
        yield _numbers(*shape), (0.0,), {}
        yield _numbers(*shape), (torch.zeros(shape),), {}


def _one_hot() -> Iterator[Arguments]:
    """Yield weights of which one is not 0: ``multinomial`` draws its place."""
    weights = torch.zeros(4, 7)
    weights[torch.arange(4), torch.tensor([2, 6, 1, 4])] = 0.7
    yield weights, (1,), {}
    yield weights[1], (5,), {"replacement": True}


def _probabilities() -> Iterator[Arguments]:
    """Yield chances of 0 and of 1, where ``bernoulli`` returns the chance."""
    yield (_numbers(6, 5) > 0).float(), (), {}
    # Of many numbers from 0 on, one is 0, and one rounds to 1.
    for chance in (0.0, 1.0):
        yield torch.full((_MANY,), chance), (), {}


def _counted() -> Iterator[Arguments]:
    """Yield numbers of trials with chances of 0 and of 1, where ``binomial`` returns 0 or all of them."""
    counts, chances = torch.arange(30.0).view(6, 5), (_numbers(6, 5) > 0).float()
    yield counts, (chances,), {}


def _pooled(*sizes: int) -> Iterator[Arguments]:
    """Yield images of so many sizes with the random places of the pools given, with indices and without.

    They are small enough to be samples.
    """
    places = torch.rand(2, 3, len(sizes))
    for keywords in ({}, {"return_indices": True}):
        yield torch.randn(2, 3, *sizes), (2,), {"output_size": 2, "_random_samples": places, **keywords}


def _kept() -> Iterator[Arguments]:
    """Yield values of which dropout with a chance of 0 or 1 drops none or all."""
    for chance in (0.0, 1.0):
        yield _numbers(2, 3, 4, 5), (), {"p": chance, "training": True}


#: Arguments of so many draws of integers from one number to below another in a dtype, by the operator's full name.
_WIDE_DRAWS: dict[str, Callable[[int, int, int, torch.dtype], Arguments]] = {
    "randint": lambda low, high, count, dtype: (low, (high, (count,)), {"dtype": dtype}),
    "randint_like": lambda low, high, count, dtype: (torch.zeros(count, dtype=dtype), (low, high), {}),
    "random": lambda low, high, count, dtype: (torch.zeros(count, dtype=dtype), (low, high), {}),
}
#: The chance of a number to be dropped, and a shape of numbers, by the full name of a dropout.
_DROPPED = 0.25
_DROPOUTS: dict[str, tuple[int, ...]] = {
    "nn.functional.dropout": (64, 64),
    "nn.functional.dropout1d": (64, 64, 3),
    "nn.functional.dropout2d": (64, 64, 2, 3),
    "nn.functional.dropout3d": (64, 64, 1, 2, 3),
    "nn.functional.alpha_dropout": (64, 64),
    "nn.functional.feature_alpha_dropout.with_train": (64, 64, 2, 3),
}
#: Input and other arguments of normal draws with mean 0 and these spreads, by the full name of the operator.
_SPREADS: dict[str, Callable[[torch.Tensor], tuple[Any, tuple[Any, ...]]]] = {
    "normal": lambda spread: (torch.zeros(6, 4), (spread,)),
    "normal.number_mean": lambda spread: (0.0, (spread,)),
}
#: Arguments with an odd number and with 1 in the place of the scale, and the ratio of their draws, by the full name.
_SCALES: dict[str, tuple[tuple[float, ...], tuple[float, ...], float]] = {
    "cauchy": ((0.0, _ODD), (0.0, 1.0), _ODD),
    "exponential": ((_ODD,), (1.0,), 1 / _ODD),
    "normal.in_place": ((0.0, _ODD), (0.0, 1.0), _ODD),
    "uniform": ((0.0, _ODD), (0.0, 1.0), _ODD),
}
#: Draws by the full name of the operator: input, other arguments, keyword arguments.
_DRAWS: dict[str, Callable[[], Iterator[Arguments]]] = {
    "normal": _normal,
    "normal.number_mean": lambda: iter([(0.0, (_numbers(5, 3),), {})]),
    "normal.in_place": lambda: iter([(_numbers(5, 3), (_ODD, 0.0), {})]),
    "uniform": lambda: iter([(_numbers(5, 3), (_ODD, _ODD), {})]),
    "random": lambda: iter([(_numbers(5, 3), (_FIRST, _FIRST + 1), {})]),
    "poisson": lambda: iter([(torch.zeros(5, 3), (), {})]),
    "binomial": _counted,
    "multinomial": _one_hot,
    "bernoulli": _probabilities,
    "nn.functional.dropout": _kept,
    "nn.functional.dropout1d": lambda: ((given[0], *rest) for given, *rest in _kept()),
    "nn.functional.dropout2d": _kept,
    "nn.functional.dropout3d": lambda: ((given[None], *rest) for given, *rest in _kept()),
    "nn.functional.fractional_max_pool2d": lambda: _pooled(9, 7),
    "nn.functional.fractional_max_pool3d": lambda: _pooled(5, 4, 3),
    "randint": lambda: iter([(_FIRST, (_FIRST + 1, (5, 3)), {})]),
    "randint_like": lambda: iter([(_numbers(5, 3), (_FIRST, _FIRST + 1), {})]),
    "nn.functional.rrelu": lambda: iter([(_numbers(5, 3), (), {"lower": 0.3, "upper": 0.3, "training": True})]),
}
