"""Tests of features of pytest in cases on ranks: fixtures, axes, methods, seeds; and errors for what is impossible."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conformance.judging.verdicts import too_few_devices
from conformance.plan.bundled import family_of
from conformance.plan.case import Case, case, seed_of
from conformance.reports.verdict import Reason
from tests.acceptance.running import Run, run

HERE = Path(__file__).parent
PASS = ("pass", "native")


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("ordinary")
    tests = shutil.copy(HERE / "ordinary_cases.py", folder / "test_ordinary_cases.py")
    return run("--accelerator=cpu", str(tests), "-n0", f"--basetemp={folder / 'base'}", cwd=folder)


def test_verdicts(ordinary: Run) -> None:
    given = [f"ordinary.given[{dtype}-a-{world}]" for dtype in ("float32", "int64") for world in (1, 2)]
    shared = [f"ordinary.shared[{turn}]" for turn in range(3)]

    assert ordinary.verdicts == {
        **dict.fromkeys((*given, *shared, "ordinary.method", "ordinary.numbers"), PASS),
        "ordinary.unsendable": ("fail", "raised"),
        "ordinary.alone": ("fail", "raised"),
    }, ordinary.output


def test_what_cannot_be_done_is_one_sentence_with_a_next_step(ordinary: Run) -> None:
    messages = ordinary.messages

    assert (
        "fixture 'lock' returns a lock, which cannot be pickled for the ranks. Return"
        in messages["ordinary.unsendable"]
    )
    assert "fixture 'rank' has a value on ranks only. Give the case a world size" in messages["ordinary.alone"]


def test_reports_say_on_how_many_ranks_and_keep_rank_0s_numbers(ordinary: Run) -> None:
    cases = {case.id: case for case in ordinary.report.cases}

    assert cases["ordinary.given[int64-a-2]"].ranks == 2
    assert cases["ordinary.given[int64-a-1]"].ranks == 1
    assert dict(cases["ordinary.given[int64-a-2]"].metrics)["from_rank"] == 0


def test_ranks_are_kept_warm(ordinary: Run) -> None:
    pids = {dict(case.metrics)["pid"] for case in ordinary.report.cases if "shared" in case.id}

    assert len(pids) == 1


def test_seeds_depend_on_case_and_rank_alone(ordinary: Run) -> None:
    import torch

    for rank in range(2):
        torch.manual_seed(seed_of(f"ordinary.numbers@{rank}"))
        assert next(ordinary.folder.parent.parent.rglob(f"draw.{rank}")).read_text() == str(torch.rand(3).tolist())


@pytest.mark.parametrize(
    ("ranks", "devices", "shared", "skipped"),
    [(2, 1, False, True), (2, 2, False, False), (4, 1, True, False), (None, 1, False, False), (1, 1, False, False)],
)
def test_too_few_devices(ranks: int | None, devices: int, shared: bool, skipped: bool) -> None:
    verdict = too_few_devices(Case("a.b", "a", world_size=ranks), devices, shared=shared)

    assert (verdict is not None) == skipped
    if verdict:
        assert verdict.reason is Reason.ENVIRONMENT
        assert verdict.message == "2 ranks need a device each, and there are 1"


def test_several_world_sizes_are_the_last_axis() -> None:
    @case("a.b", axes={"x": ["p", "q"]}, world_size=(2, 3))
    def body() -> None: ...

    family = family_of(body)
    assert family is not None
    assert [(c.id, c.world_size) for c in family.expand()] == [
        ("a.b[p-2]", 2), ("a.b[p-3]", 3), ("a.b[q-2]", 2), ("a.b[q-3]", 3),
    ]  # fmt: skip
    assert family.axis_names == ("x",)


@pytest.mark.parametrize("wrong", [0, -1, True, (2, 0), ("2",)])
def test_a_world_size_is_a_number_of_ranks(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a number of ranks; write 2"):
        case("a.b", world_size=wrong)  # type: ignore[arg-type]
