"""Forms of the text after ``--accelerator``, checked alike for command lines, reports and repro lines."""

from __future__ import annotations

import re
from typing import Final

from conformance.base.errors import UsageError

#: Characters of a name. It becomes a part of folder names and of command lines.
_LONGEST: Final = 200
# ASCII only: letters of other scripts can look like these. None of the characters has a meaning in a shell.
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_DOTTED: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_FORM: Final = re.compile(rf"{_NAME}|{_DOTTED}:{_DOTTED}")


def is_accelerator_name(text: str) -> bool:
    """Return whether the text is ``auto``, a name, ``module:Object``, ``deepspeed:NAME`` or ``torch:TYPE``."""
    return len(text) <= _LONGEST and _FORM.fullmatch(text) is not None


def checked_accelerator_name(text: str) -> str:
    """Return the text; raise UsageError if it has none of these forms."""
    if not is_accelerator_name(text):
        # ascii() shows characters that cannot be seen.
        shown = ascii(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
        raise UsageError(
            f"{shown} names no accelerator.\n  write a registered name, module:Class, deepspeed:NAME or torch:TYPE"
        )
    return text
