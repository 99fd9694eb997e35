"""A challenge: a word that nobody could know before, from which a run takes its seeds and the places of its answers.

A run with ``--challenge NONCE`` computes on other numbers than any run before it, and cases of the areas in
:data:`AREAS` keep a few values of what the device computed. Whoever gave the word computes a sample of them again.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Final

from conformance.errors import JournalError, UsageError
from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome

#: The metric that holds a case's answer.
ANSWER: Final = "answer"
#: How many values a case of a challenged run keeps. With eight more for its place each, they fit a metric's 400.
VALUES: Final = 4
#: Areas whose cases answer: those that compare tensors of every operator, one sample after the other.
AREAS: Final = frozenset({"operators"})
_NONCE: Final = re.compile(r"[A-Za-z0-9._-]{8,128}")
_LONGEST_VALUE: Final = 60


def new_nonce() -> str:
    """A word of 128 random bits."""
    return secrets.token_hex(16)


def checked_nonce(nonce: str) -> str:
    """The word itself; UsageError if it is too short to be unknown, or has signs that a shell would change."""
    if not _NONCE.fullmatch(nonce):
        raise UsageError(
            f"--challenge {one_line(nonce, 40)}: expected 8 to 128 letters, digits, dots, underscores or hyphens. "
            "Make one with: conformance challenge"
        )
    return nonce


def seed_of_challenge(nonce: str) -> int:
    """The base seed of the run: a whole number of 62 bits, which fits wherever a seed is kept."""
    return int.from_bytes(_digest(nonce)[:8], "big") >> 2


def place(nonce: str, case: str, where: str, occurrence: int) -> tuple[str, int]:
    """The name of one compared tensor of a case, eight signs, and a large number that chooses one of its elements."""
    digest = _digest(nonce, case, where, str(occurrence))
    return digest[:4].hex(), int.from_bytes(digest[4:12], "big")


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", errors="surrogatepass")).digest()


def written(values: Mapping[str, str]) -> str:
    """Values by place as one metric: those of the first places in the order of their names, which is random."""
    return " ".join(f"{name}={values[name]}" for name in sorted(values)[:VALUES])


def parsed(answer: str) -> dict[str, str]:
    """Values by place; JournalError if the text is no answer."""
    pairs = [pair.partition("=") for pair in answer.split()]
    values = {name: value for name, _, value in pairs}
    fits = all(re.fullmatch(r"[0-9a-f]{8}", name) and 0 < len(value) <= _LONGEST_VALUE for name, _, value in pairs)
    if not fits or len(values) != len(pairs) or len(values) > VALUES:
        raise JournalError(f"{one_line(answer, 80)!r} is not an answer to a challenge.")
    return values


def complaint(report: Report, nonce: str) -> str:
    """Why the report is not that of a run with this challenge; empty if it is."""
    invocation = report.run.invocation
    if not invocation.challenge:
        return "The run was made without a challenge."
    if invocation.challenge != nonce:
        return f"The run was made with the challenge {one_line(invocation.challenge, 40)}, not with the one asked for."
    if invocation.seed != seed_of_challenge(nonce):
        return "The seed of the run is not the one that its challenge gives."
    return ""


def answering(report: Report) -> list[CaseRecord]:
    """The cases that passed and whose area answers, with an answer or without one."""
    return [case for case in report.cases if case.outcome is Outcome.PASS and case.area in AREAS]


def answer_of(case: CaseRecord) -> str:
    return str(case.metrics.get(ANSWER, ""))
