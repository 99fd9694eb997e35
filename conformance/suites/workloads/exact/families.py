"""Families of exact models: small whole numbers as weights and data, and no function that rounds.

Convolutions of width 3 have a stride or a dilation: with neither, a kernel may use Winograd's algorithm, whose
fractions of 6 and 24 are exact in no format.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

#: Rows of a batch, which 2 and 4 ranks, and micro-batches, divide. A mean over them divides by a power of two.
ROWS = 8
#: Steps of a training. The second begins with changed weights and a momentum, the third with a momentum of momenta.
STEPS = 3
#: Learning rate and momentum: powers of two, so that a step only shifts its numbers.
RATE, MOMENTUM = 0.25, 0.5
_CLASSES, _WORDS, _LENGTH = 8, 16, 8
#: Distance of two scores: a softmax of such scores is exactly 0 or 1, in float64 too, where exp(-745) is not 0.
_HARD = 1024.0

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Family:
    """Model of a name, its data, its loss, and the steps of a training in which it stays exact."""

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    loss: Loss
    rate: float = RATE
    steps: int = STEPS

    def initial(self) -> nn.Module:
        """Return the model with its first weights, float32 on the host."""
        model = self.build()
        fill(model)
        if hasattr(model, "thin_out"):
            model.thin_out()
        return model.train()

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return inputs and targets of every step, on the host."""
        return [self.data(step) for step in range(self.steps)]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum. Its foreach form refuses a mixture of plain and sharded tensors."""
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=MOMENTUM, foreach=False)


def fill(model: nn.Module) -> None:
    """Fill every parameter with -1, 0 and 1, drawn by the parameter's number; a third of them are 0."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(ints(-1, 1, tuple(parameter.shape), seed=100 + number))


def ints(low: int, high: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return whole numbers from ``low`` to ``high`` as float32 on the host, drawn with their own seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator).float()


def whole(x: torch.Tensor, limit: float = 1.0) -> torch.Tensor:
    """Return the nearest whole number within the limit; the gradient passes as if nothing was rounded.

    Weights that a step has moved have many bits. Their products would have too many in the next step.
    """
    return x + (x.detach().round().clamp(-limit, limit) - x.detach())


class Linear(nn.Linear):
    """Linear layer that multiplies by its weights' nearest whole numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else whole(self.bias)
        return F.linear(x, whole(self.weight), bias)


# --- losses ---------------------------------------------------------------------------------------------------------


def absolute(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over rows of the distance; its gradient is a sign."""
    return (output - target).abs().flatten(1).sum(1).mean()


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over rows of half of the squared distance."""
    return ((output - target) * (output - target)).flatten(1).sum(1).mean() * 0.5


def hinge(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over rows of all margins by which a class beats the right one."""
    right = output.gather(-1, target.unsqueeze(-1))
    return F.relu(output - right + 1.0).sum(-1).mean()


# --- models ---------------------------------------------------------------------------------------------------------


class Bent(nn.Module):
    """Every piecewise-linear activation with slopes that are powers of two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Linear(12, 16), Linear(16, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = self.first(x).chunk(4, dim=-1)
        bent = torch.cat((F.leaky_relu(a, 0.5), F.hardtanh(b, -2.5, 2.5), F.relu6(c), d.abs()), dim=-1)
        return self.second(bent)


class Squares(nn.Module):
    """Squared activation, and a gate that multiplies two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Linear(12, 16), Linear(8, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.first(x).chunk(2, dim=-1)
        return self.second(a * a + a * b)


class Images(nn.Module):
    """Convolutions with strides, groups and dilation, a mean over 2 by 2, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.head = Linear(8 * 4, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.conv2d(x, whole(self.first.weight), whole(self.first.bias), 2, 1))
        x = F.relu(F.conv2d(x, whole(self.grouped.weight), whole(self.grouped.bias), 1, 2, 2, 4))
        return self.head(F.avg_pool2d(x, 2).flatten(1))


class Signal(nn.Module):
    """A convolution of one dimension, its transposed form, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(4, 8, 4, stride=4), nn.ConvTranspose1d(8, 4, 4, stride=4)
        self.mix = nn.Conv1d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = F.relu(F.conv1d(x, whole(self.down.weight), whole(self.down.bias), 4))
        wide = F.conv_transpose1d(narrow, whole(self.up.weight), whole(self.up.bias), 4)
        return F.conv1d(torch.cat((wide, x), 1), whole(self.mix.weight), whole(self.mix.bias))


class Volumes(nn.Module):
    """A convolution of three dimensions, and the largest of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv3d(2, 4, 2, stride=2), Linear(4 * 8, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv3d(x, whole(self.first.weight), whole(self.first.bias), 2)
        return self.head(F.relu(x).flatten(1))


class Bags(nn.Module):
    """An embedding whose rows repeat in a batch, a sum over each bag, and the same table as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(_WORDS, 8), Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(tokens, whole(self.table.weight)).sum(1)
        return F.linear(self.mix(rows), whole(self.table.weight))


class Attention(nn.Module):
    """Causal attention whose softmax is exactly 0 or 1: the scores are far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.value = nn.Embedding(_WORDS, 8), Linear(8, 8, bias=False)
        self.query, self.key = Linear(8, 8, bias=False), Linear(8, 8, bias=False)
        self.head = Linear(8, _WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, whole(self.table.weight))
        query, key, value = (
            part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        # A place of its own for each key: 16 of them are less than the distance of two whole scores, so no two tie.
        places = torch.arange(tokens.shape[1], device=x.device, dtype=x.dtype).view(1, 1, -1, 1)
        key = torch.cat((key * 16.0, places.expand(*key.shape[:3], 1)), -1)
        query = torch.cat((query, torch.ones_like(query[..., :1])), -1)
        mixed = F.scaled_dot_product_attention(query * _HARD, key, F.pad(value, (0, 1)), is_causal=True, scale=1.0)
        return self.head(mixed[..., :4].transpose(1, 2).flatten(2) + x)


class LinearAttention(nn.Module):
    """Attention without softmax, by a running sum of products of keys and values; half of the past is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(_WORDS, 8), Linear(8, 24, bias=False), Linear(8, _WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, whole(self.table.weight))
        query, key, value = whole(self.mix(x)).chunk(3, -1)
        products = key.unsqueeze(-1) * value.unsqueeze(-2)
        states = products.cumsum(1)
        return self.head((query.unsqueeze(-2) @ states).squeeze(-2) + x)


class Routed(nn.Module):
    """Tokens go to the expert with the largest score; each expert adds to the tokens that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.router = nn.Embedding(_WORDS, 8), Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(Linear(8, 8), nn.ReLU(), Linear(8, 8)) for _ in range(4))
        self.head = Linear(8, _WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, whole(self.table.weight)).flatten(0, 1)
        scores = self.router(x)
        chosen = (scores.detach() * 4.0 + torch.arange(4, device=x.device, dtype=x.dtype)).argmax(-1)
        # The weight is 1; the router learns by the score that stands beside it.
        weight = 1.0 + scores - scores.detach()
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            own = mine.nonzero().flatten()
            mixed = mixed.index_add(0, own, expert(x[own]) * weight[own, number].unsqueeze(-1))
        return self.head(mixed + x).unflatten(0, tokens.shape)


class Recurrent(nn.Module):
    """One cell that every step of the sequence uses: its gradients are sums over time."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again, self.head = Linear(4, 8), Linear(8, 8, bias=False), Linear(8, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 8)
        for part in x.unbind(1):
            state = F.hardtanh(self.into(part) + self.again(state), -3.5, 3.5)
        return self.head(state)


class Mixer(nn.Module):
    """Products over the places and over the channels, after the mean was taken away, which divides by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.channels, self.head = Linear(8, 8), Linear(8, 8), Linear(8, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x + F.relu(self.places(x.transpose(1, 2)).transpose(1, 2))
        return self.head(F.relu(self.channels(x)).sum(1))


class Graph(nn.Module):
    """Messages along the edges of a graph, added up by scatter_add at the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.own, self.head = Linear(6, 8), Linear(6, 8), Linear(8, _CLASSES)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 2], [1, 2, 3, 0, 0, 4, 4, 0, 4, 0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sent = self.message(x)[:, self.edges[0]]
        to = self.edges[1].view(1, -1, 1).expand_as(sent)
        got = torch.zeros_like(self.own(x)).scatter_add(1, to, sent)
        return self.head(F.relu(got + self.own(x)).sum(1))


class Plain(nn.Module):
    """Linear layer with its very weights, which get finer with every step."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(6, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.only(x)


# --- data -----------------------------------------------------------------------------------------------------------


def _numbers(*shape: int, target: tuple[int, ...] = (_CLASSES,), high: int = 7) -> Callable[[int], tuple]:
    return lambda step: (ints(-high, high, (ROWS, *shape), step), ints(-high, high, (ROWS, *target), 50 + step))


def _classes(*shape: int, high: int = 7) -> Callable[[int], tuple]:
    return lambda step: (ints(-high, high, (ROWS, *shape), step), ints(0, _CLASSES - 1, (ROWS,), 50 + step).long())


def tokens(step: int, *, length: int = _LENGTH, words: int = _WORDS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the next tokens of a step."""
    drawn = ints(0, words - 1, (ROWS, length + 1), step).long()
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def _bags(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = tokens(step)
    return inputs, targets[:, 0].contiguous()


@functools.cache
def families() -> dict[str, Family]:
    """Return all families by their names."""
    found = (
        Family("plain", Plain, _numbers(6, high=3), absolute, rate=2.0**-4),
        Family("bent", Bent, _classes(12), hinge),
        Family("squares", Squares, _numbers(12, high=1), squared, rate=2.0**-2, steps=2),
        Family("images", Images, _classes(3, 8, 8, high=3), hinge, rate=2.0**-5),
        Family("signal", Signal, _numbers(4, 16, target=(2, 16)), absolute),
        Family("volumes", Volumes, _classes(2, 4, 4, 4, high=3), hinge, rate=2.0**-5),
        Family("bags", Bags, _bags, hinge),
        Family("attention", Attention, tokens, hinge),
        Family("linear-attention", LinearAttention, tokens, hinge),
        Family("routed", Routed, tokens, hinge),
        Family("recurrent", Recurrent, _classes(6, 4, high=3), hinge),
        Family("mixer", Mixer, _classes(8, 8, high=3), hinge),
        Family("graph", Graph, _classes(8, 6, high=3), hinge),
    )
    return {family.name: family for family in found}
