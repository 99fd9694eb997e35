"""Values of options on a report's command line."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def typed(argv: Sequence[str], *options: str) -> str | None:
    """Return the last value of an option, by one of its spellings, or None. ``-n4`` is a spelling of ``-n 4``."""
    found = None
    for word, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        for option in options:
            if word == option:
                found = following
            elif word.startswith(f"{option}="):
                found = word.partition("=")[2]
            elif not option.startswith("--") and word.startswith(option):
                found = word.removeprefix(option)
    return found
