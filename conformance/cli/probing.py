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
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from conformance.accelerators import building
from conformance.base.errors import ConformanceError, UsageError
from conformance.process.python import child_python
from conformance.process.time_limits import MOST_BUILD_SECONDS

# Vendor libraries may print to standard output too; this prefix marks the line with the answer.
_MARK: Final = "conformance-probe: "
#: The same for the common process of several probes.
_SERVED: Final = "conformance-served: "
#: Seconds that the common process may take to import torch, from a slow disk as well; and between two looks at forks.
_TORCH_DEADLINE, _POLL = 300.0, 0.02
#: Characters of a message that are kept.
_MAX_OUTPUT: Final = 4_000


class LoadResult(Enum):
    """Result of loading an accelerator."""

    USABLE = "usable"
    NO_DEVICE = "no device"
    NOT_BUILT = "not built"
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


def probe_all(names: Sequence[str], time_limit: float) -> list[Probe]:
    """Load accelerators side by side, each in a process of its own, and return the results in the order of the names.

    The processes are forks of one that has imported torch: importing it for each takes longer than all the rest.
    """
    if not hasattr(os, "fork"):
        return [probe(name, time_limit) for name in names]
    program = "from conformance.cli.probing import serve; serve()"
    most = time_limit + _TORCH_DEADLINE + MOST_BUILD_SECONDS
    _, output, _ = run_limited(child_python(program, str(time_limit), *names), most)
    lines = [line.removeprefix(_SERVED) for line in output.splitlines() if line.startswith(_SERVED)]
    ended = {name: result for name, *result in map(json.loads, lines)}
    # A name without a result: the common process has died, so each gets one that imports torch itself.
    return [read_answer(name, *ended[name]) if name in ended else probe(name, time_limit) for name in names]


def serve() -> None:
    """Fork a probe for each accelerator on the command line, and print one line of JSON for each.

    A line has the name, the exit status (None for a probe that was killed after the time limit), and both outputs.
    """
    with contextlib.suppress(Exception):
        import torch  # noqa: F401 - a probe that needs torch reports how importing it fails
    time_limit, *names = sys.argv[1:]
    if len(names) == 1:
        _build(names[0])
    else:
        building.only_built()  # nobody has asked for one of them
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: (Path(folder, f"{number}.out"), Path(folder, f"{number}.err")) for number, name in enumerate(names)
        }
        running = {_forked(name, *files[name]): name for name in names}
        for pid, status in _ended(running, float(time_limit)):
            name = running[pid]
            outputs = (_end(path.read_text(errors="replace")) for path in files[name])
            print("\n" + _SERVED + json.dumps([name, status, *outputs]), flush=True)


def _end(output: str) -> str:
    """Return the answer that a probe has printed, or the last part of its output if there is none."""
    return next(reversed(_answers(output)), output[-_MAX_OUTPUT:])


def _answers(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(_MARK)]


def _build(name: str) -> None:
    """Compile what a built-in accelerator loads, before the time limit of its probe begins; that reports a failure.

    Another accelerator is left to its probe: importing its module may end the process.
    """
    from conformance.accelerators.registry import module_of, resolve

    with contextlib.suppress(Exception):
        if module_of(name) is None:
            resolve(name).build()


def _forked(name: str, output: Path, errors: Path) -> int:
    """Start a fork that loads the accelerator and writes the answer into the first file; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # its children are killed with it
        for number, path in ((1, output), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        print("\n" + _MARK + json.dumps(load_here(name)), flush=True)
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: a fork must not go on as its parent
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _ended(running: Iterable[int], time_limit: float) -> Iterator[tuple[int, int | None]]:
    """Yield the process id and the exit status of each fork when it ends; None for one that had to be killed."""
    left, deadline = set(running), time.monotonic() + time_limit
    while left:
        late = time.monotonic() > deadline
        for pid in sorted(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and not late:
                continue
            if not ended:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            left.discard(pid)
            yield pid, os.waitstatus_to_exitcode(status) if ended else None
        time.sleep(_POLL)


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
    marked = _answers(output)
    if not marked:
        last = (errors.strip().splitlines() or ["no message"])[-1][:_MAX_OUTPUT]
        return Probe(name, LoadResult.CRASHED, f"loading it ended the process with status {status}: {last}")
    answer = json.loads(marked[-1].removeprefix(_MARK))
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
        answer = _devices(spec.load())
        if answer["result"] == LoadResult.USABLE.value:
            _ = spec.static_declaration  # a run refuses a declaration with an unknown name before its first case
        return answer
    except building.NotBuilt as error:
        return _answer(LoadResult.NOT_BUILT, str(error))
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
    devices = f"{count} device{'s' if count > 1 else ''}"
    if error := _why_no_tensor(accelerator.current_device_name):
        return _answer(LoadResult.BROKEN, f"it finds {devices}, and cannot make a tensor of one number: {error}")
    if count > 1 and (error := _why_no_tensor(lambda: accelerator.device_name(count - 1))):
        return _answer(LoadResult.BROKEN, f"it finds {devices}, and cannot make a tensor on the last one: {error}")
    return _answer(LoadResult.USABLE, f"{devices}, {accelerator.device_name()}")


def _why_no_tensor(device: Callable[[], Any]) -> str:
    """Make a tensor on a device, by its name, and read it back; return the error, or an empty string."""
    try:
        import torch

        found = torch.ones(1, device=str(device())).cpu().tolist()
    except Exception as error:  # noqa: BLE001 - a vendor's software may raise anything
        return f"{type(error).__name__}: {error}"
    return "" if found == [1.0] else f"torch.ones(1) read back is {found}"


def _answer(result: LoadResult, text: str) -> dict[str, Any]:
    return {"result": result.value, "text": " ".join(text.split())[:_MAX_OUTPUT]}


def main() -> None:
    """Run the probe of the accelerator that the first argument names, and print the answer."""
    print("\n" + _MARK + json.dumps(load_here(sys.argv[1])), flush=True)
