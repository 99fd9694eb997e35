"""The kept plan: the same as the plan of the suite, made anew when the suite changes, and read without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.plan import known_cases as module
from conformance.plan.bundled import area_names, bundled_cases
from conformance.plan.known_cases import areas_in, known_cases
from conformance.plan.run_options import RunOptions
from conformance.reports.profiles import in_profile


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test, with the list of operators that the user's own has."""
    from conformance.suites.operators.plan import catalogue

    known = catalogue.operators()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    catalogue.keep(catalogue.cache_path(), catalogue.dump_operators(known))
    module.cache_path.cache_clear()
    yield tmp_path
    module.cache_path.cache_clear()


def test_the_kept_plan_is_the_plan(empty_cache: Path) -> None:
    plan = [bundled.case.planned for bundled in bundled_cases(deep=True)]

    assert known_cases() == plan  # writes the file
    assert module.cache_path().exists()
    assert known_cases() == plan  # reads it
    assert known_cases(["utils"]) == [planned for planned in plan if planned.area == "utils"]


def test_a_file_of_the_suite_that_changes_makes_another_plan(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_one.py").write_text("1")
    monkeypatch.setattr(module, "_folders", lambda: [str(tmp_path)])
    before = module.cache_path()
    (tmp_path / "test_one.py").write_text("12")
    module.cache_path.cache_clear()

    assert module.cache_path() != before


def test_only_areas_with_a_selected_case_are_imported() -> None:
    rows = known_cases()
    core = {planned.area for planned in rows if in_profile("core", planned)}

    assert areas_in(RunOptions("cpu", profile="core")) == sorted(core)
    assert areas_in(RunOptions("cpu", cases=("*.rng.seed*",))) == ["accelerator"]
    assert areas_in(RunOptions("cpu", areas=("utils", "comm"), profile="core")) == ["utils"]
    assert areas_in(RunOptions("cpu")) == area_names()


@pytest.mark.parametrize("text", ["", "[", "[[1]]", "{}", "null", '[["a", "b"]]'])
def test_a_broken_file_is_no_plan(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)

    assert not module._read(file)


def test_a_kept_plan_is_listed_without_torch() -> None:
    known_cases()
    program = (
        "import sys; from conformance.cli.main import main; status = main(['list', '--count']); "
        "sys.exit(status or int('torch' in sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )

    assert ended.returncode == 0, ended.stderr
    assert "total" in ended.stdout
