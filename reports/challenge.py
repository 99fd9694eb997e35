"""Challenges: a nonce from the reviewer, from which a run derives its seeds and the elements that it records.

A run with ``--challenge NONCE`` computes on numbers that were not known before. Cases of the areas in :data:`AREAS`
record a few values that the device computed. The reviewer recomputes a sample of them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Final

from conformance.base.errors import JournalError, UsageError
from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome

#: The metric that holds a case's answer.
ANSWER: Final = "answer"
#: Number of values that a case records. With eight characters more for each place, they fit into the 400 of a metric.
VALUES: Final = 4
#: Areas with cases that record values: those that compare a tensor with numbers that no device computed.
AREAS: Final = frozenset(
    {
        "accelerator",
        "checkpoint",
        "comm",
        "compile",
        "compression",
        "foreach",
        "inference",
        "linear",
        "model_parallelism",
        "module_inject",
        "modules",
        "moe",
        "operators",
        "optimizers",
        "ops",
        "pipe",
        "runtime",
        "sequence_parallelism",
        "ulysses_alst",
        "utils",
        "v1",
        "workloads",
    }
)
#: Share of the passed cases of these areas that a run with a challenge has to answer for. Fewer show too little.
MINIMUM_SHARE: Final = 0.6
#: No character that a shell changes, and too long to be guessed.
_NONCE: Final = re.compile(r"[A-Za-z0-9._-]{8,128}")
#: Characters of one value; a complex number in full precision has about 50.
_LONGEST_VALUE: Final = 60


def new_nonce() -> str:
    """Return a nonce of 128 random bits."""
    return secrets.token_hex(16)


def checked_nonce(nonce: str) -> str:
    """Return the nonce; UsageError if it is short enough to guess, or has characters that a shell would change."""
    if not _NONCE.fullmatch(nonce):
        raise UsageError(
            f"--challenge {one_line(nonce, 40)}: expected 8 to 128 letters, digits, dots, underscores or hyphens. "
            "Make one with: conformance challenge"
        )
    return nonce


def seed_of_challenge(nonce: str) -> int:
    """Return the base seed of the run: a whole number of 62 bits, which fits every place that stores a seed."""
    return int.from_bytes(_digest(nonce)[:8], "big") >> 2


def place(nonce: str, case: str, where: str, occurrence: int) -> tuple[str, int]:
    """Return a name of eight hexadecimal digits for a compared tensor, and a large number that selects its element."""
    digest = _digest(nonce, case, where, str(occurrence))
    return digest[:4].hex(), int.from_bytes(digest[4:12], "big")


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", errors="surrogatepass")).digest()


def written(values: Mapping[str, str]) -> str:
    """Return values by place as one metric: the first ones in the order of their names, which is random."""
    return " ".join(f"{name}={values[name]}" for name in sorted(values)[:VALUES])


def parsed(answer: str) -> dict[str, str]:
    """Return values by place; JournalError if the text is no answer."""
    pairs = [pair.partition("=") for pair in answer.split()]
    values = {name: value for name, _, value in pairs}
    fits = all(re.fullmatch(r"[0-9a-f]{8}", name) and 0 < len(value) <= _LONGEST_VALUE for name, _, value in pairs)
    if not fits or len(values) != len(pairs) or len(values) > VALUES:
        raise JournalError(f"{one_line(answer, 80)!r} is not an answer to a challenge.")
    return values


def complaint(report: Report, nonce: str) -> str:
    """Return why the report is not from a run with this challenge; empty if it is."""
    invocation = report.run.invocation
    if not invocation.challenge:
        return "The run was made without a challenge."
    if invocation.challenge != nonce:
        return f"The run was made with the challenge {one_line(invocation.challenge, 40)}, not with the required one."
    if invocation.seed != seed_of_challenge(nonce):
        return "The seed of the run is not the one that its challenge gives."
    return ""


def answering(report: Report) -> list[CaseRecord]:
    """Return the passed cases of the areas that record values, with or without recorded values."""
    return [case for case in report.cases if case.outcome is Outcome.PASS and case.area in AREAS and case.of_device]


def has_answer(case: CaseRecord) -> bool:
    """Return whether the case kept at least one value."""
    return bool(answer_of(case).strip())


def answer_of(case: CaseRecord) -> str:
    return str(case.metrics.get(ANSWER, ""))
