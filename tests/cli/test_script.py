"""conformance explain --script: a script with torch alone that repeats the failing call of an operator cell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.base.errors import UsageError
from conformance.cli.main import main
from conformance.cli.script import script
from conformance.plan.case import Case
from conformance.reports.loading import load
from conformance.reports.model import Report
from conformance.reports.verdict import Reason, failed
from conformance.suites.operators.plan.catalogue import generate
from tests.reports.samples import entry, write_run


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.id: case for case in generate()}


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        yield


def reported(
    folder: Path, id: str, message: str, reason: Reason = Reason.WRONG, spec: str = "cpu", call: str = ""
) -> Report:
    write_run(folder, [(entry(id), failed(reason, message, **({"call": call} if call else {})))])
    report = load(folder)
    return replace(report, accelerator=replace(report.accelerator, spec=spec, device="cpu"))


def output_of(text: str) -> str:
    """Return what the script prints. Isolated mode: neither this folder nor PYTHONPATH is searched."""
    without = "import sys; sys.modules['conformance'] = None\n"
    done = subprocess.run([sys.executable, "-I", "-c", without + text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: Id of a case, the call that failed, and what its script contains.
FAILURES = [
    ("operators.add[float32-inference]", "{sample=2}", ["torch.add(t0, t1)", ".reshape((5, 1))"]),
    ("operators.abs[float32-inference]", "{sample=0,arrangement=gaps}", [".as_strided((20, 20)"]),
    ("operators.abs[float32-inference]", "{sample=0,arrangement=offset}", [".as_strided((20, 20), (20, 1), 3)"]),
    ("operators.abs[float32-inference]", "{sample=0,form=out}", ["out=t1", "nan"]),
    ("operators.exp[float32-inference]", "{sample=2000,source=special-values}", ["inf", "-0.0"]),
    ("operators.mul[complex64-training]", "{sample=0}", ["torch.complex", "torch.autograd.grad"]),
    ("operators.sum[bfloat16-inference]", "{sample=0}", ["dtype=torch.bfloat16"]),
    ("operators.nn.functional.gelu[float32-training]", "{sample=0}", ["nn.functional.gelu("]),
    ("operators.nn.functional.gelu[float32-training]", "{sample=0,form=vmap}", ["torch.func.vmap("]),
    ("operators.nn.functional.gelu[float32-training]", "{sample=0,form=second-order}", ["create_graph=True"]),
    ("operators.nn.functional.gelu[float32-training]", "{sample=0,form=forward-mode}", ["make_dual"]),
    ("operators.arange[int64-inference]", "{sample=0}", ["device=device"]),
    ("operators.bernoulli[float32-inference]", "{sample=0}", ["the same seed repeats"]),
]


def test_a_script_repeats_the_call_that_the_report_names(cases: dict[str, Case], tmp_path: Path) -> None:
    texts = []
    for number, (id, call, parts) in enumerate(FAILURES):
        texts.append(script(cases[id], reported(tmp_path / str(number), id, "x", call=call)))
        shown = " ".join(texts[-1].split())
        assert all(part in shown for part in parts), texts[-1]

    # All in one process: importing torch takes seconds. On the CPU, beside the CPU, nothing differs.
    assert output_of("\n".join(texts)) == ""


def test_a_script_has_the_numbers_of_the_sample(cases: dict[str, Case], tmp_path: Path) -> None:
    id = "operators.exp[float32-inference]"
    call = "{sample=2000,source=special-values}"

    text = script(cases[id], reported(tmp_path, id, "sample 2000: worst inf at [8]", call=call))

    assert f"# {id}{call} on cpu: wrong: sample 2000" in text
    assert "3.4028235e+38" in text  # the largest float32, in the shortest text that gives it again
    assert "conformance" not in text


def test_a_failure_without_a_call_is_repeated_on_the_device(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conformance.suites.operators.calls import execution

    id = "operators.add[float32-inference]"
    healthy = execution.execute

    def broken(function: object, sample: execution.Call, **extra: object) -> object:
        if sample.number == 2:
            raise RuntimeError("no kernel")
        return healthy(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", broken)
    text = script(cases[id], reported(tmp_path, id, "RuntimeError: no kernel", Reason.RAISED))

    assert ".reshape((5, 1))" in " ".join(text.split())  # sample 2 adds (5, 1) and (5,)


def test_a_fallback_has_a_profile(cases: dict[str, Case], tmp_path: Path) -> None:
    id = "operators.add[float32-inference]"

    text = script(cases[id], reported(tmp_path, id, "aten::add ran on the host", Reason.FALLBACK))

    assert "aten::add" in output_of(text)


@pytest.mark.parametrize(
    ("message", "reason", "spec", "sentence"),
    [
        ("RuntimeError: no kernel", Reason.RAISED, "supa", "is not usable on this machine"),
        ("RuntimeError: no kernel", Reason.RAISED, "cpu", "did not fail again on this machine"),
        ("killed by signal 11", Reason.CRASH, "cpu", "it ended as crash"),
    ],
)
def test_a_failure_that_cannot_be_repeated_is_a_sentence(
    cases: dict[str, Case], tmp_path: Path, message: str, reason: Reason, spec: str, sentence: str
) -> None:
    id = "operators.add[float32-inference]"

    with pytest.raises(UsageError, match=sentence):
        script(cases[id], reported(tmp_path, id, message, reason, spec))


def test_a_case_that_is_no_operator_cell_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "accelerator.rng.fork", "--script"]) == 4
    assert "only cells of operators with a dtype" in capsys.readouterr().err


def test_a_report_does_not_choose_a_module_that_is_imported(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    id = next(iter(cases))
    report = reported(tmp_path, id, "no sample", spec="evil_module:Accelerator")

    with pytest.raises(UsageError, match="no module is imported because a report names it"):
        script(cases[id], report)
    assert "import torch" in script(cases[id], replace(report, cases=()), accelerator="cpu")
