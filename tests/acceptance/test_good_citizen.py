"""Installed but unused, the plugin changes nothing; with paths it serves a vendor's own tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layers import longer

from .running import environment, run

PLAIN = "def test_plain():\n    import sys\n    assert 'torch' not in sys.modules\n"


def test_unused_it_imports_no_torch_and_leaves_tests_alone(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)

    finished = run("-q", cwd=tmp_path)

    assert finished.status == 0, finished.output
    assert "conformance" not in finished.output
    assert not (tmp_path / "conformance-report").exists()


def test_unused_it_registers_nothing_but_options(tmp_path: Path) -> None:
    program = (
        "import sys, pytest\n"
        "class Spy:\n"
        "    def pytest_configure(self, config):\n"
        "        names = [name for name, _ in config.pluginmanager.list_name_plugin() if 'conformance' in name]\n"
        "        loaded = [m for m in sys.modules if m.startswith('conformance')]\n"
        "        print('PLUGINS', names, 'MODULES', sorted(loaded))\n"
        "sys.exit(pytest.main(['-q', '--co', '.'], plugins=[Spy()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )

    assert "PLUGINS ['conformance']" in done.stdout
    assert "'conformance.plan.bundled'" not in done.stdout
    assert "'conformance.accelerators.registry'" not in done.stdout


def test_a_projects_own_options_of_the_same_names_are_its_own(tmp_path: Path) -> None:
    names = ("capabilities", "profile", "area", "tier", "dtype", "case", "strictness", "resume", "shard")
    (tmp_path / "conftest.py").write_text(
        f"def pytest_addoption(parser):\n    for name in {names}:\n        parser.addoption('--' + name)\n"
    )
    (tmp_path / "test_own.py").write_text(
        "def test_own(request):\n    assert request.config.getoption('--dtype') == 'mine'\n"
    )

    finished = run("--dtype=mine", "--case=theirs", "-n1", cwd=tmp_path)

    assert finished.status == 0, finished.output


def test_options_and_marker_are_documented(tmp_path: Path) -> None:
    options = run("--help", cwd=tmp_path).output
    markers = run("--markers", cwd=tmp_path).output

    for option in ("--accelerator", "--profile", "--area", "--tier", "--case", "--strictness", "--resume", "--shard"):
        assert option in options
    assert "@pytest.mark.conformance" in markers


def test_a_vendors_plain_tests_run_beside_cases_with_our_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(
        "from conformance.plan.case import case\n\n"
        "def test_plain(accelerator, device):\n"
        "    assert accelerator.device_count() >= 1\n\n"
        "@case('vendor.adds')\n"
        "def test_adds(device, check):\n"
        "    import torch\n"
        "    check.equal((torch.ones(3, device=device) + 1).sum().item(), 6.0, 'ones plus one')\n"
    )

    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", cwd=tmp_path)

    assert finished.status == 0, finished.output
    assert finished.verdicts == {"vendor.adds": ("pass", "native")}
    assert "narrowed by paths" in finished.output, "a vendor's own file earns no profile"
    assert "2 passed" in finished.output


def test_plain_tests_alone_make_no_report(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(
        "def test_plain(accelerator):\n    assert accelerator.device_count() >= 1\n"
    )

    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", cwd=tmp_path)

    assert finished.status == 0, finished.output
    assert "nothing verified" not in finished.output


def test_planning_touches_no_device_and_writes_nothing(tmp_path: Path) -> None:
    finished = run("--accelerator=cuda", "--area=accelerator", "--co", "-q", cwd=tmp_path)

    assert finished.status == 0, finished.output
    assert "accelerator.rng" in finished.output
    assert not (tmp_path / "conformance-report").exists()


@pytest.mark.long
def test_a_folder_named_as_the_package_hides_nothing(tmp_path: Path) -> None:
    """As in a checkout, where ``conformance/`` stands beside ``accelerators/`` and is not the installed package."""
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "__init__.py").write_text("raise ImportError('the wrong package')\n")
    scripts = Path(sys.executable).parent
    commands = (
        [scripts / "pytest", "--accelerator=cpu", "--case=accelerator.selection.*", "--case=operators.abs*", "-n1"],
        [scripts / "conformance", "doctor", "cpu"],
    )

    for command in commands:
        variables = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the wrong package" not in done.stdout + done.stderr
    assert list((tmp_path / "cache").rglob("operators-*.json")), "the operators were not read in a child process"


LISTENER = (
    "import os\n"
    "def heard(*words):\n"
    "    if 'PYTEST_XDIST_WORKER' not in os.environ:\n"
    "        with open('heard', 'a') as file:\n"
    "            print(*words, file=file)\n"
    "def pytest_runtest_logstart(nodeid):\n    heard('start', nodeid)\n"
    "def pytest_runtest_logfinish(nodeid):\n    heard('finish', nodeid)\n"
    "def pytest_runtest_logreport(report):\n    heard(report.when, report.outcome, report.nodeid)\n"
)
CASES = (
    "import pytest\n"
    "from conformance.plan.case import case\n\n"
    "@pytest.fixture\ndef broken():\n    raise ValueError('no set-up')\n\n"
    "@case('vendor.fails')\ndef test_fails(broken):\n    pass\n\n"
    "@case('vendor.passes')\ndef test_passes(check):\n    check.equal(1, 1, 'one')\n\n"
    "def test_plain():\n    pass\n"
)
#: What pytest itself reports to other plugins about these three tests.
HEARD = {
    *(f"{word} {name}" for word in ("start", "finish") for name in ("test_fails", "test_passes", "test_plain")),
    *("setup failed test_fails", "teardown passed test_fails"),
    *(f"{when} passed {name}" for when in ("setup", "call", "teardown") for name in ("test_passes", "test_plain")),
}


@pytest.mark.parametrize(
    "words", longer([["-n1"], ["-n1", "-v"], ["-n0"]]), ids=["worker", "verbose", "without-workers"]
)
def test_other_plugins_hear_of_every_case_as_of_every_test(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "conftest.py").write_text(LISTENER)
    (tmp_path / "test_vendor.py").write_text(CASES)

    finished = run("--accelerator=cpu", "test_vendor.py", *words, cwd=tmp_path)

    heard = re.sub(r"test_vendor\.py::|\[.*\]", "", (tmp_path / "heard").read_text()).splitlines()
    assert set(heard) == HEARD
    assert len(heard) == len(HEARD)
    assert finished.verdicts == {"vendor.fails": ("fail", "raised"), "vendor.passes": ("pass", "native")}
