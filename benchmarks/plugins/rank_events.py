"""A pytest plugin that notes when a case on ranks passes from hand to hand: ``-p rank_events``. It changes nothing.

The same module, imported by the file with the cases, notes the stages of rank 0 there; the body sends them along as a
metric. Both use the machine's monotonic clock. The events go to the file that RANK_EVENTS_FILE names, as JSON: pairs
of seconds and name, a list for each case.
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
    _events.append((time.monotonic(), name))


def watch_stages() -> None:
    """On a rank: note each stage of its ledger from now on."""
    from conformance.ranks.collective_recorder import CollectiveRecorder

    plain = CollectiveRecorder.stage

    def stage(self: CollectiveRecorder, name: str) -> None:
        _on_rank.append((time.monotonic(), f"rank: {name}"))
        plain(self, name)

    CollectiveRecorder.stage = stage  # type: ignore[method-assign]


def stages() -> str:
    """What was noted since the last call, for a metric."""
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
    from conformance.ranks import execution as round
    from conformance.ranks import pool

    pool.Pool.run = _noted(pool.Pool.run, "pool")  # type: ignore[method-assign]
    evidence = round.Execution._outcomes

    def noted(self: round.Execution) -> Any:
        note("all done")
        found = evidence(self)
        _events.extend((one.end.at, "rank: body returned") for one in found[:1] if one.end)
        return found

    round.Execution.follow = _noted(round.Execution.follow, "round")  # type: ignore[method-assign]
    round.Execution._outcomes = noted  # type: ignore[method-assign]


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
