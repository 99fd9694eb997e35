"""Operator builders: named classes that say whether an operator is there, and load it.

One convention holds for every accelerator: ``find_builder`` never fails and never answers None. A name nobody
builds gives ``NotImplementedBuilder``, whose ``is_compatible()`` is False and whose ``load()`` raises
NotImplementedError. Elsewhere a missing builder may be None; both mean "not implemented".

Builders follow from the specifications. ``from conformance.kernels.builders import FusedAdamBuilder`` gives one whose
kernels run on whatever device their tensors are; an accelerator's own tells what it would load for its device.
"""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from conformance.errors import SetupError
from conformance.kernels.implementation import Choice, Declared
from conformance.kernels.kernel import Kernel
from conformance.kernels.specification import TensorLocation
from conformance.kernels.specifications import builder_names, of_builder


class OpBuilder(abc.ABC):
    """One operator. ``NAME`` is what reports call it."""

    NAME: ClassVar[str]
    #: The device whose implementations are told; ``library`` is a vendor's own table, as module:NAME.
    device_type: ClassVar[str] = "cpu"
    library: ClassVar[str] = ""
    #: By what its accelerator declares, implementations are offered.
    declared: ClassVar[frozenset[Declared]] = frozenset()
    _loaded: ClassVar[dict[type, Any]] = {}

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether ``load()`` succeeds here: found out by loading. ``verbose`` prints what it would load, and why."""
        try:
            self.load()
        except (NotImplementedError, SetupError) as error:
            said, answer = str(error), False
        else:
            said, answer = self.describe(), True
        if verbose:
            print(f"{type(self).__name__}: {said}")
        return answer

    def load(self, verbose: bool = False) -> Any:
        """The operator's functions, as attributes of one object; the same object every time."""
        if type(self) not in self._loaded:
            self._loaded[type(self)] = self._build()
        return self._loaded[type(self)]

    def describe(self) -> str:
        """Which implementation of each function is loaded for this builder's device."""
        return f"{type(self).__name__} is loaded"

    @abc.abstractmethod
    def _build(self) -> Any:
        """The functions."""


class SpecifiedBuilder(OpBuilder):
    """Loads the kernels whose specifications name this class."""

    def choices(self) -> dict[str, Choice]:
        """What would run for each function that has an implementation."""
        asked = {name: self._choice(kernel) for name, kernel in self._kernels().items()}
        return {name: choice for name, choice in asked.items() if choice is not None}

    def _choice(self, kernel: Kernel) -> Choice | None:
        device_type = "cpu" if kernel.specification.location is TensorLocation.HOST else self.device_type
        try:
            return kernel.choice(device_type)
        except NotImplementedError:
            return None

    def describe(self) -> str:
        told = (f"{name}: {one.implementation.value}, {one.reason}" for name, one in self.choices().items())
        return "; ".join(told)

    def _build(self) -> Any:
        choices = self.choices()
        if not choices:
            raise NotImplementedError(f"nothing of {type(self).__name__} has an implementation for {self.device_type}")
        companions = {key: value for one in of_builder(type(self).__name__) for key, value in one.companions.items()}
        return SimpleNamespace(**{**companions, **{name: self._kernels()[name] for name in choices}})

    def _kernels(self) -> dict[str, Kernel]:
        return _kernels(type(self).__name__, self.library, self.declared)


class NotImplementedBuilder(OpBuilder):
    """Stands for every operator that is not built here."""

    NAME = "not_implemented"

    def is_compatible(self, verbose: bool = False) -> bool:
        return False

    def load(self, verbose: bool = False) -> Any:
        return self._build()

    def _build(self) -> Any:
        raise NotImplementedError(f"this operator is not built here; there are: {', '.join(sorted(BUILDERS))}")


@functools.cache
def _kernels(builder: str, library: str, declared: frozenset[Declared]) -> dict[str, Kernel]:
    return {name: Kernel(one, name, library, declared) for one in of_builder(builder) for name in one.attributes}


def _specified(name: str) -> type[OpBuilder]:
    """``CPUAdamBuilder`` has the NAME cpu_adam."""
    stem = name.removesuffix("Builder")
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", stem).lower()
    doc = "; ".join(f"{one.name}: {one.doc.splitlines()[0]}" for one in of_builder(name) if one.doc)
    return type(name, (SpecifiedBuilder,), {"NAME": snake, "__doc__": doc, "__module__": __name__})


BUILDERS: dict[str, type[OpBuilder]] = {name: _specified(name) for name in builder_names()}
globals().update(BUILDERS)


@functools.cache
def find_builder(
    class_name: str,
    device_type: str = "",
    library: str = "",
    declares: tuple[tuple[str, Callable[[], bool]], ...] = (),
) -> type[OpBuilder]:
    """The builder class of that name, or ``NotImplementedBuilder``; one that speaks for a device if that is named.

    ``declares`` are the names of capabilities by which kernels are offered on that device, each with the accelerator's
    method that says whether this very device has it.
    """
    kind = BUILDERS.get(class_name, NotImplementedBuilder)
    if kind is NotImplementedBuilder or (not device_type and not library):
        return kind
    declared = frozenset(Declared(device_type, name, is_there) for name, is_there in declares)
    own = {
        "device_type": device_type, "library": library, "declared": declared,
        "__doc__": kind.__doc__, "__module__": __name__,
    }  # fmt: skip
    return type(class_name, (kind,), own)
