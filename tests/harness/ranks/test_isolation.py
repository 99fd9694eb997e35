"""Tests of isolation: which processes ranks are, and what a case finds on them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conformance.plan.bundled import family_of
from conformance.plan.case import Isolation, case
from conformance.reports.repro import repro
from tests.acceptance.running import Run, run

CASES = Path(__file__).with_name("isolation_cases.py")
PASS = ("pass", "native")


def isolated(folder: Path, *arguments: str) -> Run:
    tests = shutil.copy(CASES, folder / "test_isolation_cases.py")
    return run("--accelerator=cpu", str(tests), "-n0", *arguments, cwd=folder, ISOLATION_NOTES=str(folder))


def processes(folder: Path, name: str) -> set[str]:
    return set((folder / name).read_text().split())


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return isolated(tmp_path_factory.mktemp("warm"))


def test_each_case_gets_what_it_asks_for(warm: Run) -> None:
    folder = warm.folder.parent.parent

    assert warm.verdicts == {
        "isolation.first": PASS,
        "isolation.reused": ("fail", "wrong"),
        "isolation.forked": PASS,
        "isolation.own": PASS,
        "isolation.after": PASS,
        "isolation.mesh": PASS,
        "isolation.mesh.again": PASS,
        "isolation.mesh.kept": PASS,
        "isolation.mesh.other": PASS,
    }, warm.output
    assert processes(folder, "first") < processes(folder, "reused")  # on the same ranks, then on fresh ones
    assert not processes(folder, "forked") & processes(folder, "reused")


def test_ranks_go_on_without_the_meshes_of_a_case_and_end_with_them(warm: Run) -> None:
    folder = warm.folder.parent.parent

    assert processes(folder, "mesh") == processes(folder, "again") == processes(folder, "kept")
    assert not processes(folder, "other") & processes(folder, "kept")


def test_a_case_that_fails_on_warm_ranks_alone_names_who_was_there(warm: Run) -> None:
    message = warm.messages["isolation.reused"]

    assert "somebody was here" in message
    assert "on fresh ranks it passes, so the cause may be state that an earlier case left: isolation.first" in message


def test_a_whole_run_on_fresh_ranks(tmp_path: Path) -> None:
    found = isolated(tmp_path, "--rank-isolation=fork", "--case", "isolation.first", "--case", "isolation.reused")

    assert set(found.verdicts.values()) == {PASS}, found.output
    assert not processes(tmp_path, "first") & processes(tmp_path, "reused")
    assert "--rank-isolation=fork" in repro({"rank_isolation": "fork"}, "isolation.first")


def test_an_unknown_word_is_one_sentence(tmp_path: Path) -> None:
    found = isolated(tmp_path, "--rank-isolation=spawn")

    assert found.status == 4
    assert "rank isolation 'spawn'" in found.output
    assert "reuse" in found.output


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"isolation": "spawn", "world_size": 2}, r"isolation='spawn' is not one of reuse, fork, exec"),
        ({"isolation": "fork"}, "apply to ranks only; add world_size"),
        ({"environment": {"A": "b"}, "world_size": 2, "isolation": "fork"}, "environment needs isolation='exec'"),
    ],
)
def test_words_that_do_not_fit_are_refused(asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        case("isolation.refused", **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of_the_case", "of_the_run", "expected"),
    [("reuse", "reuse", "reuse"), ("reuse", "fork", "fork"), ("exec", "fork", "exec"), ("fork", "reuse", "fork")],
)
def test_the_stronger_word_counts(of_the_case: str, of_the_run: str, expected: str) -> None:
    assert Isolation(of_the_case).at_least(Isolation(of_the_run)) is Isolation(expected)


def test_the_word_reaches_each_case_of_a_family() -> None:
    @case("isolation.family", axes={"n": ["1", "2"]}, world_size=(2, 3), isolation="exec", environment={"A": "b"})
    def body() -> None:
        """Stand for a body that never runs."""

    family = family_of(body)
    assert family is not None
    assert {(c.isolation, c.environment) for c in family.expand()} == {(Isolation.EXEC, (("A", "b"),))}
