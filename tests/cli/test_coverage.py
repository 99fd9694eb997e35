"""conformance coverage: records cases, prints what they exercise and what none does, and refuses bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.cli import coverage
from conformance.cli.main import main
from conformance.coverage import databases, reference
from conformance.coverage.map import CoverageMap
from conformance.coverage.tables import NO_REASON, missing_share, reason_of, tables, text
from tests.acceptance.running import DATABASE, dying, forked_children
from tests.docs import known_gaps
from tests.layers import longer

FLAGS = {"self": ["float32", "n4"], "other": ["float32", "n4"], "alpha": ["=1"], "result": ["float32", "n4"]}


@pytest.fixture(autouse=True)
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Below the checkout, its pyproject.toml makes an error of each warning, and a forked process has imported much.
    monkeypatch.chdir(tmp_path)
    with forked_children(coverage, *DATABASE):
        yield


def recorded(**places: list[str]) -> CoverageMap:
    """Return a map with one case that calls ``add.Tensor``, with other flags at some places."""
    found = CoverageMap("sim", "2.13.0", databases={"aten::add.Tensor": FLAGS, "aten::mul.Tensor": FLAGS})
    calls = {"aten::add.Tensor": {**FLAGS, **places}}
    found.add([{"case": "operators.add[float32-inference]", "calls": calls, "rules": {"AddBackward0": ["11"]}}])
    return found


def test_an_overload_that_no_case_calls_is_missing_with_a_reason() -> None:
    data = tables(recorded())

    assert (data["overloads"]["public"], data["overloads"]["exercised"]) == (2, 1)
    assert data["overloads"]["missing"] == {"aten::mul.Tensor": NO_REASON}
    assert missing_share(data) == 0.5
    assert "50.0% missing" in text(data)


def test_the_committed_coverage_misses_at_most_5_percent_and_says_why() -> None:
    data = json.loads(known_gaps.COVERAGE.read_text(encoding="utf-8"))

    assert data["overloads"]["public"] > 10  # a thousand in all databases
    assert missing_share(data) <= 0.05
    assert {name: reason_of(name) for name in data["overloads"]["missing"]} == data["overloads"]["missing"]
    assert NO_REASON not in data["overloads"]["missing"].values()


@pytest.mark.parametrize(("flags", "unset"), [(["=1"], ["aten::add.Tensor alpha"]), (["=1", "=2"], [])])
def test_a_default_is_set_only_by_another_value(flags: list[str], unset: list[str]) -> None:
    arguments = tables(recorded(alpha=flags))["arguments"]

    assert (arguments["with a default"], arguments["never set"]) == (1, unset)


def test_layouts_and_sizes_are_counted_by_input() -> None:
    layouts = tables(recorded(self=["float32", "strided", "n13"]))["layouts"]

    assert (layouts["inputs"], layouts["seen"]["strided"], layouts["seen"]["expanded"]) == (2, 1, 0)
    assert layouts["sizes"] == {"> 2^8": 1, "> 2^12": 1, "> 2^16": 0, "> 2^20": 0}
    assert layouts["never"]["strided"] == ["aten::add.Tensor other"]


def test_sets_of_gradients_that_no_case_asks_for_are_listed() -> None:
    found = recorded()
    found.inputs = {"AddBackward0": 2, "ExpBackward0": 1}

    rules = tables(found)["derivatives"]

    assert rules["never asked"] == ["AddBackward0 10", "AddBackward0 01"]
    assert (rules["exercised"], rules["missing"]) == (1, ["ExpBackward0"])


def test_a_dtype_that_the_databases_give_and_no_case_does_is_missing() -> None:
    other = ["float64", "n4"]

    assert tables(recorded(self=other, other=other, result=other))["dtypes"] == {"aten::add.Tensor": ["float32"]}


@pytest.fixture(params=longer(["of few operators", "whole"]))
def torchs_databases(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """PyTorch's databases, which take half a minute and are kept in the user's cache; or a part, kept nowhere.

    Return the least number of overloads in them.
    """
    if request.param == "whole":
        return 1000
    monkeypatch.setattr(reference, "_cache_path", lambda: tmp_path / "databases.json")
    every = databases.database()
    monkeypatch.setattr(databases, "database", lambda: {name: every[name] for name in ("addcmul", "add", "sum")})
    for name in ("_modules", "_optimizers", "_foreach"):
        monkeypatch.setattr(databases, name, lambda watch: None)
    return 10


def test_a_run_is_recorded_and_its_map_is_printed_again(
    torchs_databases: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "map.json"
    words = ["--accelerator", "sim", "--case", "operators.addcmul[float32-training]", "-n0", "--out", str(file)]

    assert main(["coverage", *words]) == 0
    first = capsys.readouterr().out
    assert re.match(r"overloads +\d+ of \d+ .* missing; \d+ others$", first.splitlines()[-1])
    assert main(["coverage", str(file)]) == 0
    assert capsys.readouterr().out == first
    assert main(["coverage", str(file), "--at-most", "5", "--format", "json"]) == 1

    data = json.loads(capsys.readouterr().out)
    found = json.loads(file.read_text())
    assert data["cases"] == 1
    assert "aten::addcmul" in found["calls"]
    assert "100" in found["rules"]["AddcmulBackward0"]
    # What the host computes for the comparison is no coverage of the device.
    assert "aten::allclose" not in found["calls"]
    assert data["overloads"]["public"] > torchs_databases


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "coverage needs either a map or an accelerator"),
        (["map.json", "--accelerator", "sim"], "coverage needs either a map or an accelerator"),
        (["map.json", "--area", "operators"], "--area, --case and --out need --accelerator"),
        (["--accelerator", "sim", "--at-most", "101"], "--at-most 101 is no percentage"),
        (["--accelerator", "sim", "-n", "two"], "-n two is no number of processes"),
        (["--accelerator", "sim", "--format", "yaml"], "format 'yaml' is not registered"),
        (["--accelerator", "sim", "--out", "no/such/folder.json"], "the folder of no/such/folder.json does not exist"),
        (["--accelerator", "smi"], "accelerator 'smi' is not registered"),
        (["--accelerator", "sim", "--area", "operator"], "area 'operator' is not registered"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", *words]) == 4
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        ("{", "cannot be read: it is not JSON"),
        ("[]", "is no coverage map of format 1"),
        ('{"format": 2}', "is no coverage map of format 1"),
        ('{"format": 1, "device": "sim"}', "is no coverage map of format 1"),
    ],
)
def test_a_file_that_is_no_map_is_one_sentence(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "map.json"
    if content is not None:
        file.write_text(content)

    assert main(["coverage", str(file)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_that_dies_before_its_first_case_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dying(monkeypatch, tmp_path)

    assert main(["coverage", "--accelerator", "sim"]) == 4

    errors = capsys.readouterr().err
    assert "the run on sim ended with status 1: " in errors
    assert "the plugin is broken" in errors
