"""Random number generators of an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from conformance.accelerators import members
from conformance.accelerators.interface import MissingMember

if TYPE_CHECKING:
    import torch


class Randomness(Protocol):
    """Random numbers by device index. ``module`` is ``torch.<name>``; callers pass existing indices only."""

    def functions(self, module: Any) -> Any:
        """Return the module that holds the random functions."""

    def generator(self, module: Any, index: int) -> torch.Generator: ...
    def seed(self, module: Any, current: int, seed: int, count: Callable[[], int] | None = None) -> None: ...
    def seed_all(self, module: Any, count: int, seed: int) -> None: ...
    def initial_seed(self, module: Any, current: int) -> int: ...
    def state(self, module: Any, index: int) -> torch.Tensor: ...
    def set_state(self, module: Any, index: int, state: torch.Tensor) -> None: ...


class _Generators:
    """Random numbers by the generators alone."""

    def generator(self, module: Any, index: int) -> torch.Generator:
        raise NotImplementedError

    def seed(self, module: Any, current: int, seed: int, count: Callable[[], int] | None = None) -> None:
        self.generator(module, current).manual_seed(seed)

    def seed_all(self, module: Any, count: int, seed: int) -> None:
        for index in range(count):
            self.generator(module, index).manual_seed(seed)

    def initial_seed(self, module: Any, current: int) -> int:
        return int(self.generator(module, current).initial_seed())

    def state(self, module: Any, index: int) -> torch.Tensor:
        return self.generator(module, index).get_state()

    def set_state(self, module: Any, index: int, state: torch.Tensor) -> None:
        self.generator(module, index).set_state(state)


class DeviceGenerators(_Generators):
    """One generator per device, in ``default_generators`` of ``torch.<name>`` or of its ``random`` module.

    Where ``torch.<name>`` has a function such as ``manual_seed``, that one is called: a module need not show its
    generators.
    """

    def functions(self, module: Any) -> Any:
        import torch

        return getattr(module, "random", torch.random)

    def generator(self, module: Any, index: int) -> torch.Generator:
        """Return the default generator of device ``index``."""
        return self._generator(module, index, instead_of="")

    def _generator(self, module: Any, index: int, *, instead_of: str) -> torch.Generator:
        """Return the generator of device ``index``; the error names the function that ``module`` could have instead."""
        self._initialise(module)
        homes: tuple[Any, ...] = (module, getattr(module, "random", None))
        for home in homes:
            if hasattr(home, "default_generators"):
                generator: torch.Generator = home.default_generators[index]
                return generator
        lacks = f"neither {instead_of}() nor" if instead_of else "no"
        said = f"{module.__name__} has {lacks} default_generators"
        raise MissingMember(instead_of or "default_generators", module.__name__, said)

    def seed(self, module: Any, current: int, seed: int, count: Callable[[], int] | None = None) -> None:
        """Seed device ``current``. ``count()`` counts the devices, for a module that does not."""
        devices = getattr(module, "device_count", count)

        def by_others() -> None:
            # With one device, the seed of all devices is the seed of this one.
            if hasattr(module, "manual_seed_all") and devices is not None and devices() == 1:
                with suppress(NotImplementedError):
                    members.call(module, "manual_seed_all", seed)
                    return
            self._generator(module, current, instead_of="manual_seed").manual_seed(seed)

        members.call(module, "manual_seed", seed, instead=by_others)

    def seed_all(self, module: Any, count: int, seed: int) -> None:
        def by_others() -> None:
            if count == 1 and hasattr(module, "manual_seed"):
                self.seed(module, 0, seed)
                return
            for index in range(count):
                self._generator(module, index, instead_of="manual_seed_all").manual_seed(seed)

        members.call(module, "manual_seed_all", seed, instead=by_others)

    def initial_seed(self, module: Any, current: int) -> int:
        def by_generator() -> int:
            return int(self._generator(module, current, instead_of="initial_seed").initial_seed())

        return int(members.answer(module, "initial_seed", instead=by_generator))

    def state(self, module: Any, index: int) -> torch.Tensor:
        def by_generator() -> torch.Tensor:
            return self._generator(module, index, instead_of="get_rng_state").get_state()

        state: torch.Tensor = members.answer(module, "get_rng_state", index, instead=by_generator)
        return state

    def set_state(self, module: Any, index: int, state: torch.Tensor) -> None:
        def by_generator() -> None:
            self._generator(module, index, instead_of="set_rng_state").set_state(state)

        members.call(module, "set_rng_state", state, index, instead=by_generator)

    def _initialise(self, module: Any) -> None:
        # The list is empty until the device is initialised.
        start: Callable[[], None] | None = getattr(module, "init", None)
        if start is not None:
            start()


class HostGenerator(_Generators):
    """The host's single generator."""

    def functions(self, module: Any) -> Any:
        import torch

        return torch.random

    def generator(self, module: Any, index: int) -> torch.Generator:
        import torch

        return torch.default_generator


class NamedGenerator(_Generators):
    """A single generator that a function of ``torch.<name>`` returns."""

    def __init__(self, function: str) -> None:
        self._function = function

    def functions(self, module: Any) -> Any:
        return module

    def generator(self, module: Any, index: int) -> torch.Generator:
        generator: torch.Generator = getattr(module, self._function)()
        return generator
