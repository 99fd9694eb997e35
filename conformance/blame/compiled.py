"""Compiled code: which graph is wrong, when the same program is right where each call is made by itself.

PyTorch compiles nothing while a run is watched. So its graphs are judged one at a time: one is compiled as the program
asks, and all others run as they were captured. The switch is PyTorch's own (``torch._dynamo.config``, torch 2.11).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Graphs that are looked at one by one.
_MOST = 32
#: Name of the backend that runs a graph as it was captured, and keeps what is in it.
_LOOKING = "conformance_blame"

#: Operators of the graphs that were captured last.
_SEEN: list[list[str]] = []

#: Runs the program, and returns whether its end is right.
Check = Callable[[], bool]


def graphs() -> int:
    """Return how many graphs this process has compiled so far."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


def forget() -> None:
    """Let PyTorch compile again what it has run call by call while it was watched: it remembers not to compile it."""
    if "torch._dynamo" in sys.modules:
        import torch._dynamo

        torch._dynamo.reset()


def can_choose() -> bool:
    """Return whether this torch can compile single graphs."""
    import torch._dynamo

    return hasattr(torch._dynamo.config, "debug_backend_override")


def wrong_graph(is_right: Check) -> str:
    """Return a sentence on the graph whose compiled code is wrong; ``is_right`` runs the program with new graphs."""
    if not can_choose():
        return "this torch cannot compile single graphs; torch 2.11 and later can"
    _look()
    _SEEN.clear()
    if not _with(f">=0:{_LOOKING}", is_right):
        return "the captured graphs are wrong, before anything is compiled"
    found = list(_SEEN)
    if not _with(">=0:aot_eager", is_right):
        return "the traced graphs are wrong, before code is generated"
    for number in range(min(len(found), _MOST)):
        others = [f"<{number}:{_LOOKING}", f">{number}:{_LOOKING}"]
        if not _with(";".join(others[number == 0 :]), is_right):
            return f"graph {number} of {len(found)}: {_shown(found[number])}"
    return f"each of {len(found)} graphs is right alone"


@functools.cache
def _look() -> None:
    """Register the backend that runs a graph as it is, and keeps the names of its operators."""
    from torch._dynamo.backends.registry import register_backend

    def look(graph: Any, inputs: Sequence[torch.Tensor]) -> Any:
        del inputs
        _SEEN.append([_name(node.target) for node in graph.graph.nodes if node.op.startswith("call_")])
        return graph.forward

    register_backend(look, name=_LOOKING)


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def _with(rules: str, is_right: Check) -> bool:
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(debug_backend_override=rules):
        return is_right()


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{len(names)} operators ({shown}{', …' if len(names) > 6 else ''})"
