"""Names that people type after an option: checked against what is known, with suggestions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from conformance.errors import UnknownName


def known_name(kind: str, name: str, known: Collection[str], hint: str = "") -> str:
    """``name``, if it is known."""
    if name not in known:
        raise UnknownName(kind, name, known, hint)
    return name


def known_names(kind: str, values: Iterable[str] | None, known: Collection[str]) -> tuple[str, ...]:
    """The names of an option that may be repeated, or hold several separated by commas."""
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    return tuple(dict.fromkeys(known_name(kind, name, known) for name in names))
