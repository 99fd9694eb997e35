"""Base classes of operator builders. DeepSpeed does not look for builders in a module of this name."""

from __future__ import annotations

import abc
import functools
from types import SimpleNamespace
from typing import Any, ClassVar

from conformance.base.errors import SetupError
from conformance.kernels.implementation import Choice, Declared
from conformance.kernels.kernel import Kernel
from conformance.kernels.specification import TensorLocation
from conformance.kernels.specifications import builder_names, of_builder


class OpBuilder(abc.ABC):
    """Builder of one operator. ``NAME`` is the operator's name in reports."""

    NAME: ClassVar[str]
    #: Device type that ``describe`` speaks of. ``library`` names a vendor's table of operators as ``module:NAME``.
    device_type: ClassVar[str] = "cpu"
    library: ClassVar[str] = ""
    #: Capabilities that the accelerator declares; they make further implementations available.
    declared: ClassVar[frozenset[Declared]] = frozenset()
    #: Shared by all builders: callers create a new builder for each call, and loading may compile.
    _loaded: ClassVar[dict[type, Any]] = {}

    @property
    def name(self) -> str:
        """Return NAME, which DeepSpeed reads under this name."""
        return self.NAME

    def is_compatible(self, verbose: bool = False) -> bool:
        """Load the operator, and return whether that succeeds. ``verbose`` prints the chosen implementations."""
        try:
            self.load()
        except (NotImplementedError, SetupError) as error:
            description, compatible = str(error), False
        else:
            description, compatible = self.describe(), True
        if verbose:
            print(f"{type(self).__name__}: {description}")
        return compatible

    def load(self, verbose: bool = False) -> Any:
        """Return an object with the operator's functions as attributes. Every call returns the same object.

        Raises NotImplementedError if the operator has no implementation, and SetupError if a package is missing.
        """
        if type(self) not in self._loaded:
            self._loaded[type(self)] = self._build()
        return self._loaded[type(self)]

    def describe(self) -> str:
        """Return a text that names the implementation of each function for this builder's device."""
        return f"{type(self).__name__} is loaded"

    @abc.abstractmethod
    def _build(self) -> Any:
        """Return the object that ``load`` caches."""


class SpecifiedBuilder(OpBuilder):
    """Builder of the kernels whose specifications name this class."""

    def choices(self) -> dict[str, Choice]:
        """Return the chosen implementation of each function that has one."""
        choices = {name: self._choice(kernel) for name, kernel in self._kernels().items()}
        return {name: choice for name, choice in choices.items() if choice is not None}

    def _choice(self, kernel: Kernel) -> Choice | None:
        """Return the implementation that would run, or ``None`` if there is none."""
        # A kernel on host memory runs on the CPU, whatever the accelerator is.
        device_type = "cpu" if kernel.specification.location is TensorLocation.HOST else self.device_type
        try:
            return kernel.choice(device_type)
        except NotImplementedError:
            return None

    def describe(self) -> str:
        return "; ".join(
            f"{name}: {choice.implementation.value}, {choice.reason}" for name, choice in self.choices().items()
        )

    def _build(self) -> Any:
        """Return the object with the functions that have an implementation, and their companions."""
        choices = self.choices()
        if not choices:
            raise NotImplementedError(
                f"no function of {type(self).__name__} has an implementation for {self.device_type}"
            )
        companions = {
            name: companion
            for specification in of_builder(type(self).__name__)
            for name, companion in specification.companions.items()
        }
        # A function without an implementation is left out, so that hasattr() answers whether it is available.
        return SimpleNamespace(**{**companions, **{name: self._kernels()[name] for name in choices}})

    def _kernels(self) -> dict[str, Kernel]:
        return _kernels(type(self).__name__, self.library, self.declared)


class NotImplementedBuilder(OpBuilder):
    """Builder that stands for every operator without a specification."""

    #: DeepSpeed looks up under this name whether a missing operator is available.
    NAME = "deepspeed_not_implemented"

    def is_compatible(self, verbose: bool = False) -> bool:
        return False

    def load(self, verbose: bool = False) -> Any:
        return self._build()

    def _build(self) -> Any:
        raise NotImplementedError(f"this operator has no builder; there are: {', '.join(builder_names())}")


@functools.cache
def _kernels(builder: str, library: str, declared: frozenset[Declared]) -> dict[str, Kernel]:
    """Return the kernels of a builder by attribute name."""
    return {
        name: Kernel(specification, name, library, declared)
        for specification in of_builder(builder)
        for name in specification.attributes
    }
