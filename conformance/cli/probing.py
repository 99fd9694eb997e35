"""Loading an accelerator in a process of its own: a vendor stack that crashes or hangs is an answer, not the end.

``main`` runs in that process; it prints one marked line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from conformance.errors import ConformanceError, UsageError
from conformance.process.python import child_python

# Vendor libraries print to standard output as they like; only this line is ours.
_MARK: Final = "conformance-probe: "
_MAX_OUTPUT: Final = 4_000


class Found(Enum):
    """How far an accelerator came."""

    USABLE = "usable"
    NO_DEVICE = "no device"
    UNKNOWN = "unknown"
    ABSENT = "absent"
    BROKEN = "broken"
    CRASHED = "crashed"
    HUNG = "hung"


@dataclass(frozen=True)
class Probe:
    """What became of loading one accelerator, in a sentence."""

    name: str
    found: Found
    text: str


def probe(name: str, time_limit: float) -> Probe:
    """Load the accelerator in a new process, for at most ``time_limit`` seconds."""
    program = "from conformance.cli.probing import main; main()"
    return read_answer(name, *run_limited(child_python(program, name), time_limit))


def run_limited(command: list[str], time_limit: float) -> tuple[int | None, str, str]:
    """Exit status, output and errors; the status is None when time ran out and the process's whole group was killed."""
    # The command is this interpreter with our own module; only the accelerator's name comes from outside.
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    try:
        output, errors = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return None, "", ""
    return process.returncode, output, errors


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    # A grandchild in another session may hold the pipes open: do not wait for it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)


def read_answer(name: str, status: int | None, output: str, errors: str) -> Probe:
    """What a probe's process said, or how it died."""
    if status is None:
        return Probe(name, Found.HUNG, "loading it did not end within the time limit")
    if status < 0:
        return Probe(name, Found.CRASHED, f"loading it ended the process with {_signal_name(-status)}")
    marked = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    if not marked:
        last = (errors.strip().splitlines() or ["no message"])[-1][:_MAX_OUTPUT]
        return Probe(name, Found.CRASHED, f"loading it ended the process with status {status}: {last}")
    answer = json.loads(marked[-1])
    return Probe(name, Found(answer["found"]), answer["text"])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def look(name: str) -> dict[str, Any]:
    """Runs in the probe's process: how far this accelerator comes."""
    from conformance.accelerators.registry import resolve

    try:
        subject = resolve(name)
        subject.preflight()
    except UsageError as error:
        return {"found": Found.UNKNOWN.value, "text": str(error)}
    except ConformanceError as error:
        return _answer(Found.ABSENT, str(error))
    try:
        return _devices(subject.load())
    except ConformanceError as error:
        return _answer(Found.BROKEN, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a vendor's software raises is what doctor is there to tell
        return _answer(Found.BROKEN, f"{type(error).__name__}: {error}")


def _devices(live: Any) -> dict[str, Any]:
    count = live.device_count()
    if not isinstance(count, int) or count < 1:
        return _answer(Found.NO_DEVICE, f"it loads, and sees no device (device_count() is {count!r})")
    return _answer(Found.USABLE, f"{count} device{'s' if count > 1 else ''}, {live.device_name()}")


def _answer(found: Found, text: str) -> dict[str, Any]:
    return {"found": found.value, "text": " ".join(text.split())[:_MAX_OUTPUT]}


def main() -> None:
    """The probe's process; its argument is the accelerator's name."""
    print("\n" + _MARK + json.dumps(look(sys.argv[1])), flush=True)
