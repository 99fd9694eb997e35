"""Waivers while a run goes on: a known failure becomes ``waived``, and one that is gone ``waiver-stale``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from conformance.case import Case, Level
from conformance.errors import UsageError
from conformance.reports.model import AcceleratorRecord
from conformance.reports.verdict import Verdict
from conformance.reports.waivers.applying import apply
from conformance.reports.waivers.file import read_waivers
from conformance.reports.waivers.model import Waiver


def today() -> date:
    """Waivers end at midnight UTC, wherever the run is."""
    return datetime.now(timezone.utc).date()


def waivers_of(path: Path | None) -> tuple[Waiver, ...]:
    """The waivers of a file; one that is invalid by itself is a UsageError. That it has expired is a verdict later."""
    if path is None:
        return ()
    waivers = read_waivers(path)
    for waiver in waivers:
        # The day it ends is a day on which nothing but its other faults is wrong with it.
        fault = next(waiver.faults(min(today(), waiver.expires)), None)
        if fault:
            raise UsageError(f"--waivers {path.name}: the waiver of {waiver.name} {fault}.")
    return waivers


def for_device(waivers: Iterable[Waiver], facts: Mapping[str, Any], torch: str) -> tuple[Waiver, ...]:
    """Those that apply to the device with these facts."""
    names = facts.get("device_names")
    known = tuple(str(one) for one in names) if isinstance(names, (list, tuple)) else ()
    subject = AcceleratorRecord(name="", device_names=known, driver=str(facts.get("driver") or ""), torch=torch)
    return tuple(one for one in waivers if one.applies_to(subject))


def waive(verdict: Verdict, case: Case, waivers: Sequence[Waiver]) -> Verdict:
    """The verdict that the waivers make of this one."""
    return apply(verdict, case.id, case.level is Level.CORE, waivers, today()) if waivers else verdict


def check_plan(waivers: Iterable[Waiver], planned: Sequence[Mapping[str, Any]], *, complete: bool) -> None:
    """Raise UsageError for a waiver that names the core, or that matches nothing of a complete plan."""
    for waiver in waivers:
        matched = [one for one in planned if waiver.covers(one["id"])]
        core = [one["id"] for one in matched if one.get("level") == Level.CORE.value]
        if core:
            raise UsageError(f"--waivers: {core[0]} is of the mandatory core, which cannot be waived.")
        if complete and not matched:
            raise UsageError(f"--waivers: the waiver of {waiver.name} matches no planned case; delete it.")
