"""Causes: failures that look like one defect are one group, and different ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.plan.selection import matches
from conformance.reports.causes import causes
from conformance.reports.matrix import failures
from conformance.reports.verdict import Reason, Verdict, failed
from conformance.reports.views import failed as failed_view
from tests.reports.samples import entry, report_of


def sizes(tmp_path: Path, *cases: tuple[str, Reason, str]) -> list[int]:
    report = report_of(tmp_path, *((entry(id), failed(reason, message)) for id, reason, message in cases))
    return [len(cause.cases) for cause in causes(failures(report))]


@pytest.mark.parametrize(
    "messages",
    [
        ("operators.add raises NotImplementedError", "operators.mul raises NotImplementedError"),
        ("aten::add.out is not implemented", "aten::mul.out is not implemented"),
        ("12 of 4099 elements are wrong\nat [1]", "1 of 7 elements are wrong\nat [3]"),
        ("\"add_impl\" not implemented for 'Half'", "\"mul_impl\" not implemented for 'Long'"),
        ("torch.acme has no memory_reserved()", "torch.acme has no empty_cache()"),
        ("float32 overflows at 1e-7", "bfloat16 overflows at 65504.0"),
    ],
)
def test_names_and_numbers_make_no_cause(messages: tuple[str, str], tmp_path: Path) -> None:
    ids = ("operators.add", "operators.mul")

    assert sizes(tmp_path, *((id, Reason.RAISED, text) for id, text in zip(ids, messages, strict=True))) == [2]


def test_the_most_frequent_cause_comes_first(tmp_path: Path) -> None:
    cases = [
        ("a.first", Reason.WRONG, "one"),
        ("a.second", Reason.RAISED, "two"),
        ("a.third", Reason.RAISED, "two"),
        ("a.fourth", Reason.WRONG, "two"),
        ("a.fifth", Reason.CRASH, ""),
    ]

    assert sizes(tmp_path, *cases) == [2, 1, 1, 1]


def test_the_ids_of_failed_cases_are_a_case_file(tmp_path: Path) -> None:
    ids = ("operators.add[float32-training]", "a.b")
    report = report_of(tmp_path, *((entry(id), failed(Reason.WRONG, "no")) for id in ids))

    lines = failed_view.render(report).splitlines()

    assert lines[0].startswith("# failed: 2;")
    assert sorted(lines[1:]) == sorted(ids)
    assert all(matches(line, line) for line in lines[1:])


def test_calls_of_one_form_and_arrangement_are_one_cause_whatever_their_samples_are(tmp_path: Path) -> None:
    """One defect in many operators fails in the same form of other samples."""

    def wrong(operator: str, sample: str, call: str) -> tuple[dict[str, object], Verdict]:
        label = f"{sample}, with a storage offset: 3/400 elements differ, worst 0.1 at [1, 2], budget 1e-07"
        return entry(f"operators.{operator}"), failed(Reason.WRONG, label, call=call)

    offset = "source=size-65,arrangement=offset"
    report = report_of(
        tmp_path,
        wrong("add", "sample 3 (shape (5, 5), (5,))", "{sample=3,arrangement=offset}"),
        wrong("exp", "sample 1001 (shape (65,), size 65)", f"{{sample=1001,{offset}}}"),
        wrong("cat", "sample 0 (shape no tensors)", "{sample=0,arrangement=offset}"),
        wrong("mul", "sample 3 (shape (5, 5))", "{sample=3,form=out,arrangement=offset}"),
    )

    assert [len(cause.cases) for cause in causes(failures(report))] == [3, 1]


def test_labels_of_calls_are_one_cause_also_without_fields(tmp_path: Path) -> None:
    said = "with a storage offset: 3/400 elements differ"
    shapes = ["(5, 5), (5,)", "(65,), size 65", "no tensors"]
    messages = [f"sample {number} (shape {shape}), {said}" for number, shape in enumerate(shapes)]

    assert sizes(tmp_path, *((f"operators.x{i}", Reason.WRONG, text) for i, text in enumerate(messages))) == [3]
