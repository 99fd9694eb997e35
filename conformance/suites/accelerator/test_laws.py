"""Laws that no single operator shows: draws, large integers, host scalars, sharing, threads, growth over steps."""

from __future__ import annotations

import io
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from conformance.accelerators.capabilities import CHECKPOINT, DTYPE, EVENT, MEMORY_STATS, RNG, STREAM, Cell, Mode
from conformance.plan.case import case
from conformance.suites.operator_claims import skip_if_denied

from .drawing import compare_draws
from .patterns import bytes_of, edge_values, random_bits

#: Large integers that a float of the given width cannot hold.
INTEGERS = {"int32": 2**24 + 1, "int64": 2**53 + 1}


def _computes(*operators: str, dtype: str = "float32", mode: Mode = Mode.INFERENCE) -> list[Cell]:
    return [Cell(f"operators.{operator}", dtype, mode.value) for operator in operators]


DRAWS = {
    "rand": lambda n, d: torch.rand(n, device=d),
    "randn": lambda n, d: torch.randn(n, device=d),
    "uniform": lambda n, d: torch.empty(n, device=d).uniform_(2.0, 5.0),
    "normal": lambda n, d: torch.empty(n, device=d).normal_(1.0, 3.0),
    "exponential": lambda n, d: torch.empty(n, device=d).exponential_(0.5),
    "bernoulli": lambda n, d: torch.empty(n, device=d).bernoulli_(0.3),
    "randint": lambda n, d: torch.randint(0, 11, (n,), device=d).float(),
}


def _half_open(accelerator, device, check) -> None:
    """Check that torch.rand stays below one in each dtype of the device, as it documents."""
    for dtype in accelerator.supported_dtypes():
        if not dtype.is_floating_point or dtype.itemsize < 2:
            continue
        like = torch.empty(1 << 17, dtype=dtype, device=device)
        draws = {"rand": torch.rand(len(like), dtype=dtype, device=device), "rand_like": torch.rand_like(like)}
        for name, numbers in draws.items():
            drawn = numbers.cpu().double()
            check.that(float(drawn.min()) >= 0, f"{name} gives {float(drawn.min())} in {dtype}")
            outside = int((drawn >= 1).sum())
            check.equal(outside, 0, f"numbers of {name} in {dtype} that are not below one")
            # A 16-bit dtype that drops bits has a mean of a little less than a half.
            check.that(abs(float(drawn.mean()) - 0.5) < 0.02, f"the mean of {name} in {dtype} is {drawn.mean():.4f}")


@case("accelerator.laws.draws", requires=[RNG], axes={"function": sorted(DRAWS)})
def test_draws(accelerator, device, function, check):
    """Rows, halves, calls and seeds of a random function are independent, and its numbers have the host's moments."""
    first = compare_draws(accelerator, device, DRAWS[function], check)
    limits = {"rand": (0, 1), "uniform": (2, 5), "bernoulli": (0, 1), "randint": (0, 10), "exponential": (0, 1e9)}
    low, high = limits.get(function, (-1e9, 1e9))
    check.that(low <= float(first.min()) and float(first.max()) <= high, f"a number is not from {low} to {high}")
    if function == "rand":
        _half_open(accelerator, device, check)


@case(
    "accelerator.laws.large_integers",
    axes={"dtype": {dtype: _computes("add", "mul", "sum", "eq", dtype=dtype) for dtype in INTEGERS}},
)
def test_large_integers(declaration, device, dtype, check):
    """Integers that a float cannot hold keep their last bit, as values and as scalars."""
    skip_if_denied(declaration, "sub", "ne", "masked_fill", "clamp", "max.reduction_no_dim", dtype=dtype)
    number, kind = INTEGERS[dtype], getattr(torch, dtype)
    host = torch.arange(number - 3, number + 62, dtype=kind)
    values = host.to(device)

    found = {
        "filled": torch.full((65,), number, dtype=kind, device=device),
        "added": torch.zeros(65, dtype=kind, device=device) + number,
        "added tensors": values + 1,
        "multiplied": (values * 3) if dtype == "int64" else values * 1,
        "compared": (values == number).to(kind),
        "masked": values.masked_fill(values != number, 7),
        "clamped": values.clamp(min=number),
        "summed": (values - number).sum() + number,
        "largest": values.max(),
    }

    expected = {
        "filled": torch.full((65,), number, dtype=kind),
        "added": torch.full((65,), number, dtype=kind),
        "added tensors": torch.arange(number - 2, number + 63, dtype=kind),
        "multiplied": torch.tensor(
            [value * (3 if dtype == "int64" else 1) for value in range(number - 3, number + 62)]
        ),
        "compared": torch.tensor([int(i == 3) for i in range(65)]),
        "masked": torch.tensor([number if i == 3 else 7 for i in range(65)]),
        "clamped": torch.tensor([max(number, number - 3 + i) for i in range(65)]),
        "summed": torch.tensor(sum(range(-3, 62)) + number),
        "largest": torch.tensor(number + 61),
    }
    for name, right in expected.items():
        # int32: a sum is int64.
        check.equal(found[name].cpu().to(torch.int64), right.to(torch.int64), name)
    check.equal(values[3].item(), number, "item()")


@case("accelerator.laws.host_scalars", requires=_computes("add", "mul", "where", "pow"))
def test_host_scalars(declaration, device, check):
    """A tensor without dimensions on the host joins tensors of the device, also as one element of a table there."""
    skip_if_denied(declaration, "sub", "div.no_rounding_mode", "gt")
    for name, two in (("a number", torch.tensor(2.0)), ("an element", torch.tensor([5.0, 2.0, 7.0])[1])):
        for work, (found, right) in _with_scalar(device, two).items():
            check.equal(found.device.type, device.type, f"{work} with {name}: the device")
            error = float(((found.cpu() - right) / right.abs().clamp(min=1)).abs().max())
            check.that(error <= 2.0**-22, f"{work} with {name} on the host is off by {error:.3g}")


def _assigned(tensor, number):
    tensor[:] = number
    return tensor


def _with_scalar(device, two):
    """Return what each operation gives, and the right result, by its name."""
    host = torch.arange(1.0, 66.0)
    values = host.to(device)

    found = {
        "add": values + two,
        "radd": two + values,
        "mul": values * two,
        "pow": values**two,
        "div": two / values,
        "where": torch.where(values > 3, values, two),
        "in place": values.clone().sub_(two),
        "assigned": _assigned(values.clone(), two),
    }

    expected = {
        "add": host + 2,
        "radd": host + 2,
        "mul": host * 2,
        "pow": host * host,
        "div": 2 / host,
        "where": torch.tensor([number if number > 3 else 2.0 for number in host.tolist()]),
        "in place": host - 2,
        "assigned": torch.full_like(host, 2.0),
    }
    found["in turn"], expected["in turn"] = _written_in_turn(values.clone()), 3 * torch.arange(1.0, 66.0) + 1
    return {name: (found[name], right) for name, right in expected.items()}


def _written_in_turn(tensor):
    """Write a number of the host to each element, without a wait in between: each call has a number of its own."""
    for place in range(len(tensor)):
        tensor[place] = 3.0 * (place + 1) + 1
    return tensor


@case("accelerator.laws.accumulated_gradients", requires=_computes("mul", "sum", mode=Mode.TRAINING))
def test_accumulated_gradients(device, check):
    """Gradients add up in the memory that they were given, and a changed saved tensor is refused."""
    memory = torch.zeros(2, 33, device=device)
    parameter = torch.arange(33.0, device=device).requires_grad_()
    parameter.grad = memory[1]

    for factor in (1.0, 2.0, 4.0):
        (parameter * factor).sum().backward()

    check.equal(memory.cpu(), torch.stack([torch.zeros(33), torch.full((33,), 7.0)]), "the memory of the gradient")
    saved = parameter.detach().clone()
    total = (parameter * saved).sum()
    before = saved._version
    saved.add_(1.0)
    check.that(saved._version > before, "add_() did not count a version")
    before = saved._version
    saved.copy_(torch.zeros_like(saved))
    check.that(saved._version > before, "copy_() did not count a version")
    try:
        total.backward()
    except RuntimeError:
        refused = True
    else:
        refused = False
    check.that(refused, "backward used a tensor that had been changed in place")


@case("accelerator.laws.saved_sharing", requires=[CHECKPOINT])
def test_saved_sharing(device, check):
    """Saved views share memory again after loading, and flags of parameters are kept."""
    base = torch.arange(24.0, device=device).reshape(4, 6)
    model = {"base": base, "view": base[1:3, ::2], "parameter": torch.nn.Parameter(torch.ones(3, device=device), False)}
    file = io.BytesIO()

    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, map_location=device, weights_only=True)
    loaded["base"][1, 2] = -5.0

    expected = torch.arange(24.0).reshape(4, 6)
    expected[1, 2] = -5.0
    check.equal(loaded["base"].cpu(), expected, "the loaded base")
    check.equal(loaded["view"].cpu(), expected[1:3, ::2], "the loaded view after a change of the base")
    check.equal(loaded["view"].stride(), (6, 2), "the strides of the view")
    check.equal(base.cpu(), torch.arange(24.0).reshape(4, 6), "the saved base")
    check.that(isinstance(loaded["parameter"], torch.nn.Parameter), "the parameter is a plain tensor")
    check.that(not loaded["parameter"].requires_grad, "the frozen parameter requires a gradient")


def _has_float64(device):
    try:
        torch.ones(1, device=device).to(torch.float64)
    except Exception:  # each device refuses in its own way
        return False
    return True


def _shows(text, number):
    """Return whether a text contains a number or a truth value, in any notation."""
    if isinstance(number, bool):
        return str(number).lower() in text
    found = re.findall(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", text)
    return any(math.isclose(float(each), number, rel_tol=1e-4) for each in found)


@case("accelerator.laws.printed", requires=_computes("add"))
def test_printed(device, check):
    """A printed tensor has the host's digits, and names its device."""
    given = [torch.arange(2000), torch.tensor([True, False])]
    if _has_float64(device):  # PyTorch itself converts floating-point numbers to float64 to print them
        given.insert(0, torch.tensor([1.5, -2.25, 1e-7, float("nan")]))
    for host in given:
        text = str(host.to(device)).replace("\n", "").replace(" ", "")

        if type(host.to(device)).__repr__ is torch.Tensor.__repr__:
            # A wrapper's class may print its own name before the bracket.
            digits = str(host).replace("\n", "").replace(" ", "").removeprefix("tensor(").removesuffix(")")
            check.that(digits in text, f"{text[:200]} does not contain {digits[:200]}")
            check.that(
                device.type == "cpu" or f"device='{device.type}" in text, f"{text[-80:]} does not name the device"
            )
        else:  # a class that prints in its own way has to show the numbers
            shown = str(host.to(device)).lower()
            for number in host.flatten()[:3].tolist():
                check.that(_shows(shown, number), f"{shown[:200]} does not contain {number}")


@case("accelerator.laws.two_threads", requires=_computes("mm", "add", "mul", mode=Mode.TRAINING))
def test_two_threads(device, check):
    """Two threads that compute at the same time, forward and backward, get the results of one thread."""
    found: dict[int, torch.Tensor] = {}
    both = threading.Barrier(2)

    def work(number: int) -> None:
        both.wait()
        weight = (torch.arange(81.0).reshape(9, 9) % (5 + number)).to(device).requires_grad_()
        for _ in range(8):
            (weight @ weight * (number + 1)).sum().backward()
        found[number] = weight.grad.cpu()

    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(work, number) for number in range(2)]:
            ended.result()  # raises what the thread has raised

    for number in range(2):
        weight = torch.arange(81.0, dtype=torch.float64).reshape(9, 9) % (5 + number)
        right = 8 * (number + 1) * (weight.sum(1)[None, :] + weight.sum(0)[:, None])
        check.equal(found[number].double(), right, f"the gradient of thread {number}")


@case("accelerator.laws.growth", requires=[MEMORY_STATS, *_computes("mm", "add", mode=Mode.TRAINING)])
def test_growth(accelerator, device, check):
    """Allocated memory does not grow over training steps."""
    layer = torch.nn.Linear(65, 65, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
    before, after = 0, 0
    for step in range(24):
        optimizer.zero_grad()
        layer(torch.ones(33, 65, device=device)).square().mean().backward()
        optimizer.step()
        accelerator.synchronize()
        if step == 3:
            before = accelerator.memory_allocated()
    after = accelerator.memory_allocated()

    check.that(before > 0, f"{before} bytes are allocated with a model of 17,160 bytes")
    check.that(after <= before, f"allocated memory grew from {before} to {after} bytes in 20 steps")


#: Functions that move elements and compute nothing. PyTorch's own gather in 16 bits goes through float32.
MOVES = {
    "cat": lambda t, i: torch.cat([t, t[:2]]),
    "flip": lambda t, i: t.flip(0),
    "index_select": lambda t, i: t.index_select(0, i),
    "repeat": lambda t, i: t.repeat(2, 1),
    "roll": lambda t, i: t.roll(3, 1),
}


@case(
    "accelerator.laws.moved_bits",
    axes={
        "dtype": {kind: (DTYPE.on(kind), *_computes(*MOVES, dtype=kind)) for kind in ("float32", "float16", "bfloat16")}
    },
)
def test_moved_bits(device, dtype, check):
    """A function that only moves elements keeps all their bits, the payload and the sign of NaN among them."""
    kind = getattr(torch, dtype)
    values = random_bits(kind, 33 * 20).view(33, 20)
    values[0] = edge_values(kind)
    indices = torch.arange(40) * 7 % 33
    for name, move in MOVES.items():
        expected = move(values.view(torch.int32 if kind is torch.float32 else torch.int16), indices)
        found = check.bits(move(values.to(device), indices.to(device)).cpu())
        wrong = int((bytes_of(found) != bytes_of(expected)).sum())
        check.equal(wrong, 0, f"bytes that {name} has changed")


@case("accelerator.laws.query_then_synchronize", requires=[EVENT, STREAM])
def test_query_then_synchronize(accelerator, device, check):
    """After query() is True, the results are there without another wait."""
    source = torch.arange(1 << 16, dtype=torch.float32, device=device)
    accelerator.synchronize()
    for factor in range(1, 9):
        target = source * factor
        event = accelerator.Event()
        event.record()
        while not event.query():
            pass
        side = accelerator.Stream()
        with accelerator.stream(side):
            arrived = target.cpu()
        check.equal(arrived, torch.arange(1 << 16, dtype=torch.float32) * factor, f"the product by {factor}")
