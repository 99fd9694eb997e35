"""Mistakes of a vendor: each ends with one sentence and the next step, in ``conformance lint`` and in a run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.layers import longer

from .mistakes import DEADLY, DECLARED, FILES, FROM_A_FILE_ON, LOADED, PACKAGES, WORKERS, Mistake
from .running import python, run

USAGE = 4
#: Seconds for one step of loading: shorter here, so that the tests are.
SHORT_LIMIT = "12"
#: Any case whose set-up needs the device.
CASE = "accelerator.device.available"
MAIN = "import sys; from conformance.cli.main import main; sys.exit(main())"


def written(mistake: Mistake, folder: Path) -> list[str]:
    """Write the vendor's files, and return the option for the declaration's file."""
    for name, source in {"acme": mistake.source, **PACKAGES}.items():
        if source:
            (folder / f"{name}.py").write_text(source)
    if mistake.beside:
        (folder / "acme.toml").write_text(mistake.beside)
    if mistake.file:
        (folder / "claims.toml").write_text(mistake.file)
        return ["--capabilities", "claims.toml"]
    return []


def variables(mistake: Mistake, folder: Path) -> dict[str, str]:
    """The environment of a mistake. Only one that sleeps has the short limit, which a busy machine may reach."""
    limit = {"CONFORMANCE_LOAD_SECONDS": SHORT_LIMIT} if "sleep" in mistake.source else {}
    return {"PYTHONPATH": str(folder), **limit}


def ran(mistake: Mistake, folder: Path, workers: str = "-n1") -> str:
    """The output of a run, which ends as a wrong set-up does."""
    options = written(mistake, folder)
    finished = run(
        f"--accelerator={mistake.spec}", *options, "--area=accelerator", "--tier=unit", workers,
        cwd=folder, **variables(mistake, folder),
    )  # fmt: skip
    assert finished.status == USAGE, finished.output
    return finished.output


def linted(mistake: Mistake, folder: Path) -> tuple[int, str]:
    """The exit status and the output of ``conformance lint``."""
    options = written(mistake, folder)
    finished = python(
        "-c", MAIN, "lint", mistake.spec, *options,
        cwd=folder, **variables(mistake, folder),
    )  # fmt: skip
    return finished.returncode, finished.stdout + finished.stderr


def assert_one_sentence(output: str, mistake: Mistake) -> None:
    assert "Traceback" not in output, output
    assert "INTERNALERROR" not in output, output
    assert "_pytest.outcomes" not in output, output
    for word in mistake.words:
        assert word in output, output


@pytest.mark.parametrize("name", longer([*DECLARED, *FILES], "unknown-capability", "raises", "file-broken"))
def test_a_declaration_in_a_run(name: str, tmp_path: Path) -> None:
    mistake = {**DECLARED, **FILES}[name]

    assert_one_sentence(ran(mistake, tmp_path), mistake)


@pytest.mark.parametrize("name", longer([*DECLARED, *FILES], "unknown-capability", "file-broken"))
def test_a_declaration_in_lint(name: str, tmp_path: Path) -> None:
    mistake = {**DECLARED, **FILES}[name]

    status, output = linted(mistake, tmp_path)

    assert status == USAGE, output
    assert_one_sentence(output, mistake)


@pytest.mark.parametrize("name", longer(LOADED, "package-missing"))
def test_loading_in_a_run(name: str, tmp_path: Path) -> None:
    assert_one_sentence(ran(LOADED[name], tmp_path), LOADED[name])


@pytest.mark.parametrize("name", longer(WORKERS, "aborts-at-import-in-a-worker"))
def test_an_import_that_goes_wrong_in_a_worker(name: str, tmp_path: Path) -> None:
    output = ran(WORKERS[name], tmp_path, "-n2")

    assert_one_sentence(output, WORKERS[name])
    assert "To find the cause: conformance doctor" in output or "check: python -c" in output
    assert not (tmp_path / "conformance-report/acme/report.json").exists()


# The first layer has the death of workers in the test before, where they die without the import of torch.
@pytest.mark.long
@pytest.mark.parametrize("name", DEADLY)
def test_death_before_the_first_case_in_a_run(name: str, tmp_path: Path) -> None:
    output = ran(DEADLY[name], tmp_path, "-n2" if name == "aborts-in-package" else "-n1")

    assert_one_sentence(output, DEADLY[name])
    assert not (tmp_path / "conformance-report/acme/report.json").exists()


@pytest.mark.parametrize("name", longer([*LOADED, *DEADLY], "package-missing", "aborts-at-import"))
def test_what_a_device_would_show_does_not_stop_lint(name: str, tmp_path: Path) -> None:
    mistake = {**LOADED, **DEADLY}[name]

    status, output = linted(mistake, tmp_path)

    assert status == USAGE if mistake.in_lint else status in (0, 1), output
    assert "Traceback" not in output
    if mistake.in_lint:
        assert_one_sentence(output, mistake)


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("aborts-in-package", signal.SIGABRT, ["Aborted", "acme_aborts", "the vendor says hello"]),
        pytest.param("sleeps-in-the-first-operation", signal.SIGALRM, ["in synchronize"], marks=pytest.mark.long),
    ],
)
def test_death_before_the_first_case_without_workers(name: str, number: int, words: list[str], tmp_path: Path) -> None:
    written(DEADLY[name], tmp_path)

    finished = run(
        "--accelerator=acme:ACME", "--area=accelerator", "-n0",
        cwd=tmp_path, PYTHONPATH=str(tmp_path), CONFORMANCE_LOAD_SECONDS=SHORT_LIMIT,
    )  # fmt: skip

    assert finished.status == -number, finished.output
    for word in ["pytest's process died, and no case was running", *words]:
        assert word in finished.output


@pytest.mark.parametrize("name", longer(["load-raises", "load-lacks-module", "load-exits", "name-raises"]))
def test_loading_without_workers(name: str, tmp_path: Path) -> None:
    assert_one_sentence(ran(LOADED[name], tmp_path, "-n0"), LOADED[name])


DIES_LATER = """\
import os, signal
from pathlib import Path
from conformance.plan.case import case

@case("vendor.first")
def test_first():
    pass

@case("vendor.kills")
def test_kills():
    Path("dead").touch()
    os.kill(os.getpid(), signal.SIGKILL)

@case("vendor.third")
def test_third():
    pass
"""


@pytest.mark.long
def test_a_device_that_dies_for_good_leaves_an_account_of_every_case(tmp_path: Path) -> None:
    written(FROM_A_FILE_ON, tmp_path)
    (tmp_path / "test_vendor.py").write_text(DIES_LATER)

    finished = run("--accelerator=acme:ACME", "test_vendor.py", "-n1", cwd=tmp_path, PYTHONPATH=".", name="acme")

    assert finished.status == 6, finished.output
    assert "4 workers died while they load the accelerator" in finished.output
    assert finished.verdicts == {"vendor.first": ("pass", "native"), "vendor.kills": ("fail", "crash")}
    assert finished.report.accounting.unaccounted[0].id == "vendor.third"


@pytest.mark.parametrize(
    ("beside", "sources"),
    [("", "capabilities, no .toml file beside its module"), ('[dtypes]\nint8 = "native"\n', "capabilities, acme.toml")],
)
def test_the_header_names_the_sources_of_the_declaration(beside: str, sources: str, tmp_path: Path) -> None:
    backend = FILES["file-broken"].source
    options = written(Mistake(backend, beside=beside, file='[dtypes]\nint16 = "native"\n'), tmp_path)

    finished = run(
        "--accelerator=acme:ACME", "--case=accelerator.rng.seed*", "-n0", *options, cwd=tmp_path, PYTHONPATH="."
    )

    assert f"sources: {sources}, --capabilities claims.toml" in finished.output
