"""A vendor's stack that is not public, stood in for by tests/standin: the same engine under the vendor's names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from conformance.cli import doctor
from conformance.cli.checks import Check, CheckState
from conformance.cli.main import main
from conformance.plan.bundled import bundled_cases
from conformance.reports.declaration.claims import check_claims
from conformance.reports.verdict import Outcome
from tests.layers import longer

from .running import DATABASE, HERE, Run, python, run

STANDIN = HERE.parent / "standin"
#: What lets Python find the vendor's packages. Nothing installs them.
INSTALLED = {"PYTHONPATH": str(STANDIN)}
#: What this stack has its own way with, beside every capability once.
CASES = ("accelerator.graph.*", "accelerator.tensor_types.*", "operators.to[*", "operators.to_*", "operators.sparse*")
USAGE = 4
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs the extra: pip install deepspeed"
)


@pytest.fixture(scope="module", params=longer(["compile", ""]))
def left_out(request: pytest.FixtureRequest) -> str:
    """The capability that is not looked at: a compiler takes as long as all the others."""
    return str(request.param)


@pytest.fixture(scope="module")
def slice_run(left_out: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    capabilities = [row.case.id for row in bundled_cases(["capabilities"]) if row.case.id != f"capabilities.{left_out}"]
    chosen = [f"--case={pattern}" for pattern in (*CASES, *capabilities)]
    folder = tmp_path_factory.mktemp("supa")
    words = ("--accelerator=supa", *chosen, "-n0" if left_out else "-n1")
    return run(*words, cwd=folder, name="supa", timeout=600, imported=DATABASE, **INSTALLED)


def test_nothing_fails_and_every_claim_is_verified(left_out: str, slice_run: Run) -> None:
    report = slice_run.report
    failed = {case.id: case.message for case in report.cases if case.outcome is Outcome.FAIL}

    assert slice_run.status == 0, slice_run.output
    assert not failed
    assert not report.accounting.unaccounted
    assert {case.reason.value for case in report.cases} == {"native", "undeclared", "unsupported"}
    # All operators take minutes, and workloads and collectives have areas of their own.
    unverified = [cell for cell in check_claims(report).unverified if cell != left_out]
    assert [cell for cell in unverified if not cell.startswith(("operators.", "workloads.", "comm.", "kernels."))] == []


def test_what_the_stack_lacks_is_said_before_it_is_asked(slice_run: Run) -> None:
    verdicts = slice_run.verdicts

    assert verdicts["operators.to_sparse[float32-inference]"] == ("skip", "unsupported")
    assert verdicts["accelerator.graph.capturing_flag"] == ("pass", "native")
    assert verdicts["capabilities.comm"] == ("pass", "native")


@pytest.mark.parametrize("loaded_before", [(), ("-p", "torch_supa")], ids=["found", "cuda-answers"])
def test_detection_takes_the_vendor_before_what_it_impersonates(loaded_before: tuple[str, ...], tmp_path: Path) -> None:
    arguments = (*loaded_before, "--accelerator=auto", "--case=accelerator.device.name", "-n0")

    finished = run(*arguments, cwd=tmp_path, name="supa", **INSTALLED)

    assert finished.status == 0, finished.output
    assert "accelerator supa" in finished.output


def test_doctor_says_what_is_there_and_the_environment_has_the_number_of_devices(tmp_path: Path) -> None:
    words = ("-m", "conformance.cli.main", "doctor", "supa")

    there = python(*words, cwd=tmp_path, **INSTALLED, SUPA_DEVICES="3", SUPA_VISIBLE_DEVICES="2")

    assert "usable: 1 device, supa" in there.stdout
    assert there.returncode == 0


def test_doctor_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # The test before imports torch in a process of its own, as doctor does; here it would say the same.
    monkeypatch.setattr(doctor, "torch_check", lambda limit: Check("import torch", CheckState.OK, "works"))

    assert main(["doctor", "supa"]) == 1
    shown = capsys.readouterr().out
    assert "absent: accelerator 'supa' needs the package torch_supa, which is not installed here" in shown


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "accelerator 'supa' needs the package torch_supa, which is not installed here"),
        ({**INSTALLED, "SUPA_DEVICES": "many"}, "SUPA_DEVICES='many' is not a number of devices"),
        ({**INSTALLED, "SUPA_VISIBLE_DEVICES": ""}, "accelerator 'supa' finds no device"),
    ],
    ids=["not-installed", "nonsense", "no-device"],
)
def test_one_sentence(variables: dict[str, str], sentence: str, tmp_path: Path) -> None:
    finished = run("--accelerator=supa", "--case=accelerator.device.*", "-n0", cwd=tmp_path, **variables)

    assert finished.status == USAGE, finished.output
    assert sentence in finished.output
    assert "Traceback" not in finished.output


@pytest.mark.parametrize("workers", longer(["-n0", "-n1"]))
def test_two_accelerators_in_one_process(workers: str, tmp_path: Path) -> None:
    first = ("-p", "conformance.accelerators.simulated.torch_sim")
    more = {**INSTALLED, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    finished = run(*first, "--accelerator=supa", "--case=accelerator.device.*", workers, cwd=tmp_path, **more)

    assert finished.status == USAGE, finished.output
    assert "accelerator 'supa' cannot be used: 'sim' is already this process' out-of-tree device" in finished.output
    assert "Traceback" not in finished.output
    assert "selection holds no case" not in finished.output


def test_cuda_is_refused_where_the_vendor_answers_for_it(tmp_path: Path) -> None:
    chosen = ("-p", "torch_supa", "--accelerator=cuda", "--case=accelerator.device.*", "-n0")

    finished = run(*chosen, cwd=tmp_path, **INSTALLED)

    assert finished.status == USAGE, finished.output
    assert (
        "accelerator 'cuda' cannot be used: torch_supa is loaded in this process and answers for it" in finished.output
    )


@pytest.mark.parametrize("checks", longer(["check_module.py", "check_operators.py"]))
def test_the_stand_in_is_what_it_says(checks: str, tmp_path: Path) -> None:
    pytest_here = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")

    finished = python(*pytest_here, str(STANDIN / checks), cwd=tmp_path, **INSTALLED)

    assert finished.returncode == 0, finished.stdout


def test_the_vendors_numbers_of_operators() -> None:
    names = operator_names()

    assert (len(set(names.IMPLEMENTED)), len(set(names.STUBS)), len(set(names.COMPILE_STUBS))) == (23, 66, 13)
    assert not set(names.IMPLEMENTED) & set(names.STUBS)


@needs_deepspeed
def test_what_deepspeeds_builders_ask_for_and_get() -> None:
    spec = importlib.util.find_spec("deepspeed")
    assert spec is not None
    assert spec.origin is not None
    builders = (Path(spec.origin).parent / "ops" / "op_builder" / "supa").glob("*.py")
    asked = re.compile(r"_op\('(\w+)'\)|torch\.ops\.deepspeed\.(\w+)\(")
    names = operator_names()

    wanted = {one or other for file in builders for one, other in asked.findall(file.read_text())}

    there, raising = wanted & set(names.IMPLEMENTED), wanted & set(names.STUBS)
    assert (len(there), len(raising), len(wanted - there - raising)) == (11, 9, 42)


@needs_deepspeed
def test_deepspeeds_own_accelerator_drives_the_stand_in(tmp_path: Path) -> None:
    cases = ("--case=accelerator.graph.*", "--case=accelerator.device.*", "--case=accelerator.tensor_types.*")

    finished = run("--accelerator=deepspeed:supa", *cases, "-n1", cwd=tmp_path, name="deepspeed-supa", **INSTALLED)

    failed = [case.id for case in finished.report.cases if case.outcome is Outcome.FAIL]
    # Its is_current_stream_capturing() is the base class's, which always says no.
    assert failed == ["accelerator.graph.capturing_flag"]
    assert "[False, False, False]" in finished.messages["accelerator.graph.capturing_flag"]


def operator_names() -> ModuleType:
    """The stand-in's lists, without importing its packages."""
    spec = importlib.util.spec_from_file_location("standin_names", STANDIN / "torch_supa_ext" / "names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
