"""Defects that compiled programs show."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.catalogue.experts import alone
from tests.defects.catalogue.parallel import broken, kernel
from tests.defects.mutant import Mutant
from tests.defects.spoiling import on_device, replaced

COMPILED = "compiled programs"


def _changed(change: Any) -> Any:
    """A compiled function gives what ``change(results, inputs)`` makes of its results."""

    def around(old: Any) -> Any:
        def compiling(function: Any, **options: Any) -> Any:
            compiled = old(function, **options)
            return lambda *args: change(compiled(*args), args)

        return compiling

    return around


def _two_percent(result: Any, args: Any) -> Any:
    del args
    return result * 1.02 if torch.is_tensor(result) and result.is_floating_point() else result


def _rows_of_the_first(old: Any) -> Any:
    """A graph for a first batch is used for larger ones: rows behind it are zeros."""

    def compiling(function: Any, **options: Any) -> Any:
        compiled, sizes = old(function, **options), []

        def call(x: Any) -> Any:
            sizes.append(len(x))
            rows = torch.arange(len(x), device=x.device).view(-1, *[1] * (x.dim() - 1))
            return compiled(x) * (rows < sizes[0])

        return call

    return compiling


def _never_the_step(old: Any) -> Any:
    """A compiled function without inputs runs the first two times alone."""

    def compiling(function: Any, **options: Any) -> Any:
        compiled, calls = old(function, **options), []

        def call(*args: Any) -> Any:
            calls.append(1)
            return compiled(*args) if args or len(calls) < 3 else None

        return call

    return compiling


def _own_seed(old: Any) -> Any:
    """Compiled code draws from a state that each call advances, whatever the seed."""

    def compiling(function: Any, **options: Any) -> Any:
        compiled, calls = old(function, **options), []

        def call(*args: Any) -> Any:
            calls.append(1)
            torch.sim.manual_seed(900 + len(calls))  # type: ignore[attr-defined]
            return compiled(*args)

        return call

    return compiling


def _without_writes(old: Any) -> Any:
    """Writes into inputs are lost."""

    def compiling(function: Any, **options: Any) -> Any:
        compiled = old(function, **options)
        return lambda *args: compiled(*(arg.clone() if on_device(arg) else arg for arg in args))

    return compiling


def _twice(old: Any) -> Any:
    """Compiled code runs twice in its first call."""

    def compiling(function: Any, **options: Any) -> Any:
        compiled, calls = old(function, **options), []

        def call(*args: Any) -> Any:
            if not calls:
                calls.append(1)
                compiled(*args)
            return compiled(*args)

        return call

    return compiling


def _sums_its_own(old: Any) -> Any:
    """A sum inside compiled code is the rank's own."""
    del old
    return lambda tensor, *args, **kwargs: tensor


MUTANTS: tuple[Mutant, ...] = (
    alone("compiled layers are 2 % too large", COMPILED, "defect class of compilers", "compile.llama",
          replaced(torch, compile=_changed(_two_percent))),
    alone("a compiled step runs twice and then never", COMPILED, "compiled optimizers with constant states",
          "compile.step", replaced(torch, compile=_never_the_step)),
    alone("compiled code keeps the first batch's size", COMPILED, "torch.compile: shapes taken for constants",
          "compile.batch", replaced(torch, compile=_rows_of_the_first)),
    alone("compiled random numbers ignore the seed", COMPILED, "compilers with random numbers of their own",
          "compile.random", replaced(torch, compile=_own_seed)),
    alone("compiled writes into inputs are lost", COMPILED, "functionalization without its epilogue",
          "compile.mutation", replaced(torch, compile=_without_writes)),
    alone("compiled code runs twice in its first call", COMPILED, "buffers updated while compiling",
          "compile.buffers", replaced(torch, compile=_twice)),
    broken("a sum inside compiled code is one rank's own", COMPILED, "collectives removed as dead code",
           "compile.collective", kernel("torch.distributed._functional_collectives", all_reduce=_sums_its_own)),
)  # fmt: skip
