"""The kernels, one file per kernel or family. Each file offers ``SPECIFICATIONS``; nothing else lists them."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from conformance.errors import UnknownName
from conformance.kernels.specification import KernelSpecification


@functools.cache
def specifications() -> tuple[KernelSpecification, ...]:
    """All of them, in the order of their files' names."""
    found = []
    for module in sorted(one.name for one in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{module}").SPECIFICATIONS
    names = [one.name for one in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"kernels are specified twice: {', '.join(sorted(twice))}")
    return tuple(found)


def specification(name: str) -> KernelSpecification:
    """The kernel of that name; an unknown name is an error with suggestions."""
    for one in specifications():
        if one.name == name:
            return one
    raise UnknownName("kernel", name, (one.name for one in specifications()), "see docs/kernels.md")


def of_builder(class_name: str) -> tuple[KernelSpecification, ...]:
    """The entry points of one builder."""
    return tuple(one for one in specifications() if one.builder == class_name)


@functools.cache
def builder_names() -> tuple[str, ...]:
    """The builders that have a specified entry point."""
    return tuple(sorted({one.builder for one in specifications()}))
