"""Rules, findings and decisions of the gate. A finding has the id of its rule, and one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

from conformance.reports.breadth import NOTHING, Breadth
from conformance.reports.plain_text import one_line

if TYPE_CHECKING:
    from conformance.reports.gate.evidence import GateEvidence

#: Ids in a sentence; the finding lists the others.
_NAMED: Final = 3
_LONGEST_NAME: Final = 120


class GateSeverity(Enum):
    """Severity of a finding: it rejects the report, or is a note."""

    REJECT = "reject"
    NOTE = "note"


class GateStatus(IntEnum):
    """Exit statuses of the gate. Usage errors have 4."""

    ACCEPTED = 0
    REJECTED = 1
    CANNOT_JUDGE = 2


@dataclass(frozen=True)
class GateFinding:
    """Finding of a rule. ``cases`` has every id that it concerns; the sentence names a few of them."""

    rule: str
    sentence: str
    severity: GateSeverity = GateSeverity.REJECT
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """Rule of the gate.

    ``requirement`` is what it demands, ``why`` what would be accepted without it, and ``fix`` what to do when it
    rejects. ``check`` returns its findings.
    """

    id: str
    requirement: str
    why: str
    fix: str
    check: Callable[[GateEvidence], Iterable[GateFinding]]
    #: One to three words for what a rejection is about.
    title: str = ""


@dataclass(frozen=True)
class Decision:
    """Decision about one report, with all findings."""

    accelerator: str
    profile: str
    findings: tuple[GateFinding, ...]
    #: ``due`` counts cases of the profile that had to pass; ``met`` those that did, or are validly waived.
    due: int = 0
    met: int = 0
    #: Facts for the reader: the run, who signed it, and the number of failures that waivers excuse.
    run: str = ""
    started: str = ""
    finished: str = ""
    signer: str = ""
    waived: int = 0
    #: Claimed cases of all planned ones, and whose kernels ran, by area.
    breadth: Breadth = NOTHING
    kernels: Mapping[str, Counter[str]] = field(default_factory=dict)
    #: What the gate could not check, each with the option that would check it.
    unchecked: tuple[str, ...] = ()

    @property
    def rejections(self) -> tuple[GateFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is GateSeverity.REJECT)

    @property
    def rejecting(self) -> tuple[str, ...]:
        """Return the ids of the rules that reject, each once."""
        return tuple(dict.fromkeys(finding.rule for finding in self.rejections))

    @property
    def status(self) -> GateStatus:
        return GateStatus.REJECTED if self.rejections else GateStatus.ACCEPTED


def note(rule: str, sentence: str, cases: Iterable[str] = ()) -> GateFinding:
    return GateFinding(rule, sentence, GateSeverity.NOTE, tuple(cases))


def reject(rule: str, sentence: str, cases: Iterable[str] = ()) -> GateFinding:
    return GateFinding(rule, sentence, GateSeverity.REJECT, tuple(cases))


def named(ids: Sequence[str]) -> str:
    """Return the first few of the ids, and how many more there are. Ids of a report are untrusted text."""
    shown = ", ".join(one_line(id, _LONGEST_NAME) for id in ids[:_NAMED])
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED} more"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 case``, ``2 cases``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
