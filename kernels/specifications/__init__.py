"""Specifications of all kernels, one file per kernel or family.

Each file defines ``SPECIFICATIONS``. The files are discovered; no list names them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from conformance.base.errors import UnknownName
from conformance.kernels.specification import KernelSpecification


@functools.cache
def specifications() -> tuple[KernelSpecification, ...]:
    """Return all specifications, in the order of the file names. Raises ValueError if two have the same name."""
    found = []
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{module}").SPECIFICATIONS
    names = [kernel.name for kernel in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"kernels are specified more than once: {', '.join(sorted(twice))}")
    return tuple(found)


def specification(name: str) -> KernelSpecification:
    """Return the specification of that name. Raises UnknownName with suggestions."""
    for kernel in specifications():
        if kernel.name == name:
            return kernel
    raise UnknownName("kernel", name, (kernel.name for kernel in specifications()), "see docs/kernels.md")


def of_builder(class_name: str) -> tuple[KernelSpecification, ...]:
    """Return the specifications of one builder's entry points."""
    return tuple(kernel for kernel in specifications() if kernel.builder == class_name)


@functools.cache
def builder_names() -> tuple[str, ...]:
    """Return the class names of all builders that have a specified entry point."""
    return tuple(sorted({kernel.builder for kernel in specifications()}))
