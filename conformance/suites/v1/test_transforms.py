"""Cases of torch.func: gradients of samples, Jacobians, products with them, ensembles and batched random numbers."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn import functional as F

from conformance.accelerators.capabilities import DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

ROWS, IN, HIDDEN, OUT = 7, 5, 9, 3
DTYPES = ("float32", "bfloat16")


def numbers(kind):
    """Return inputs, two weights and a bias, which the dtype represents exactly."""
    generator = torch.Generator().manual_seed(61)
    shapes = (ROWS, IN), (IN, HIDDEN), (HIDDEN, OUT), (HIDDEN,)
    return [(0.5 * torch.randn(shape, generator=generator)).to(kind) for shape in shapes]


def network(x, into, out, bias):
    """Return the outputs of rows or of one row."""
    return torch.tanh(x @ into + bias) @ out


def derivatives(x, into, out, bias):
    """Return the outputs of one row, its Jacobian and the Hessian of its first output, by formulas."""
    hidden = torch.tanh(x @ into + bias)
    slope = 1 - hidden.square()
    jacobian = (out * slope.unsqueeze(1)).t() @ into.t()
    hessian = (into * (-2 * hidden * slope * out[:, 0])) @ into.t()
    return hidden @ out, jacobian, hessian


def vectors():
    """Return vectors of plus and minus one that a Jacobian is multiplied by.

    They have the signs of its first column and its first row, so that the terms of a product do not cancel.
    """
    _, jacobian, _ = derivatives(*(tensor.double() for tensor in _first_row()))
    return jacobian[:, 0].sign(), jacobian[0].sign()


def _first_row():
    x, *rest = numbers(torch.float64)
    return x[0], *rest


def magnitude_of(transform, into, out, bias):
    """Return the largest sum of magnitudes of the terms of a result: terms cancel, and their roundings do not."""
    into, out = into.double().abs(), out.double().abs()
    if transform == "vjp":
        return float((into @ out).sum(1).max())
    if transform in ("jvp", "linearize"):
        return float((into @ out).sum(0).max())
    return float((2 * (into * out[:, 0]) @ into.t() if transform == "hessian" else into @ out).max())


def by_transform(transform, first, rest):
    """Return what a transform of torch.func gives for one row."""
    from torch import func

    def of_input(x):
        return network(x, *rest)

    left, right = (vector.to(first) for vector in vectors())
    if transform == "jacrev":
        return func.jacrev(of_input)(first)
    if transform == "jacfwd":
        return func.jacfwd(of_input)(first)
    if transform == "vjp":
        return func.vjp(of_input, first)[1](left)[0]
    if transform == "jvp":
        return func.jvp(of_input, (first,), (right,))[1]
    if transform == "linearize":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own graph
            return func.linearize(of_input, first)[1](right)
    return func.hessian(lambda x: of_input(x)[0])(first)


def expected_of(transform, first, rest):
    """Return the exact value of a transform, from formulas in float64."""
    _, jacobian, hessian = derivatives(first, *rest)
    if transform == "vjp":
        return vectors()[0] @ jacobian
    if transform in ("jvp", "linearize"):
        return jacobian @ vectors()[1]
    return hessian if transform == "hessian" else jacobian


@case("v1.functorch", requires=[DTYPE], axes={
    "transform": ("jacrev", "jacfwd", "vjp", "jvp", "linearize", "hessian"), "dtype": DTYPES})  # fmt: skip
def test_transform(check, device, transform, dtype):
    """Jacobians, Hessians and products with them agree with formulas in float64."""
    x, *rest = numbers(getattr(torch, dtype))

    found = by_transform(transform, x[0].to(device), [tensor.to(device) for tensor in rest])

    exact = expected_of(transform, x[0].double(), [tensor.double() for tensor in rest])
    check.equal(found.dtype, getattr(torch, dtype), "the dtype of the result")
    near(check, transform, found, exact, Near.GRADIENTS, largest=magnitude_of(transform, *rest))


def loss_of(x, target, *weights):
    return (network(x, *weights) - target).square().sum()


@case("v1.functorch.samples", requires=[DTYPE], axes={"way": ("all", "chunks", "columns"), "dtype": DTYPES})
def test_samples(check, device, way, dtype):
    """A batched gradient gives each sample's own gradients, in any layout and in chunks."""
    from torch.func import grad, vmap

    kind = getattr(torch, dtype)
    x, *weights = numbers(kind)
    targets = torch.linspace(-1, 1, ROWS * OUT).view(ROWS, OUT).to(kind)
    exact = [[] for _ in weights]
    for row, target in zip(x.double(), targets.double(), strict=True):
        leaves = [weight.double().requires_grad_() for weight in weights]
        for kept, gradient in zip(exact, torch.autograd.grad(loss_of(row, target, *leaves), leaves), strict=True):
            kept.append(gradient)
    mine = [tensor.to(device) for tensor in (x, targets, *weights)]

    options = {"chunk_size": 3} if way == "chunks" else {}
    dims = (1 if way == "columns" else 0, 0, None, None, None)
    given = [mine[0].t().contiguous() if way == "columns" else mine[0], *mine[1:]]
    found = vmap(grad(loss_of, argnums=(2, 3, 4)), in_dims=dims, **options)(*given)

    for name, gradient, wanted in zip(("first products", "second products", "bias"), found, exact, strict=True):
        near(check, f"the gradients of the {name}", gradient, torch.stack(wanted), Near.GRADIENTS)


class Network(nn.Module):
    """Two products with a nonlinearity between them."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        return self.out(torch.tanh(self.into(x)))


def networks(count):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(62)
        return [Network() for _ in range(count)]


@case("v1.functorch.ensemble", requires=[DTYPE], axes={"dtype": DTYPES, "inputs": ("shared", "own")})
def test_ensemble(check, device, dtype, inputs):
    """Models whose weights are stacked give in one call what each gives alone, and the gradients of each."""
    from torch.func import functional_call, stack_module_state, vmap

    kind = getattr(torch, dtype)
    models = [model.to(kind) for model in networks(4)]
    x = numbers(kind)[0]
    own = torch.stack([x * factor for factor in (1, -1, 0.5, 2)]) if inputs == "own" else x
    exact = [Network().double() for _ in models]
    for copy, model in zip(exact, models, strict=True):
        copy.load_state_dict(model.state_dict())
    expected = torch.stack([copy(own[n].double() if inputs == "own" else own.double()) for n, copy in enumerate(exact)])
    expected.square().sum().backward()
    weights, buffers = stack_module_state([model.to(device) for model in models])

    def call(parameters, given):
        return functional_call(models[0], (parameters, buffers), (given,))

    found = vmap(call, in_dims=(0, 0 if inputs == "own" else None))(weights, own.to(device))
    found.square().sum().backward()

    near(check, "the outputs", found, expected.detach(), Near.FORWARD)
    for name, stacked in weights.items():
        wanted = torch.stack([dict(copy.named_parameters())[name].grad for copy in exact])
        near(check, f"the gradients of {name}", stacked.grad, wanted, Near.GRADIENTS)


@case("v1.functorch.call", requires=[DTYPE], axes={"dtype": DTYPES})
def test_call(check, device, dtype):
    """A call with other weights uses them for values and gradients, and leaves the module's own weights alone."""
    from torch.func import functional_call

    kind = getattr(torch, dtype)
    model, other = (network.to(kind) for network in networks(2))
    x = numbers(kind)[0]
    exact = Network().double()
    exact.load_state_dict(other.state_dict())
    expected = exact(x.double())
    expected.square().sum().backward()
    kept = {name: value.detach().clone() for name, value in model.named_parameters()}
    model.to(device)
    given = {name: value.detach().to(device).requires_grad_() for name, value in other.named_parameters()}

    found = functional_call(model, given, (x.to(device),))
    found.square().sum().backward()

    near(check, "the output", found, expected.detach(), Near.FORWARD)
    for name, value in model.named_parameters():
        near(check, f"the gradient of {name}", given[name].grad, dict(exact.named_parameters())[name].grad,
             Near.GRADIENTS)  # fmt: skip
        check.equal(value.detach().cpu(), kept[name], f"the module's own {name}")
        check.that(value.grad is None, f"the module's own {name} has a gradient")


@case("v1.functorch.random", requires=[DTYPE.on("float32")], axes={"randomness": ("same", "different")})
def test_random(accelerator, check, device, randomness):
    """Batched random numbers are the same for all samples or different for each, and repeat with the seed."""
    from torch.func import vmap

    x = torch.ones(6, 400, device=device)

    def dropped(row):
        return F.dropout(row, 0.5)

    runs = []
    for _ in "ab":
        accelerator.manual_seed_all(63)
        runs.append(vmap(dropped, randomness=randomness)(x).cpu())

    check.agree(runs[1], runs[0], "the elements with the same seed")
    check.equal(
        sorted(set(runs[0].flatten().cpu().tolist())), [0.0, 2.0], "values of elements that are dropped or kept"
    )
    kept = runs[0].mean(1) / 2
    # Six standard errors of a mean of 400 coins.
    check.that(bool(((kept - 0.5).abs() <= 6 * 0.5 / 20).all()), f"shares of kept elements are {kept.cpu().tolist()}")
    patterns = {tuple(row.cpu().tolist()) for row in runs[0]}
    check.equal(len(patterns), 1 if randomness == "same" else 6, "different patterns of six samples")


@case("v1.functorch.mutation", requires=[DTYPE.on("float32")], axes={"transform": ("vmap", "functionalize", "grad")})
def test_mutation(check, device, transform):
    """A function that writes into its own tensors keeps its result under a transform, and its inputs stay."""
    from torch import func

    def written(x):
        sums = torch.zeros_like(x)
        sums += x * 2
        sums[1:].mul_(3)
        sums.view(-1)[0] = x[0] * 7
        return sums

    source = torch.arange(1.0, 5.0)
    expected = torch.tensor([7.0, 12.0, 18.0, 24.0])
    x = source.to(device, copy=True)
    if transform == "vmap":
        found = func.vmap(written)(torch.stack([x, -x])).cpu()
        check.equal(found, torch.stack([expected, -expected]), "the results of two samples")
    elif transform == "functionalize":
        check.equal(func.functionalize(written)(x).cpu(), expected, "the result")
    else:
        found = func.grad(lambda given: written(given).sum())(x).cpu()
        check.equal(found, torch.tensor([7.0, 6.0, 6.0, 6.0]), "the gradient of the sum")
    check.equal(x.cpu(), source, "the input")
