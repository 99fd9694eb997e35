"""Cleaning of untrusted text from reports for terminals, XML files and Markdown pages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

# Whole escape sequences are removed, with their parameters: CSI, OSC (up to BEL or ST), others.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: Control, format (zero width, right-to-left overrides), surrogate, private use and unassigned characters.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|<>~])")
# Two or more folders, then a name. The folders name users and machines; only the last name is kept.
_PATH = re.compile(r"(?<![\w./~-])(?:/[\w.+@-]+)+/([\w.+@-]+)")
# A path with blanks ends at its quote.
_QUOTED_PATH = re.compile(r"""(["'])/[^"'\n]*/([^"'/\n]+)(?=\1)""")
_WINDOWS_PATH = re.compile(r"(?<!\w)[A-Za-z]:(?:[\\/][\w.+@-]+)*[\\/]([\w.+@-]+)")

SAYS_REPRO = re.compile("repro", re.IGNORECASE)
# Invisible characters may stand between the letters of a line's begin; \W covers them, and quotation marks.
_REPRO = re.compile(r"^[\W_]*repro\W*:.*$", re.IGNORECASE | re.MULTILINE)
_NO_REPRO: Final = "[a line that calls itself a repro line is left out]"


def plain(text: str) -> str:
    """Return the text without escape sequences and invisible characters. Line ends and tabs stay."""
    # Nearly every text is, and this check is much faster than the replacements.
    if text.isascii() and text.isprintable():
        return text
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE)


def one_line(text: str, width: int | None = None) -> str:
    """Return the plain text on one line, cut to ``width`` characters with an ellipsis."""
    joined = " ".join(plain(text).split())
    return joined if width is None or len(joined) <= width else joined[: max(width - 1, 0)] + "…"


def told_apart(first: str, second: str, width: int = 12) -> tuple[str, str]:
    """Return the beginnings of two different texts, at least ``width`` characters, as far as they differ.

    Two hashes may begin alike. A message that cut both to 12 characters would say that a hash is not itself.
    """
    first, second = one_line(first), one_line(second)
    same = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    end = max(width, min(len(first), len(second)) + 1 if same is None else same + 1)
    return first[:end] or "(none)", second[:end] or "(none)"


def markdown(text: str) -> str:
    """Return the plain text on one line, with Markdown and HTML escaped."""
    # First of all, or it would escape the entities of the other replacements.
    escaped = one_line(text).replace("&", "&amp;")
    return _MARKDOWN.sub(r"\\\1", escaped).replace("\\<", "&lt;").replace("\\>", "&gt;")


def without_repro_lines(text: str) -> str:
    """Return the text without lines that look like the repro lines of the views.

    The author of a message must not be able to put a command there that readers take for one of this suite.
    """
    return _REPRO.sub(_NO_REPRO, text) if SAYS_REPRO.search(text) else text


def without_folders(text: str) -> str:
    """Return the text with absolute paths cut to their last part, so that it names no user and no machine."""
    if "/" not in text and "\\" not in text:
        return text
    text = _QUOTED_PATH.sub(r"\1…/\2", text)
    return _WINDOWS_PATH.sub(r"…/\1", _PATH.sub(r"…/\1", text))


#: GitHub cuts the summary of a job at 1 MiB.
SUMMARY_BYTES: Final = 900 * 1024
CUT: Final = "\n… cut: see the report for the rest.\n"


def within(limit: int, head: str, lines: Iterable[str]) -> str:
    """Return the head and as many lines as fit into ``limit`` bytes, with a note if lines were cut."""
    # Room for the note too, so that the cut text stays within the limit.
    room = limit - len(head.encode()) - len(CUT.encode())
    kept = [head]
    for line in lines:
        room -= len(line.encode("utf-8", errors="replace"))
        if room < 0:
            return "".join([*kept, CUT])
        kept.append(line)
    return "".join(kept)
