"""What people do with pytest: its options, its other plugins and its configuration work, or a sentence says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.layers import longer

from .running import PLAIN, Run, run

CASES = """
from pathlib import Path
from conformance.plan.case import case

@case("vendor.step", axes={"n": [str(i) for i in range(9)]})
def test_step(n, check):
    if int(n) % 3 == 0 and not Path("repaired").exists():
        raise RuntimeError(f"kernel {n} is missing")
    check.equal(1, 1, "one")

def test_plain():
    assert Path("repaired").exists(), "plain"
"""
HERE = ("--accelerator=cpu", "test_vendor.py", "-n0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_vendor.py").write_text(CASES)
    return tmp_path


def with_cache(*words: str, cwd: Path) -> Run:
    """Run pytest with its cache, which --lf and --sw need."""
    return run(*words, cwd=cwd, always=PLAIN)


def test_the_marker_selects_cases(folder: Path) -> None:
    finished = run(*HERE, "-m", "conformance", cwd=folder)

    assert len(finished.verdicts) == 9
    assert "6 passed" in finished.output
    assert "1 deselected" in finished.output


@pytest.mark.parametrize("workers", longer(["-n0", "-n2"]))
def test_failed_cases_run_again_after_a_repair(workers: str, folder: Path) -> None:
    words = ("--accelerator=cpu", "test_vendor.py", workers, "--lf")
    with_cache(*words, cwd=folder)
    again = with_cache(*words, cwd=folder)
    failed = {id for id, (outcome, _) in again.verdicts.items() if outcome == "fail"}
    (folder / "repaired").touch()

    repaired = with_cache(*words, cwd=folder)

    assert again.status == 1, again.output
    assert failed == set(repaired.verdicts)
    assert len(failed) == 3
    assert repaired.status == 0, repaired.output


def test_stepwise_continues_at_the_failure(folder: Path) -> None:
    words = (*HERE, "--sw", "-k", "step")
    stopped = with_cache(*words, cwd=folder)
    (folder / "repaired").touch()

    continued = with_cache(*words, cwd=folder)

    assert stopped.status == 2, stopped.output
    assert "vendor.step[0]" in stopped.output
    assert continued.status == 0, continued.output
    assert len(continued.verdicts) == 9


def test_the_failed_cases_of_a_run_are_a_case_file(folder: Path) -> None:
    first = run(*HERE, cwd=folder)
    (command,) = re.findall("^next: pytest (.*)$", first.output, re.MULTILINE)

    again = run(*command.split(), "-n1", cwd=folder, name="cpu-selection")

    assert command.endswith("--case-file conformance-report/cpu/failed.txt")
    assert "3 cases to run" in again.output
    assert set(again.verdicts) == {"vendor.step[0]", "vendor.step[3]", "vendor.step[6]"}


def test_failures_are_printed_by_cause_and_without_tracebacks(folder: Path) -> None:
    finished = run(*HERE, cwd=folder)

    output = finished.output
    assert "3 cases failed, for 1 cause:\n  vendor.step[0] and 2 more · raised\n    RuntimeError: kernel 0" in output
    assert "def test_step" not in output
    assert 'assert Path("repaired").exists()' in output, "a plain test keeps its traceback"
    assert output.count("FAILED ") == 1
    assert "4 failed, 6 passed" in output
    assert output.index("FAILED ") < output.index("cases failed") < output.index("\ntotal ") < output.index("next: ")


@pytest.mark.parametrize("option", ["--tb=short", "-v"])
def test_tracebacks_are_printed_on_request(option: str, folder: Path) -> None:
    finished = run(*HERE, option, cwd=folder)

    assert "raise RuntimeError" in finished.output
    assert "repro: pytest test_vendor.py --accelerator=cpu --case 'vendor.step[0]' -n0" in finished.output


def test_a_run_of_one_case_prints_its_traceback(folder: Path) -> None:
    assert "raise RuntimeError" in run(*HERE, "--case=vendor.step[3]", cwd=folder).output


def test_the_short_summary_has_ids_that_can_be_pasted(folder: Path) -> None:
    finished = run(*HERE, "-rf", "--tb=auto", "-rfs", cwd=folder)
    ids = re.findall(r"^FAILED (\S+::test_step\S+) - RuntimeError", finished.output, re.MULTILINE)

    pasted = run("--accelerator=cpu", "-n0", ids[-1], cwd=folder, name="cpu-selection")

    assert ids == [f"test_vendor.py::test_step[vendor.step[{n}]]" for n in (0, 3, 6)]
    assert "raise RuntimeError" not in finished.output
    assert "vendor.step[6]" in pasted.output
    assert "1 failed" in pasted.output


def test_an_accelerator_in_addopts_is_for_the_projects_own_tests(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--accelerator=cpu -n1'\n")
    (folder / "repaired").touch()

    own = run(cwd=folder)
    typed = run("--accelerator=cpu", "--area=v1", "--co", "-q", cwd=folder)

    assert own.status == 0, own.output
    assert len(own.verdicts) == 9
    assert "10 passed" in own.output
    assert "v1.nvme" in typed.output
    assert "vendor.step" not in typed.output


def test_a_test_that_needs_a_device_says_how_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(device):\n    pass\n")

    without = run(cwd=tmp_path)
    named = run("--accelerator=cpu", "test_own.py", "-n0", cwd=tmp_path)

    assert "fixture 'device' not found: if it is meant" in without.output
    assert "pytest --accelerator=cpu" in without.output
    assert named.status == 0, named.output


def test_other_missing_fixtures_get_no_hint(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(gadget):\n    pass\n")

    assert "accelerator-conformance, name the device" not in run(cwd=tmp_path).output


@pytest.mark.parametrize("workers", longer(["-n0", "-n1"]))
def test_a_case_that_is_planned_twice_is_one_sentence(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(CASES + CASES.replace("def test_step", "def test_other"))

    finished = run("--accelerator=cpu", "test_vendor.py", workers, cwd=tmp_path)

    assert finished.status == 4, finished.output
    assert "case id 'vendor.step[0]' is planned twice" in finished.output
    assert "INTERNALERROR" not in finished.output


#: Options of pytest-forked, pytest-repeat and pytest-rerunfailures.
FOREIGN = """
def pytest_addoption(parser):
    parser.addoption("--forked", action="store_true")
    parser.addoption("--count", type=int, default=1)
    parser.addoption("--reruns", type=int)
"""


@pytest.mark.parametrize("option", ["--forked", "--count=2", "--reruns=1"])
def test_an_option_that_loses_verdicts_is_refused(option: str, folder: Path) -> None:
    (folder / "conftest.py").write_text(FOREIGN)

    finished = run(*HERE, option, cwd=folder)

    assert finished.status == 4, finished.output
    assert f"{option.split('=')[0]} " in finished.output
    assert "Leave it out" in finished.output
    assert not (folder / "conformance-report").exists()


@pytest.mark.parametrize("workers", longer(["-n0", "-n1"]))
def test_a_mark_that_repeats_a_case_is_refused(workers: str, folder: Path) -> None:
    text = (folder / "test_vendor.py").read_text().replace("@case(", "@pytest.mark.flaky(reruns=3)\n@case(")
    (folder / "test_vendor.py").write_text(f"import pytest\n{text}")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = flaky: of another plugin\n")

    finished = run("--accelerator=cpu", "test_vendor.py", workers, cwd=folder)

    assert finished.status == 4, finished.output
    assert "case 'vendor.step[0]' has the mark flaky" in finished.output
    assert "INTERNALERROR" not in finished.output


def test_a_setting_that_repeats_cases_is_refused(folder: Path) -> None:
    (folder / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addini('reruns', 'repeats')\n")
    (folder / "pytest.ini").write_text("[pytest]\nreruns = 2\n")

    finished = run(*HERE, cwd=folder)

    assert finished.status == 4, finished.output
    assert "The setting reruns repeats a failed test" in finished.output


def test_a_plugin_that_leaves_tests_out_last_leaves_them_out_of_the_plan(folder: Path) -> None:
    """As pytest-split, --lf and --sw do, around every other hook."""
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    yield\n"
        "    items[:] = [item for item in items if '[4]' in item.name]\n"
    )

    finished = run(*HERE, cwd=folder)

    assert finished.status == 0, finished.output
    assert list(finished.verdicts) == ["vendor.step[4]"]


#: pytest-timeout, as far as it asks other plugins: its timer is set for an item for which no other plugin has done it.
TIMEOUT = """
import pytest

class Specifications:
    @pytest.hookspec(firstresult=True)
    def pytest_timeout_set_timer(item, settings):
        pass

def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Specifications)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not item.ihook.pytest_timeout_set_timer(item=item, settings=None):
        pytest.fail("Timeout (>1.0s) from pytest-timeout.")
    return (yield)
"""


def test_another_timeout_does_not_judge_a_case(folder: Path) -> None:
    (folder / "repaired").touch()
    (folder / "conftest.py").write_text(TIMEOUT)

    finished = run(*HERE, "-p", "no:timeout", cwd=folder)

    assert {outcome for outcome, _ in finished.verdicts.values()} == {"pass"}
    assert "1 failed, 9 passed" in finished.output, "the plain test keeps its timer"


def test_files_of_a_project_beside_which_the_suite_runs_are_not_loaded(tmp_path: Path) -> None:
    """The gate rejects a run that loaded code of nobody knows whom, and vendors start it in their own repository."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = checks\n")
    for name in ("checks", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text("raise RuntimeError('loaded')\n")

    finished = run("--accelerator=cpu", "--profile=core", "--area=utils", "-n0", cwd=tmp_path)

    assert finished.status == 0, finished.output
    assert "conftest.py" not in finished.report.environment.plugins
