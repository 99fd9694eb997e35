"""Bad input: one sentence with the next step, exit status 4, no traceback, and no file harmed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .running import HERE, Run, run

USAGE = 4
NOTHING_VERIFIED = 5


def refused(cwd: Path, *arguments: str, **environment: str) -> str:
    """The output of a run that must be refused."""
    finished = run(*arguments, cwd=cwd, **environment)
    assert finished.status == USAGE, finished.output
    assert "Traceback" not in finished.output, finished.output
    assert "Exit" not in finished.output, finished.output
    assert "INTERNALERROR" not in finished.output, finished.output
    return finished.output


@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        (["--accelerator=supu"], ["accelerator 'supu' is not registered", "did you mean", "supa"]),
        (["--accelerator=CUDA"], ["accelerator 'CUDA' is not registered", "did you mean 'cuda'"]),
        (["--accelerator=cuda:0"], ["'cuda:0' names one device", "--accelerator=cuda", "CUDA_VISIBLE_DEVICES=0"]),
        (["--accelerator=acme:1"], ["accelerator 'acme' is not registered"]),
        (["--accelerator="], ["the accelerator's name is empty", "registered: cpu, cuda"]),
        (["--accelerator=supa"], ["torch_supa"]),
        (["--accelerator=torch:nonsense"], ["nonsense", "none is named torch_nonsense", 'package="NAME"']),
        (["--accelerator=torch:CUDA"], ["did you mean 'cuda'"]),
        (["--accelerator=nowhere:Thing"], ["nowhere"]),
        (["--accelerator=json:nothing"], ["nothing"]),
        (["--accelerator=json:JSONDecoder"], ["JSONDecoder"]),
        (["--accelerator=broken_module:Thing"], ["broken_module", "the driver is not there"]),
        (["--accelerator=cpu", "--area=operatorz"], ["area 'operatorz' is not registered", "operators"]),
        (["--accelerator=cpu", "--dtype=float23"], ["dtype 'float23' is not registered", "float32"]),
        (["--accelerator=cpu", "--profile=coar"], ["profile 'coar' is not registered", "core"]),
        (["--accelerator=cpu", "--tier=units"], ["tier 'units' is not registered", "unit"]),
        (["--accelerator=cpu", "--strictness=mild"], ["strictness 'mild' is not registered"]),
        (["--accelerator=cpu", "--case=accelerator.rng.sede*"], ["accelerator.rng.sede*"]),
        pytest.param(
            ["--accelerator=cpu", "--case=utils.*", "--case=utils.nothing"],
            ["case 'utils.nothing'"],
            marks=pytest.mark.long,
        ),
        (
            ["--accelerator=cpu", "--case=operators.add[float32-inference]{form=out variant}"],
            ["{form=out variant}", "{form=out,arrangement=offset}", "repro line"],
        ),
        pytest.param(
            ["--accelerator=cpu", "--case=operators.add*{form=out}"], ["behind the full id"], marks=pytest.mark.long
        ),
        pytest.param(
            ["--accelerator=cpu", "--case=utils.nothing{form=out}"], ["of an operator's case"], marks=pytest.mark.long
        ),
        (["--accelerator=cpu", "--case-file=nowhere.txt"], ["--case-file nowhere.txt", "No such file"]),
        (["--accelerator=cpu", "--case-file", "comments.txt"], ["--case-file comments.txt", "names no case"]),
        (["--accelerator=cpu", "--shard=3/2"], ["--shard 3/2", "K/N"]),
        (["--accelerator=cpu", "--time-budget=soon"], ["--time-budget soon", "seconds"]),
        (
            ["--accelerator=cpu", "--challenge=short"],
            ["--challenge short", "8 to 128 letters", "conformance challenge"],
        ),
        (["--accelerator=cpu", "--conformance-seed=x"], ["--conformance-seed x", "whole number"]),
        (["--accelerator=cpu", "--conformance-seed=-1"], ["--conformance-seed -1", "from 0"]),
        (["--accelerator=cpu", "--area=utils", "-n0", "--capabilities=missing.toml"], ["missing.toml"]),
        (["--accelerator=cpu", "--area=utils", "-n0", "--capabilities=broken.toml"], ["broken.toml"]),
        (["--accelerator=cpu", "--area=utils", "-n1", "--capabilities=unknown.toml"], ["stream.ordre", "stream.order"]),
        (["--accelerator=cpu", "--conformance-report=a-file/below"], ["--conformance-report"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_one_sentence(arguments: list[str], sentences: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[capabilities\n")
    (tmp_path / "unknown.toml").write_text('[capabilities]\n"stream.ordre" = "native"\n')
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('the driver is not there')\n")
    (tmp_path / "a-file").write_text("kept")
    (tmp_path / "comments.txt").write_text("# later\n\n")

    output = refused(tmp_path, *arguments, PYTHONPATH=str(tmp_path))

    for sentence in sentences:
        assert sentence in output
    assert (tmp_path / "a-file").read_text() == "kept"


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_device_type_that_torch_does_not_know(workers: str, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "class Late:\n"
        "    def device_name(self, device_index=None): return 'late'\n"
        "    def current_device_name(self): return 'late:0'\n"
        "    def is_available(self): return True\n"
        "    def device_count(self): return 1\n"
    )

    output = refused(tmp_path, "--accelerator=late:Late", "--area=accelerator", workers, PYTHONPATH=str(tmp_path))

    assert "names its device 'late:0', which torch does not know" in output


def test_resume_refuses_the_journal_of_another_manifest(tmp_path: Path) -> None:
    first = chaos_run(tmp_path, "--case=chaos.before*")
    journal, manifest = (first.folder / name for name in ("journal.jsonl", "manifest.json"))
    before = journal.read_bytes(), manifest.read_bytes()

    output = refused(tmp_path, "--accelerator=cpu", "test_cases.py", "-n0", "--case=chaos.after*", "--resume")

    assert "--resume" in output
    assert "belongs to manifest" in output
    assert (journal.read_bytes(), manifest.read_bytes()) == before


def test_resume_refuses_a_journal_without_its_manifest(tmp_path: Path) -> None:
    first = chaos_run(tmp_path, "--case=chaos.before*")
    (first.folder / "manifest.json").write_text("{")

    output = refused(tmp_path, "--accelerator=cpu", "test_cases.py", "-n0", "--case=chaos.before*", "--resume")

    assert "missing or unreadable" in output


def test_resume_of_a_finished_run_runs_nothing_and_says_the_same(tmp_path: Path) -> None:
    first = chaos_run(tmp_path, "--case=chaos.before*")
    cases = first.report.cases

    again = chaos_run(tmp_path, "--case=chaos.before*", "--resume")

    assert again.status == first.status == 0, again.output
    assert again.report.cases == cases


def test_selecting_nothing_verifies_nothing(tmp_path: Path) -> None:
    finished = run("--accelerator=cpu", "--area=utils", "-k", "no_such_words", "-n0", cwd=tmp_path)

    assert finished.status == NOTHING_VERIFIED, finished.output
    assert "nothing verified" in finished.output


def test_what_k_leaves_out_is_not_planned(tmp_path: Path) -> None:
    shutil.copy(HERE / "chaos_cases.py", tmp_path / "test_cases.py")

    finished = run("--accelerator=cpu", "test_cases.py", "-n0", "-k", "test_before", cwd=tmp_path)

    assert finished.status == 0, finished.output
    assert len(finished.verdicts) == 12


def test_an_unwritable_report_folder(tmp_path: Path) -> None:
    (tmp_path / "conformance-report").write_text("a file where the folder should be")

    output = refused(tmp_path, "--accelerator=cpu", "--area=utils", "-n0")

    assert "cannot be written" in output
    assert (tmp_path / "conformance-report").read_text() == "a file where the folder should be"


def chaos_run(folder: Path, *arguments: str) -> Run:
    shutil.copy(HERE / "chaos_cases.py", folder / "test_cases.py")
    finished = run("--accelerator=cpu", "test_cases.py", "-n0", *arguments, cwd=folder)
    assert json.loads((finished.folder / "manifest.json").read_text())["cases"]
    return finished


@pytest.mark.parametrize(("workers", "status"), [("-n0", 2), ("-n1", 1)])
def test_a_file_of_cases_that_cannot_be_imported_is_told_by_pytest(workers: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text("import no_such_module_of_a_vendor\n")

    finished = run("--accelerator=cpu", "test_cases.py", workers, cwd=tmp_path)

    assert finished.status == status, finished.output
    assert "No module named 'no_such_module_of_a_vendor'" in finished.output
    assert "INTERNALERROR" not in finished.output
