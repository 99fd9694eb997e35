"""A crash and a hang name the call that caused them: its arguments, its arrangement, and how to repeat it alone."""

from __future__ import annotations

import shlex
import shutil

import pytest

from conformance.cli.main import main

from .running import DATABASE, HERE, Run, run

ADD, UNFOLD = "operators.add[float32-inference]", "operators.nn.functional.unfold[float32-training]"
MAXIMUM, EXPM1 = "operators.maximum[float32-inference]", "foreach.expm1[float32]"
#: Cases, the reason, a word of the call's selector, and words that the message has.
ROWS = [
    (ADD, "crash", "arrangement=lazy", ["with a lazy bit", "on the device", "Segmentation fault"]),
    (UNFOLD, "crash", "sample=", ["in its backward on the device", "Floating point exception"]),
    (MAXIMUM, "hang", "expanded", ["expanded", "on the device", "timed out"]),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("faulty")
    shutil.copy(HERE / "faulty.py", folder)
    chosen = [f"--case={id}" for id in (ADD, UNFOLD, MAXIMUM, EXPM1)]
    variables = {"PYTHONPATH": str(folder), "CONFORMANCE_CASE_SECONDS": "8"}
    return run(
        "--accelerator=faulty:Faulty", *chosen, "-n1", cwd=folder, name="faulty-Faulty", imported=DATABASE, **variables
    )


def test_the_verdict_names_the_call(finished: Run) -> None:
    cases = {case.id: case for case in finished.report.cases}
    for id, reason, word, words in ROWS:
        case = cases[id]
        call = str(case.metrics.get("call", ""))
        assert (case.reason.value, word in call) == (reason, True), (case.message, call)
        assert [text for text in words if text not in case.message] == []
        assert f"{id}{call}" in shlex.split(case.repro)


def test_a_function_on_lists_is_named_too(finished: Run) -> None:
    message = finished.messages[EXPM1]

    assert "_foreach_expm1" in message.splitlines()[1]
    assert "Aborted" in message


def test_the_script_of_the_last_call_is_printed(finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for id, _, _, _ in ROWS:
        assert main(["explain", id, "--script", "--report", str(finished.folder), "--accelerator=cpu"]) == 0
        script = capsys.readouterr().out
        assert "import torch" in script
        compile(script, "script", "exec")


@pytest.mark.long
def test_the_repro_line_ends_in_the_same_call(finished: Run) -> None:
    case = next(case for case in finished.report.cases if case.id == ADD)

    words = [word for word in shlex.split(case.repro)[1:] if word != "-n0"]
    folder = finished.folder.parents[1]
    again = run(*words, "-n1", "--conformance-report=again", cwd=folder, PYTHONPATH=str(folder))

    assert str(case.metrics["call"]) in again.output, again.output
