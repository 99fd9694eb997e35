"""Text from a report is untrusted: what may reach a terminal, an XML file or a Markdown page is decided here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

# Whole escape sequences go, so that their parameters do not stay behind as litter: CSI, OSC (up to BEL or ST), others.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: Control, format (zero width, right-to-left overrides), surrogate, private use and unassigned characters.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|<>~])")
# Two or more folders, then a name: the folders tell who ran it and where, the name tells what.
_PATH = re.compile(r"(?<![\w./~-])(?:/[\w.+@-]+)+/([\w.+@-]+)")
# Only quotes tell where a path with blanks ends.
_QUOTED_PATH = re.compile(r"""(["'])/[^"'\n]*/([^"'/\n]+)(?=\1)""")
_WINDOWS_PATH = re.compile(r"(?<!\w)[A-Za-z]:(?:[\\/][\w.+@-]+)*[\\/]([\w.+@-]+)")


def plain(text: str) -> str:
    """The text without escape sequences and invisible characters; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE)


def one_line(text: str, width: int | None = None) -> str:
    """The plain text on one line, cut to ``width`` characters with an ellipsis."""
    joined = " ".join(plain(text).split())
    return joined if width is None or len(joined) <= width else joined[: max(width - 1, 0)] + "…"


def markdown(text: str) -> str:
    """The plain text on one line with everything that Markdown or HTML would interpret escaped."""
    escaped = one_line(text).replace("&", "&amp;")
    return _MARKDOWN.sub(r"\\\1", escaped).replace("\\<", "&lt;").replace("\\>", "&gt;")


def without_folders(text: str) -> str:
    """The text with absolute paths cut to their last part: reports name no user and no machine."""
    if "/" not in text and "\\" not in text:
        return text
    text = _QUOTED_PATH.sub(r"\1…/\2", text)
    return _WINDOWS_PATH.sub(r"…/\1", _PATH.sub(r"…/\1", text))


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
