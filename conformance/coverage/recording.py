"""Plugin of pytest that records which overloads and derivative rules each case reaches on the device.

``conformance coverage`` loads it with ``-p``. Every process appends lines to a file of its own, one for each case that
adds something, so that a crash loses one case at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.capabilities import COMPILE
from conformance.coverage import backward
from conformance.coverage.flags import flags_of
from conformance.numerics.modes import with_memory
from conformance.plan.case import Case
from conformance.runner.collection import case_of
from conformance.runner.context import UNDER_TEST

#: Environment variable with the folder of the files.
FOLDER = "CONFORMANCE_COVERAGE_FOLDER"
#: Cases that are kept for each overload.
_CASES = 3
#: Flags by overload and argument; "result" is the place of results.
Calls = dict[str, dict[str, set[str]]]


class CallRecorder:
    """Flags of every call on devices of one type; without a type, of every call."""

    def __init__(self, device: str) -> None:
        self._device, self._lock = device, threading.Lock()
        self.calls: Calls = {}

    def mode(self) -> TorchDispatchMode:
        """Return a dispatch mode that records calls."""
        return _Mode(self)

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an overload, and record it if one of its tensors is on the device."""
        args = tuple(map(with_memory, args))
        given = dict(_named(func, args, kwargs))
        # Before the call: an in-place operator changes its argument.
        before = {name: list(flags_of(value)) for name, value in given.items()}
        result = func(*args, **kwargs)
        if not self._device or self._is_there((*given.values(), result)):
            with self._lock:
                places = self.calls.setdefault(func.name(), {})
                for name, flags in (*before.items(), ("result", flags_of(result))):
                    places.setdefault(name, set()).update(flags)
        return result

    def _is_there(self, values: Any) -> bool:
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.device.type == self._device:
                    return True
            elif isinstance(value, (list, tuple)) and self._is_there(value):
                return True
        return False


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.call(func, args, kwargs or {})


def _named(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call by name; what was left out has its default."""
    for place, argument in enumerate(func._schema.arguments):
        yield argument.name, args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)


class CoveragePlugin:
    """Hooks that record the body of each case in this process."""

    def __init__(self, path: Path) -> None:
        self._path, self._recorder = path, CallRecorder("")
        self._known: Calls = {}
        self._cases: dict[str, int] = {}
        self._rules: dict[str, set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Item) -> Generator[None, Any, Any]:
        """Record what the body of a case calls. Ranks are other processes, and compiled code holds no modes."""
        case = case_of(pyfuncitem)
        if case is None or case.world_size is not None or COMPILE.cell in case.requires:
            return (yield)
        device = pyfuncitem.config.stash[UNDER_TEST].device.type
        self._recorder = CallRecorder(device)
        with backward.recording(device) as rules:
            try:
                with self._watched(case):
                    return (yield)
            finally:
                self._write(case.id, rules)

    @contextlib.contextmanager
    def _watched(self, case: Case) -> Iterator[None]:
        """Record an operator's cell inside its calls on the device, and any other case in its whole body."""
        if case.area != "operators":
            with self._recorder.mode():
                yield
            return
        from conformance.suites.operators.calls import execution

        original: tuple[Any, Any] = execution.execute, execution.gradients

        def inside(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                with self._recorder.mode():
                    return function(*args, **kwargs)

            return called

        execution.execute, execution.gradients = map(inside, original)
        try:
            yield
        finally:
            execution.execute, execution.gradients = original

    def _write(self, case: str, rules: dict[str, set[str]]) -> None:
        """Write what this case adds to the earlier cases of this process."""
        new: dict[str, dict[str, list[str]]] = {}
        for overload, places in self._recorder.calls.items():
            known = self._known.setdefault(overload, {})
            added = {at: sorted(flags - known.setdefault(at, set())) for at, flags in places.items()}
            for at, flags in places.items():
                known[at] |= flags
            count = self._cases[overload] = self._cases.get(overload, 0) + 1
            if count <= _CASES or any(added.values()):
                new[overload] = {at: flags for at, flags in added.items() if flags}
        masks = {name: sorted(found - self._rules.setdefault(name, set())) for name, found in rules.items()}
        for name, found in rules.items():
            self._rules[name] |= found
        line = {"case": case, "calls": new, "rules": {name: found for name, found in masks.items() if found}}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Start recording where a folder is given."""
    if folder := os.environ.get(FOLDER):
        config.pluginmanager.register(CoveragePlugin(Path(folder) / f"{os.getpid()}.jsonl"), "conformance-coverage")
