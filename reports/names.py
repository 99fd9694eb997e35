"""Names of accelerators: one grammar for every report, and skeletons, by which names that look alike are equal.

A word is of ASCII letters and digits, or of at least two ideographs, kana or Hangul syllables: the single-script rule
of Unicode Technical Standard 39. No letter of another script can stand among Latin ones. The skeleton is that of the
standard for these characters, with the pairs that look alike in many fonts besides.
"""

from __future__ import annotations

import re
from typing import Final

#: Characters and words of a name. It stands in the head of a column, in sentences of the gate and in file names.
LONGEST: Final = 40
_MOST_WORDS: Final = 4
_WORD: Final = r"(?:[A-Za-z0-9]+|[\u4e00-\u9fff\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3]{2,})"
_GRAMMAR: Final = re.compile(rf"{_WORD}(?:[ ._+-]{_WORD})*")
#: Words that the page and the gate say about an accelerator. As a part of a name they would look like their decision.
_RESERVED: Final = frozenset(
    [
        "accepted",
        "approved",
        "certified",
        "certificate",
        "conformance",
        "conformant",
        "compliant",
        "gate",
        "gated",
        "judged",
        "official",
        "passed",
        "passes",
        "rejected",
        "rejects",
        "signed",
        "signer",
        "trusted",
        "unsigned",
        "upstream",
        "verified",
    ]
)
#: Letters that together look like one, and characters that look like another. Source of rn, 0, 1, I: confusables.txt of
#: TR39; the others look alike in small print.
_TOGETHER: Final = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("nn", "m"))
_ALIKE: Final = str.maketrans("01i|v5328qカロニエハ", "olllusezbg力口二工八")
_SEPARATORS: Final = re.compile(r"[ ._+-]+")


def skeleton(name: str) -> str:
    """Return a text that is equal for names that look alike. Capitals, blanks and punctuation do not count."""
    text = _SEPARATORS.sub("", name.casefold())
    for letters, letter in _TOGETHER:
        text = text.replace(letters, letter)
    return text.translate(_ALIKE)


def fault_of(name: str) -> str:
    """Return why a text is no name of an accelerator, as the end of a sentence; empty if it is one."""
    if not name.strip():
        return "is empty"
    if len(name) > LONGEST:
        return f"has {len(name)} characters; at most {LONGEST} are allowed"
    if not _GRAMMAR.fullmatch(name):
        return (
            "is not made of words of ASCII letters and digits, with a blank, dot, hyphen, plus sign or _ between them"
        )
    words = _SEPARATORS.split(name.casefold())
    if len(words) > _MOST_WORDS:
        return f"has {len(words)} words; at most {_MOST_WORDS} are allowed"
    if said := next((word for word in words if word in _RESERVED), ""):
        return f"has the word {said!r}, which this page and the gate use for their own decisions"
    return ""
