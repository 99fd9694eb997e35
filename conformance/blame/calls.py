"""Calls of a model at their real sizes, recorded without numbers on the meta device, and files of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch

from conformance.base.errors import UsageError
from conformance.numerics.trees import mapped
from conformance.suites.calls.spec import Spec

from .memory import Place
from .recording import Recorder, Step, is_drawn

VERSION: Final = 1


def recorded(function: Any, inside: AbstractContextManager[Any] | None = None) -> list[Spec]:
    """Run a function on the meta device, which computes nothing, and return its calls, each once.

    ``inside`` is a mode that gets each call after it was recorded.
    """
    device = torch.device("meta")
    with torch.device(device), inside or nullcontext(), Recorder("meta") as recorder:
        function(device)
    return unique(recorder.trace.steps)


def unique(steps: Iterable[Step]) -> list[Spec]:
    """Return the calls of a run without their numbers; equal ones once, with their count."""
    counts: dict[str, int] = {}
    for step in steps:
        if step.is_view or step.meeting is not None or step.function.namespace != "aten" or is_drawn(step):
            continue
        try:
            text = json.dumps([step.name, *mapped([list(step.args), step.kwargs], _written)], sort_keys=True)
        except TypeError:
            continue  # an argument such as a generator
        counts[text] = counts.get(text, 0) + 1
    found = ((json.loads(text), count) for text, count in counts.items())
    return [Spec(name, args, kwargs, count) for (name, args, kwargs), count in found]


def _written(leaf: Any) -> Any:
    if isinstance(leaf, Place):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return {"size": list(leaf.size), "stride": list(leaf.stride), "dtype": dtype}
    if isinstance(leaf, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(leaf).removeprefix("torch.")}
    if isinstance(leaf, torch.device):
        return {"device": ""}
    if isinstance(leaf, torch.Size):
        return list(leaf)
    return leaf


def write(path: Path, calls: Iterable[Spec]) -> None:
    """Write calls as JSON."""
    rows = [[one.function, one.args, one.kwargs, one.count] for one in calls]
    document = {"version": VERSION, "torch": torch.__version__, "calls": rows}
    path.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def read(path: Path) -> list[Spec]:
    """Return the calls in a file. Raises UsageError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise UsageError(f"{path} has version {document['version']}; this suite reads {VERSION}. Write it again.")
        return [Spec(*row) for row in document["calls"]]
    except FileNotFoundError:
        raise UsageError(f"there is no {path}. To write one: conformance trace FILE.py:FUNCTION -o {path}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} has no calls: {error}. To write it: conformance trace FILE.py:FUNCTION") from None
