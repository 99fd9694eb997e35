"""What PyTorch's own databases reach on the CPU: the measure of the public API.

It depends on torch alone, and takes half a minute. A file in the user's cache folder keeps it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from conformance.base.cache import cache_folder, keep
from conformance.coverage import databases
from conformance.coverage.map import Flags
from conformance.coverage.recording import CallRecorder


def reached() -> tuple[Flags, dict[str, int]]:
    """Return flags by overload and argument, and the number of inputs by derivative rule."""
    file = _cache_path()
    with contextlib.suppress(OSError, ValueError):
        calls, inputs = json.loads(file.read_text(encoding="utf-8"))
        return calls, inputs
    found = _found()
    keep(file, json.dumps(found))
    return found


def _cache_path() -> Path:
    """Return the cache file's path; its name changes with torch and with the code that runs the databases."""
    code = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("databases.py", "flags.py")]
    key = hashlib.sha256("\0".join([str(torch.__version__), *code]).encode()).hexdigest()[:16]
    return cache_folder() / f"databases-{key}.json"


def _found() -> tuple[Flags, dict[str, int]]:
    watch = _Watch()
    databases.run(watch)
    calls = {
        name: {at: sorted(flags) for at, flags in places.items()}
        for name, places in sorted(watch.recorder.calls.items())
        if name.startswith("aten::")
    }
    return calls, dict(sorted(watch.inputs.items()))


class _Watch(databases.Watch):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = CallRecorder("")  # any device
        self.inputs: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.call(func, args, kwargs or {})

    def graph_of(self, outputs: Any, sample: databases.Sample) -> None:  # noqa: ARG002 - the corpus of faults keeps it
        for name, inputs in databases.rules_of(outputs):
            self.inputs[name] = max(inputs, self.inputs.get(name, 0))
