"""What the gate says: findings, each with the id of its rule and one sentence, and the decision they amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

from conformance.reports.plain_text import one_line

if TYPE_CHECKING:
    from conformance.reports.gate.evidence import GateEvidence

_NAMED: Final = 3
_LONGEST_NAME: Final = 120


class GateSeverity(Enum):
    """Whether a finding rejects the report, or is only told."""

    REJECT = "reject"
    NOTE = "note"


class GateStatus(IntEnum):
    """The exit statuses of the gate; usage errors are 4."""

    ACCEPTED = 0
    REJECTED = 1
    CANNOT_JUDGE = 2


@dataclass(frozen=True)
class GateFinding:
    """One thing that the gate saw. ``cases`` are the ids it is about, all of them; the sentence names a few."""

    rule: str
    sentence: str
    severity: GateSeverity = GateSeverity.REJECT
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule of the gate.

    ``requirement`` is what it demands, ``why`` what would be accepted without it, and ``fix`` what to do when it
    rejects. ``check`` returns its findings.
    """

    id: str
    requirement: str
    why: str
    fix: str
    check: Callable[[GateEvidence], Iterable[GateFinding]]


@dataclass(frozen=True)
class Decision:
    """Everything the gate found about one report."""

    accelerator: str
    profile: str
    findings: tuple[GateFinding, ...]
    #: Cases of the profile that had to pass, and that did or are validly waived.
    due: int = 0
    met: int = 0

    @property
    def rejections(self) -> tuple[GateFinding, ...]:
        return tuple(one for one in self.findings if one.severity is GateSeverity.REJECT)

    @property
    def status(self) -> GateStatus:
        return GateStatus.REJECTED if self.rejections else GateStatus.ACCEPTED


def note(rule: str, sentence: str, cases: Iterable[str] = ()) -> GateFinding:
    return GateFinding(rule, sentence, GateSeverity.NOTE, tuple(cases))


def reject(rule: str, sentence: str, cases: Iterable[str] = ()) -> GateFinding:
    return GateFinding(rule, sentence, GateSeverity.REJECT, tuple(cases))


def named(ids: Sequence[str]) -> str:
    """The first few of the ids, and how many more there are. Ids of a report are a stranger's text."""
    shown = ", ".join(one_line(id, _LONGEST_NAME) for id in ids[:_NAMED])
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED} more"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
