"""Runs, workers and children that are copies of a preloaded process end as processes of their own do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for

from .running import ALWAYS, FORKS, Preloaded, environment, python, run, started_child

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


def test_a_worker_has_imported_torch(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("import sys\n\ndef test_own():\n    assert 'torch' in sys.modules\n")

    assert run("-n1", cwd=tmp_path).status == 0


@pytest.mark.parametrize(
    "program",
    [
        "import os, sys; print(sys.argv, __name__, sys.path[0], os.getcwd(), sorted(os.environ))",
        "import sys; print('out'); sys.exit(3)",
        "raise SystemExit('a sentence')",
        "1 / 0",
        "import os; os.abort()",
        "import os; os._exit(0)",
        "import atexit; atexit.register(print, 'the exit')",
        "import sys; print(sys.stdin.read() + 'end')",
    ],
)
def test_a_child_is_like_one_that_is_started_anew(program: str, tmp_path: Path) -> None:
    words = ("-c", program, "a word")
    anew = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment(OWN="1"), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip

    forked = python(*words, cwd=tmp_path, OWN="1")

    assert (forked.returncode, forked.stdout) == (anew.returncode, anew.stdout)
    assert forked.stderr.splitlines()[-1:] == anew.stderr.splitlines()[-1:]


@pytest.mark.skipif(not FORKS, reason="nothing is forked here")
def test_a_child_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as output:
        sleeps = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]
        process = started_child(sleeps, stdout=output, stderr=output)
    wait_for("it has begun", (tmp_path / "output").read_text)

    process.forget()

    wait_for("it is gone", lambda: not Path("/proc", str(process.pid)).exists())
