"""Draws that are independent: of their neighbours, and of the draws of the call before.

Moments do not show that a generator gives each number twice, that the second call begins where the first one is, or
that neighbours follow each other. All bounds are so many standard errors that a right device passes each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.judge.cells import Cell

#: Numbers from 9550 on are no numbers of other samples.
_NUMBER: Final = 9550
#: Numbers of one draw, and the numbers of the two draws that are compared.
_DRAWN, _SEED = 100_003, 17
#: Distances at which two draws may be the same: those of blocks, of vectors, and of one number.
_LAGS: Final = (*range(1, 65), 128, 256, 512, 1024, 4096)
#: Numbers of a short draw, of which at most so many are left out at the ends of two.
_SHORT: Final = 64
#: Standard errors: among thousands of comparisons, none exceeds them by chance.
_SIGMAS: Final = 7.0


@check(Mode.INFERENCE, stage=Stage.LARGE, dtypes=(torch.float32,), values=False)
def independent_draws(cell: Cell) -> None:
    """Check that neighbours and the draws of two calls under one seed have no correlation, in float32."""
    make = _DRAWS.get(cell.info.full_name)
    if make is None:
        return
    short = _sample(make(_SHORT), 0)
    before, after = _drawn(cell, short)
    overlap = [lag for lag in range(_SHORT // 2 + 1) if torch.equal(before[lag:], after[: _SHORT - lag])]
    cell.judge.claim(short, not overlap, f"the second call repeats the first one from number {overlap} on")
    sample = _sample(make(_DRAWN), 1)
    first, second = map(_ranks, _drawn(cell, sample))
    for name, left, right in _pairs(first, second):
        errors = abs(float((left * right).mean())) * math.sqrt(left.numel())
        said = f"{name} have a correlation of {errors:.1f} standard errors, allowed {_SIGMAS}"
        cell.judge.claim(sample, errors <= _SIGMAS, said)


def _sample(arguments: tuple[Any, ...], order: int) -> Call:
    """Return the call with these arguments; ``order`` is 0 for few numbers, and more for many."""
    return Call(_NUMBER + order, arguments[0], arguments[1:], source=f"{'many' if order else 'few'} draws of two calls")


def _drawn(cell: Cell, sample: Call) -> list[torch.Tensor]:
    """Return the numbers of two calls, one after the other."""
    execution.reseed(_SEED, cell.device)
    return [plain(execution.execute(cell.info.op, cell.on(sample))).reshape(-1) for _ in range(2)]


def _ranks(drawn: torch.Tensor) -> torch.Tensor:
    """Return bounded numbers of mean 0 and variance 1, whatever the distribution is."""
    numbers = drawn.double().atan()
    return (numbers - numbers.mean()) / numbers.std()


def _pairs(first: torch.Tensor, second: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield pairs of numbers of two draws that have to be independent, each with its name."""
    for lag in _LAGS:
        yield f"numbers {lag} apart", first[lag:], first[:-lag]
        yield f"numbers of two calls {lag} apart", first[lag:], second[:-lag]
    yield "numbers of two calls", first, second


#: Arguments of a call that draws many independent numbers, by the full name of the operator.
_DRAWS: Final[dict[str, Callable[[int], tuple[Any, ...]]]] = {
    "bernoulli": lambda n: (torch.full((n,), 0.5),),
    "binomial": lambda n: (torch.full((n,), 40.0), torch.full((n,), 0.5)),
    "cauchy": lambda n: (torch.zeros(n), 0.0, 1.0),
    "exponential": lambda n: (torch.zeros(n), 1.0),
    "geometric": lambda n: (torch.zeros(n), 0.5),
    "log_normal": lambda n: (torch.zeros(n), 0.0, 0.25),
    "multinomial": lambda n: (torch.ones(1000), n, True),
    "nn.functional.dropout": lambda n: (torch.ones(n), 0.5, True),
    "normal": lambda n: (torch.zeros(n), torch.ones(n)),
    "normal.in_place": lambda n: (torch.zeros(n), 0.0, 1.0),
    "poisson": lambda n: (torch.full((n,), 20.0),),
    "rand_like": lambda n: (torch.zeros(n),),
    "randn_like": lambda n: (torch.zeros(n),),
    "randint_like": lambda n: (torch.zeros(n), 1000),
    "random": lambda n: (torch.zeros(n), 1000),
    "uniform": lambda n: (torch.zeros(n), 0.0, 1.0),
}
