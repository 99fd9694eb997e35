"""Surroundings of a row, and the smallest one at which the bits of its result change, for each operator.

The device is compared with itself: no reference computes anything. Each kind of surrounding goes through sizes on both
sides of those at which kernels choose another way: powers of two, tiles, parts of a sum, and the limit of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .operators import WIDTH, Operator, Weights, operators, sequences

#: Numbers of rows: 1, 2, and each power of two with its neighbours up to the largest grid of some devices.
SIZES = (
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023,
    1024, 1025, 4097, 65537,
)  # fmt: skip
#: Rows that stay the same while their padding, their strides or their chunks change.
ROWS = 33
#: Rows of zeros behind them: one and two, and the numbers that fill the rows up to each of the sizes above.
PADDINGS = (1, 2, *(size - ROWS for size in SIZES if ROWS + 2 < size <= 1025))
#: Rows of which the gradient is computed too: it costs twice the rest.
_MOST_BACKWARD = 1025
#: Chunks of a size that are computed, at the beginning and at the end: the last one has fewer rows. Those between them
#: are more calls of the same size, which take most of the time.
_FIRST_CHUNKS, _LAST_CHUNKS = 6, 2
#: Runs that must have the same bits, and rows of each: enough for several workers.
_RUNS, _RUN_ROWS = 3, 1025


#: Results and gradients of rows.
Both = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class Change:
    """Smallest surrounding at which the bits of an operator change, in the forward or the backward pass."""

    operator: str
    kind: str
    size: int
    way: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.size} ({self.way})"


class Subject:
    """Operator on a device: the same rows and weights in every surrounding.

    All operators of a case share ``drawn``, the rows on the host by their count: to draw them takes longer than most
    operators.
    """

    def __init__(
        self,
        operator: Operator,
        device: torch.device,
        dtype: torch.dtype,
        accelerator: Any = None,
        drawn: dict[int, torch.Tensor] | None = None,
    ) -> None:
        self.accelerator, self._drawn = accelerator, {} if drawn is None else drawn
        self.operator, self.weights = operator, Weights(device, dtype)
        self.device, self.dtype = device, dtype

    def rows(self, count: int) -> torch.Tensor:
        """Return the first rows of the data. The first ones are the same for every count."""
        if count not in self._drawn:
            self._drawn[count] = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))
        return self._drawn[count].to(self.dtype).to(self.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the results of rows."""
        return self.operator.function(x, self.weights)

    def both(self, x: torch.Tensor, *, backward: bool = True) -> Both:
        """Return the results and, with ``backward``, the gradients of rows."""
        if not backward:
            return self.forward(x), None
        leaf = x.detach().requires_grad_()
        result = self.forward(leaf)
        # The cotangent of an element depends on its column, and is the same in every row.
        shape = result.shape[1:]
        count = max(1, shape.numel())
        cotangent = (torch.arange(count, device=x.device) % 5 + 1).to(result.dtype).view(shape).expand_as(result)
        (gradient,) = torch.autograd.grad(result, leaf, cotangent)
        return result.detach(), gradient


def differs(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    """Tell whether two tensors have different bits."""
    if left is None or right is None:
        return False
    if left.shape != right.shape:
        return True
    return not torch.equal(_bits(left), _bits(right))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _way(left: tuple[Any, Any], right: tuple[Any, Any]) -> str:
    """Return the pass whose bits differ, or an empty string."""
    return "forward" if differs(left[0], right[0]) else "backward" if differs(left[1], right[1]) else ""


def _first(both: Both, rows: slice) -> tuple[Any, Any]:
    return both[0][rows], None if both[1] is None else both[1][rows]


# --- kinds of surroundings ------------------------------------------------------------------------------------------

Compared = Iterator[tuple[int, str]]


def by_batch(subject: Subject) -> Compared:
    """Yield each number of rows, and the pass in which a row has other bits than in a smaller batch or alone."""
    sizes = [size for size in SIZES if size <= subject.operator.most]
    data, before = subject.rows(sizes[-1]), None
    for size in sizes:
        backward = size <= _MOST_BACKWARD
        now = subject.both(data[:size], backward=backward)
        last = subject.both(data[size - 1 : size], backward=backward)
        way = _way(_first(now, slice(size - 1, size)), last)
        if before is not None and not way:
            way = _way(_first(now, slice(before[0].shape[0])), before)
        yield size, way
        before = now


def by_chunk(subject: Subject) -> Compared:
    """Yield each size of chunks, and the pass in which the rows have other bits than all at once."""
    data = subject.rows(257)
    function = subject.operator.function
    is_sequence = subject.operator.sequence
    whole = (function(data, data[:0]), None) if is_sequence else subject.both(data)
    for size in (1, 2, 3, 5, 8, 16, 17, 32, 64, 65, 128, 129, 256):
        ways = (_chunk_way(subject, data, whole, rows) for rows in _chunks(size, len(data)))
        yield size, next(filter(None, ways), "")


def _chunks(size: int, count: int) -> Iterator[slice]:
    """Yield the first and the last chunks of so many rows."""
    number = math.ceil(count / size)
    for chunk in range(number):
        if chunk < _FIRST_CHUNKS or chunk >= number - _LAST_CHUNKS:
            yield slice(chunk * size, min((chunk + 1) * size, count))


def _chunk_way(subject: Subject, data: torch.Tensor, whole: Both, rows: slice) -> str:
    """Return the pass in which a chunk has other bits than the same rows of the whole, or an empty string."""
    if subject.operator.sequence:
        return _way((subject.operator.function(data[rows], data[: rows.start]), None), _first(whole, rows))
    return _way(subject.both(data[rows]), _first(whole, rows))


def by_padding(subject: Subject) -> Compared:
    """Yield each number of rows of zeros behind, and the pass in which the rows have other bits than without."""
    data = subject.rows(ROWS)
    alone = subject.both(data)
    for size in PADDINGS:
        padded = subject.both(torch.cat((data, data.new_zeros(size, WIDTH))))
        yield size, _way(_first(padded, slice(ROWS)), alone)


def by_stride(subject: Subject) -> Compared:
    """Yield each number of elements between rows, and the pass in which the rows have other bits than contiguous."""
    data = subject.rows(ROWS)
    alone = subject.both(data)
    for gap in (1, 2, 3, 4, 7, 8, 16, 17, 64, 129):
        wide = data.new_zeros(ROWS, WIDTH + gap)
        wide[:, gap:] = data
        yield gap, _way(subject.both(wide[:, gap:]), alone)


def by_stream(subject: Subject) -> Compared:
    """Yield 1 and the pass in which the rows have other bits on a side stream, beside work on another one."""
    accelerator, data = subject.accelerator, subject.rows(ROWS)
    alone = subject.both(data)
    side, other = accelerator.Stream(), accelerator.Stream()
    accelerator.synchronize()
    with accelerator.stream(other):
        subject.both(subject.rows(_RUN_ROWS))
    with accelerator.stream(side):
        beside = subject.both(data)
    accelerator.synchronize()
    yield 1, _way(beside, alone)


def by_graph(subject: Subject) -> Compared:
    """Yield 1 and ``forward`` if the rows have other bits when a captured graph is replayed."""
    accelerator, data = subject.accelerator, subject.rows(ROWS)
    alone = subject.forward(data)
    # A graph replays on fixed addresses, so the result goes to a tensor that exists before it.
    captured, graph = torch.zeros_like(alone), accelerator.create_graph()
    accelerator.synchronize()
    with accelerator.capture_to_graph(graph):
        captured.copy_(subject.forward(data))
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    yield 1, _way((captured, None), (alone, None))


def by_run(subject: Subject) -> Compared:
    """Yield each run, and the pass in which it has other bits than the first."""
    data = subject.rows(min(_RUN_ROWS, subject.operator.most))
    first = subject.both(data)
    for run in range(2, _RUNS + 1):
        yield run, _way(subject.both(data), first)


KINDS: Mapping[str, Callable[[Subject], Compared]] = {
    "batch": by_batch,
    "chunk": by_chunk,
    "padding": by_padding,
    "stride": by_stride,
    "stream": by_stream,
    "graph": by_graph,
    "run": by_run,
}


#: Operators that may read indices on the host, which a graph cannot capture.
_NOT_CAPTURED = ("moe.grouped", "embedding_bag")


def operators_in(kind: str) -> dict[str, Operator]:
    """Return the operators that are compared in a kind of surrounding."""
    if kind == "graph":
        return {name: operator for name, operator in operators().items() if name not in _NOT_CAPTURED}
    return {**operators(), **(sequences() if kind == "chunk" else {})}


def changes(kind: str, device: torch.device, dtype: torch.dtype, accelerator: Any = None) -> list[Change]:
    """Return the smallest change of each operator in a kind of surrounding; none where its bits never change."""
    found = []
    drawn: dict[int, torch.Tensor] = {}
    for name, operator in operators_in(kind).items():
        compared = KINDS[kind](Subject(operator, device, dtype, accelerator, drawn))
        change = next(((size, way) for size, way in compared if way), None)
        if change:
            found.append(Change(name, kind, *change))
    return found


def without_values(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Return the operators whose results are not finite, or the same for all rows: they show nothing."""
    empty = []
    for name, operator in operators().items():
        result = Subject(operator, device, dtype)
        values = result.forward(result.rows(ROWS)).detach().float().cpu()
        if not bool(values.isfinite().all()) or bool((values == values[:1]).all()):
            empty.append(name)
    return empty
