"""Process that runs PyTorch's own tests of one file. It writes each begin and each end, so that a death has a place.

    python -m conformance.upstream.worker ACCELERATOR TEST_FILE RESULTS [NAMES]

RESULTS gets JSON, one object a line. NAMES is a file with the tests to run, one a line; without it the tests are only
listed. The base class of the device comes from TORCH_TEST_DEVICES.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .export import MARKER

_MOST_TEXT = 2000


def main(arguments: list[str]) -> int:
    """List or run the tests."""
    accelerator, file, results = arguments[0], Path(arguments[1]), Path(arguments[2])
    names = Path(arguments[3]).read_text(encoding="utf-8").split("\n") if len(arguments) > 3 else None
    with results.open("a", encoding="utf-8") as out:

        def tell(**fields: Any) -> None:
            out.write(json.dumps(fields) + "\n")
            out.flush()

        try:
            tests = dict(_tests(accelerator, file))
        except BaseException as error:  # noqa: BLE001 - a test file may exit, too
            tell(event="broken", message=f"{type(error).__name__}: {error}"[:_MOST_TEXT])
            return 1
        if names is None:
            for name, test in tests.items():
                tell(event="listed", name=name, **_facts(test))
            tell(event="done")
            return 0
        for name in names:
            if name in tests:
                tell(event="begin", name=name)
                tell(event="end", name=name, **_run(tests[name]))
        tell(event="done")
    # Threads of a test file may not end by themselves.
    sys.stdout.flush()
    os._exit(0)


def _tests(accelerator: str, file: Path) -> Iterator[tuple[str, unittest.TestCase]]:
    """Yield the tests of the file that are made for the device, by class and name."""
    from conformance.accelerators.registry import resolve

    resolve(accelerator).load()
    # Imported after the device exists: PyTorch collects the base classes once.
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    sys.argv = [str(file)]
    sys.path[:0] = [str(file.parent), *(str(folder) for folder in file.parents if folder.name == "test")]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    for test in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
        if isinstance(test, DeviceTypeTestBase):
            yield f"{type(test).__name__}.{test._testMethodName}", test


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _facts(test: unittest.TestCase) -> dict[str, Any]:
    """Return the operator and the dtypes of a test, and whether the exported base skips it."""
    method = getattr(type(test), test._testMethodName)
    given = next(iter(method.__defaults__ or ()), None) or {}
    operator = given.get("op") if isinstance(given, dict) else None
    dtypes = given.get("dtypes") or (given.get("dtype"),) if isinstance(given, dict) else ()
    return {
        "operator": getattr(operator, "full_name", None),
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype is not None],
        "hidden": str(getattr(method, "__unittest_skip_why__", "")).startswith(MARKER),
    }


def _run(test: unittest.TestCase) -> dict[str, Any]:
    """Return the outcome of one test."""
    result, started = unittest.TestResult(), time.perf_counter()
    suite = unittest.TestSuite([test])  # a suite sets the class up
    try:
        suite.run(result)
    except Exception:  # noqa: BLE001 - a class may raise anything when it is set up
        return _end("error", traceback.format_exc(), started)
    for outcome, found in (("error", result.errors), ("fail", result.failures)):
        if found:
            return _end(outcome, found[0][1], started)
    if result.unexpectedSuccesses:
        return _end("fail", "unexpected success", started)
    if result.skipped:
        return _end("skip", result.skipped[0][1], started)
    return _end("pass", "expected failure" if result.expectedFailures else "", started)


def _end(outcome: str, text: str, started: float) -> dict[str, Any]:
    return {"outcome": outcome, "message": text[-_MOST_TEXT:], "seconds": round(time.perf_counter() - started, 3)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
