"""Pytest plugin that records the phases of a case on ranks: ``-p rank_events``. It changes nothing.

The file with the cases imports this module too; on rank 0 it then records the rank's stages, which the body reports as
a metric. Both processes use the machine's monotonic clock. The environment variable RANK_EVENTS_FILE names the JSON
file of the events: pairs of seconds and name.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

Event = tuple[float, str]

_events: list[Event] = []
_on_rank: list[Event] = []


def note(name: str) -> None:
    """Record an event of this process with the current time."""
    _events.append((time.monotonic(), name))


def watch_stages() -> None:
    """Record each stage of the collective recorder from now on; call it on a rank."""
    from conformance.ranks.collective_recorder import CollectiveRecorder

    plain = CollectiveRecorder.stage

    def stage(self: CollectiveRecorder, name: str) -> None:
        _on_rank.append((time.monotonic(), f"rank: {name}"))
        plain(self, name)

    CollectiveRecorder.stage = stage  # type: ignore[method-assign]


def stages() -> str:
    """Return the events since the last call as JSON, for a metric."""
    text = json.dumps(_on_rank)
    _on_rank.clear()
    return text


def _noted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        note(f"{name} begins")
        try:
            return function(*args, **kwargs)
        finally:
            note(f"{name} ends")

    return call


def pytest_configure() -> None:
    from conformance.ranks.execution import Execution
    from conformance.ranks.pool import Pool

    Pool.run = _noted(Pool.run, "pool")  # type: ignore[method-assign]
    plain = Execution._outcomes

    def noted(self: Execution) -> Any:
        note("all done")
        outcomes = plain(self)
        _events.extend((outcome.end.at, "rank: body returned") for outcome in outcomes[:1] if outcome.end)
        return outcomes

    Execution.follow = _noted(Execution.follow, "execution")  # type: ignore[method-assign]
    Execution._outcomes = noted  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    note("case begins")
    try:
        return (yield)
    finally:
        note("case ends")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    from conformance.runner.case_runner import CHECKER

    found = yield
    checker = pyfuncitem.stash.get(CHECKER, None)
    if checker:
        _events.extend((at, name) for at, name in json.loads(str(checker.metrics.get("stages", "[]"))))
    return found


def pytest_unconfigure() -> None:
    if _events:
        Path(os.environ["RANK_EVENTS_FILE"]).write_text(json.dumps(_events), encoding="utf-8")
