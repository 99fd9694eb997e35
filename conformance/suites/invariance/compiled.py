"""Compiled operators, alone and beside others in one graph, and the smallest graph in which their bits change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .operators import Weights, operators
from .surroundings import Change, Subject, differs

#: Operators that are compiled. A compiler takes a second for each graph. Each of these has a kernel of another kind:
#: pointwise, a reduction of rows, a reduction with pointwise functions around it, and a product.
NAMES = ("exp", "softmax", "layer_norm", "linear")
#: Rows, and numbers of operators of a graph besides the one that is compared.
ROWS, SIZES = 33, (1, 3)

Compiler = Callable[[Callable[..., object]], Callable[..., object]]


def graphs(size: int) -> Iterator[tuple[str, ...]]:
    """Yield the operators of each graph in which every operator has ``size`` others beside it."""
    for start in range(0, len(NAMES), size + 1):
        yield NAMES[start : start + size + 1]


def compiled_results(
    names: tuple[str, ...], compiler: Compiler, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the result of each operator, all compiled in one graph. A graph of several uses each result again."""
    known, weights = operators(), Weights(device, dtype)
    rows = Subject(known[names[0]], device, dtype).rows(ROWS)
    for name in names:
        known[name].function(rows[:1], weights)  # so that the graph makes no weights

    def function(x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        results = [known[name].function(x, weights) for name in names]
        return results, [result.sigmoid() * 2.0 for result in results] if len(names) > 1 else []

    results, _ = compiler(function)(rows)  # type: ignore[misc]
    return dict(zip(names, results, strict=True))


def changes(compiler: Compiler, device: torch.device, dtype: torch.dtype) -> tuple[list[Change], list[str]]:
    """Return the smallest graph at which each operator changes, and the operators without values."""
    alone = {}
    for name in NAMES:
        alone |= compiled_results((name,), compiler, device, dtype)
    empty = [name for name, result in alone.items() if _shows_nothing(result)]
    found: dict[str, Change] = {}
    for size in SIZES:
        for names in graphs(size):
            together = compiled_results(names, compiler, device, dtype)
            for name in names:
                if name not in found and differs(together[name], alone[name]):
                    found[name] = Change(name, "compile", size, "forward")
    return [found[name] for name in NAMES if name in found], empty


def _shows_nothing(result: torch.Tensor) -> bool:
    values = result.detach().float().cpu()
    return not bool(values.isfinite().all()) or bool((values == values[:1]).all())
