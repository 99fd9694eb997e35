"""Entry point of the command: fast help, and errors of one sentence with exit status 4."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.errors import ConformanceError
from conformance.cli.main import commands, main
from tests.reports.samples import write_sample


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert [name for name in commands() if f"\n  {name} " not in shown] == []


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"], ["list", "--help"], ["doctor", "--help"]])
def test_help_imports_neither_torch_nor_pytest(words: list[str]) -> None:
    code = (
        "import sys; from conformance.cli.main import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'pytest', '_pytest', 'jinja2'} & set(sys.modules)), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stderr.strip() == "[]"
    assert "usage: conformance" in done.stdout


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])

    assert stop.value.code == 0
    assert f"usage: conformance {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["reprot"],
            "command 'reprot' is not registered.\n  registered: blame, challenge, coverage, diff, doctor, explain, ",
        ),
        (["report", "--fromat", "x"], "unrecognized arguments: --fromat"),
        (["explain"], "the following arguments are required: NAME. See: conformance explain --help"),
        (["list", "--capabilities", "--accelerators"], "not allowed with argument"),
        (["doctor", "--time-limit", "soon"], "invalid float value: 'soon'"),
        (["doctor", "--time-limit", "0"], "expected a positive number of seconds"),
    ],
)
def test_bad_usage_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 4

    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


def test_no_command_prints_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ConformanceError.exit_status
    assert "usage: conformance COMMAND" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out[0].isdigit()


def test_a_reader_that_closes_early_is_no_error() -> None:
    command = [sys.executable, "-m", "conformance.cli.main", "list", "--capabilities"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        errors = process.stderr.read()

    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize(("words", "status"), [(["list", "--capabilities"], 0), (["gate"], 4), (["--help"], 0)])
def test_the_process_says_all_that_main_says_and_ends_with_its_status(
    words: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "conformance.cli.main", *words]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, capture_output=True, env=buffered, timeout=60)

    main(words)

    said = capsys.readouterr()
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (status, said.out, said.err)


def test_a_terminal_that_cannot_show_a_sign_is_no_error(tmp_path: Path) -> None:
    write_sample(tmp_path)
    code = f"from conformance.cli.main import main; import sys; sys.exit(main(['report', {str(tmp_path)!r}]))"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=ascii_only, timeout=60)

    assert (done.returncode, done.stderr) == (0, b"")
