"""The live accelerator as cases see it: a thin proxy that turns an absent member into ``MissingMember``."""

from __future__ import annotations

import inspect
from typing import Any

from conformance.accelerators.interface import MEMBER_NAMES, MissingMember


class Live:
    """Answers every member of the interface from the object it wraps, and passes everything else through.

    A member the object lacks, or has only as an abstract stub, raises ``MissingMember`` when it is asked for.
    """

    def __init__(self, wrapped: Any, label: str) -> None:
        self._conformance_wrapped, self._conformance_label = wrapped, label

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__["_conformance_wrapped"]
        if name in MEMBER_NAMES and not has_member(wrapped, name):
            raise MissingMember(name, self.__dict__["_conformance_label"])
        return getattr(wrapped, name)

    def __repr__(self) -> str:
        return f"<{self._conformance_label}: {type(self._conformance_wrapped).__name__}>"


def unwrap(accelerator: Any) -> Any:
    """The object behind a proxy; anything else as it is."""
    return accelerator._conformance_wrapped if isinstance(accelerator, Live) else accelerator


def has_member(thing: Any, name: str) -> bool:
    """Whether an object or class has that member, and not only as an abstract stub. No property is run for it."""
    try:
        static = inspect.getattr_static(thing, name)
    except AttributeError:
        # A member that __getattr__ makes up is a member too.
        return not isinstance(thing, type) and hasattr(type(thing), "__getattr__") and hasattr(thing, name)
    return not getattr(static, "__isabstractmethod__", False)


def members_of(thing: Any) -> frozenset[str]:
    """The members of the interface that an object or class has."""
    return frozenset(name for name in MEMBER_NAMES if has_member(thing, name))
