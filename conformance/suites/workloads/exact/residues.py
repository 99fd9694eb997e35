"""Training over the integers modulo a prime: depth and steps have no limit, because no number grows.

Every operator's result is reduced to a residue, forward and backward. A product of residues is below 2**32, so a sum
of 2**20 of them is exact in float64, in whatever order, and one of 2**30 in int64. In a field every number but 0 has
an inverse, so no step loses information: one wrong bit in any gradient stays wrong in all that follows from it.

Two implementations share only their data. In float64, PyTorch's automatic differentiation computes the gradients. In
int64, which has none, they are written out. Each is the reference of the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .families import ROWS, ints
from .reference import Comparison, Reference, Step

#: Largest prime below 2**16.
PRIME = 65521
#: Blocks and steps: each more than whole numbers of 24 bits could stay exact for.
DEPTH, STEPS = 12, 6
WORDS, LENGTH, WIDTH, INNER = 16, 8, 8, 16
#: Learning rate and momentum are residues too.
RATE, MOMENTUM = 3, 7
#: Bits of the largest sum of products, over all tokens of a batch, and one more for the sum of two gradients.
BITS = math.log2(ROWS * LENGTH * (PRIME - 1) ** 2) + 1

Weights = Mapping[str, torch.Tensor]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return residues as float64 on the host."""
    return ints(0, PRIME - 1, shape, seed).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the residues that they have as targets."""
    return ints(0, WORDS - 1, (ROWS, LENGTH), step).long(), drawn(ROWS, LENGTH, WIDTH, seed=70 + step)


class _Reduce(torch.autograd.Function):
    """Residues forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x, PRIME)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.remainder(gradient, PRIME)


def residue(x: torch.Tensor) -> torch.Tensor:
    """Return the residues of whole numbers; their gradients are residues too."""
    return _Reduce.apply(x)  # type: ignore[no-untyped-call, no-any-return]


class Block(nn.Module):
    """Two products with a square between them, beside a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = residue(self.up(x))
        return residue(x + residue(self.down(residue(inner * inner))))


class Tower(nn.Module):
    """Embedding, blocks and a head over residues."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(drawn(*parameter.shape, seed=300 + number))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.table.weight)
        for block in self.blocks:
            x = block(x)
        return residue(self.head(x))


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of squared distances, of which each is a residue."""
    distance = residue(output - targets)
    return residue(distance * distance).sum()


class Optimizer(torch.optim.Optimizer):
    """SGD with momentum over residues. ``factor`` undoes the division of an engine that averages over ranks."""

    def __init__(self, model: nn.Module, factor: int = 1) -> None:
        super().__init__(model.parameters(), {"factor": factor})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step for every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                gradient = torch.remainder(parameter.grad * group["factor"], PRIME)
                momentum = state.get("momentum", torch.zeros_like(gradient))
                state["momentum"] = torch.remainder(momentum * MOMENTUM + gradient, PRIME)
                parameter.copy_(torch.remainder(parameter - state["momentum"] * RATE, PRIME))


# --- the same in int64, with the gradients written out ---------------------------------------------------------------

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_terms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a matrix product as a sum of products, for devices that have none for integers."""
    return (a.unsqueeze(-1) * b.unsqueeze(0)).sum(1)


class Integers:
    """Tower in int64. ``multiply`` is the matrix product."""

    def __init__(self, device: torch.device, multiply: Multiply = torch.mm, depth: int = DEPTH) -> None:
        self.weights = {name: value.detach().long().to(device) for name, value in Tower(depth).named_parameters()}
        self._momenta = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self._multiply, self._depth = multiply, depth

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the residues of a matrix product."""
        return torch.remainder(self._multiply(a, b), PRIME)

    def backward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[int, dict[str, torch.Tensor]]:
        """Return the loss and the gradients of a batch."""
        w, tokens, targets = self.weights, tokens.flatten(), targets.flatten(0, 1)
        x, kept = w["table.weight"].index_select(0, tokens), []
        for number in range(self._depth):
            inner = self.product(x, w[f"blocks.{number}.up.weight"].t())
            square = torch.remainder(inner * inner, PRIME)
            kept.append((x, inner, square))
            x = torch.remainder(x + self.product(square, w[f"blocks.{number}.down.weight"].t()), PRIME)
        distance = torch.remainder(self.product(x, w["head.weight"].t()) - targets, PRIME)
        loss = int(torch.remainder(distance * distance, PRIME).sum())
        gradient = torch.remainder(distance * 2, PRIME)
        found = {"head.weight": self.product(gradient.t(), x)}
        gradient = self.product(gradient, w["head.weight"])
        for number in reversed(range(self._depth)):
            x, inner, square = kept[number]
            found[f"blocks.{number}.down.weight"] = self.product(gradient.t(), square)
            of_square = self.product(gradient, w[f"blocks.{number}.down.weight"])
            of_inner = torch.remainder(of_square * inner * 2, PRIME)
            found[f"blocks.{number}.up.weight"] = self.product(of_inner.t(), x)
            gradient = torch.remainder(gradient + self.product(of_inner, w[f"blocks.{number}.up.weight"]), PRIME)
        table = torch.zeros_like(w["table.weight"]).index_add(0, tokens, gradient)
        return loss, {"table.weight": torch.remainder(table, PRIME), **found}

    def step(self, gradients: Weights) -> None:
        """Make a step of SGD with momentum."""
        for name, gradient in gradients.items():
            self._momenta[name] = torch.remainder(self._momenta[name] * MOMENTUM + gradient, PRIME)
            self.weights[name] = torch.remainder(self.weights[name] - self._momenta[name] * RATE, PRIME)


# --- references and comparisons ---------------------------------------------------------------------------------------


@functools.cache
def from_integers() -> Reference:
    """Return the training in int64 on the host: the reference of float64."""
    tower, steps = Integers(torch.device("cpu")), []
    for step in range(STEPS):
        tokens, targets = batch(step)
        loss, gradients = tower.backward(tokens, targets.long())
        tower.step(gradients)
        steps.append(_step(float(loss % PRIME), gradients, tower.weights))
    return Reference(tuple(steps), BITS, "products of residues")


@functools.cache
def from_gradients() -> Reference:
    """Return the training in float64 on the host, by automatic differentiation: the reference of int64."""
    model, steps = Tower(), []
    optimizer = Optimizer(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(batch(step)[0]), batch(step)[1])
        loss.backward()
        gradients = {name: torch.remainder(each.grad, PRIME) for name, each in model.named_parameters()}  # type: ignore[arg-type]
        optimizer.step()
        steps.append(_step(float(loss.detach()) % PRIME, gradients, dict(model.named_parameters())))
    return Reference(tuple(steps), BITS, "products of residues")


def _step(loss: float, gradients: Weights, weights: Weights) -> Step:
    return Step(
        loss, *({name: each.detach().double().clone() for name, each in of.items()} for of in (gradients, weights))
    )


def comparison(exact: Reference, dtype: str, kind: str = "", rank: int | None = None) -> Comparison:
    """Return an empty comparison with a training over residues."""
    return Comparison("residues", dtype, rank, kind, exact)


def check_integers(check: Any, device: torch.device, multiply: Multiply) -> None:
    """Check a training in int64, whose gradients are written out."""
    compared, tower = comparison(from_gradients(), "int64"), Integers(device, multiply)
    for step in range(STEPS):
        tokens, targets = batch(step)
        loss, gradients = tower.backward(tokens.to(device), targets.long().to(device))
        tower.step(gradients)
        compared.loss(step, float(loss % PRIME))
        compared.gradients(step, gradients)
        compared.weights(step, tower.weights)
    compared.tell(check)


def train(
    compared: Comparison,
    model: nn.Module,
    optimizer: Optimizer,
    part: tuple[int, int] = (0, 1),
    micro_batches: int = 1,
    total: Callable[[float], float] = float,
) -> None:
    """Train on this rank's part of each batch, and compare. ``total`` adds a loss up over the ranks."""
    from .training import named_gradients, named_weights

    device, factor = next(model.parameters()).device, optimizer.param_groups[0]["factor"]
    for step in range(STEPS):
        tokens, targets = (each.chunk(part[1])[part[0]].to(device) for each in batch(step))
        optimizer.zero_grad()
        loss = 0.0
        for some, wanted in zip(tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            each = loss_of(model(some), wanted)
            each.backward()
            loss += float(each.detach())
        compared.loss(step, total(loss) % PRIME)
        gradients = named_gradients(model)
        compared.gradients(step, {name: torch.remainder(each * factor, PRIME) for name, each in gradients.items()})
        optimizer.step()
        compared.weights(step, named_weights(model))


def check_ways(check: Any, device: torch.device) -> None:
    """Check trainings in float64: the whole batch, micro-batches, and recomputed blocks."""
    for way, micro_batches in (("eager", 1), ("accumulated", 4), ("checkpointed", 1)):
        model = Tower().to(device)
        compared = comparison(from_integers(), "float64", f"{way}: ")
        train(compared, _recomputed(model) if way == "checkpointed" else model, Optimizer(model), (0, 1), micro_batches)
        compared.tell(check)


def _recomputed(model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


def check_engine(check: Any, engine: str, device: torch.device) -> None:
    """Check a training in float64 under an engine that cuts the batch and averages gradients over the ranks."""
    import torch.distributed as dist

    from .ranks import ENGINES

    rank, ranks = dist.get_rank(), dist.get_world_size()

    def total(loss: float) -> float:
        summed = torch.tensor([loss], dtype=torch.float64, device=device)
        dist.all_reduce(summed)
        return float(summed)

    model = ENGINES[engine](Tower().to(device))
    compared = comparison(from_integers(), "float64", f"{engine}: ", rank)
    train(compared, model, Optimizer(model, ranks), (rank, ranks), total=total)
    compared.tell(check)
