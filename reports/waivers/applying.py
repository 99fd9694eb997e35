"""Waivers held against what a run saw: what they excuse, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from conformance.reports.model import CaseRecord, Report
from conformance.reports.verdict import Outcome, Reason, Verdict
from conformance.reports.waivers.model import Waiver, WaiverKind

#: The metric in which a waived case keeps the verdict that was seen.
OBSERVED: Final = "observed"


def observed(case: CaseRecord) -> Reason | None:
    """How the case ended before any waiver was looked at; None if a waiver made the verdict and does not say."""
    if not case.reason.facts.made_by_waiver:
        return case.reason
    if case.reason is Reason.WAIVER_STALE:
        return Reason.NATIVE
    kept = case.metrics.get(OBSERVED)
    return next((reason for reason in Reason if reason.value == kept and not reason.facts.made_by_waiver), None)


def apply(verdict: Verdict, case: str, core: bool, waivers: Iterable[Waiver], today: date) -> Verdict:
    """The verdict that the waivers make of this one. ``waivers`` are those that apply to the device."""
    covering = [one for one in waivers if one.covers(case)] if not core else []
    if verdict.outcome is Outcome.PASS:
        stale = next((one for one in covering if one.kind is not WaiverKind.FLAKY), None)
        return _stale(verdict, stale) if stale else verdict
    named = next((one for one in covering if one.verdict is verdict.reason), None)
    if verdict.outcome is not Outcome.FAIL or named is None:
        return verdict
    return _expired(verdict, named) if named.is_expired(today) else _waived(verdict, named)


def _stale(verdict: Verdict, waiver: Waiver) -> Verdict:
    message = f"passes, yet it is waived as {waiver.verdict.value} until {waiver.expires}: delete the waiver"
    return Verdict(Outcome.FAIL, Reason.WAIVER_STALE, message, verdict.metrics)


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
    """What the waivers of a file come to. Values of ``waived`` and ``expired`` are the waivers by case id.

    ``unexpected`` are cases that pass though a waiver says that they fail, ``idle`` the waivers that match no case,
    ``core`` the cases of the core that a waiver names.
    """

    waived: Mapping[str, Waiver]
    expired: Mapping[str, Waiver]
    unexpected: Mapping[str, Waiver]
    idle: tuple[Waiver, ...]
    core: tuple[str, ...]

    @property
    def flaky(self) -> tuple[str, ...]:
        return tuple(id for id, waiver in self.waived.items() if waiver.kind is WaiverKind.FLAKY)


def waiver_outcome(report: Report, waivers: Sequence[Waiver], today: date) -> WaiverOutcome:
    """Hold the waivers against the run, whatever waivers it was made with."""
    waived: dict[str, Waiver] = {}
    expired: dict[str, Waiver] = {}
    unexpected: dict[str, Waiver] = {}
    idle: list[Waiver] = []
    core: list[str] = []
    cases = {case.id: case for case in report.cases}
    for waiver in (one for one in waivers if one.applies_to(report.accelerator)):
        covered = _covered(waiver, cases)
        core += [case.id for case in covered if case.level == "core"]
        seen = {case.id: observed(case) for case in covered if case.level != "core"}
        meant = [id for id, reason in seen.items() if reason is waiver.verdict]
        (expired if waiver.is_expired(today) else waived).update(dict.fromkeys(meant, waiver))
        if waiver.kind is not WaiverKind.FLAKY:
            unexpected.update({id: waiver for id, r in seen.items() if r in (Reason.NATIVE, Reason.EMULATED)})
        if not covered or _withdrawn(seen.values()):
            idle.append(waiver)
    return WaiverOutcome(waived, expired, unexpected, tuple(idle), tuple(core))


def _covered(waiver: Waiver, cases: Mapping[str, CaseRecord]) -> list[CaseRecord]:
    found = [cases[id] for id in waiver.exact if id in cases]
    if len(waiver.exact) < len(waiver.cases):
        found += [case for id, case in cases.items() if id not in waiver.exact and waiver.covers(id)]
    return found


def _withdrawn(seen: Iterable[Reason | None]) -> bool:
    """Whether nothing that is left is claimed: a waiver is for what a declaration says and a device does not do."""
    reasons = set(seen)
    return bool(reasons) and reasons <= {Reason.UNSUPPORTED, Reason.UNDECLARED}
