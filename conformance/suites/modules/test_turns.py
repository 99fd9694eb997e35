"""Modules in turns: training and evaluation at one shape, dropout on, other lengths in between, and many rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from conformance.accelerators.capabilities import RNG, Cell, Mode
from conformance.numerics.nearness import METRIC, Near, near
from conformance.plan.case import case
from conformance.suites.operators.calls.execution import reseed

from .packed import Packed

#: Share of elements that the modules drop.
_DROPPED = 0.5


class Turned(NamedTuple):
    """A module that drops elements in training, the operators that it consists of, and the shape of its input."""

    make: Callable[[], nn.Module]
    operators: tuple[str, ...]
    shape: tuple[int, ...]


class _First(nn.Module):
    """The first result of a module; attention gets one tensor three times."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        return found[0] if isinstance(found, tuple) else found


_GATES = ("nn.functional.linear", "sigmoid", "tanh", "nn.functional.dropout")
_ATTENTION = ("nn.functional.multi_head_attention_forward", "nn.functional.dropout", "nn.functional.linear")
_LAYER = (*_ATTENTION, "add", "nn.functional.gelu", "nn.functional.layer_norm", "transpose")


def _recurrent(kind: type[nn.Module], **options: object) -> Callable[[], nn.Module]:
    return lambda: _First(kind(6, 5, 2, dropout=_DROPPED, **options))


def _encoder() -> nn.Module:
    return _First(nn.TransformerEncoderLayer(8, 2, 16, dropout=_DROPPED, activation="gelu", batch_first=True))


MODULES = {
    "LSTM": Turned(_recurrent(nn.LSTM), _GATES, (7, 3, 6)),
    "LSTM_in_both_directions": Turned(_recurrent(nn.LSTM, bidirectional=True, batch_first=True), _GATES, (3, 7, 6)),
    "GRU": Turned(_recurrent(nn.GRU), _GATES, (7, 3, 6)),
    "RNN": Turned(_recurrent(nn.RNN, bidirectional=True), _GATES, (7, 3, 6)),
    "TransformerEncoderLayer": Turned(_encoder, _LAYER, (3, 7, 8)),
    "MultiheadAttention": Turned(lambda: _First(nn.MultiheadAttention(8, 2, dropout=_DROPPED)), _ATTENTION, (7, 3, 8)),
    "Dropout": Turned(lambda: _First(nn.Dropout(_DROPPED)), ("nn.functional.dropout",), (7, 3, 8)),
}


def _needs(*operators: str) -> tuple[Cell, ...]:
    return tuple(Cell(f"operators.{name}", "float32", mode.value) for name in operators for mode in Mode)


_NEEDS = {name: _needs(*turned.operators) for name, turned in MODULES.items()}


def _values(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * 0.61 + 0.2).float().view(shape)


def _evaluated(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.eval()
    with torch.no_grad():
        return module(x)


def _must_repeat(module: nn.Module) -> bool:
    """Return whether one seed has to give one result.

    Libraries of recurrent layers have a generator of their own, which PyTorch seeds at its first use alone: cuDNN.
    """
    return not isinstance(module.inner, nn.RNNBase)


@case("modules.turns.evaluation", requires=[RNG], axes={"module": _NEEDS})
def test_evaluation(check: Any, device: torch.device, module: str) -> None:
    """Evaluation drops nothing before training and after it, and training drops after evaluation."""
    turned = MODULES[module]
    original = turned.make()
    x, other = _values(*turned.shape), _values(*(size + 2 for size in turned.shape[:2]), turned.shape[2])
    wide = copy.deepcopy(original).double()
    exact, exact_other = _evaluated(wide, x.double()), _evaluated(wide, other.double())
    placed = original.to(device)

    def trained(given: torch.Tensor, seed: int) -> torch.Tensor:
        placed.train()
        reseed(seed, device)
        result = placed(given.to(device).requires_grad_())
        result.sum().backward()
        return result.detach().cpu()

    near(check, f"{module} in eval() at first", _evaluated(placed, x.to(device)), exact, Near.FORWARD)
    first = trained(x, 5)
    check.that(not torch.allclose(first.double(), exact, atol=1e-3), f"{module} in train() dropped nothing")
    for turn in ("after training", "once more"):
        near(check, f"{module} in eval() {turn}", _evaluated(placed, x.to(device)), exact, Near.FORWARD)
    again = trained(x, 5)
    if _must_repeat(placed):
        check.agree(again, first, f"{module} in train() after eval(), with the seed of the first call")
    check.that(
        not torch.allclose(again.double(), exact, atol=1e-3), f"{module} in train() after eval() dropped nothing"
    )
    check.that(not torch.equal(trained(x, 6), first), f"{module} drops the same elements with another seed")
    trained(other, 5)
    near(check, f"{module} in eval(), another shape", _evaluated(placed, other.to(device)), exact_other, Near.FORWARD)
    near(check, f"{module} in eval(), the first shape", _evaluated(placed, x.to(device)), exact, Near.FORWARD)


#: Step and directions of finite differences, and the share of the gradient's size by which they may differ from it: the
#: steps leave a curvature of less than 1 %, and another mask in the backward pass is off by half of the gradient.
STEP, DIRECTIONS, ALLOWED = 1e-2, 6, 0.05


@case("modules.turns.gradient", requires=[RNG], axes={"module": _NEEDS})
def test_gradient(check: Any, device: torch.device, module: str) -> None:
    """With dropout on and one seed, gradients agree with finite differences: backward has the mask of its forward."""
    turned = MODULES[module]
    placed = turned.make().to(device).train()
    x = _values(*turned.shape).to(device)
    leaves = {"the input": x, **{name: value.detach().clone() for name, value in placed.named_parameters()}}

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        reseed(21, device)
        parameters = {name: value for name, value in values.items() if name != "the input"}
        result = torch.func.functional_call(placed, parameters, values["the input"])
        return (result * _values(*result.shape).to(device)).sum()

    given = {name: value.clone().requires_grad_() for name, value in leaves.items()}
    losses = {float(loss(given).detach()) for _ in "abc"}
    if len(losses) > 1 and not _must_repeat(placed):
        check.metric("finite differences", "none: one seed gives several results")
        check.metric(METRIC, 0.0)
        loss(given).backward()
        check.that(
            all(value.grad is not None and bool(value.grad.cpu().isfinite().all()) for value in given.values()),
            "a gradient is not finite",
        )
        return
    check.equal(len(losses), 1, f"results of {module} with one seed")
    check.that(losses != {0.0}, f"the loss of {module} is zero")
    gradients = torch.autograd.grad(loss(given), list(given.values()), allow_unused=True)
    check.that(bool(gradients[0].cpu().any()), f"{module}: the gradient of the input is zero")
    generator, worst = torch.Generator().manual_seed(3), 0.0
    for (name, value), gradient in zip(leaves.items(), gradients, strict=True):
        # Biases of keys have no effect on attention, so rounding is all there is.
        if gradient is None or (name != "the input" and float(gradient.abs().max()) < 1e-4):
            continue
        for number in range(DIRECTIONS if name == "the input" else 1):
            step = torch.randn(value.shape, generator=generator).to(device)
            with torch.no_grad():
                ahead, behind = (float(loss({**leaves, name: value + sign * STEP * step})) for sign in (1, -1))
            slope, along = (ahead - behind) / (2 * STEP), float((gradient * step).sum())
            error = abs(slope - along) / (ALLOWED * (float(gradient.norm()) + 0.1))
            worst = max(worst, error)
            check.that(
                error <= 1,
                f"{module}: the slope in direction {number} of {name} is {slope:.4g}, by the gradient {along:.4g}",
            )
    check.metric(METRIC, round(worst, 6))


_KINDS = {name: getattr(nn, name) for name in ("LSTM", "GRU", "RNN")}
_OF_KINDS = dict.fromkeys(_KINDS, _needs(*_GATES[:3]))
#: Steps and rows of a long batch: more than 65,536 rows in all, and no multiple of a tile.
MANY = (9, 7301)


@case("modules.turns.many_rows", axes={"module": _OF_KINDS})
def test_many_rows(check: Any, device: torch.device, module: str) -> None:
    """A recurrent module adds its biases to every row of more than 65,536, and so do its gradients."""
    original = _KINDS[module](3, 4)
    exact = copy.deepcopy(original).double()
    x = _values(*MANY, 3)
    results = []
    for made, given in ((original.to(device), x.to(device)), (exact, x.double())):
        result, _ = made(given)
        result.backward((_values(*result.shape) + 0.5).to(result))
        results.append((result.detach(), {name: value.grad for name, value in made.named_parameters()}))

    (found, gradients), (right, wanted) = results
    near(check, f"the result of {module}", found, right, Near.FORWARD)
    for name, gradient in wanted.items():
        # A sum of so many rows in any order errs by the square root of their number, and a lost bias by half of it.
        near(check, f"the gradient of {name} of {module}", gradients[name], gradient, Near.GRADIENTS,
             largest=4 * float(gradient.abs().max()))  # fmt: skip


@case("modules.turns.lengths", axes={"module": _OF_KINDS})
def test_lengths(check: Any, device: torch.device, module: str) -> None:
    """Packed sequences of other lengths, one after the other, have their own results."""
    original = Packed(_KINDS[module], input_size=4, hidden_size=3, num_layers=2, bidirectional=True, batch_first=True)
    exact = copy.deepcopy(original).double()
    placed, x = original.to(device), _values(4, 9, 4)
    for lengths in ([9, 9, 9, 9], [1, 9, 4, 2], [3, 2, 1, 1], [1, 1, 1, 9], [1, 9, 4, 2]):
        (found, _), (right, _) = placed(x.to(device), lengths), exact(x.double(), lengths)
        near(check, f"{module} of {lengths}", found, right.detach(), Near.FORWARD)
