"""What waivers make of one verdict: only the one that they name is excused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.reports.verdict import Reason, Verdict, failed, passed, skipped
from conformance.reports.waivers.applying import OBSERVED, apply
from conformance.reports.waivers.model import WaiverKind
from tests.reports.gate.world import NOW, waiver

TODAY = NOW.date()
KNOWN = waiver("a.*")
FLAKY = waiver("a.*", kind=WaiverKind.FLAKY)
ENDED = waiver("a.*", expires=TODAY - timedelta(days=1))


@pytest.mark.parametrize(
    ("verdict", "one", "core", "reason"),
    [
        (failed(Reason.WRONG), KNOWN, False, Reason.WAIVED),
        (failed(Reason.CRASH), KNOWN, False, Reason.CRASH),
        (failed(Reason.WRONG), KNOWN, True, Reason.WRONG),
        (failed(Reason.WRONG), ENDED, False, Reason.WAIVER_EXPIRED),
        (failed(Reason.CRASH), ENDED, False, Reason.CRASH),
        (passed(), KNOWN, False, Reason.WAIVER_STALE),
        (passed(), FLAKY, False, Reason.NATIVE),
        (skipped(Reason.ENVIRONMENT), KNOWN, False, Reason.ENVIRONMENT),
    ],
)
def test_a_waiver_excuses_only_what_it_names(verdict: Verdict, one: object, core: bool, reason: Reason) -> None:
    after = apply(verdict, "a.b", core, [one], TODAY)  # type: ignore[list-item]

    assert after.reason is reason
    assert after.metrics.get(OBSERVED) == (verdict.reason.value if reason.facts.made_by_waiver else None)
    assert apply(verdict, "x.y", core, [one], TODAY) is verdict  # type: ignore[list-item]
