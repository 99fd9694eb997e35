"""Runs PyTorch's own test files in processes of their own, and compares the results with what an export hides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conformance.base.errors import UsageError
from conformance.process.machine import slowdown
from conformance.process.python import child_python
from conformance.reports.junit_import import IMPORTED
from conformance.reports.model import CaseRecord
from conformance.reports.plain_text import one_line
from conformance.reports.redaction import message
from conformance.reports.verdict import Outcome, Reason

from .export import Plan
from .series import series_of

#: Seconds until a file has been imported and its tests are made: op_db has thousands.
_IMPORT_SECONDS = 300.0
_POLL_SECONDS = 0.05
#: PyTorch judges these rows, so they count in no percentage of ours.
_ABOUT = "pytorch"
_REASONS: Final = {
    "pass": (Outcome.PASS, Reason.NATIVE),
    "skip": (Outcome.SKIP, Reason.ENVIRONMENT),
    "fail": (Outcome.FAIL, Reason.WRONG),
    "error": (Outcome.FAIL, Reason.RAISED),
    "crash": (Outcome.FAIL, Reason.CRASH),
    "hang": (Outcome.FAIL, Reason.HANG),
}


@dataclass(frozen=True)
class Test:
    """A test of PyTorch for the device: its operator, and whether the exported base hides it."""

    name: str
    operator: str | None
    dtypes: tuple[str, ...]
    hidden: bool = False


@dataclass(frozen=True)
class Result:
    """The end of one test."""

    outcome: str
    message: str = ""
    seconds: float = 0.0


@dataclass
class FileRun:
    """What one file gave. ``broken`` is why it could not be imported; then it has no tests."""

    file: str
    tests: dict[str, Test] = field(default_factory=dict)
    predicted: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    results: dict[str, Result] = field(default_factory=dict)
    broken: str = ""


@dataclass(frozen=True)
class Setting:
    """What all files of a run share. ``exported`` and ``bare`` are files with a base that hides, and hides nothing."""

    accelerator: str
    device_type: str
    exported: Path
    bare: Path
    plan: Plan
    patience: float = 60.0
    parts: tuple[str, ...] = ()


def check_checkout(folder: Path) -> None:
    """Raise UsageError unless the folder is a checkout of the installed series of PyTorch."""
    import torch

    version = folder / "version.txt"
    if not (folder / "test").is_dir() or not version.is_file():
        raise UsageError(
            f"{folder} is no checkout of PyTorch: it lacks test/ or version.txt. "
            "Get one: git clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch"
        )
    found, installed = series_of(version.read_text(encoding="utf-8").strip()), series_of(torch.__version__)
    if found != installed:
        raise UsageError(
            f"{folder} is a checkout of torch {one_line(found, 20)}, and torch {torch.__version__} is installed: "
            f"its tests need what that torch has. Check out the branch release/{installed}."
        )


def find_files(checkout: Path, names: Sequence[str]) -> list[Path]:
    """Return the test files; raise UsageError for one that the checkout lacks."""
    found = []
    for name in names:
        places = [checkout / "test" / name, checkout / name, Path(name)]
        file = next((place for place in places if place.is_file() and place.suffix == ".py"), None)
        if file is None:
            raise UsageError(
                f"{checkout} has no test file {name}. Name one as in its folder test/: test_unary_ufuncs.py."
            )
        found.append(file.absolute())
    return found


def run_file(file: Path, setting: Setting) -> FileRun:
    """Run the tests of one file with the base that hides nothing, and tell which of them the exported base hides."""
    run = FileRun(file.name)
    try:
        bare, exported = _listed(file, setting, setting.bare), _listed(file, setting, setting.exported)
    except _BrokenFile as error:
        run.broken = str(error)
        return run
    run.tests = {name: test for name, test in bare.items() if not setting.parts or _is_chosen(name, setting.parts)}
    for name, test in run.tests.items():
        if _predicted(test, setting):
            run.predicted.add(name)
        if name not in exported or exported[name].hidden:
            run.hidden.add(name)
    run.results = _ended(file, setting, list(run.tests))
    return run


def _is_chosen(name: str, parts: Collection[str]) -> bool:
    return any(part in name for part in parts)


def _predicted(test: Test, setting: Setting) -> bool:
    """Return whether the plan says that a test is hidden."""
    # PyTorch makes TestSparseSIM of TestSparse. TestSparseCSRSIM is of another class.
    generic = test.name.partition(".")[0].removesuffix(setting.device_type.upper())
    return setting.plan.hides(test.operator, test.dtypes) or generic in setting.plan.exclusions


class _BrokenFile(Exception):
    """A test file that cannot be imported; the message says why."""


def _listed(file: Path, setting: Setting, base: Path) -> dict[str, Test]:
    events = list(_events(file, setting, base, None))
    broken = next((event["message"] for event in events if event["event"] == "broken"), None)
    if broken is not None:
        raise _BrokenFile(one_line(broken, 400))
    if not any(event["event"] == "done" for event in events):
        death = next((event["message"] for event in events if event["event"] == "died"), "it did not end")
        raise _BrokenFile(f"its import did not complete: {death}")
    return {
        event["name"]: Test(event["name"], event["operator"], tuple(event["dtypes"]), event["hidden"])
        for event in events
        if event["event"] == "listed"
    }


def _ended(file: Path, setting: Setting, names: list[str]) -> dict[str, Result]:
    """Run the tests until each has an end. After a death, another process goes on behind the test that died."""
    results: dict[str, Result] = {}
    while left := [name for name in names if name not in results]:
        running = ""
        for event in _events(file, setting, setting.bare, left):
            if event["event"] == "begin":
                running = event["name"]
            elif event["event"] == "end":
                results[event["name"]] = Result(event["outcome"], event["message"], event["seconds"])
                running = ""
            elif event["event"] == "died" and running:
                results[running] = Result(event["outcome"], event["message"])
        if len(left) == len([name for name in names if name not in results]):
            # No test began: whatever is left cannot be run.
            results.update({name: Result("crash", "its process ended before a test began") for name in left})
    return results


def _events(file: Path, setting: Setting, base: Path, names: list[str] | None) -> Iterator[dict[str, Any]]:
    """Yield what a worker writes, and at its end how it died if it did not end by itself."""
    with tempfile.TemporaryDirectory(prefix="conformance-upstream-") as name:
        folder = Path(name)
        results, chosen, output = folder / "results.jsonl", folder / "names", folder / "output"
        results.touch()
        arguments = [setting.accelerator, str(file), str(results)]
        if names is not None:
            chosen.write_text("\n".join(names), encoding="utf-8")
            arguments.append(str(chosen))
        program = "import sys; from conformance.upstream.worker import main; sys.exit(main(sys.argv[1:]))"
        with output.open("wb") as written:
            # This interpreter and our own program; only names and paths come from the user.
            process = subprocess.Popen(  # noqa: S603
                child_python(program, *arguments),
                env=_environment(setting, base),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            yield from _followed(process, results, setting.patience if names is not None else _IMPORT_SECONDS, output)


def _environment(setting: Setting, base: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TORCH_TEST_DEVICES": str(base),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": setting.device_type,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        # Its four lines would stand in the place of the error.
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
    }


def _followed(
    process: subprocess.Popen[bytes], results: Path, patience: float, output: Path
) -> Iterator[dict[str, Any]]:
    """Yield each line of the results as it comes; end the process if nothing comes for too long."""
    heard, begun, finished = time.monotonic(), False, False
    try:
        with results.open(encoding="utf-8") as lines:
            rest = ""
            while True:
                ended = process.poll() is not None
                rest += lines.read()
                *whole, rest = rest.split("\n")
                for line in whole:
                    event = json.loads(line)
                    heard, begun, finished = time.monotonic(), True, event["event"] in ("done", "broken")
                    yield event
                if ended:
                    break
                limit = (patience if begun else _IMPORT_SECONDS) * slowdown()
                if time.monotonic() - heard > limit:
                    yield {"event": "died", "outcome": "hang", "message": f"no end within {limit:.0f} s"}
                    return
                time.sleep(_POLL_SECONDS)
        if not finished:
            yield {"event": "died", "outcome": "crash", "message": _death(process.returncode, output)}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _death(status: int, output: Path) -> str:
    """Return how a process ended, with the end of its output."""
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    tail = output.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    return f"the process ended with {how}" + (f": {one_line(tail[-1], 300)}" if tail else "")


def lists(runs: Sequence[FileRun]) -> dict[str, list[str]]:
    """Return the tests in three lists: hidden though they pass, not hidden though they fail, and the others."""
    found: dict[str, list[str]] = {"hidden and pass": [], "not hidden and fail": [], "agree": []}
    for run in runs:
        for name, result in run.results.items():
            hidden, test = name in run.hidden, f"{run.file}::{name}"
            if hidden and result.outcome == "pass":
                found["hidden and pass"].append(test)
            elif not hidden and _REASONS[result.outcome][0] is Outcome.FAIL:
                found["not hidden and fail"].append(test)
            else:
                found["agree"].append(test)
    return found


def area_of(file: str) -> str:
    """Return the area of the rows of one file."""
    return f"{IMPORTED}.upstream.{Path(file).stem}"


def records(runs: Sequence[FileRun]) -> Iterator[CaseRecord]:
    """Yield a foreign row for each test, and for each file that cannot be imported."""
    for run in runs:
        area = area_of(run.file)
        if run.broken:
            yield _record(area, "import", Result("error", run.broken))
        for name, result in run.results.items():
            yield _record(area, name, result)


def _record(area: str, name: str, result: Result) -> CaseRecord:
    outcome, reason = _REASONS[result.outcome]
    return CaseRecord(
        id=f"{area}.{one_line(name, 200)}",
        area=area,
        tier=IMPORTED,
        about=_ABOUT,
        outcome=outcome,
        reason=reason,
        message=message(result.message),
        seconds=result.seconds,
    )
