"""The declared mode in which bits do not depend on the surrounding: made, read back, and restored."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def invariant_mode(accelerator: Any) -> Iterator[list[str]]:
    """Make the settings that the accelerator declares, and yield those that did not take their value."""
    unlocked = getattr(torch.backends, "__allow_nonbracketed_mutation", contextlib.nullcontext)
    wanted = dict(getattr(accelerator, "invariant_mode", None) or {})
    owners = {path: _owner(path) for path in wanted}
    before = {path: getattr(owner, path.rpartition(".")[2], None) for path, owner in owners.items()}
    try:
        with unlocked():
            for path, value in wanted.items():
                setattr(owners[path], path.rpartition(".")[2], value)
        yield [path for path, value in wanted.items() if getattr(owners[path], path.rpartition(".")[2], None) != value]
    finally:
        with unlocked():
            for path, value in before.items():
                setattr(owners[path], path.rpartition(".")[2], value)


def _owner(path: str) -> Any:
    """Return the module, or the object in a module, that has a setting."""
    first, *rest = path.split(".")[:-1]
    owner: Any = importlib.import_module(first)
    for index, name in enumerate(rest):
        if not hasattr(owner, name):
            importlib.import_module(".".join([first, *rest[: index + 1]]))
        owner = getattr(owner, name)
    return owner
