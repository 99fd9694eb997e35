"""Vendors' own kernels, as tables: which operator of theirs is which entry point. One file per library.

A table imports nothing. The vendor's package is imported when a kernel is loaded, and an operator that is not
registered is said to be missing: the caller then takes another implementation.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.errors import SetupError, UsageError

#: ``adapt(operator)`` gives a function with the specification's signature.
Adapt = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator takes the specification's arguments, in its order."""
    return operator


@dataclass(frozen=True)
class VendorOperator:
    """One operator: ``path`` from the torch or vendor module that holds it. No dtypes mean all.

    ``or_path`` is where it is looked for next: vendors register one operator for all dtypes that is asked for by one
    name for each.
    """

    path: str
    adapt: Adapt = as_it_is
    dtypes: frozenset[str] = frozenset()
    or_path: str = ""


@dataclass(frozen=True)
class VendorLibrary:
    """Operators of one vendor: builder → entry point → operator. Importing ``package`` registers them."""

    device_type: str
    package: str
    builders: Mapping[str, Mapping[str, VendorOperator]]

    def operator(self, builder: str, name: str, dtype: str = "") -> tuple[str, Callable[..., Any]]:
        """What it is, and the function with the specification's signature.

        Raises SetupError if the package is not installed or does not load, NotImplementedError if it has no such
        operator, or not for that dtype.
        """
        found = self.builders[builder][name]
        if dtype and found.dtypes and dtype not in found.dtypes:
            raise NotImplementedError(f"{found.path} does not take {dtype}")
        _import(self.package)
        try:
            return found.path, found.adapt(find(found.path))
        except NotImplementedError:
            if not found.or_path:
                raise
            return found.or_path, found.adapt(find(found.or_path))


def _import(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise SetupError(
            f"the vendor's kernels need the package {package}, which cannot be imported: {error}.\n"
            "  install it, or the portable reference computes"
        ) from None


def find(path: str) -> Callable[..., Any]:
    """The operator at a path such as ``torch.ops.deepspeed.lamb``."""
    first, *rest = path.split(".")
    value: Any = importlib.import_module(first)
    for index, name in enumerate(rest):
        # torch.ops makes namespaces up, and says AttributeError for an operator that nobody registered.
        value = getattr(value, name, None)
        if value is None:
            raise NotImplementedError(f"{'.'.join([first, *rest[: index + 1]])} is not registered")
    function: Callable[..., Any] = value
    return function


@functools.cache
def library_of(device_type: str, named: str = "") -> VendorLibrary | None:
    """The library for tensors of that type: the one at ``module:NAME``, else this folder's; None if there is none."""
    if named:
        module, colon, name = named.partition(":")
        library = getattr(importlib.import_module(module), name, None) if colon else None
        if not isinstance(library, VendorLibrary):
            raise UsageError(
                f"kernel_library {named!r} names no VendorLibrary.\n  write it as module:NAME; see docs/kernels.md"
            )
        return library if library.device_type == device_type else None
    if importlib.util.find_spec(f"{__name__}.{device_type}") is None:
        return None
    library = importlib.import_module(f"{__name__}.{device_type}").LIBRARY
    assert isinstance(library, VendorLibrary)
    return library
