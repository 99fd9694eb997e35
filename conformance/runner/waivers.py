"""Waivers during a run: a known failure becomes ``waived``, and a fixed one ``waiver-stale``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from conformance.base.errors import UsageError
from conformance.plan.case import Case, Level
from conformance.reports.model import AcceleratorRecord
from conformance.reports.verdict import Verdict
from conformance.reports.waivers.applying import apply
from conformance.reports.waivers.file import read_waivers
from conformance.reports.waivers.model import Waiver


def today() -> date:
    """Return the date in UTC: waivers end at midnight UTC on every machine."""
    return datetime.now(timezone.utc).date()


def waivers_of(path: Path | None) -> tuple[Waiver, ...]:
    """Return the waivers of a file. Raise UsageError for an invalid one; an expired one becomes a verdict later."""
    if path is None:
        return ()
    waivers = read_waivers(path)
    for waiver in waivers:
        # On its last day an expired waiver has no fault but those that are errors on any day.
        fault = next(waiver.faults(min(today(), waiver.expires)), None)
        if fault:
            raise UsageError(f"--waivers {path.name}: the waiver of {waiver.name} {fault}.")
    return waivers


def for_device(waivers: Iterable[Waiver], facts: Mapping[str, Any], torch: str) -> tuple[Waiver, ...]:
    """Return the waivers that apply to the device with these facts."""
    names = facts.get("device_names")
    known = tuple(str(name) for name in names) if isinstance(names, (list, tuple)) else ()
    device = AcceleratorRecord(name="", device_names=known, driver=str(facts.get("driver") or ""), torch=torch)
    return tuple(waiver for waiver in waivers if waiver.applies_to(device))


def waive(verdict: Verdict, case: Case, waivers: Sequence[Waiver]) -> Verdict:
    """Return the verdict after the waivers have been applied."""
    return apply(verdict, case.id, case.level is Level.CORE, waivers, today()) if waivers else verdict


def check_plan(waivers: Iterable[Waiver], planned: Sequence[Mapping[str, Any]], *, complete: bool) -> None:
    """Raise UsageError for a waiver that names the core, or that matches nothing of a complete plan."""
    for waiver in waivers:
        matched = [case for case in planned if waiver.covers(case["id"])]
        core = [case["id"] for case in matched if case.get("level") == Level.CORE.value]
        if core:
            raise UsageError(f"--waivers: {core[0]} belongs to the mandatory core, which cannot be waived.")
        if complete and not matched:
            raise UsageError(f"--waivers: the waiver of {waiver.name} matches no planned case; delete it.")
