"""Claims of operators: of one by its name, and of all that a function calls, which a run on the host shows.

A case requires the operators that it is about. Its function may call more, such as the remainder that makes its
numbers. A device that does not claim one of these may refuse it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.capabilities import Cell, Mode
from conformance.accelerators.declaration import State
from conformance.judging.finding import environment_lacks
from conformance.numerics.trees import tensors


def _cell(operator: str, dtype: str, mode: Mode) -> Cell:
    return Cell(f"operators.{operator}", dtype, mode.value)


def claims(declaration: Any, operator: str, dtype: str = "float32", mode: Mode = Mode.INFERENCE) -> bool:
    """Return whether the device claims the operator for a dtype."""
    return bool(declaration.supports(_cell(operator, dtype, mode)))


def skip_if_denied(declaration: Any, *operators: str, dtype: str = "float32", mode: Mode = Mode.INFERENCE) -> None:
    """Skip the case if the device declares one of these operators unsupported.

    For cases that test an operator and do not require it: those of the core run whatever is declared.
    """
    for operator in operators:
        cell = _cell(operator, dtype, mode)
        claim = declaration.claim(cell)
        if claim.state is State.UNSUPPORTED:
            environment_lacks(f"{cell} is declared unsupported: {claim.reason}")


class _Calls(TorchDispatchMode):
    """Keep the operators that are called, each with the dtypes of its tensors, or of its results if it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, frozenset[str]]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = tensors((args, kwargs)) or tensors(result)
        dtypes = frozenset(str(each.dtype).removeprefix("torch.") for each in known)
        self.found.add((func.overloadpacket.__name__, dtypes))
        return result


@functools.cache
def _by_kernel() -> dict[str, tuple[str, ...]]:
    """Return the operators of PyTorch's database by the names that kernels have for them.

    ``linalg.vector_norm`` is ``linalg_vector_norm``, ``nn.functional.relu`` is ``relu``, and all of ``div`` are one.
    """
    from conformance.suites.operators.plan.catalogue import operators

    found = defaultdict(list)
    for name in {each.name for each in operators()}:
        words = name.removeprefix("nn.functional.").split(".")
        for kernel in {words[0], "_".join(words)}:
            found[kernel].append(name)
    return {kernel: tuple(sorted(names)) for kernel, names in found.items()}


def names_of_kernel(kernel: str) -> tuple[str, ...]:
    """Return the operators of PyTorch's database that a kernel or a public function of this name computes."""
    return _by_kernel().get(_OF_ITS_KIND.get(kernel, kernel), ())


#: Functions that the database lacks, and an operator of their kind, by whose claim they are judged.
_OF_ITS_KIND = {"randperm": "randint"}


def claims_calls(declaration: Any, run: Callable[..., Any], given: Sequence[Any]) -> bool:
    """Run a function on the host; return whether the device claims each operator that it calls.

    A kernel of several operators is claimed with one of them, in one of the dtypes of its tensors. Kernels that are no
    operator of the database have no claim.
    """
    with _Calls() as calls:
        run(*given)
    return all(
        any(claims(declaration, name, dtype) for name in names_of_kernel(kernel) for dtype in dtypes)
        for kernel, dtypes in calls.found
        if names_of_kernel(kernel) and dtypes
    )
