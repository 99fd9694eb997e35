"""The command for instruments: its list, its words, and sentences for what it cannot run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import instruments, line_coverage
from tests.instruments import BY_NAME, INSTRUMENTS, ROOT, Instrument
from tests.rows import every_row


def tried(name: str, program: str, **more: object) -> Instrument:
    """Return an instrument of one program."""
    return Instrument(name, "1", "A trial.", (("-c", program),), **more)  # type: ignore[arg-type]


@every_row(INSTRUMENTS, name=lambda instrument: instrument.name)
def test_an_instrument_has_a_sentence_and_programs_that_exist(instrument: Instrument) -> None:
    assert instrument.sentence.endswith((".", "?"))
    assert BY_NAME[instrument.name] is instrument, "the name is not its own"
    for program in instrument.programs:
        module = program[1]
        assert program[0] == "-m"
        assert importlib.util.find_spec(module) or (ROOT / f"{module.replace('.', '/')}.py").exists(), module
        assert all(Path(word).exists() for word in program if word.startswith(str(ROOT))), program


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert instruments.main([""]) == 0

    text = capsys.readouterr().out
    assert all(f"| {one.name} " in text and one.sentence in text for one in INSTRUMENTS)


def test_an_unknown_name_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert instruments.main(["defetcs"]) == 4
    assert capsys.readouterr().err.startswith("no instrument is called defetcs; there are defects, faults")


def test_a_missing_package_is_named_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = tried("lacking", "raise SystemExit(0)", packages=(("no_such_package", "no-such>=1"),))

    assert instruments.run(lacking, []) == 4
    assert (
        f"lacking needs no-such>=1. Install it: {sys.executable} -m pip install no-such>=1" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("given", "status"), [(["5"], 5), ([], 3)])
def test_words_go_to_the_first_program_in_place_of_the_usual_ones(
    given: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTRUMENTS_OUT", str(tmp_path / "kept"))

    instrument = tried("status", "import sys; sys.exit(int(sys.argv[1]))", default=("3",))

    assert instruments.run(instrument, given) == status
    assert (tmp_path / "kept").is_dir()


def test_words_of_the_usual_run_may_name_the_folder_for_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTRUMENTS_OUT", str(tmp_path))

    instrument = tried("keeps", "import sys; open(sys.argv[1], 'x').close()", default=("{kept}/result",))

    assert instruments.run(instrument, []) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_night_goes_on_after_a_failure_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []

    def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        started.append(command[3:])
        return subprocess.CompletedProcess(command, int(command[3] == "first"))

    first, second = tried("first", ""), tried("second", "", at_night=("--few",))
    needy, lacking = tried("third", "", needs="root"), tried("fourth", "", packages=(("no_such_package", "no-such"),))
    monkeypatch.setattr(instruments, "INSTRUMENTS", (first, second, needy, lacking))
    monkeypatch.setattr(subprocess, "run", run)

    assert instruments.main(["nightly"]) == 1
    assert started == [["first"], ["second", "--few"]]
    text = capsys.readouterr().out
    assert "| first" in text
    assert "status 1" in text
    assert text.count("not run") == 2


def test_lines_are_counted_by_package() -> None:
    def found(ran: int, every: int) -> dict[str, dict[str, int]]:
        return {"summary": {"covered_lines": ran, "num_statements": every}}

    files = {
        str(ROOT / "reports" / "gate" / "a.py"): found(3, 4),
        str(ROOT / "reports" / "gate" / "rules" / "b.py"): found(1, 4),
        os.path.join("reports", "c.py"): found(2, 2),  # noqa: PTH118
    }

    assert line_coverage.by_package(files) == [("reports", 2, 2), ("reports/gate", 4, 8)]
