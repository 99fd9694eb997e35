"""Text that has to stay below a size, with what matters most first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Forges cut a job's summary at a mebibyte.
SUMMARY_BYTES: Final = 900 * 1024
CUT: Final = "\n… cut: see the report for the rest.\n"


def within(limit: int, head: str, lines: Iterable[str]) -> str:
    """The head and as many of the lines as fit into so many bytes, with a word about the rest."""
    room = limit - len(head.encode()) - len(CUT.encode())
    kept = [head]
    for line in lines:
        room -= len(line.encode("utf-8", errors="replace"))
        if room < 0:
            return "".join([*kept, CUT])
        kept.append(line)
    return "".join(kept)
