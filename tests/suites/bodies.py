"""Runs the body of a bundled case against any object, as the plugin would, in this process."""

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
    """What a body asks pytest's configuration for."""

    def getoption(self, name: str) -> str:
        assert name == "--accelerator"
        return "cpu"


@functools.cache
def planned() -> dict[str, BundledCase]:
    return {one.case.id: one for one in bundled_cases(AREAS)}


@functools.cache
def cpu_declaration() -> Declaration:
    return resolve("cpu").static_declaration


def run_body(case_id: str, accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the body of one case with what it asks for; its exception, if any, comes out."""
    one = planned()[case_id]
    offered = {
        "accelerator": accelerator,
        "device": torch.device("cpu"),
        "declaration": cpu_declaration(),
        "case": one.case,
        "check": Checker(),
        "monkeypatch": monkeypatch,
        "pytestconfig": Options(),
        **dict(one.case.axes),
    }
    torch.manual_seed(seed_of(case_id))
    state = ProcessState.take()
    try:
        one.function(**{name: offered[name] for name in inspect.signature(one.function).parameters})
    finally:
        state.give_back()
