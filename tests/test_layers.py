"""Layers and parts of tests: which parameters are long, and that parts are disjoint and complete."""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceptance.running import run
from tests.conftest import kept_together, name_of, part_of, run_of
from tests.layers import ALWAYS, dearest, longer, rows_beyond
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]


def usual(parameters: list[Any]) -> list[Any]:
    """Return the parameters that are not long."""
    return [value for value in parameters if not hasattr(value, "marks")]


def test_random_numbers_are_those_of_a_test_whichever_ran_before(request: pytest.FixtureRequest) -> None:
    name = name_of(request.path, request.node.nodeid)
    due = torch.rand(3, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))

    assert torch.equal(torch.rand(3), due)


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        (longer("abcde"), ["a"]),
        (longer("abcde", "b", "e"), ["b", "e"]),
        (longer("abcde", step=2), ["a", "c", "e"]),
        (longer([("a", 1), ("b", 2)]), [("a", 1)]),
    ],
)
def test_few_parameters_are_for_every_run(parameters: list[Any], kept: list[Any]) -> None:
    assert usual(parameters) == kept
    others = [value for value in parameters if value not in kept]
    assert all([mark.name for mark in value.marks] == ["long"] for value in others)


def test_parameters_that_repeat_are_long_and_take_turns() -> None:
    parameters = longer("abcd", "a", repeating="cd")

    assert [[mark.name for mark in value.marks] for value in parameters[1:]] == [
        ["long"],
        ["long", "repeats"],
        ["long", "repeats"],
    ]


def test_dear_tests_are_long_but_not_all_of_a_file_and_not_those_of_what_ships() -> None:
    measured = {
        "a.py::one": (1.5, "run"), "a.py::two": (1.0, "run"), "a.py::cheap": (0.1, ""), "b.py::alone": (9.0, ""),
        "docs/c.py::one": (5.0, ""), "docs/c.py::two": (6.0, ""), "d.py::one": (1.9, ""), "d.py::two": (1.8, ""),
    }  # fmt: skip

    assert dearest(measured) == {"a.py::one": 1.5, "a.py::two": 1.0}


def test_rows_of_a_dear_list_are_long_but_for_some_from_all_parts_of_it() -> None:
    measured = {f"a.py::dear[{row}]": (1.0, "") for row in range(6)}
    measured |= {f"a.py::cheap[{row}]": (0.4, "") for row in range(6)}
    measured |= {f"a.py::shared[{row}]": (1.0, "run") for row in range(6)}
    measured |= {f"docs/b.py::dear[{row}]": (1.0, "") for row in range(6)} | {"a.py::alone": (9.0, "")}

    assert rows_beyond(measured) == {f"a.py::dear[{row}]": 1.0 for row in (1, 3, 5)}


def test_the_tests_that_are_dear_exist() -> None:
    names = json.loads((ROOT / "tests" / "dear.json").read_text(encoding="utf-8"))

    missing = [name for name in names if _function_of(name) not in _source_of(name)]
    assert missing == []
    assert not [name for name in names if name.startswith(ALWAYS)]


def _function_of(name: str) -> str:
    return f"def {name.partition('::')[2].partition('[')[0]}("


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _source_of(name: str) -> str:
    return _text(ROOT / "tests" / name.partition("::")[0])


@pytest.fixture
def beside(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes tests beside a copy of the conftest.py of all tests, and returns their folder."""

    def write(tests: str) -> Path:
        (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
        (tmp_path / "test_own.py").write_text(f"import pytest, time\n{tests}")
        return tmp_path

    return write


def test_the_seconds_of_tests_are_written_and_the_dear_ones_are_left_out(beside: Callable[[str], Path]) -> None:
    folder = beside(
        '@pytest.fixture(scope="module")\n'
        "def made(): time.sleep(0.5)\n"
        "def test_one(made): pass\n"
        "def test_two(made): pass\n"
        "def test_cheap(): pass\n"
    )
    assert run("-n1", "-p", "no:conformance", "--seconds", "found.json", cwd=folder).status == 0

    found = json.loads((folder / "found.json").read_text())
    assert found["test_own.py::test_one"][1] == found["test_own.py::test_two"][1] != ""
    assert found["test_own.py::test_cheap"][1] == ""
    assert sum(seconds for seconds, _ in found.values()) >= 0.5

    (folder / "dear.json").write_text(json.dumps({"test_own.py::test_one": 3.0, "test_own.py::test_two": 0.0}))
    chosen = run("-n0", "--co", "-q", "-m", "not long", "-p", "no:conformance", cwd=folder).output
    assert "test_cheap" in chosen
    assert "test_one" not in chosen


def test_those_that_repeat_run_in_their_turn_and_the_others_each_time(beside: Callable[[str], Path]) -> None:
    folder = beside(
        "@pytest.mark.parametrize('name', ['a', *(pytest.param(n, marks=pytest.mark.repeats) for n in 'bcde')])\n"
        "def test_own(name): pass\n"
    )

    def chosen(*words: str) -> list[str]:
        output = run("-n0", "--co", "-q", "-p", "no:conformance", *words, cwd=folder).output
        return re.findall(r"test_own\[(\w)\]", output)

    assert chosen() == [*"abcde"]
    assert [chosen("--turn", f"{number}/2") for number in (1, 2)] == [[*"abd"], [*"ace"]]
    assert [chosen("--turn", "1/2", "--part", f"{number}/2") for number in (1, 2)] == [[*"ad"], ["b"]]


def test_a_parameter_that_is_not_there_is_refused() -> None:
    with pytest.raises(AssertionError, match="are no parameters"):
        longer("abc", "d")


def test_parts_are_disjoint_and_complete() -> None:
    items: Any = list("abcdefghijk")
    parts = [part_of(items, f"{number}/5") for number in range(1, 6)]

    assert sorted(item for part in parts for item in part) == items
    assert {len(part) for part in parts} == {2, 3}


def test_tests_that_share_a_run_are_in_one_part() -> None:
    items: Any = ["a1", "a2", "b", "c1", "c2", "c3", "d"]
    parts = [part_of(items, f"{number}/3", lambda item: item[0]) for number in (1, 2, 3)]

    assert parts == [["a1", "a2", "d"], ["b"], ["c1", "c2", "c3"]]


@pytest.fixture(scope="module", params=["few", "all"])
def ran(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: The name of each run, by its parameter.
NAMES: dict[str, set[str]] = {}


@pytest.mark.parametrize("number", [1, 2])
def test_tests_of_a_run_have_one_name(ran: str, number: int, request: pytest.FixtureRequest) -> None:
    NAMES.setdefault(ran, set()).add(run_of(request.node))

    assert [len(names) for names in NAMES.values()] == [1] * len(NAMES)
    assert len(set.union(*NAMES.values())) == len(NAMES)


@pytest.mark.parametrize("number", [1, 2])
def test_another_test_has_none(number: int, request: pytest.FixtureRequest) -> None:
    assert run_of(request.node) == ""


def test_a_file_with_runs_stays_in_one_process() -> None:
    here, other = "tests/test_layers.py", "tests/test_rows.py"

    assert kept_together(ROOT, f"{here}::test_one[a]") == kept_together(ROOT, f"{here}::test_two") == here
    assert kept_together(ROOT, f"{other}::test_one[a]") == f"{other}::test_one[a]"


@pytest.mark.parametrize("text", ["0/5", "6/5", "1", "a/5"])
def test_what_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected K/N"):
        part_of([], text)


def test_a_wait_without_end_says_for_what() -> None:
    wait_for("nothing", lambda: True, 0)
    with pytest.raises(AssertionError, match=r"did not happen within 0 s: the moon is blue"):
        wait_for("the moon is blue", lambda: False, 0)
