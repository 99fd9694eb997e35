"""A run that is a copy of a preloaded process ends as a process of its own does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .running import ALWAYS, Preloaded, run

#: Words that are written at the end: by a thread that outlives the tests, and by what is registered for the exit.
AT_THE_END = """
import atexit, os, threading

def waits():
    threading.main_thread().join()
    os.write(1, b"the thread has ended\\n")

threading.Thread(target=waits).start()
atexit.register(os.write, 1, b"the exit was reached\\n")
"""


@pytest.mark.parametrize("imported", [("torch",), ()], ids=["torch", "pytest alone"])
def test_threads_end_and_what_is_registered_runs(imported: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(AT_THE_END)
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert 0, 'red'\n")

    # A process and an environment of its own: nothing that other tests have set is in them.
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    status, output = Preloaded(imported).run([*ALWAYS, "-n0"], tmp_path, variables, 240)

    assert status == 1, output
    # As of any process, what is buffered comes behind them.
    assert 0 < output.find("the thread has ended\n") < output.find("the exit was reached\n"), output


def test_a_controller_has_not_imported_torch(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("import sys\n\ndef test_own():\n    assert 'torch' not in sys.modules\n")

    assert run(cwd=tmp_path).status == 0
