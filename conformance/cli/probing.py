"""Probe that loads an accelerator in a separate process, so that a crash or a hang of vendor software is a result.

:func:`main` runs in that process and prints one marked line of JSON.
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

# Vendor libraries may print to standard output too; this prefix marks the line with the answer.
_MARK: Final = "conformance-probe: "
#: Characters of a message that are kept.
_MAX_OUTPUT: Final = 4_000


class LoadResult(Enum):
    """Result of loading an accelerator."""

    USABLE = "usable"
    NO_DEVICE = "no device"
    UNKNOWN = "unknown"
    ABSENT = "absent"
    BROKEN = "broken"
    CRASHED = "crashed"
    HUNG = "hung"


@dataclass(frozen=True)
class Probe:
    """Result of loading one accelerator, with a sentence for the user."""

    name: str
    result: LoadResult
    text: str


def probe(name: str, time_limit: float) -> Probe:
    """Load the accelerator in a new process, which is killed after ``time_limit`` seconds, and return the result."""
    program = "from conformance.cli.probing import main; main()"
    return read_answer(name, *run_limited(child_python(program, name), time_limit))


def run_limited(command: list[str], time_limit: float, *, autoload: str = "0") -> tuple[int | None, str, str]:
    """Run a command and return its exit status, standard output and standard error.

    After ``time_limit`` seconds its whole process group is killed; the status is then None. ``autoload`` is "1" if
    torch may load vendor packages when it is imported.
    """
    # The command is this interpreter with our own module; only the accelerator's name comes from the user.
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        # Without autoload, a broken vendor package cannot make `import torch` fail.
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
    )
    try:
        output, errors = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return None, "", ""
    return process.returncode, output, errors


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the probe with all processes of its group, and give up waiting for its pipes after 5 s."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    # A grandchild in another session survives and may hold the pipes open; do not wait for it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)


def read_answer(name: str, status: int | None, output: str, errors: str) -> Probe:
    """Return the answer that a probe's process printed, or describe how the process ended."""
    if status is None:
        return Probe(name, LoadResult.HUNG, "loading it timed out")
    if status < 0:
        return Probe(name, LoadResult.CRASHED, f"loading it ended the process with {_signal_name(-status)}")
    marked = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    if not marked:
        last = (errors.strip().splitlines() or ["no message"])[-1][:_MAX_OUTPUT]
        return Probe(name, LoadResult.CRASHED, f"loading it ended the process with status {status}: {last}")
    answer = json.loads(marked[-1])
    return Probe(name, LoadResult(answer["result"]), answer["text"])


def _signal_name(number: int) -> str:
    """Return the signal's name, or its number where Python knows no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def load_here(name: str) -> dict[str, Any]:
    """Load the accelerator in this process, and return the answer for the parent process."""
    from conformance.accelerators.registry import resolve

    try:
        spec = resolve(name)
        spec.preflight()
    except UsageError as error:
        # The parent prints this text as its error, so line breaks stay.
        return {"result": LoadResult.UNKNOWN.value, "text": str(error)}
    except ConformanceError as error:
        return _answer(LoadResult.ABSENT, str(error))
    try:
        return _devices(spec.load())
    except ConformanceError as error:
        return _answer(LoadResult.BROKEN, str(error))
    except Exception as error:  # noqa: BLE001 - doctor reports every error of a vendor's software
        return _answer(LoadResult.BROKEN, f"{type(error).__name__}: {error}")


def _devices(accelerator: Any) -> dict[str, Any]:
    """Return the answer about the devices of an accelerator that loads."""
    count = accelerator.device_count()
    # isinstance first: a broken backend may return anything.
    if not isinstance(count, int) or count < 1:
        return _answer(LoadResult.NO_DEVICE, f"it loads, but finds no device (device_count() is {count!r})")
    return _answer(LoadResult.USABLE, f"{count} device{'s' if count > 1 else ''}, {accelerator.device_name()}")


def _answer(result: LoadResult, text: str) -> dict[str, Any]:
    return {"result": result.value, "text": " ".join(text.split())[:_MAX_OUTPUT]}


def main() -> None:
    """Run the probe of the accelerator that the first argument names, and print the answer."""
    print("\n" + _MARK + json.dumps(load_here(sys.argv[1])), flush=True)
