"""torch.compile cases on the declared backend: results of uncompiled code, and the least possible number of graphs."""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import nn

from conformance.accelerators.capabilities import COMPILE, DTYPE, Cell, Mode
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.accelerator.settings import check_kept, settings_of
from conformance.suites.shared_bodies import WatchedBackend

from . import matrices
from .claimed import claimed

#: Seconds. Compilers are slow, most of all in their first compilation.
DEADLINE = 300


@contextlib.contextmanager
def compiling(accelerator):
    """Yield ``compiled(function, **options)`` and a list that gets the number of nodes of each compiled graph.

    Fail the case as a stub if the backend runs the operators one by one.
    """
    backend = WatchedBackend(accelerator.get_compile_backend())

    def compiled(function, **options):
        return torch.compile(function, backend=backend, **options)

    with fresh_compiler():
        yield compiled, backend.nodes
    backend.check()


@contextlib.contextmanager
def fresh_compiler():
    """Forget compiled graphs before and after the context: those of an earlier case would be used again."""
    import torch._dynamo

    torch._dynamo.reset()
    with warnings.catch_warnings():
        # Compilers and torch's own modules warn about their internals; no case depends on that.
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


class CompiledBlock(nn.Module):
    """A product, a reduction along rows and a residual. It has few kernels, as each takes a compiler seconds."""

    def __init__(self, width=24):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.softmax(self.mix(x), dim=-1) * 3


def results(call, model, x):
    """Return the output, and the gradients of its weighted sum by name."""
    inputs = x.clone().requires_grad_()
    output = call(inputs)
    weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    model.zero_grad()
    output.backward(weight.to(output))
    return output, {"input": inputs.grad, **{name: value.grad for name, value in model.named_parameters()}}


def check_one_graph(accelerator, check, device, model, exact, x):
    """Check that the compiled model is one graph, whose output and gradients agree with ``exact`` in float64."""
    expected, gradients = results(exact, exact, x.double())
    model.to(device)

    with compiling(accelerator) as (compiled, graphs):
        output, found = results(compiled(model), model, x.to(device))

    check.equal(len(graphs), 1, "number of compiled graphs")
    near(check, "the output", output, expected, Near.FORWARD)
    for name, gradient in gradients.items():
        near(check, f"the gradient of {name}", found[name], gradient, Near.GRADIENTS)


#: Operators of ``CompiledBlock``.
_OF_A_BLOCK = [Cell(f"operators.{name}", mode=Mode.TRAINING.value) for name in ("nn.functional.linear", "softmax")]


@case("compile.parity", requires=[COMPILE, DTYPE, *_OF_A_BLOCK], axes={"dtype": ("float32", "bfloat16")},
      deadline=DEADLINE)  # fmt: skip
def test_parity(accelerator, check, device, dtype):
    """The output and gradients of a compiled block agree with float64 on the host within rounding error."""
    kind = getattr(torch, dtype)
    model = CompiledBlock().to(kind)
    exact = CompiledBlock().double()
    exact.load_state_dict(model.state_dict())
    x = torch.randn(6, 24).to(kind)
    check_one_graph(accelerator, check, device, model, exact, x)


@case("compile.dynamic", requires=[COMPILE], deadline=DEADLINE)
def test_dynamic(accelerator, declaration, check, device):
    """Dynamic graphs serve every length with the results of uncompiled code, and as one graph where that is simple."""

    def function(x):
        return (x * x + 1).sum(dim=-1) / x.shape[0]

    with compiling(accelerator) as (compiled, graphs):
        run = compiled(function, dynamic=True)
        for length in (5, 7, 18):
            x = torch.randn(length, 9)
            near(check, f"length {length}", run(x.to(device)), function(x.double()), Near.SUMS)

    check.equal(len(graphs), 1, "number of compiled graphs for three lengths")
    rows = claimed(declaration, matrices.SIZED, lambda: (torch.ones(6, 9),), "float32")
    chosen = [(name, run) for name, _, run in rows]
    with fresh_compiler():
        # A backend may make further graphs of functions this complex.
        run = torch.compile(
            lambda x: [one(x) for _, one in chosen], backend=accelerator.get_compile_backend(), dynamic=True
        )
        for shape in ((6, 9), (11, 4), (17, 23)):
            x = torch.randn(shape)
            for (what, alone), actual in zip(chosen, run(x.to(device)), strict=True):
                near(check, f"{what} of {shape}", actual, alone(x.double()), Near.FORWARD)


def doubled_less_one(x):
    """Return twice the tensor less one. Two cases share its kernels, as each takes a compiler most of a second."""
    return x * 2 - 1


@case("compile.breaks", requires=[COMPILE], deadline=DEADLINE)
def test_breaks(accelerator, check, device):
    """Code with a graph break runs in two graphs, which serve every call."""

    def function(x):
        y = doubled_less_one(x)
        torch._dynamo.graph_break()
        return doubled_less_one(y)

    with compiling(accelerator) as (compiled, graphs):
        run, x = compiled(function), torch.arange(9.0)
        found = [run(x.to(device)).cpu() for _ in "ab"]

    for result in found:
        check.equal(result, x * 4 - 3, "the result of code with a graph break")
    check.equal(len(graphs), 2, "number of compiled graphs around one break")


@case("compile.recompiles", requires=[COMPILE], deadline=DEADLINE)
def test_recompiles(accelerator, check, device):
    """Inputs of one dtype compile once, another dtype compiles once more, and every result is correct."""
    counts = []
    with compiling(accelerator) as (compiled, graphs):
        run = compiled(doubled_less_one)
        for source in (torch.arange(9.0), torch.ones(9), torch.arange(9), torch.arange(9.0)):
            check.equal(run(source.to(device)).cpu(), doubled_less_one(source), f"the result for {source.dtype}")
            counts.append(len(graphs))

    check.equal(counts, [1, 1, 2, 2], "number of compiled graphs after each call")


@case("compile.state", requires=[COMPILE], deadline=DEADLINE)
def test_state(accelerator, declaration, check, device):
    """Compiling and calling compiled code leave the settings of the process and the device as they were."""
    x = torch.arange(-65536.0, 65536.0)
    with fresh_compiler():
        before = settings_of(accelerator, device, declaration)
        run = torch.compile(lambda y: y.relu() + 1, backend=accelerator.get_compile_backend())
        for number in range(3):
            check.equal(run(x.to(device)).cpu(), x.relu() + 1, f"the result of call {number}")
            what = "compiling and the first call" if number == 0 else f"call {number}"
            check_kept(check, before, settings_of(accelerator, device, declaration), what)
