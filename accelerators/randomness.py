"""Where an accelerator's random numbers come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Randomness(Protocol):
    """Generators by device index. ``module`` is ``torch.<name>``; every index is one that exists."""

    def functions(self, module: Any) -> Any:
        """The module that holds random functions."""

    def generator(self, module: Any, index: int) -> torch.Generator: ...


class DeviceGenerators:
    """One generator per device, in ``default_generators`` of ``torch.<name>`` or its ``random``."""

    def functions(self, module: Any) -> Any:
        import torch

        return getattr(module, "random", torch.random)

    def generator(self, module: Any, index: int) -> torch.Generator:
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
    """The one generator of the host."""

    def functions(self, module: Any) -> Any:
        import torch

        return torch.random

    def generator(self, module: Any, index: int) -> torch.Generator:
        import torch

        return torch.default_generator


class NamedGenerator:
    """The one generator that a function of ``torch.<name>`` returns."""

    def __init__(self, function: str) -> None:
        self._function = function

    def functions(self, module: Any) -> Any:
        return module

    def generator(self, module: Any, index: int) -> torch.Generator:
        generator: torch.Generator = getattr(module, self._function)()
        return generator
