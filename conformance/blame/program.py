"""The user's program: a function of a file, which gets a device and returns what is to be compared."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.base.errors import UsageError

_FORM = "write FILE.py:FUNCTION; the function gets a torch.device, and returns tensors, numbers or a module"


@dataclass(frozen=True)
class Program:
    """Function of the user's that runs a model on a device."""

    text: str
    function: Callable[[torch.device], Any]

    @classmethod
    def load(cls, text: str) -> Program:
        """Return the function that ``FILE.py:FUNCTION`` names. Raises UsageError."""
        path, colon, name = text.rpartition(":")
        file = Path(path)
        if not colon or not name.isidentifier():
            raise UsageError(f"'{text}' names no function. {_FORM}.")
        if not file.is_file():
            raise UsageError(f"there is no file {path}. {_FORM}.")
        module = _imported(file)
        function = getattr(module, name, None)
        if not callable(function):
            known = ", ".join(_functions(module)) or "none"
            raise UsageError(f"{path} has no function '{name}'; it has: {known}. {_FORM}.")
        if not _takes_one(function):
            raise UsageError(f"{text} must take one argument, the device. {_FORM}.")
        return cls(text, function)

    def run(self, device: torch.device, seed: int = 0) -> list[tuple[str, Any]]:
        """Run on a device, with random numbers of ``seed``; return what it returned, by name."""
        torch.manual_seed(seed)
        return list(_ends(self.function(device), ""))


def _imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"blamed_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is no Python file. {_FORM}.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def _functions(module: Any) -> list[str]:
    return [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def _ends(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers in a value with their names."""
    if isinstance(value, torch.Tensor):
        # A rank has a part of a distributed tensor.
        local = value.to_local() if hasattr(value, "to_local") else value
        yield name or "result", local.detach()
    elif isinstance(value, float | complex):
        yield name or "result", value
    else:
        for key, item in _items(value):
            yield from _ends(item, key if not name or key.startswith("gradient of ") else f"{name}.{key}")


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds; of a module its parameters and their gradients."""
    if isinstance(value, torch.nn.Module):
        state = value.state_dict(keep_vars=True)
        yield from state.items()
        yield from ((f"gradient of {key}", item.grad) for key, item in state.items() if item.grad is not None)
    elif isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), item) for number, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from vars(value).items()
