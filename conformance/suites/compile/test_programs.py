"""Compiled programs beyond a block: a llama layer, training steps, collectives, random numbers, batches, mutation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, COMPILE, DENORMALS, DTYPE, Cell, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.layout import storage_address
from conformance.numerics.nearness import Near, near
from conformance.numerics.same import same_numbers
from conformance.plan.case import case
from conformance.suites.module_inject.models import LlamaLayer
from conformance.suites.operator_claims import claims
from conformance.suites.parameters import spread_constants

from . import matrices, tables
from .claimed import claimed
from .test_compiled import DEADLINE, CompiledBlock, check_one_graph, compiling, fresh_compiler, results

HOST = torch.device("cpu")
#: They take seconds to import. They are imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch._inductor.compile_fx")


@contextlib.contextmanager
def plainly(accelerator):
    """Yield ``compiled(function, **options)`` on the declared backend; the function is run as often as it is called.

    ``compiling`` runs a graph several times to look at its operators, which random numbers and writes would show.
    """
    with fresh_compiler():
        yield lambda function, **options: torch.compile(function, backend=accelerator.get_compile_backend(), **options)


def _need_some(rows) -> None:
    """Skip a case whose functions are all left out, so that nothing would be checked."""
    if not rows:
        raise EnvironmentLacks("the device claims none of the operators of this case")


class Inductor:
    """PyTorch's own compiler, as an accelerator declares it."""

    @staticmethod
    def get_compile_backend():
        return "inductor"


@contextlib.contextmanager
def naming_torch(accelerator, on_host):
    """Say of a failure that PyTorch's own compiler has it on the host too, if it has: then the fault may be torch's."""
    try:
        yield
    except AssertionError as error:
        try:
            on_host()
        except AssertionError:
            said = f"PyTorch's inductor is wrong here on the CPU too: a fault of torch {torch.__version__}"
            # Another compiler may have taken inductor's graph, or be wrong for a reason of its own.
            backend = accelerator.get_compile_backend()
            rest = ", and not of the device" if backend == "inductor" else f". It may be that of {backend}, too"
            raise AssertionError(f"{said}{rest}. A waiver may name its issue.\n{error}") from error
        raise


@case("compile.llama", requires=[COMPILE, DTYPE.on("float32")], deadline=DEADLINE)
def test_llama(accelerator, check, device):
    """A compiled llama layer is one graph, whose output and gradients agree with float64."""
    model = LlamaLayer()
    exact = LlamaLayer().double()
    exact.load_state_dict(model.state_dict())
    x = torch.randn(2, 5, LlamaLayer.hidden)
    check_one_graph(accelerator, check, device, model, exact, x)


class Line(nn.Module):
    """A product and a nonlinearity."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randn(count, 4, generator=generator)


def adam(parameters):
    # With a small epsilon, Adam would scale a rounding error up to the size of a step.
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


@case("compile.step", requires=[COMPILE], deadline=DEADLINE)
def test_step(accelerator, check, device):
    """Training with a compiled loss and a compiled optimizer step agrees with float64, step by step."""
    model, exact = Line(), Line().double()
    exact.load_state_dict(model.state_dict())
    alone = adam(exact.parameters())
    model.to(device)
    stepping = adam(model.parameters())

    def loss_of(x, target):
        return nn.functional.mse_loss(model(x), target)

    with plainly(accelerator) as compiled:
        loss, step = compiled(loss_of), compiled(stepping.step)
        for number in range(3):
            x, target = rows(5, number)
            alone.zero_grad()
            wanted = nn.functional.mse_loss(exact(x.double()), target.double())
            wanted.backward()
            alone.step()
            stepping.zero_grad()
            value = loss(x.to(device), target.to(device))
            value.backward()
            step()
            near(check, f"the loss of step {number}", value, wanted.detach(), Near.TRAJECTORY)

    for (name, found), parameter in zip(model.named_parameters(), exact.parameters(), strict=True):
        near(check, f"'{name}'", found, parameter, Near.TRAJECTORY)


class Convolution(nn.Module):
    """A convolution of images and a nonlinearity. It has few kernels, as each takes a compiler most of a second."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


CONVOLUTION = Cell("operators.nn.functional.conv2d", "float32", "training")


@case("compile.convolution", requires=[COMPILE, CONVOLUTION], deadline=DEADLINE)
def test_convolution(accelerator, check, device):
    """A compiled convolution net is one graph and takes one step of training, which agrees with float64."""
    model, exact = Convolution(), Convolution().double()
    exact.load_state_dict(model.state_dict())
    check_one_graph(accelerator, check, device, model, exact, torch.randn(3, 2, 11, 9))

    for net in (model, exact):
        torch.optim.SGD(net.parameters(), lr=0.05).step()
    for (name, found), parameter in zip(model.named_parameters(), exact.parameters(), strict=True):
        near(check, f"'{name}' after a step", found, parameter, Near.TRAJECTORY)


@case("compile.batch", requires=[COMPILE], deadline=DEADLINE)
def test_batch(accelerator, check, device):
    """Batches of changing size have the outputs and gradients of float64, in at most two graphs."""
    model, exact = CompiledBlock(), CompiledBlock().double()
    exact.load_state_dict(model.state_dict())
    model.to(device)

    with compiling(accelerator) as (compiled, graphs):
        call = compiled(model)
        # The first is the graph of ``compile.parity``, so its kernels are compiled already.
        for size in (6, 2, 17):
            x = torch.randn(size, 24)
            expected, gradients = results(exact, exact, x.double())
            output, found = results(call, model, x.to(device))
            near(check, f"the output of {size} rows", output, expected, Near.FORWARD)
            for name, gradient in gradients.items():
                near(check, f"the gradient of {name} for {size} rows", found[name], gradient, Near.GRADIENTS)

    # The first size, and a graph for all sizes that follow.
    check.equal(len(graphs), 2, "number of compiled graphs for three batches")


@case("compile.random", requires=[COMPILE], deadline=DEADLINE)
def test_random(accelerator, check, device):
    """Random numbers of compiled code repeat with the seed, follow their law, and serve the backward pass too."""
    count, share, runs = 4000, 0.75, []

    def function(x):
        alone = x.detach()
        pairs = _dropped(alone), _dropped(alone), torch.rand_like(alone), torch.rand_like(alone)
        return nn.functional.dropout(x * 3, 1 - share), *pairs

    with plainly(accelerator) as compiled:
        call = compiled(function)
        for seed in (1, 1, 2):
            x = torch.ones(count, device=device, requires_grad=True)
            accelerator.manual_seed(seed)
            output, *pairs = call(x)
            output.sum().backward()
            runs.append((output.detach().cpu(), x.grad.cpu()))

    (first, gradient), (again, _), (other, _) = runs
    check.agree(again, first, "the elements of the same seed")
    check.that(not torch.equal(other, first), "another seed drops the same elements")
    check.agree(gradient, first, "the gradient, which is dropped where the output is")
    kept = first[first != 0]
    near(check, "the elements that are kept", kept, torch.full_like(kept, 4.0, dtype=torch.float64), Near.SUMS)
    spread = (share * (1 - share) / count) ** 0.5
    found = len(kept) / count
    check.that(abs(found - share) <= 6 * spread, f"{found} of the elements are kept, not {share}")
    drawn = [result.cpu() for result in pairs]
    for what, one, other in (("dropouts of one tensor", *drawn[:2]), ("calls of rand_like", *drawn[2:])):
        check.that(bool(one.any()), f"two {what} in one function drew nothing")
        check.that(not torch.equal(one, other), f"two {what} in one function drew the same numbers")


def _dropped(x):
    return nn.functional.dropout(x, 0.5)


def _writes(into, view, copied, out):
    """Write into an input, into a view of one, and into a copy; return results of each, and a view."""
    into.add_(1)
    view[1:3].mul_(5)
    other = copied.clone()
    other[0] = 9.0
    return into * 2, view + 1, other - copied, out.view(2, 3)[1]


#: The results of ``_writes`` for 1 to 6 in each input, and what it leaves of the inputs.
RESULTS = (
    [4.0, 6.0, 8.0, 10.0, 12.0, 14.0],
    [2.0, 11.0, 16.0, 5.0, 6.0, 7.0],
    [8.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [4.0, 5.0, 6.0],
)
LEFT = (
    [2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    [1.0, 10.0, 15.0, 4.0, 5.0, 6.0],
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
)


@case("compile.mutation", requires=[COMPILE], deadline=DEADLINE)
def test_mutation(accelerator, check, device):
    """Compiled code writes into its inputs exactly what uncompiled code writes, and its views stay views."""
    with plainly(accelerator) as compiled:
        call = compiled(_writes, fullgraph=True)
        # Twice into inputs of their own, then twice into every second element of memory.
        for number, step in enumerate((1, 1, 2, 2)):
            memory = [torch.full((6, step), -8.0, device=device) for _ in LEFT]
            given = [each[:, -1].copy_(torch.arange(1.0, 7.0)) for each in memory]
            found = call(*given)
            gaps = torch.stack([each[:, : step - 1] for each in memory])
            check.that(bool((gaps == -8).all()), f"call {number} wrote between the elements of its inputs")
            for what, result, wanted in zip("abcd", found, RESULTS, strict=True):
                check.equal(result.cpu(), torch.tensor(wanted), f"result {what} of call {number}")
            for what, tensor, wanted in zip("abcd", given, LEFT, strict=True):
                check.equal(tensor.cpu(), torch.tensor(wanted), f"input {what} after call {number}")
    found[3].fill_(-1)
    check.equal(given[3].cpu(), torch.tensor([1.0, 2.0, 3.0, -1.0, -1.0, -1.0]), "the input of a view written to")


#: Matrices of five rows, of which all elements are distinct numbers of float32.
_MATRICES = 81_931


@case("compile.overlap", requires=[COMPILE, DTYPE.on("float32")], axes={"writes": tuple(matrices.OVERLAPPING)},
      deadline=DEADLINE)  # fmt: skip
def test_overlap(accelerator, declaration, check, device, writes):
    """Compiled code that writes where it also reads gives uncompiled results, and leaves the same memory."""

    def pair():
        return torch.arange(1.0, 163.0).view(2, 9, 9).unbind()

    rows = claimed(declaration, matrices.OVERLAPPING[writes], pair, "float32")
    _need_some(rows)
    large = claimed(declaration, matrices.LARGE, pair, "float32") if writes == "alone" else []

    def check_both(accelerator, device):
        _check_overlap(check, accelerator, device, rows, torch.arange(1.0, 163.0).view(2, 9, 9))
        if large:
            _check_overlap(check, accelerator, device, large, torch.arange(2.0 * _MATRICES * 25).view(2, -1, 5, 5))

    with naming_torch(accelerator, lambda: check_both(Inductor, HOST)):
        check_both(accelerator, device)


def _check_overlap(check, accelerator, device, rows, memory) -> None:
    def all_of(*pairs):
        return [run(x, y) for (_, _, run), (x, y) in zip(rows, pairs, strict=True)]

    def given(where):
        return [tuple(each.to(where, copy=True) for each in memory) for _ in rows]

    due, found = given(HOST), given(device)
    with plainly(accelerator) as compiled:
        results_found = compiled(all_of, fullgraph=True)(*found)
    for (what, *_), result, wanted, here, right in zip(rows, results_found, all_of(*due), found, due, strict=True):
        check.equal(result.cpu(), wanted, f"the result of {what}")
        for name, tensor, left in zip("xy", here, right, strict=True):
            check.equal(tensor.cpu(), left, f"{name} after {what}")


@case("compile.constants", requires=[COMPILE], deadline=DEADLINE)
def test_constants(accelerator, declaration, check, device):
    """Compiled arithmetic with constants has the bits of uncompiled code: far ranges, and quotients rounded down."""
    with naming_torch(accelerator, lambda: _check_exact(Inductor, declaration, check, HOST, tables.CONSTANT)):
        _check_exact(accelerator, declaration, check, device, tables.CONSTANT)


#: Functions that compilers write anew, and not as calls of kernels: (name, operator, function). The order of their
#: operands matters for NaN.
_ELEMENTWISE = (
    ("maximum", "maximum", torch.maximum),
    ("minimum", "minimum", torch.minimum),
    ("maximum turned", "maximum", lambda x, y: torch.maximum(y, x)),
    ("minimum turned", "minimum", lambda x, y: torch.minimum(y, x)),
    ("fmax", "fmax", torch.fmax),
    ("fmin", "fmin", torch.fmin),
    ("clamp", "clamp", lambda x, y: x.clamp(-0.5, 0.5)),
    ("relu", "nn.functional.relu", lambda x, y: torch.relu(x)),
    ("less", "lt", lambda x, y: (x < y).to(x)),
    ("equal", "eq", lambda x, y: (x == y).to(x)),
    ("where", "where", lambda x, y: torch.where(x > y, x, y)),
    ("isnan", "isnan", lambda x, y: x.isnan().to(x)),
    ("amax", "amax", lambda x, y: x.amax(-1)),
    ("amin", "amin", lambda x, y: y.amin(-1)),
    ("argmax", "argmax", lambda x, y: x.argmax(-1).to(x)),
)


def _check_elementwise(accelerator, declaration, check, device) -> None:
    """Check functions that compilers write anew, for special values in both orders."""
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.25, 1e-30, 3e38])
    left, right = values.repeat_interleave(len(values)).view(9, 9), values.repeat(len(values)).view(9, 9)

    rows = claimed(declaration, _ELEMENTWISE, lambda: (left, right), "float32")
    _need_some(rows)

    def all_of(x, y):
        return [run(x, y) for *_, run in rows]

    with plainly(accelerator) as compiled:
        found = compiled(all_of, fullgraph=True)(left.to(device), right.to(device))

    for (what, *_), actual, wanted in zip(rows, found, all_of(left, right), strict=True):
        same_numbers(check, what, actual.cpu(), wanted)
    _check_database(accelerator, declaration, check, device)


def _check_database(accelerator, declaration, check, device) -> None:
    """Check every function of elements of PyTorch's database in one graph: a compiler makes few kernels of them.

    What the device gives uncompiled is right, too: how exact that is, other cases judge.
    """
    from conformance.suites.operators.plan.catalogue import operators

    from .joined import elementwise

    known = {each.full_name: each.name for each in operators() if "float32" in each.dtypes}
    order = torch.arange(81.0).view(9, 9) * 29 % 81
    given = (order + 2) / 97, 1.1 + order / 45
    rows = elementwise(lambda name: name in known and claims(declaration, known[name]), *given)
    wrong = []

    def collected(check, row, *found) -> None:
        try:
            _check_near(check, row, *found)
        except AssertionError as error:
            wrong.append((row, error))

    if rows:
        _check_rows(accelerator, check, device, rows, Compared(given, collected))
    _raise_unless_torch_is_wrong(check, wrong, Compared(given, _check_near))


def _check_near(check, row, actual, given, device) -> None:
    """Compare a compiled result with float64 on the host, and, if it is far, with what the device gives uncompiled."""
    name, run = row
    try:
        _check_one(check, name, actual, run(*(each.double() for each in given)))
    except AssertionError:
        _check_one(check, f"{name}, uncompiled", actual, run(*(each.to(device) for each in given)).cpu())


def _check_one(check, what, actual, right) -> None:
    if right.is_floating_point():
        near(check, what, actual, right.double(), Near.GRADIENTS)
    else:
        check.equal(actual.cpu(), right, what)


def _check_functions(accelerator, declaration, check, device) -> None:
    """Check functions of halves, indices and integers; subnormal numbers if the device keeps them."""
    table = tables.EXACT + (tables.SUBNORMAL if declaration.supports(DENORMALS.cell) else ())
    _check_exact(accelerator, declaration, check, device, table)


#: Rows over which gradients are summed: more than a group of threads has.
_MANY_ROWS = 1031


def _check_reduced(accelerator, declaration, check, device) -> None:
    """Check gradients that are sums over many rows, or over the elements of each, in one graph."""
    steps = torch.arange(9.0 * _MANY_ROWS).view(-1, 9) * 29 % 23 / 8 - 1
    given = steps, steps[3:5]

    def losses(results):
        return torch.stack([each.mean() for each in results])

    for what, found, due in _gradients(
        accelerator, declaration, device, matrices.REDUCED, given, losses, torch.float64
    ):
        near(check, what, found, due, Near.GRADIENTS)


def _check_gradients(accelerator, declaration, check, device) -> None:
    """Check the gradients of sums of all functions that write to a part of a copy, in one graph."""
    given = (torch.arange(162.0) * 29 % 23 - 11).view(2, 9, 9)

    def losses(results):
        # One sum, so that a compiler writes few kernels. Its gradient is one number that repeats for each function.
        return torch.stack(results).sum((1, 2))

    for what, found, due in _gradients(accelerator, declaration, device, matrices.MOVING, given, losses, torch.float32):
        same_numbers(check, what, found.cpu(), due)


def _gradients(accelerator, declaration, device, table, given, losses, dtype):
    """Yield the gradients by both operands of each function: the compiled ones, and the host's uncompiled in a dtype.

    ``losses`` makes a number of each function's result.
    """
    rows = claimed(declaration, table, lambda: [each.clone() for each in given], "float32", Mode.TRAINING)
    _need_some(rows)

    def all_of(*pairs):
        return losses([run(x, y) for (_, _, run), (x, y) in zip(rows, pairs, strict=True)])

    def gradients(where, dtype, wrap):
        pairs = [tuple(each.to(where, dtype, copy=True).requires_grad_() for each in given) for _ in rows]
        wrap(all_of)(*pairs).backward(torch.arange(2, 2 + len(rows), device=where, dtype=dtype))
        return pairs

    due = gradients(HOST, dtype, lambda function: function)
    with plainly(accelerator) as compiled:
        found = gradients(device, torch.float32, lambda function: compiled(function, fullgraph=True))
    for (what, *_), pair, right in zip(rows, found, due, strict=True):
        for name, actual, wanted in zip("xy", pair, right, strict=True):
            yield f"the gradient of {name} of {what}", actual.grad, wanted.grad


class Compared(NamedTuple):
    """Operands of functions in one graph, and how each result is compared: with the row, the operands, the device."""

    given: Sequence[torch.Tensor]
    compare: Callable[..., None]


def _check_same(check, row, actual, given, device) -> None:
    """Compare a compiled result with the host's uncompiled one, bit for bit but for the signs that are open."""
    (what, run), actual = row, actual.cpu()
    wanted = run(*given)
    check.equal((actual.dtype, actual.shape), (wanted.dtype, wanted.shape), f"dtype and shape of {what}")
    same_numbers(check, what, actual, wanted, signed=what in tables.SIGNED)


def _shares(result, operands) -> list[bool]:
    """Return for each operand whether a result is known to be in its memory."""
    address = storage_address(result)
    return [address is not None and address == storage_address(each) for each in operands]


def _exact(declaration, table):
    """Return name and function of the exact functions of a table that the device claims, and how they are compared."""
    rows = claimed(declaration, table, lambda: (tables.operands(),))
    _need_some(rows)
    return [(name, partial(_of_operands, run)) for name, _, _, run in rows], Compared(tables.operands(), _check_same)


def _of_operands(run, *operands):
    return run(tables.Operands(*operands))


def _check_exact(accelerator, declaration, check, device, table) -> None:
    """Check one graph of all exact functions of a table that the device claims."""
    _check_rows(accelerator, check, device, *_exact(declaration, table))


def _check_rows(accelerator, check, device, chosen, compared) -> None:
    """Check functions in one graph; if that is refused, in two: a host's compiler may end in a large kernel."""
    given, compare = compared

    def all_of(*operands):
        return [run(*operands) for _, run in chosen]

    placed = [tensor.to(device) for tensor in given]
    try:
        with plainly(accelerator) as compiled:
            found = compiled(all_of, fullgraph=True)(*placed)
    except Exception:
        if len(chosen) == 1:
            raise
        check.metric("refused in one graph", f"{len(chosen)} functions")
        for half in (chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]):
            try:
                _check_rows(accelerator, check, device, half, compared)
            except AssertionError:
                if not _is_torch_wrong(check, half, compared):
                    raise
                check.metric("wrong in PyTorch's compiler on this host", f"{len(half)} functions in one graph")
        return

    for row, actual in zip(chosen, found, strict=True):
        compare(check, row, actual, given, device)
        # A compiler may leave out a function that changes no number, and must not give its argument for a new tensor.
        if any(is_shared := _shares(actual, placed)):
            check.equal(is_shared, _shares(row[1](*given), given), f"operands whose memory the result of {row[0]} has")


def _is_torch_wrong(check, chosen, compared) -> bool:
    """Return whether PyTorch's own compiler is wrong on this host for these functions in one graph, or refuses it."""
    try:
        _check_rows(Inductor, check, HOST, chosen, compared)
    except (AssertionError, RuntimeError):
        return True
    return False


def _raise_unless_torch_is_wrong(check, wrong, compared) -> None:
    """Raise the first error of rows with their errors that PyTorch's own compiler does not have on this host."""
    excused = []
    for row, error in wrong:
        if not _is_torch_wrong(check, [row], compared):
            raise error
        excused.append(row[0])
    if excused:
        check.metric("wrong in PyTorch's compiler on this host", ", ".join(excused))


def _check_unless_torch_is_wrong(accelerator, declaration, check, device, table) -> None:
    """Check exact functions in one graph; if that is wrong, each alone.

    What PyTorch's own compiler has wrong on this host is no fault of a device.
    """
    chosen, compared = _exact(declaration, table)
    with contextlib.suppress(AssertionError, RuntimeError):
        _check_rows(accelerator, check, device, chosen, compared)
        return
    wrong = []
    for row in chosen:
        try:
            _check_rows(accelerator, check, device, [row], compared)
        except (AssertionError, RuntimeError) as error:
            wrong.append((row, error))
    _raise_unless_torch_is_wrong(check, wrong, compared)


#: What is compiled by itself, by the name of its case: each is a graph or a few.
_PARTS = {
    "elementwise": _check_elementwise,
    "functions": _check_functions,
    "writing": partial(_check_exact, table=tables.WRITING),
    "chained": partial(_check_exact, table=tables.CHAINED),
    "wide": partial(_check_exact, table=tables.WIDE),
    "running": partial(_check_exact, table=tables.RUNNING),
    "fragile": partial(_check_unless_torch_is_wrong, table=tables.FRAGILE),
    "moving": _check_gradients,
    "sums": _check_reduced,
}


@case("compile.special", requires=[COMPILE, DTYPE.on("float32")], axes={"part": tuple(_PARTS)}, deadline=DEADLINE)
def test_special(accelerator, declaration, check, device, part):
    """Compiled functions give the host's uncompiled results for NaN, infinities, halves, indices and integers.

    Compiled gradients of functions that write to a part of a copy, and of sums over many rows, are the host's, too.
    """
    _PARTS[part](accelerator, declaration, check, device)


def _distinct(rows: int, columns: int) -> torch.Tensor:
    """Return a matrix of distinct numbers of both signs, in no order."""
    count = rows * columns
    steps = torch.arange(count) * 29 % count
    return ((steps - count / 2 + 0.25) / count).view(rows, columns)


#: Views by name: each takes a function that makes the memory, so that host and device have memory of their own.
_VIEWS = {
    "permuted": lambda made: made(_distinct(35, 21)).t(),
    "offset": lambda made: made(_distinct(9, 11))[2:7, 3:10],
    "expanded": lambda made: made(_distinct(1, 7)).expand(5, 7),
}
#: Functions for the other views: each costs a compilation. Equal rows have one result by those of an expanded input.
_FEWER = {
    "offset": ("argmax of the transpose", "sum of columns", "softmax", "cat"),
    "expanded": ("sum of columns", "softmax", "argmin of rows", "flat transpose"),
}


@case("compile.layout", requires=[COMPILE, DTYPE.on("float32")], deadline=DEADLINE)
def test_layout(accelerator, declaration, check, device):
    """Compiled functions give uncompiled results for permuted, sliced and expanded inputs, and leave them alone."""
    usable = claimed(declaration, matrices.ARRANGED, lambda: (_distinct(35, 21),), "float32")
    _need_some(usable)
    chosen = {view: [row for row in usable if row[0] in _FEWER.get(view, row)] for view in _VIEWS}

    def all_of(*views):
        return [run(x) for x, rows_ in zip(views, chosen.values(), strict=True) for _, _, run in rows_]

    given = [view(lambda host: host.to(device, copy=True)) for view in _VIEWS.values()]
    with plainly(accelerator) as compiled:
        function = compiled(all_of, fullgraph=True)
        found = [function(*given) for _ in "ab"]

    exact = {name: view(torch.Tensor.double) for name, view in _VIEWS.items()}
    wanted = [(f"{what} of {view} input", run(exact[view])) for view, row in chosen.items() for what, _, run in row]
    for number, made in enumerate(found):
        for (what, right), actual in zip(wanted, made, strict=True):
            if right.is_floating_point():
                near(check, f"{what} in call {number}", actual, right, Near.FORWARD)
            else:
                check.equal(actual.cpu(), right, f"{what} in call {number}")
    for (name, view), tensor in zip(_VIEWS.items(), given, strict=True):
        check.agree(tensor.cpu(), view(torch.clone), f"the {name} input after the calls")


@case("compile.buffers", requires=[COMPILE, Cell("operators.nn.functional.batch_norm", "float32", "training")],
      deadline=DEADLINE)  # fmt: skip
def test_buffers(accelerator, check, device):
    """A compiled layer updates its buffers once a call, and uses them in evaluation."""
    layer, exact = nn.BatchNorm1d(6), nn.BatchNorm1d(6).double()
    spread_constants(layer)
    exact.load_state_dict(layer.state_dict())
    layer.to(device)

    with plainly(accelerator) as compiled:
        call = compiled(layer)
        for number in range(3):
            x, _ = rows(7, number)
            near(check, f"the output of call {number}", call(x.to(device)), exact(x.double()).detach(), Near.FORWARD)
        layer.eval()
        exact.eval()
        x, _ = rows(7, 9)
        with torch.no_grad():  # else a graph of the backward pass, which nothing calls, is compiled as well
            near(check, "the output in evaluation", call(x.to(device)), exact(x.double()), Near.FORWARD)

    for name in ("running_mean", "running_var"):
        near(check, name, getattr(layer, name), getattr(exact, name), Near.FORWARD)
    check.equal(int(layer.num_batches_tracked), 3, "batches that were counted")


def _around(x, group):
    """Return three collectives between operators of the device, in one tensor: each size would take a kernel."""
    from torch.distributed import _functional_collectives as functional

    doubled = x * 2
    total = functional.all_reduce(doubled, "sum", group)
    whole = functional.all_gather_tensor(doubled, 0, group)
    part = functional.reduce_scatter_tensor(doubled, "sum", 0, group)
    return torch.relu(torch.cat((total, whole, part)) + 1)


@case("compile.collective", requires=[COMPILE, COMM, COMM_DTYPE.on("float32")], world_size=2, deadline=DEADLINE)
def test_collective(accelerator, check, device, rank, world_size, group):
    """Collectives inside a compiled function give the right values, between the operators around them."""
    parts = [torch.arange(-4.0, 4.0) * (number + 1) + number for number in range(world_size)]

    with plainly(accelerator) as compiled:
        function = compiled(lambda x: _around(x, group), fullgraph=True)
        found = [function(parts[rank].to(device)).cpu() for _ in "ab"]

    total = 2 * torch.stack(parts).sum(0)
    expected = (total, 2 * torch.cat(parts), total.chunk(world_size)[rank])
    for number, made in enumerate(found):
        results_found = made.split([len(wanted) for wanted in expected])
        for name, result, wanted in zip(("sum", "gather", "part of the sum"), results_found, expected, strict=True):
            check.equal(result, (wanted + 1).clamp(min=0), f"the {name} of call {number}")
