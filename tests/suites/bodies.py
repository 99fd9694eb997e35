"""Runner of case bodies: calls a bundled case with any accelerator object, in this process."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch

from conformance.accelerators.declaration import Declaration
from conformance.accelerators.registry import resolve
from conformance.case import seed_of
from conformance.checker import Checker
from conformance.plan import BundledCase, bundled_cases
from conformance.process.state import ProcessState

AREAS = ("accelerator", "capabilities", "profiling", "ulysses_alst", "utils")


class Options:
    """Stand-in for pytest's configuration, with the one option that bodies read."""

    def getoption(self, name: str) -> str:
        assert name == "--accelerator"
        return "cpu"


@functools.cache
def planned() -> dict[str, BundledCase]:
    return {planned_case.case.id: planned_case for planned_case in bundled_cases(AREAS)}


@functools.cache
def cpu_declaration() -> Declaration:
    return resolve("cpu").static_declaration


def run_body(case_id: str, accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the body of a case with the fixtures it asks for; an exception of the body is not caught."""
    planned_case = planned()[case_id]
    offered = {
        "accelerator": accelerator,
        "device": torch.device("cpu"),
        "declaration": cpu_declaration(),
        "case": planned_case.case,
        "check": Checker(),
        "monkeypatch": monkeypatch,
        "pytestconfig": Options(),
        **dict(planned_case.case.axes),
    }
    torch.manual_seed(seed_of(case_id))
    state = ProcessState.take()
    try:
        planned_case.function(**{name: offered[name] for name in inspect.signature(planned_case.function).parameters})
    finally:
        state.give_back()
