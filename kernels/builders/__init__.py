"""Operator builders: classes that report whether an operator is available, and load it.

``find_builder`` never fails and never returns None. For an unknown name it returns ``NotImplementedBuilder``, whose
``is_compatible()`` is False and whose ``load()`` raises NotImplementedError. In other projects a missing builder may be
None; both mean "not implemented".

The builder classes are generated from the specifications. The kernels of ``FusedAdamBuilder``, imported from this
module, run on the device of their tensors. An accelerator's builder also describes what it would load for its device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from conformance.kernels.builders.builder import NotImplementedBuilder, OpBuilder, SpecifiedBuilder
from conformance.kernels.builders.specified import BUILDERS
from conformance.kernels.implementation import Declared

__all__ = ["BUILDERS", "NotImplementedBuilder", "OpBuilder", "SpecifiedBuilder", "find_builder", *BUILDERS]
# Callers import builders by name: ``from conformance.kernels.builders import FusedAdamBuilder``.
globals().update(BUILDERS)


@functools.cache
def find_builder(
    class_name: str,
    device_type: str = "",
    library: str = "",
    declares: tuple[tuple[str, Callable[[], bool]], ...] = (),
) -> type[OpBuilder]:
    """Return the builder class of that name, or ``NotImplementedBuilder`` if there is none.

    With ``device_type`` or ``library``, return a subclass for that device. ``declares`` lists capabilities that make
    kernels available there, each with the accelerator's method that returns whether this device has it.
    """
    kind = BUILDERS.get(class_name, NotImplementedBuilder)
    if kind is NotImplementedBuilder or (not device_type and not library):
        return kind
    declared = frozenset(Declared(device_type, name, is_there) for name, is_there in declares)
    # A subclass for each device; the cache makes equal arguments give the same class.
    own = {
        "device_type": device_type, "library": library, "declared": declared,
        "__doc__": kind.__doc__, "__module__": __name__,
    }  # fmt: skip
    return type(class_name, (kind,), own)
