"""Application of waivers to a run: the failures that they excuse, and the waivers that are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from conformance.reports.model import CaseRecord, Report
from conformance.reports.verdict import Outcome, Reason, Verdict
from conformance.reports.waivers.model import Waiver, WaiverKind

#: Metric of a case whose verdict a waiver made, with the reason that was seen.
OBSERVED: Final = "observed"


def observed(case: CaseRecord) -> Reason | None:
    """Return the reason before any waiver was applied; None if the report does not say it."""
    if not case.reason.facts.made_by_waiver:
        return case.reason
    kept = case.metrics.get(OBSERVED)
    if case.reason is Reason.WAIVER_STALE and kept is None:
        # Older reports do not say how such a case passed.
        return Reason.NATIVE
    return next((reason for reason in Reason if reason.value == kept and not reason.facts.made_by_waiver), None)


def as_passed(report: Report) -> Report:
    """Return the report with every stale waiver's case as the pass that it was, and with counts to match."""
    cases = tuple(_as_passed(case) if case.reason is Reason.WAIVER_STALE else case for case in report.cases)
    shown = replace(report, cases=cases, waivers=replace(report.waivers, stale=()))
    return replace(shown, totals=shown.counts)


def _as_passed(case: CaseRecord) -> CaseRecord:
    reason = observed(case)
    if reason is None or Outcome.PASS not in reason.facts.outcomes:
        return case
    kept = {name: value for name, value in case.metrics.items() if name != OBSERVED}
    return replace(case, outcome=Outcome.PASS, reason=reason, message="", repro="", metrics=kept)


def apply(verdict: Verdict, case: str, core: bool, waivers: Iterable[Waiver], today: date) -> Verdict:
    """Return the verdict after the waivers. ``waivers`` are those that apply to the device."""
    covering = [waiver for waiver in waivers if waiver.covers(case)] if not core else []
    if verdict.outcome is Outcome.PASS:
        # A flaky case may pass; any other waiver for a passing case hides the next failure.
        stale = next((waiver for waiver in covering if waiver.kind is not WaiverKind.FLAKY), None)
        return _stale(verdict, stale) if stale else verdict
    # A waiver excuses one reason. The same case with another failure is a new finding.
    named = next((waiver for waiver in covering if waiver.verdict is verdict.reason), None)
    if verdict.outcome is not Outcome.FAIL or named is None or not named.excuses(verdict.metrics):
        return verdict
    return _expired(verdict, named) if named.is_expired(today) else _waived(verdict, named)


def _stale(verdict: Verdict, waiver: Waiver) -> Verdict:
    message = f"passes, yet it is waived as {waiver.verdict.value} until {waiver.expires}: delete the waiver"
    return Verdict(Outcome.FAIL, Reason.WAIVER_STALE, message, _with_observed(verdict))


def _expired(verdict: Verdict, waiver: Waiver) -> Verdict:
    message = f"the waiver ended on {waiver.expires} ({waiver.ticket}); still {verdict.reason.value}: {verdict.message}"
    return Verdict(Outcome.FAIL, Reason.WAIVER_EXPIRED, message, _with_observed(verdict))


def _waived(verdict: Verdict, waiver: Waiver) -> Verdict:
    message = f"{waiver.kind.value}, {waiver.ticket}, until {waiver.expires}: {verdict.message}"
    return Verdict(Outcome.SKIP, Reason.WAIVED, message, _with_observed(verdict))


def _with_observed(verdict: Verdict) -> dict[str, float | int | str]:
    return {**verdict.metrics, OBSERVED: verdict.reason.value}


@dataclass(frozen=True)
class WaiverOutcome:
    """Effects of the waivers of a file. ``waived`` and ``expired`` have the waivers by case id.

    ``grown`` are failures with a larger error than their waiver excuses. ``unexpected`` are cases that pass although a
    waiver says that they fail. ``idle`` are waivers that match no claimed
    case. ``core`` are cases of the core that a waiver names.
    """

    waived: Mapping[str, Waiver]
    expired: Mapping[str, Waiver]
    grown: Mapping[str, Waiver]
    unexpected: Mapping[str, Waiver]
    idle: tuple[Waiver, ...]
    core: tuple[str, ...]

    @property
    def flaky(self) -> tuple[str, ...]:
        return tuple(id for id, waiver in self.waived.items() if waiver.kind is WaiverKind.FLAKY)


def waiver_outcome(report: Report, waivers: Sequence[Waiver], today: date) -> WaiverOutcome:
    """Return the effects of the waivers on the run, whatever waivers it was made with."""
    waived: dict[str, Waiver] = {}
    expired: dict[str, Waiver] = {}
    grown: dict[str, Waiver] = {}
    unexpected: dict[str, Waiver] = {}
    idle: list[Waiver] = []
    core: list[str] = []
    applying = [waiver for waiver in waivers if waiver.applies_to(report.accelerator)]
    cases = {case.id: case for case in report.cases} if applying else {}
    for waiver in applying:
        covered = _covered(waiver, cases)
        core += [case.id for case in covered if case.level == "core"]
        seen = {case.id: observed(case) for case in covered if case.level != "core"}
        failed = [id for id, reason in seen.items() if reason is waiver.verdict]
        meant = [id for id in failed if waiver.excuses(cases[id].metrics)]
        grown.update({id: waiver for id in failed if id not in meant})
        (expired if waiver.is_expired(today) else waived).update(dict.fromkeys(meant, waiver))
        if waiver.kind is not WaiverKind.FLAKY:
            unexpected.update({id: waiver for id, r in seen.items() if r in (Reason.NATIVE, Reason.EMULATED)})
        if not covered or _withdrawn(seen.values()):
            idle.append(waiver)
    return WaiverOutcome(waived, expired, grown, unexpected, tuple(idle), tuple(core))


def _covered(waiver: Waiver, cases: Mapping[str, CaseRecord]) -> list[CaseRecord]:
    """Return the report's cases that the waiver covers, by name first and then by pattern."""
    found = [cases[id] for id in waiver.exact if id in cases]
    # Patterns have to be matched with every case, so only a waiver that has some pays for it.
    if len(waiver.exact) < len(waiver.cases):
        found += [case for id, case in cases.items() if id not in waiver.exact and waiver.covers(id)]
    return found


def _withdrawn(seen: Iterable[Reason | None]) -> bool:
    """Return whether none of the cases is claimed. Waivers are for claimed cases that fail."""
    reasons = set(seen)
    return bool(reasons) and reasons <= {Reason.UNSUPPORTED, Reason.UNDECLARED}
