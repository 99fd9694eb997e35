"""conformance doctor: checks of this machine, and results for vendor software that crashes or hangs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from conformance.cli import doctor, probing
from conformance.cli.checks import (
    EXTRAS,
    REQUIRED,
    Check,
    CheckState,
    extra_checks,
    manifest_check,
    package_checks,
    python_check,
    report_check,
    why_unwritable,
)
from conformance.cli.main import main
from conformance.cli.probing import LoadResult, Probe, probe_all, read_answer, run_limited

Captured = pytest.CaptureFixture[str]


def nothing(distribution: str) -> str | None:
    return None


def test_a_missing_package_is_a_problem_and_says_how_to_get_it() -> None:
    checks = list(package_checks(nothing))

    assert [check.name for check in checks] == list(REQUIRED)
    assert {check.state for check in checks} == {CheckState.PROBLEM}
    assert checks[2].text == "is not installed: pip install pytest-xdist"


def test_a_missing_extra_is_no_problem_and_says_what_is_skipped() -> None:
    checks = list(extra_checks(nothing))

    assert {check.state for check in checks} == {CheckState.MISSING}
    assert [extra.skips in check.text for extra, check in zip(EXTRAS, checks, strict=True)] == [True] * len(EXTRAS)


def test_an_old_python_is_a_problem() -> None:
    assert python_check((3, 9, 18)).state is CheckState.PROBLEM
    assert python_check((3, 10, 0)).state is CheckState.OK


def test_a_torch_without_a_released_manifest_is_a_note() -> None:
    check = manifest_check({"torch": "9.1.0+cpu"}.get)

    assert check is not None
    assert check.state is CheckState.NOTE
    assert "conformance manifest -o manifest.json.gz" in check.text
    assert manifest_check({"torch": "2.13.0+acme"}.get) is manifest_check({}.get) is None


def test_an_unwritable_report_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    check = report_check(tmp_path / "file" / "reports")

    assert check.state is CheckState.PROBLEM
    assert "is not a folder; choose another with --conformance-report DIR" in check.text
    assert why_unwritable(tmp_path / "not" / "yet" / "there") is None
    assert not (tmp_path / "not").exists()


def test_a_hanging_vendor_stack_is_killed_with_its_children() -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    began = time.monotonic()

    result = run_limited([sys.executable, "-c", code], 0.5)

    assert result == (None, "", "")
    assert time.monotonic() - began < 300, "it waited for the end of a process"
    assert read_answer("supa", *result).result is LoadResult.HUNG


def test_a_crashing_vendor_stack_is_named_by_its_signal() -> None:
    result = run_limited([sys.executable, "-c", "import os; os.abort()"], 30)

    answer = read_answer("supa", *result)

    assert (answer.result, answer.text) == (LoadResult.CRASHED, "loading it ended the process with SIGABRT")


def test_accelerators_are_probed_side_by_side_and_none_harms_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aborting.py").write_text("import os\nos.abort()\n")
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    found = probe_all(["aborting:X", "cpu", "hanging:X", "exiting:X", "no-such"], 8)

    assert [answer.name for answer in found] == ["aborting:X", "cpu", "hanging:X", "exiting:X", "no-such"]
    assert [answer.result for answer in found] == [
        LoadResult.CRASHED,
        LoadResult.USABLE,
        LoadResult.HUNG,
        LoadResult.ABSENT,
        LoadResult.UNKNOWN,
    ]
    assert found[0].text == "loading it ended the process with SIGABRT"


def test_if_the_common_process_dies_each_accelerator_is_probed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = probing.run_limited

    def run(command: list[str], limit: float, **more: str) -> tuple[int | None, str, str]:
        return (-9, "", "") if "serve" in command[2] else real(command, limit, **more)

    monkeypatch.setattr(probing, "run_limited", run)

    assert [answer.result for answer in probe_all(["cpu", "no-such"], 120)] == [LoadResult.USABLE, LoadResult.UNKNOWN]


def test_a_vendor_stack_that_exits_is_named_by_its_last_words() -> None:
    result = run_limited([sys.executable, "-c", "import sys; sys.exit('no licence')"], 30)

    assert read_answer("supa", *result).text == "loading it ended the process with status 1: no licence"


def test_what_a_vendor_stack_prints_is_not_taken_for_the_answer() -> None:
    answer = json.dumps({"result": "usable", "text": "2 devices, SUPA"})

    probe = read_answer("supa", 0, f"Loading…\n\nconformance-probe: {answer}\nbye\n", "warnings")

    assert (probe.result, probe.text) == (LoadResult.USABLE, "2 devices, SUPA")


def importing(monkeypatch: pytest.MonkeyPatch, **errors: str) -> None:
    """Let imports of torch with the autoload ``on`` or ``off`` fail with these last words."""

    def run(command: list[str], limit: float, *, autoload: str = "0") -> tuple[int, str, str]:
        error = errors.get("off" if autoload == "0" else "on", "")
        return (1 if error else 0, "", f"Traceback\n{error}" if error else "")

    monkeypatch.setattr(doctor, "run_limited", run)


def test_an_import_of_torch_that_a_vendor_package_breaks_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "all_packages", lambda: ["torch_acme"])
    importing(monkeypatch, on="OSError: libacme.so.1: cannot open")

    check = doctor.torch_check(5)

    assert check.state is CheckState.NOTE
    assert "with autoload of torch_acme it fails: OSError: libacme.so.1: cannot open" in check.text


def test_an_import_of_torch_that_fails_without_packages_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, off="ImportError: no libtorch")

    check = doctor.torch_check(5)

    assert (check.state, check.text) == (CheckState.PROBLEM, "fails: ImportError: no libtorch; reinstall torch")


def test_a_broken_vendor_package_is_found_by_a_real_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_acme.py").write_text("def _autoload(): raise OSError('libacme.so.1: cannot open')\n")
    info = tmp_path / "torch_acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_acme = torch_acme:_autoload\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    check = doctor.torch_check(120)

    assert check.state is CheckState.NOTE, check.text
    assert "libacme.so.1" in check.text


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "torch_check", lambda limit: Check("import torch", CheckState.OK, "works"))
    monkeypatch.setattr(doctor, "_names", lambda: ["cpu", "supa"])


def answer_with(monkeypatch: pytest.MonkeyPatch, **found: LoadResult) -> None:
    def probed(names: list[str], limit: float) -> list[Probe]:
        return [Probe(name, found[name], f"about \x1b[31m{name}") for name in names]

    monkeypatch.setattr(doctor, "probe_all", probed)


@pytest.mark.usefixtures("healthy")
def test_one_usable_accelerator_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    answer_with(monkeypatch, cpu=LoadResult.USABLE, supa=LoadResult.HUNG)

    assert main(["doctor"]) == 0

    shown, meanwhile = capsys.readouterr()
    assert meanwhile == "importing torch, and loading cpu, supa: this can take a minute\n"
    assert "note     supa  hung: about supa" in shown
    assert "\x1b" not in shown
    assert shown.endswith("ready: pytest --accelerator=NAME\n")


@pytest.mark.usefixtures("healthy")
def test_no_usable_accelerator_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    answer_with(monkeypatch, cpu=LoadResult.NO_DEVICE, supa=LoadResult.ABSENT)

    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("not ready: no accelerator on this machine is usable\n")


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    "found", [LoadResult.NO_DEVICE, LoadResult.ABSENT, LoadResult.BROKEN, LoadResult.CRASHED, LoadResult.HUNG]
)
def test_the_accelerator_that_was_asked_for_has_to_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured, found: LoadResult
) -> None:
    monkeypatch.chdir(tmp_path)
    answer_with(monkeypatch, supa=found)

    assert main(["doctor", "supa"]) == 1
    assert capsys.readouterr().out.endswith("problems: supa\n")


@pytest.mark.usefixtures("healthy")
def test_an_unknown_accelerator_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    answer_with(monkeypatch, supu=LoadResult.UNKNOWN)

    assert main(["doctor", "supu"]) == 4
    assert capsys.readouterr().err.endswith("\nabout supu\n")


def test_a_declaration_that_a_run_refuses_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "from conformance.accelerators.capabilities import Cell\n"
        "from conformance.accelerators.registry import resolve\n\n\n"
        "class Acme:\n"
        "    capabilities = frozenset({Cell('operators.div', 'float32', 'inference')})\n\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(resolve('cpu').load(), name)\n"
        "\n\nACME = Acme()\n"
    )
    (tmp_path / "acme_of_div.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    found = probing.probe("acme_of_div:ACME", 120.0)

    assert found.result is LoadResult.BROKEN
    assert "there is no operator 'div'. did you mean 'div.floor_rounding'" in found.text


def test_devices_that_are_counted_and_not_there_are_a_problem() -> None:
    class Counting:
        def device_count(self) -> int:
            return 2

        def current_device_name(self) -> str:
            return "cpu"

        def device_name(self, index: int | None = None) -> str:
            return "cpu" if index is None else f"no device {index}"

    found = probing._devices(Counting())

    assert found["result"] == LoadResult.BROKEN.value
    assert found["text"].startswith("it finds 2 devices, and cannot make a tensor on the last one: RuntimeError")
