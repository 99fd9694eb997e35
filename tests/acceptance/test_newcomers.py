"""What stopped people on their first day: each is one sentence with the next step, or works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.runner.terminal import printable

from .running import environment, run

COUNT = "accelerator.device.count"
EXITS = """
import sys

class Acme:
    def __init__(self):
        sys.exit(3)

    def device_name(self, index=None):
        return "cpu"
"""
NO_TENSOR = """
class Acme:
    def device_count(self):
        return 1

    def device_name(self, index=None):
        return "meta"

    current_device_name = device_name
"""
NO_KERNEL = """
class Acme:
    def device_count(self):
        return 1

    def device_name(self, index=None):
        raise NotImplementedError("no kernel for ones, " + "and none for what follows " * 400)

    current_device_name = device_name
"""
FULL = """
import errno, os, pytest

@pytest.fixture(autouse=True, scope="session")
def full():
    import conformance.runner.controller as controller

    def write_report(report, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    controller.write_report = write_report
    yield
"""
FAILS = """
from conformance.plan.case import case

@case("vendor.fails", axes={"n": ["1", "2", "3"]})
def test_fails(n):
    assert n == "0"
"""


def test_a_full_disk_is_one_sentence_and_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(FULL)
    (tmp_path / "test_vendor.py").write_text(FAILS)

    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", cwd=tmp_path)

    assert finished.status == 4, finished.output
    assert "Traceback" not in finished.output
    assert "the report could not be written into conformance-report/cpu: No space left" in finished.output
    assert "--resume" in finished.output


def test_a_case_that_an_option_of_pytest_leaves_out_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(FAILS)

    finished = run("--accelerator=cpu", "-n0", f"--case={COUNT}", "-k", "nothing_like_it", cwd=tmp_path)

    assert "leaves it out" not in finished.output, finished.output
    assert finished.status == 5


def test_a_case_that_our_options_leave_out_names_those_that_were_given(tmp_path: Path) -> None:
    finished = run("--accelerator=cpu", "--area=comm", f"--case={COUNT}", "-n0", cwd=tmp_path)

    assert finished.status == 4
    assert f"case '{COUNT}' exists, but --area leaves it out." in finished.output


def test_an_operator_without_its_axes_is_suggested_with_them(tmp_path: Path) -> None:
    finished = run("--accelerator=cpu", "--case=operators.add", "-n0", cwd=tmp_path)

    assert "did you mean operators.add[*], " in finished.output


def test_our_option_without_an_accelerator_says_so(tmp_path: Path) -> None:
    finished = run("--area=launcher", "-n0", cwd=tmp_path)

    assert finished.status == 4
    assert "--area needs the device, for example: pytest --accelerator=cpu --area" in finished.output


def test_without_xdist_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    finished = run("--accelerator=cpu", "-p", "no:xdist", f"--case={COUNT}", cwd=tmp_path)

    assert finished.status == 4, finished.output
    assert "pytest-xdist is switched off" in finished.output
    assert "Traceback" not in finished.output


def test_python_without_assertions_is_one_sentence(tmp_path: Path) -> None:
    finished = run("--accelerator=cpu", f"--case={COUNT}", "-n0", cwd=tmp_path)
    without = subprocess.run(
        [sys.executable, "-O", "-m", "pytest", "--accelerator=cpu", f"--case={COUNT}", "-n0"],
        capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False,
    )  # fmt: skip

    assert finished.status == 0, finished.output
    assert without.returncode == 4
    assert "Python runs without assertions (-O or PYTHONOPTIMIZE)" in without.stdout + without.stderr


def test_x_gives_one_status_with_and_without_workers(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(FAILS)

    for workers in ("-n0", "-n1"):
        finished = run("--accelerator=cpu", "test_vendor.py", "-x", workers, cwd=tmp_path)
        assert finished.status == 6, (workers, finished.output)


def test_the_matrix_has_lines_where_the_output_knows_few_characters(tmp_path: Path) -> None:
    finished = run("--accelerator=cpu", f"--case={COUNT}", "-n0", cwd=tmp_path, PYTHONIOENCODING="cp1252")

    assert "\\u2500" not in finished.output
    assert [line for line in finished.output.splitlines() if line.startswith("total ")]
    assert printable("a ─ b ∞", "cp1252") == "a - b ?"
    assert printable("a ─ b ∞", "utf-8") == "a ─ b ∞"


def test_a_constructor_that_exits_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "duck_exit.py").write_text(EXITS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["lint", "duck_exit:Acme"]) == 0  # a declaration is judged without its device
    assert "building Acme() fails: SystemExit: 3" in capsys.readouterr().out


def test_doctor_makes_a_tensor_before_it_calls_a_device_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensorless.py").write_text(NO_TENSOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert main(["doctor", "tensorless:Acme"]) == 1
    assert "broken: it finds 1 device, and cannot make a tensor of one number" in capsys.readouterr().out


def test_doctor_tells_an_error_of_many_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernelless.py").write_text(NO_KERNEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert main(["doctor", "kernelless:Acme"]) == 1
    said = capsys.readouterr().out
    assert "NotImplementedError: no kernel for ones" in said
    assert "no message" not in said


def test_the_package_has_a_version_and_can_be_run() -> None:
    program = "import conformance; print(conformance.__version__)"
    version = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "conformance", "--version"],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip

    assert version.stdout == ran.stdout != ""


WIDE = """
import weakref

import torch
from conformance.accelerators.registry import resolve

class Acme:
    def __init__(self):
        torch.set_default_dtype(torch.float64)
        self._host = resolve("cpu").load()
        self.late, self.recorded = [], weakref.WeakSet()

    def __getattr__(self, member):
        return getattr(self._host, member)

    def synchronize(self, index=None):
        if self.late:
            raise RuntimeError(self.late.pop())
        if any(True for _ in self.recorded):
            raise RuntimeError("mixed dtypes were recorded")
"""
LATE = """
import torch
from conformance.plan.case import case

@case("vendor.late")
def test_late(accelerator):
    accelerator.late += ["mixed dtypes are refused"] * 3

def refusal(accelerator, recorded):
    accelerator.recorded.add(recorded)
    try:
        accelerator.synchronize()
    except RuntimeError as error:
        return error

@case("vendor.held")
def test_held(accelerator):
    found = refusal(accelerator, torch.ones(3))  # a cycle: the exception holds the frame of this function

@case("vendor.held_by_its_failure")
def test_held_by_its_failure(accelerator):
    raise refusal(accelerator, torch.ones(3))

@case("vendor.next", axes={"n": ["1", "2"]})
def test_next(accelerator, n):
    accelerator.synchronize()
"""


def test_a_late_refusal_ends_no_run_and_a_changed_default_is_named(tmp_path: Path) -> None:
    (tmp_path / "widening.py").write_text(WIDE)
    (tmp_path / "test_vendor.py").write_text(LATE)

    finished = run(
        "--accelerator=widening:Acme", "test_vendor.py", "-n0",
        cwd=tmp_path, name="widening-Acme", PYTHONPATH=str(tmp_path),
    )  # fmt: skip

    assert finished.verdicts["vendor.late"] == ("fail", "raised"), finished.output
    assert "refused late: RuntimeError: mixed dtypes" in finished.messages["vendor.late"]
    assert finished.verdicts["vendor.held"] == ("fail", "raised"), finished.output
    assert finished.verdicts["vendor.held_by_its_failure"] == ("fail", "raised"), finished.output
    assert finished.verdicts["vendor.next[2]"] == ("pass", "native")
    assert "changed this process: default_dtype from torch.float32 to torch.float64" in finished.output


REFUSED_CALLS = """
import torch
from conformance.plan.case import case

@case("vendor.unclaimed")
def test_unclaimed(device):
    torch.ones(3, device=device).to(torch.float8_e4m3fn).sin()

@case("vendor.claimed")
def test_claimed(device):
    torch.linalg.inv(torch.zeros(2, 2, device=device))
"""


def test_a_call_that_raises_is_named_and_an_unclaimed_one_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(REFUSED_CALLS)

    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", cwd=tmp_path, name="cpu")

    assert finished.verdicts["vendor.unclaimed"] == ("skip", "undeclared"), finished.output
    said = "operators.sin[float8_e4m3fn-inference] is not declared; the case calls it"
    assert said in finished.messages["vendor.unclaimed"]
    assert finished.verdicts["vendor.claimed"] == ("fail", "raised"), finished.output
    assert "it is raised by a call of operators.linalg.inv" in finished.messages["vendor.claimed"]
