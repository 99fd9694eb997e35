"""Tables of vendors' own kernels: the vendor's operator for each entry point. One file per library.

A table imports nothing. The vendor's package is imported when a kernel is loaded. An operator that is not registered
raises NotImplementedError, and the caller takes another implementation.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.base.errors import SetupError, UsageError

#: ``adapt(operator)`` returns a function with the specification's signature.
Adapt = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator itself: it takes the specification's arguments in the specification's order."""
    return operator


@dataclass(frozen=True)
class VendorOperator:
    """Operator of a vendor. ``path`` starts at a module: ``torch.ops.acme.lamb``. No dtypes mean all.

    ``or_path`` is the second path to try. DeepSpeed asks for one name per dtype, and some vendors register one operator
    for all dtypes.
    """

    path: str
    adapt: Adapt = as_it_is
    dtypes: frozenset[str] = frozenset()
    or_path: str = ""


@dataclass(frozen=True)
class VendorLibrary:
    """Operators of one vendor, by builder and entry point. Importing ``package`` registers them."""

    device_type: str
    package: str
    builders: Mapping[str, Mapping[str, VendorOperator]]

    def operator(self, builder: str, name: str, dtype: str = "") -> tuple[str, Callable[..., Any]]:
        """Return the operator's path and a function with the specification's signature.

        Raises SetupError if the package is not installed or does not load. Raises NotImplementedError if the operator
        is not registered or does not take that dtype.
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
    """Import the vendor's package, which registers its operators. Raises ``SetupError`` if that fails."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise SetupError(
            f"the vendor's kernels need the package {package}, which cannot be imported: {error}.\n"
            "  install it; without it the portable reference computes"
        ) from None


def find(path: str) -> Callable[..., Any]:
    """Return the operator at a path such as ``torch.ops.deepspeed.lamb``.

    Raises NotImplementedError if it is not registered.
    """
    first, *rest = path.split(".")
    value: Any = importlib.import_module(first)
    for index, name in enumerate(rest):
        # torch.ops creates any namespace on access, and raises AttributeError for an operator that is not registered.
        value = getattr(value, name, None)
        if value is None:
            raise NotImplementedError(f"{'.'.join([first, *rest[: index + 1]])} is not registered")
    function: Callable[..., Any] = value
    return function


@functools.cache
def library_of(device_type: str, named: str = "") -> VendorLibrary | None:
    """Return the library for tensors of that device type, or None.

    ``named`` is ``module:NAME`` of a declaration's own table. Without it, the table of this package is taken. Raises
    UsageError if ``named`` is not a VendorLibrary.
    """
    if named:
        module, colon, name = named.partition(":")
        library = getattr(importlib.import_module(module), name, None) if colon else None
        if not isinstance(library, VendorLibrary):
            raise UsageError(
                f"kernel_library {named!r} names no VendorLibrary.\n  write it as module:NAME; see docs/kernels.md"
            )
        return library if library.device_type == device_type else None
    # find_spec instead of a caught ImportError, which could also come from inside a table.
    if importlib.util.find_spec(f"{__name__}.{device_type}") is None:
        return None
    library = importlib.import_module(f"{__name__}.{device_type}").LIBRARY
    assert isinstance(library, VendorLibrary)
    return library
