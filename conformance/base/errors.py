"""Tree of all exceptions that this project raises on purpose.

    ConformanceError
    ├── UsageError          the command line asks for something impossible; exit status 4
    │   └── UnknownName     a name is not registered; suggests similar names
    ├── SetupError          the accelerator's software does not load here; exit status 4
    ├── DeclarationError    a declaration contradicts itself or names unknown things; exit status 4
    └── JournalError        a journal or report file cannot be read; exit status 2, and 4 of a run

A message is a sentence with the fact, followed by the next step. Users see it without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class ConformanceError(Exception):
    """Base of all errors that users see as a sentence without a traceback."""

    exit_status = 4


class UsageError(ConformanceError):
    """Command line that asks for something impossible, such as an output file in a folder that is not writable."""


class SetupError(ConformanceError):
    """Software of the chosen accelerator that is missing or fails to load."""


class DeclarationError(ConformanceError):
    """Capability declaration that is malformed or contradictory, or that names something unknown."""


class JournalError(ConformanceError):
    """Journal or report that cannot be read, written or continued. Nothing is known about what it says."""

    exit_status = 2


class UnknownName(UsageError):
    """Name that is not registered. The message lists the registered names and similar ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(set(known))
        super().__init__(_unknown_name_text(kind, name, self.known, hint))


def _unknown_name_text(kind: str, name: str, known: list[str], hint: str) -> str:
    """Return the text of ``UnknownName``: the name, the known ones, near matches and the hint."""
    shown = known if len(known) <= 40 else [*known[:40], f"… and {len(known) - 40} more"]
    lines = [f"{kind} '{name}' is not registered.", f"  registered: {', '.join(shown) or 'none'}"]
    import difflib  # slow to import, and needed for a mistyped name only

    # CUDA is as near to cuda as a name can be.
    by_lower = {other.lower(): other for other in known}
    close = [by_lower[other] for other in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if close:
        lines.append(f"  did you mean {' or '.join(map(repr, close))}?")
    if hint:
        lines.append(f"  {hint}")
    return "\n".join(lines)
