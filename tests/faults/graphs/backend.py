"""Compiled code without a compiler: graphs as inductor gets them, run node by node, with a fault in some nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes

#: Runs a node: gets the node, its target, and the arguments. Returns what the node gives.
Run = Callable[[Node, Any, tuple[Any, ...], dict[str, Any]], Any]
#: Looks at a graph before it is run, and says whether it is of a backward pass. Returns how nodes are run.
Look = Callable[[GraphModule, bool], dict[Node, Run]]


@contextmanager
def interpreted(look: Look) -> Iterator[None]:
    """Run inductor's graphs node by node inside the context: decomposed, functional and partitioned as inductor does.

    A compiler would take seconds for each graph. The nodes run out of sight of dispatch modes, as compiled code does.
    """
    from torch._functorch import config as functorch
    from torch._inductor import compile_fx, config

    usual = compile_fx.compile_fx

    def inner(module: GraphModule, inputs: Any, *_: Any, is_backward: bool = False, **__: Any) -> Any:
        runs = look(module, is_backward)
        interpreter = _Interpreter(module, runs)

        def run(given: list[Any]) -> list[Any]:
            arguments = list(given)
            given.clear()
            with _disable_current_modes():
                found = interpreter.run(*arguments)
            return list(found) if isinstance(found, (tuple, list)) else [found]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    compile_fx.compile_fx = functools.partial(usual, inner_compile=inner)
    try:
        # A cache would give compiled code of the same graph.
        with functorch.patch(enable_autograd_cache=False), config.patch(fx_graph_cache=False):
            yield
    finally:
        compile_fx.compile_fx = usual
        torch._dynamo.reset()


class _Interpreter(Interpreter):
    def __init__(self, module: GraphModule, runs: dict[Node, Run]) -> None:
        super().__init__(module)
        self._runs = runs

    def run_node(self, n: Node) -> Any:
        run = self._runs.get(n)
        if run is None:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return run(n, n.target, args, kwargs)
