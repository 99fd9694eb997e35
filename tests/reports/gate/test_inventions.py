"""Forgeries that were invented before the rules were read: refused, or answered by something else than one file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.reports.gate.numbers import odd_metrics
from conformance.reports.model import CaseRecord
from conformance.reports.verdict import Outcome, Reason

from .honest import honest_manifest, judged, manifest_of, mended, published, rules_of
from .inventions import INVENTIONS, UNSEEN, held
from .later_inventions import ALSO_UNSEEN, LATER_INVENTIONS
from .test_strangers import failing

ALL = {**INVENTIONS, **LATER_INVENTIONS}
ALL_UNSEEN = {**UNSEEN, **ALSO_UNSEEN}


@pytest.mark.parametrize("name", ALL)
def test_an_invention_is_refused_or_cannot_be_seen_in_one_file(name: str) -> None:
    honest_looking = held(failing())
    forged = ALL[name](honest_looking)
    assert forged != honest_looking

    refused = rules_of(judged(mended(forged), honest_manifest()))

    assert bool(refused) is (name not in ALL_UNSEEN), refused


def test_most_inventions_are_seen() -> None:
    assert {*ALL_UNSEEN} <= {*ALL}
    assert len(ALL) == len(INVENTIONS) + len(LATER_INVENTIONS)
    assert len(ALL) - len(ALL_UNSEEN) >= 160


@pytest.mark.parametrize(
    ("metrics", "trace"),
    [
        ({"rms_norm.bfloat16": "native"}, "with a kernel without an origin and a reason (rms_norm.bfloat16)"),
        ({"rms_norm.bfloat16": "mine: fast"}, "with a kernel without an origin and a reason (rms_norm.bfloat16)"),
        (
            {"rms_norm.float32": "vendor: PyTorch's operators"},
            "with PyTorch's operators as a kernel that is called vendor (rms_norm.float32)",
        ),
        ({"rms_norm.float32": 1}, "with a number for a text (rms_norm.float32)"),
        ({"share_of_the_wire": 1.2}, "with a number that no case writes (share_of_the_wire)"),
        ({"seconds_1": -1.0}, "with a number that no case writes (seconds_1)"),
        ({"relative_error": 40.0}, "with a number that no case writes (relative_error)"),
        ({"graphs": True}, "with a number that no case writes (graphs)"),
        (
            {"changed": 0, "operators": 4, "smallest.mm": 2},
            "with another number of changes than places of changes (changed, smallest.*)",
        ),
        ({"rms_norm.float32": "vendor: torch.ops.x", "share_of_the_wire": 0.2, "graphs": 1}, None),
    ],
)
def test_what_a_case_writes_beside_its_verdict_makes_sense(metrics: dict[str, Any], trace: str | None) -> None:
    case = CaseRecord("a.b", "a", metrics=metrics)

    assert list(odd_metrics(case)) == ([] if trace is None else [trace])


def test_no_honest_case_writes_an_odd_number() -> None:
    odd = {
        (name, trace)
        for name in ("cpu", "sim", "supa")
        for case in published(name).cases
        if case.outcome is not Outcome.FAIL
        for trace in odd_metrics(case)
    }

    assert odd == set()


def test_training_does_not_repeat_the_numbers_of_inference() -> None:
    report = published("sim")
    known = {case.id: case.metrics for case in report.cases}

    def copied(case: CaseRecord) -> CaseRecord:
        other = known.get(case.id.replace("-training]", "-inference]"), case.metrics)
        return replace(case, metrics=other) if case.reason is Reason.NATIVE and case.area == "operators" else case

    forged = mended(replace(report, cases=tuple(map(copied, report.cases))))

    said = [f.sentence for f in judged(forged, manifest_of(report)).rejections]
    assert any("have the numbers of inference in training" in sentence for sentence in said), said
