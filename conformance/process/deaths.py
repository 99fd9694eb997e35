"""Deaths of processes before their first answer: how a process ended, its stacks, and the last lines of its output."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.process.machine import slowdown
from conformance.process.watchdog import fatal_error, readable, stacks_path

#: Seconds that a vendor's code may take before its first answer: its import, its constructor, its first operation.
#: ``CONFORMANCE_LOAD_SECONDS`` changes the limit, for a stack that compiles or probes for longer. A busy machine
#: extends this one, and not that of the variable.
_LOAD_SECONDS = 45.0
#: Largest factor of that extension: somebody waits for the sentence.
_MOST_EXTENDED = 3.0
_VARIABLE = "CONFORMANCE_LOAD_SECONDS"
#: Characters of a line of a worker that loads, in the line about progress.
_MOST_SAID = 160
#: Lines of a dead process's output in a message.
_MOST_LINES = 10


def load_seconds() -> float:
    """Return how long a vendor's code may take now until its first operation has ended."""
    return _chosen_seconds() or _LOAD_SECONDS * min(slowdown(), _MOST_EXTENDED)


def _chosen_seconds() -> float | None:
    """Return the limit of the environment variable, or None."""
    try:
        return max(1.0, float(os.environ.get(_VARIABLE, "")))
    except ValueError:
        return None


def timed_out() -> str:
    """Return the clause for code that reached the limit of ``load_seconds``, with the way to raise it."""
    limit = _chosen_seconds()
    text = f"{limit:g} s" if limit else f"{_LOAD_SECONDS:g} s of a free machine"
    return f"no end within {text} ({_VARIABLE} sets another limit)"


@contextlib.contextmanager
def loading_limited(folder: Path, worker: str) -> Iterator[None]:
    """Limit the time in which a worker imports a vendor's module, and keep its stacks and output if it dies.

    pytest is not configured yet. This is the time before the watchdog of the worker exists.
    """
    with stacks_path(folder, worker).open("w") as stacks, output_kept(output_path(folder, worker)):
        faulthandler.enable(stacks)
        # A thread in C, which also ends code that holds the GIL.
        faulthandler.dump_traceback_later(load_seconds(), exit=True, file=stacks)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.disable()


def how_it_ended(stacks: str, status: int | None) -> str:
    """Return a clause on how a process died, from its stacks and its exit status (negative: a signal)."""
    fatal = fatal_error(stacks)
    if status is not None and status < 0:
        return f"the process was killed by {_signal_name(-status)}" + (f" ({fatal})" if fatal else "")
    if fatal:
        return f"the process died: {fatal}"
    return f"the process ended with exit status {status}" if status is not None else "the process ended"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # real-time signals have no names


def evidence(stacks: str, output: str) -> str:
    """Return the stacks and the last lines of the output, each under its heading, or an empty string."""
    lines = [line for line in output.splitlines() if line.strip()][-_MOST_LINES:]
    # faulthandler's list of extension modules is long and says nothing about the death.
    frames = [line for line in readable(stacks).splitlines() if not line.startswith("Extension modules:")]
    parts = (("stacks:", frames), ("last lines of its output:", lines))
    return "".join(f"\n  {heading}" + "".join(f"\n    {line}" for line in body) for heading, body in parts if body)


def output_path(folder: Path, worker: str) -> Path:
    """Return the file for the output of a worker that loads its accelerator, in a report folder."""
    return folder / "stacks" / f"{worker}.output.txt"


def last_said(folder: Path) -> str:
    """Return the last line that a worker has printed while it loads its accelerator, shortened, or an empty string."""
    texts = (read_text(path) for path in sorted(folder.glob("stacks/*.output.txt")))
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return lines[-1][:_MOST_SAID] if lines else ""


class _Stream:
    """Stream that writes to another one, which can be exchanged.

    A logging handler that a vendor's module makes holds the stream for the life of the process, longer than the file.
    """

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


@contextlib.contextmanager
def output_kept(path: Path) -> Iterator[None]:
    """Direct the output of this process into a file, where it survives the death of the process."""
    saved = os.dup(1), os.dup(2)
    outer = sys.stdout, sys.stderr
    with path.open("w", buffering=1, errors="replace") as file:
        inner = _Stream(file), _Stream(file)
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = inner
        try:
            yield
        finally:
            sys.stdout, sys.stderr = outer
            for stream, own in zip(inner, outer, strict=True):
                stream.target = own
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def read_text(path: Path) -> str:
    """Return the text of a file that a dead process may have left, or an empty string."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
