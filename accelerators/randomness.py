"""Random number generators of an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Randomness(Protocol):
    """Generators by device index. ``module`` is ``torch.<name>``; callers pass existing indices only."""

    def functions(self, module: Any) -> Any:
        """Return the module that holds the random functions."""

    def generator(self, module: Any, index: int) -> torch.Generator: ...


class DeviceGenerators:
    """One generator per device, in ``default_generators`` of ``torch.<name>`` or of its ``random`` module."""

    def functions(self, module: Any) -> Any:
        import torch

        return getattr(module, "random", torch.random)

    def generator(self, module: Any, index: int) -> torch.Generator:
        """Return the default generator of device ``index``."""
        self._initialise(module)
        home = module if hasattr(module, "default_generators") else module.random
        generator: torch.Generator = home.default_generators[index]
        return generator

    def _initialise(self, module: Any) -> None:
        # The list is empty until the device is initialised.
        start: Callable[[], None] | None = getattr(module, "init", None)
        if start is not None:
            start()


class HostGenerator:
    """The host's single generator."""

    def functions(self, module: Any) -> Any:
        import torch

        return torch.random

    def generator(self, module: Any, index: int) -> torch.Generator:
        import torch

        return torch.default_generator


class NamedGenerator:
    """A single generator that a function of ``torch.<name>`` returns."""

    def __init__(self, function: str) -> None:
        self._function = function

    def functions(self, module: Any) -> Any:
        return module

    def generator(self, module: Any, index: int) -> torch.Generator:
        generator: torch.Generator = getattr(module, self._function)()
        return generator
