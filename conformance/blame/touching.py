"""Plugin of pytest that writes which of PyTorch's own operators each case calls. A report alone does not say so.

``CONFORMANCE_TOUCHED`` names the file; each line is JSON: the case's id, and the operators' names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.runner.collection import case_of

#: Variable of the environment with the path of the file.
VARIABLE = "CONFORMANCE_TOUCHED"


class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Keep the names of all operators that are called: ``aten.add`` of ``aten.add.Tensor``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call, and keep its name."""
        if isinstance(func, torch._ops.OpOverload) and not func.is_view:
            self.found.add(operator_of(func))
        return func(*args, **(kwargs or {}))


def operator_of(func: Any) -> str:
    """Return the operator of an overload; its in-place form is the same operator."""
    name = str(func.overloadpacket.__name__)
    plain = name if name.endswith("__") else name.removesuffix("_")
    return f"{func.namespace}.{plain}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Run the body of a case, and write what it has called."""
    names = Names()
    try:
        with names:
            yield
    finally:
        with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
            case = case_of(item)
            file.write(json.dumps([case.id if case else item.nodeid, sorted(names.found)]) + "\n")
