"""Operator builders: named classes that say whether an operator is there, and load it.

One convention holds for every accelerator: ``find_builder`` never fails and never answers None. A name nobody
builds gives ``NotImplementedBuilder``, whose ``is_compatible()`` is False and whose ``load()`` raises
NotImplementedError.
"""

from __future__ import annotations

import abc
from types import SimpleNamespace
from typing import Any, ClassVar


class OpBuilder(abc.ABC):
    """One operator. ``NAME`` is what reports call it."""

    NAME: ClassVar[str]
    _loaded: ClassVar[dict[type, Any]] = {}

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether ``load()`` will succeed here. ``verbose`` is DeepSpeed's; there is nothing more to say."""
        return True

    def load(self, verbose: bool = False) -> Any:
        """The operator's functions, as attributes of one object; the same object every time."""
        return self._loaded.setdefault(type(self), self._build())

    @abc.abstractmethod
    def _build(self) -> Any:
        """The functions."""


class FusedAdamBuilder(OpBuilder):
    """Adam over lists of tensors: ``multi_tensor_adam``."""

    NAME = "fused_adam"

    def _build(self) -> Any:
        from conformance.kernels import references

        return SimpleNamespace(multi_tensor_adam=references.multi_tensor_adam)


class FusedLionBuilder(OpBuilder):
    """Lion over lists of tensors: ``multi_tensor_lion``."""

    NAME = "fused_lion"

    def _build(self) -> Any:
        from conformance.kernels import references

        return SimpleNamespace(multi_tensor_lion=references.multi_tensor_lion)


class PackbitsBuilder(OpBuilder):
    """Signs as bits: ``packbits`` and ``unpackbits``, compiled where there is a compiler, and ``implementation``."""

    NAME = "packbits"

    def _build(self) -> Any:
        from conformance.kernels.compression import packing

        return SimpleNamespace(
            packbits=packing.packbits, unpackbits=packing.unpackbits, implementation=packing.implementation
        )


class NotImplementedBuilder(OpBuilder):
    """Stands for every operator that is not built here."""

    NAME = "not_implemented"

    def is_compatible(self, verbose: bool = False) -> bool:
        return False

    def load(self, verbose: bool = False) -> Any:
        return self._build()

    def _build(self) -> Any:
        raise NotImplementedError(f"this operator is not built here; there are: {', '.join(sorted(BUILDERS))}")


BUILDERS: dict[str, type[OpBuilder]] = {
    kind.__name__: kind for kind in (FusedAdamBuilder, FusedLionBuilder, PackbitsBuilder)
}


def find_builder(class_name: str) -> type[OpBuilder]:
    """The builder class of that name, or ``NotImplementedBuilder``."""
    return BUILDERS.get(class_name, NotImplementedBuilder)
