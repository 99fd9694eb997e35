"""Laws of random functions beyond plain draws: masks, distributions with parameters, strided memory, categories."""

from __future__ import annotations

import math

import torch

from conformance.accelerators.capabilities import RNG, Cell, Mode
from conformance.plan.case import case

from .drawing import SIGMAS, compare_draws
from .test_rng import DRAWS

#: Draws of the multinomial distribution, and its weights: two categories can never be drawn.
CHOSEN = 1 << 13
WEIGHTS = (0.0, 1.0, 3.0, 0.0, 4.0)


def _cell(operator: str, mode: Mode = Mode.INFERENCE) -> Cell:
    return Cell(f"operators.{operator}", "float32", mode.value)


def _normal(n, d):
    """Return normal numbers whose means and deviations differ from element to element, moved back to 0 and 1."""
    mean, deviation = ((torch.arange(n) % size).float().to(d) for size in (7, 3))
    deviation += 1
    return (torch.normal(mean, deviation) - mean) / deviation


MASKS = {
    "dropout": lambda n, d: torch.nn.functional.dropout(torch.ones(n, device=d), 0.25),
    "alpha_dropout": lambda n, d: torch.nn.functional.alpha_dropout(torch.ones(n, device=d), 0.25, training=True),
    "dropout2d": lambda n, d: torch.nn.functional.dropout2d(torch.ones(1, n, 1, 2, device=d), 0.25)[0, :, 0, 1],
    "normal": _normal,
}
#: The smallest and the largest number, and whether all numbers between are whole.
DISTRIBUTIONS = {
    "_standard_gamma": (lambda n, d: torch._standard_gamma(torch.full((n,), 2.5, device=d)), 0.0, 1e9, False),
    "poisson": (lambda n, d: torch.poisson(torch.full((n,), 3.5, device=d)), 0.0, 1e9, True),
    "binomial": (
        lambda n, d: torch.binomial(torch.full((n,), 9.0, device=d), torch.full((n,), 0.3, device=d)),
        0.0,
        9.0,
        True,
    ),
}


@case(
    "accelerator.laws.draws_by_element",
    axes={"function": {name: [RNG, _cell(name if name == "normal" else f"nn.functional.{name}")] for name in MASKS}},
)
def test_draws_by_element(accelerator, device, function, check):
    """Masks of dropout, and normal numbers with own means, are independent in rows, halves, calls and seeds."""
    first = compare_draws(accelerator, device, MASKS[function], check)

    check.that(len(first.unique()) > 1, "all numbers are equal")


@case("accelerator.laws.distributions", requires=[RNG], axes={"function": sorted(DISTRIBUTIONS)})
def test_distributions(accelerator, device, function, check):
    """A distribution with parameters has the host's moments and its own support, or the device refuses it."""
    draw, low, high, whole = DISTRIBUTIONS[function]
    try:
        draw(4, device)
    except (NotImplementedError, RuntimeError) as error:
        # PyTorch's database has no such operator, so no claim covers it: a refusal is right, and silence is not.
        check.that(bool(str(error)), f"{function} is refused without a word")
        return

    first = compare_draws(accelerator, device, draw, check)

    check.that(low <= float(first.min()) and float(first.max()) <= high, f"a number is not from {low} to {high}")
    check.that(not whole or torch.equal(first, first.round()), "a number is not whole")
    check.that(len(first.unique()) > (5 if whole else 1000), f"{len(first.unique())} different numbers")


IN_PLACE = {
    "normal": lambda t: t.normal_(100.0, 1.0),
    "uniform": lambda t: t.uniform_(50.0, 60.0),
    "exponential": lambda t: t.exponential_(0.5).add_(10.0),
    "bernoulli": lambda t: t.bernoulli_(0.5).add_(10.0),
    "geometric": lambda t: t.geometric_(0.5).add_(10.0),
}
CELLS = {"normal": "normal.in_place"}


@case(
    "accelerator.laws.draws_in_place",
    axes={"function": {name: [RNG, _cell(CELLS.get(name, name)), _cell("add")] for name in IN_PLACE}},
)
def test_draws_in_place(accelerator, device, function, check):
    """A function that draws into a strided tensor writes every element of it, and nothing beside it."""
    layouts = {
        "transposed": lambda t: t[:64, :32].t(),
        "every second column": lambda t: t[:, ::2],
        "an offset": lambda t: t[3:, 5:37],
    }
    for name, view in layouts.items():
        memory = torch.full((64, 64), -1.0, device=device)
        drawn = view(memory)

        IN_PLACE[function](drawn)

        left = int((drawn.cpu() < 0).sum())
        check.equal(left, 0, f"{name}: elements that were not drawn")
        untouched = torch.ones(64, 64, dtype=torch.bool)
        view(untouched).fill_(False)
        check.that(bool((memory.cpu()[untouched] == -1).all()), f"{name}: memory beside the tensor was written")
        rows = drawn.cpu()
        check.that(len(rows.unique(dim=0)) == len(rows), f"{name}: two rows have the same numbers")


@case("accelerator.laws.dropout_gradient", requires=[RNG, _cell("nn.functional.dropout", Mode.TRAINING)])
def test_dropout_gradient(device, check):
    """The gradient of dropout has the mask and the scale of its own forward pass."""
    source = torch.ones(257, 65, device=device).t().requires_grad_()

    first = torch.nn.functional.dropout(source, 0.25)
    second = torch.nn.functional.dropout(source, 0.25)
    (gradient,) = torch.autograd.grad(first, source, torch.ones_like(first))

    check.equal(gradient.cpu(), first.detach().cpu(), "the gradient of a sum over dropped ones")
    check.that(not torch.equal(first.cpu(), second.cpu()), "two calls have one mask")
    kept = first.detach().cpu()
    error = float((kept[kept != 0] * 0.75 - 1).abs().max())
    check.that(error < 1e-6, f"a kept element is off its scale by {error:.3g}")


@case("accelerator.laws.multinomial", requires=[RNG, _cell("multinomial")])
def test_multinomial(device, check):
    """Drawn categories follow their weights, also of strided rows; a category of weight 0 is never drawn."""
    weights = torch.tensor(WEIGHTS)
    rows = torch.stack([weights, weights.flip(0)])
    layouts = {"rows": rows.to(device), "columns": rows.t().contiguous().to(device).t()}
    for name, given in layouts.items():
        drawn = torch.multinomial(given, CHOSEN, replacement=True).cpu()
        several = torch.multinomial(given, 3).cpu()
        single = torch.cat([torch.multinomial(given[:1], 1).cpu() for _ in range(64)]).flatten()

        for row, right in enumerate(rows / rows.sum(1, keepdim=True)):
            count = torch.bincount(drawn[row].clamp(0, len(WEIGHTS)), minlength=len(WEIGHTS) + 1)
            check.equal(int(count[-1]), 0, f"{name}: draws beyond the last category")
            for category, share in enumerate(right.double().tolist()):
                error = max((CHOSEN * share * (1 - share)) ** 0.5, 1e-9)
                distance = abs(float(count[category]) - CHOSEN * share) / error
                message = f"{name}: category {category} of row {row} was drawn {int(count[category])} times"
                check.that(distance <= SIGMAS, f"{message}: {distance:.1f} standard deviations from its weight")
            check.equal(sorted(several[row].tolist()), [i for i, w in enumerate(rows[row]) if w], f"{name}: all three")
        check.that(bool((weights[single] > 0).all()), f"{name}: single draws chose a category of weight 0")


#: More numbers than one launch of a kernel draws, and an odd number of them.
LONG = (1 << 22) + 77
#: Numbers of one row of a long draw. Two rows of fair coins are equal once in 2^256 times.
ROW = 256
MASKED = {f"mask_{name}": [RNG, _cell(name if name == "normal" else f"nn.functional.{name}")] for name in MASKS}


@case("accelerator.laws.long_draws", axes={"function": {name: [RNG] for name in DRAWS} | MASKED})
def test_long_draws(accelerator, device, function, check):
    """Four million numbers of one call do not repeat: no row of 256 of them is equal to another row."""
    draw = MASKS[function.removeprefix("mask_")] if function.startswith("mask_") else DRAWS[function]

    accelerator.manual_seed(9)
    drawn = draw(LONG, device).cpu()

    check.equal(drawn.numel(), LONG, "numbers")
    bits = drawn.view(torch.int32) if drawn.dtype is torch.float32 else drawn
    weights = torch.randint(-(1 << 62), 1 << 62, (ROW,), generator=torch.Generator().manual_seed(3)) | 1
    # Equal rows have equal sums; others by chance, once in 2^35 calls. The sum wraps around, so a power of two as a
    # factor of all numbers would leave few different sums: the remainder of a prime has none.
    remainders = bits.long() % 1_000_003
    for start, name in ((0, "the start"), (LONG % ROW, "the end")):
        rows = remainders[start : start + LONG // ROW * ROW].view(-1, ROW)
        sums = (rows * weights).sum(1)
        check.equal(len(sums) - len(sums.unique()), 0, f"rows that repeat another one, counted from {name}")
    if function == "randperm":
        check.equal(drawn.sort().values, torch.arange(LONG), "the sorted permutation")
        # Other lengths may have another kernel. A merge of two runs that are in order has few descents.
        for permutation in (drawn, *(draw(length, device).cpu() for length in (1000, 30011))):
            length, descents = len(permutation), int((permutation[1:] < permutation[:-1]).sum())
            away = abs(descents - (length - 1) / 2) / math.sqrt((length + 1) / 12)
            check.that(away < 8, f"{descents} of {length} numbers are followed by a smaller one: about half have to be")


#: Numbers of possible results: next to powers of two at which a kernel changes to wider integers, and three quarters of
#: one, where remainders of so many random bits are a third twice as often. PyTorch itself takes them of 64 bits.
RANGES = {
    "24": ((1 << 24) + 1, 3 << 22),
    "31": ((1 << 31) + 1, 3 << 29),
    "32": ((1 << 32) + 3, 3 << 30),
    "40": (1 << 40, 3 << 38),
    "53": ((1 << 53) + 1, 3 << 51),
    "62": (1 << 62,),
}


@case("accelerator.laws.integer_draws", requires=[RNG, Cell("operators.randint", "int64", Mode.INFERENCE.value)],
      axes={"bits": sorted(RANGES)})  # fmt: skip
def test_integer_draws(accelerator, device, bits, check):
    """Whole numbers from wide ranges are in them, fill them evenly, and have even lower bits."""
    accelerator.manual_seed(10)
    for width in RANGES[bits]:
        check_even(device, width, check)
    # Truths are drawn into integers, too.
    for share in (0.0, 1.0):
        drawn = torch.zeros(513, dtype=torch.int64, device=device).bernoulli_(share)
        check.equal(drawn.cpu(), torch.full((513,), int(share)), f"truths in int64 that are true with {share:g}")


def check_even(device, width, check):
    count, low = 1 << 14, -(width // 3)
    ways = {
        "randint": lambda: torch.randint(low, low + width, (count,), device=device),
        "randint_like": lambda: torch.randint_like(torch.zeros(count, dtype=torch.int64).to(device), low, low + width),
        "random_": lambda: torch.empty(count, dtype=torch.int64, device=device).random_(low, low + width),
    }
    for name, draw in ways.items():
        drawn = draw().cpu()

        beyond = int(((drawn < low) | (drawn >= low + width)).sum())
        check.equal(beyond, 0, f"{name}: numbers outside {low} to {low + width - 1}")
        places = [(number - low) * 16 // width for number in drawn.tolist()]
        error = (count / 16 * 15 / 16) ** 0.5
        for part in range(16):
            distance = abs(places.count(part) - count / 16) / error
            said = f"{name}: part {part} of 16 of {width} is off by {distance:.1f} standard deviations"
            check.that(distance <= SIGMAS, said)
        for bit in range(12):
            ones = int((((drawn - low) >> bit) & 1).sum())
            distance = abs(ones - count / 2) / (count / 4) ** 0.5
            check.that(distance <= SIGMAS, f"{name}: bit {bit} is off by {distance:.1f} standard deviations")


ROWS = {
    "bernoulli": lambda d: torch.bernoulli(torch.full((64, 97), 0.5).to(d)),
    "gumbel_softmax": lambda d: torch.nn.functional.gumbel_softmax(torch.zeros(64, 97).to(d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(64, 97).to(d), 9),
    "multinomial_replaced": lambda d: torch.multinomial(torch.ones(64, 97).to(d), 9, replacement=True),
    "permutations": lambda d: torch.multinomial(torch.ones(64, 97).to(d), 97),
    "rrelu": lambda d: torch.nn.functional.rrelu(-torch.ones(64, 97).to(d), training=True),
}
ROW_CELLS = {
    "bernoulli": "bernoulli",
    "gumbel_softmax": "nn.functional.gumbel_softmax",
    "multinomial": "multinomial",
    "multinomial_replaced": "multinomial",
    "permutations": "multinomial",
    "rrelu": "nn.functional.rrelu",
}


@case("accelerator.laws.rows", axes={"function": {name: [RNG, _cell(ROW_CELLS[name])] for name in ROWS}})
def test_rows(accelerator, device, function, check):
    """The rows of a draw by rows, all with one distribution, are different, in one call and in the next one."""
    accelerator.manual_seed(11)
    rows = torch.cat([ROWS[function](device).cpu(), ROWS[function](device).cpu()])

    check.equal(len(rows.unique(dim=0)), len(rows), "different rows")
    if "multinomial" in function:
        # Equal places of neighbouring rows: 1 of 97 by chance.
        same, places = int((rows[1:] == rows[:-1]).sum()), rows[1:].numel()
        distance = (same - places / 97) / (places / 97) ** 0.5
        check.that(distance <= SIGMAS, f"{same} of {places} places are as in the row before")
    if function == "permutations":
        check.equal(rows.sort(1).values, torch.arange(97).expand(128, 97), "the sorted categories of each row")
