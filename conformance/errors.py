"""Every exception this project raises on purpose, in one tree.

    ConformanceError
    ├── UsageError          what the user typed cannot be done; exit status 4
    │   └── UnknownName     a name that is not registered, with suggestions
    ├── SetupError          the accelerator's software does not load here; exit status 4
    ├── DeclarationError    a declaration contradicts itself or names unknown things; exit status 4
    └── JournalError        a journal or report file cannot be read or written; exit status 4

An error is a sentence with the fact, and then the next step. People see the text without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class ConformanceError(Exception):
    """Base of all errors that reach people as one sentence."""

    exit_status = 4


class UsageError(ConformanceError):
    """The command line asks for something that cannot be done."""


class SetupError(ConformanceError):
    """The chosen accelerator's own software is missing or fails to load."""


class DeclarationError(ConformanceError):
    """A capability declaration is malformed, contradictory, or names something unknown."""


class JournalError(ConformanceError):
    """A journal or a report cannot be read, written, or continued."""


class UnknownName(UsageError):
    """A name nobody registered. Lists what is registered and what may have been meant."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(set(known))
        super().__init__(_unknown_name_text(kind, name, self.known, hint))


def _unknown_name_text(kind: str, name: str, known: list[str], hint: str) -> str:
    shown = known if len(known) <= 40 else [*known[:40], f"… and {len(known) - 40} more"]
    lines = [f"{kind} '{name}' is not registered.", f"  registered: {', '.join(shown) or 'none'}"]
    import difflib  # slow to import, and needed only when somebody mistyped a name

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        lines.append(f"  did you mean {' or '.join(repr(c) for c in close)}?")
    if hint:
        lines.append(f"  {hint}")
    return "\n".join(lines)
