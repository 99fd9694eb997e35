"""Trial of a vendor's module in a child process, because a module may end its process, or never return."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.accelerators.registry import module_of
from conformance.base.errors import SetupError
from conformance.process.deaths import evidence, how_it_ended, load_seconds, read_text, timed_out
from conformance.process.python import child_python
from conformance.process.watchdog import was_hung

#: Exit status of a trial that reached its end. A module may leave with any other status, including 0.
_REACHED_THE_END = 77
#: Seconds that the child has after the limit, to write its stacks.
_GRACE = 5.0
_PROGRAM = f"""
import faulthandler, os, sys
text, limit, stacks = sys.argv[1], float(sys.argv[2]), open(sys.argv[3], "w")
faulthandler.enable(stacks)
faulthandler.dump_traceback_later(limit, exit=True, file=stacks)
try:
    from pathlib import Path
    from conformance.accelerators.lint import lint
    from conformance.accelerators.registry import resolve
    spec = resolve(text)
    spec.static_declaration
    if "lint" in sys.argv:
        lint(spec)
except BaseException:
    pass  # the process that asked for the trial does the same, and reports it
os._exit({_REACHED_THE_END})
"""


def try_module(text: str, *, members: bool = False) -> None:
    """Import the module that an accelerator's text names in a child process, and with ``members`` call its members.

    Raises SetupError if the child dies or reaches the limit of time. Does nothing for a built-in accelerator, whose
    module is this project's, and for a module that this process has imported already.
    """
    module = module_of(text)
    if module is None or module in sys.modules:
        return
    with tempfile.TemporaryDirectory() as folder:
        stacks, output = Path(folder, "stacks"), Path(folder, "output")
        words = [text, str(load_seconds()), str(stacks), *(["lint"] if members else [])]
        status = _run(child_python(_PROGRAM, *words), output)
        frames, said = read_text(stacks), read_text(output)
    if status == _REACHED_THE_END:
        return
    how = timed_out() if status is None or was_hung(frames) else how_it_ended(frames, status)
    step = f"importing {module}" + (" and asking its members" if members else "")
    raise SetupError(
        f"'{text}' cannot be used: {step} fails: {how}.\n  check: python -c 'import {module}'" + evidence(frames, said)
    )


def _run(command: list[str], output: Path) -> int | None:
    """Run the command with all its children, and return its exit status, or None if it had to be killed."""
    with output.open("wb") as sink:
        # A session of its own, so that processes which the module starts end with it.
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            return process.wait(load_seconds() + _GRACE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and its group."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
