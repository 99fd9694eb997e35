"""Proxy of the accelerator under test. A missing member of the interface raises ``MissingMember``."""

from __future__ import annotations

import inspect
from typing import Any

from conformance.accelerators.interface import MEMBER_NAMES, MissingMember


class AcceleratorProxy:
    """A thin proxy around an accelerator object. Cases use the accelerator only through it.

    All attributes come from the wrapped object. A member of the interface that the object lacks, or has only as an
    abstract stub, raises ``MissingMember`` on access.
    """

    def __init__(self, wrapped: Any, label: str) -> None:
        self._conformance_wrapped, self._conformance_label = wrapped, label

    def __getattr__(self, name: str) -> Any:
        # Through __dict__: on a half-built copy, an attribute access would call __getattr__ again without end.
        wrapped = self.__dict__["_conformance_wrapped"]
        if name in MEMBER_NAMES and not has_member(wrapped, name):
            raise MissingMember(name, self.__dict__["_conformance_label"])
        return getattr(wrapped, name)

    def __repr__(self) -> str:
        return f"<{self._conformance_label}: {type(self._conformance_wrapped).__name__}>"


def unwrap(accelerator: Any) -> Any:
    """Return the object behind a proxy; return any other object unchanged."""
    return accelerator._conformance_wrapped if isinstance(accelerator, AcceleratorProxy) else accelerator


def has_member(candidate: Any, name: str) -> bool:
    """Return whether an object or class has the member, and not only as an abstract stub. Runs no property."""
    try:
        static = inspect.getattr_static(candidate, name)
    except AttributeError:
        # A member that __getattr__ provides is a member too.
        dynamic = not isinstance(candidate, type) and hasattr(type(candidate), "__getattr__")
        return dynamic and hasattr(candidate, name)
    return not getattr(static, "__isabstractmethod__", False)


def members_of(candidate: Any) -> frozenset[str]:
    """Return the members of the interface that an object or class has."""
    return frozenset(name for name in MEMBER_NAMES if has_member(candidate, name))
