"""Runs bundled cases on the simulated accelerator in this process, and judges them as the plugin does."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.claims import Element, declaration_of
from conformance.accelerators.registry import resolve
from conformance.case import Case, seed_of
from conformance.checker import Checker
from conformance.observation import observe_body
from conformance.plan import BundledCase, bundled_cases, family_of
from conformance.process.state import ProcessState, seed_everything
from conformance.reports.verdict import Outcome, Reason, Verdict
from conformance.run_options import Strictness
from conformance.runner.case_runner import HealthCheck
from conformance.selection import matches
from conformance.verdicts import gate, judge, judge_death

AREAS = ("accelerator", "capabilities", "operators", "profiling", "utils", "workloads")


@functools.cache
def plan(area: str) -> dict[str, BundledCase]:
    """The cases of one area by id, in the order in which the plugin runs them: file order."""
    return {one.case.id: one for one in bundled_cases([area])}


def area_of(pattern: str) -> str:
    """The area of a case id or a pattern of ids, which names its area in full."""
    return pattern.split(".", 1)[0]


def select(patterns: Iterable[str]) -> list[str]:
    """The ids that any of the patterns names, in plan order and once each."""
    chosen = list(patterns)
    areas = sorted({area_of(pattern) for pattern in chosen})
    return [
        id
        for area in areas
        for id in plan(area)
        if any(matches(pattern, id) for pattern in chosen if area_of(pattern) == area)
    ]


def planned(case_id: str) -> BundledCase:
    return plan(area_of(case_id))[case_id]


def on_ranks(case_id: str) -> bool:
    """Whether the case runs on ranks, for which a whole run is needed."""
    return planned(case_id).case.world_size is not None


class _Options:
    """What a body asks pytest's configuration for."""

    def getoption(self, name: str) -> str:
        assert name == "--accelerator", name
        return "sim"


class Bench:
    """The accelerator of this process, and what is claimed of it."""

    def __init__(self, claims: Iterable[Element] = (), strictness: Strictness = Strictness.CI) -> None:
        import torch

        self.accelerator, declared = loaded()
        self.declaration = declared.overridden_by(declaration_of(claims))
        self.strictness = strictness
        self.device = torch.empty(0, device=self.accelerator.current_device_name()).device
        self._health_check = HealthCheck(self.accelerator, self.device)

    def run(self, case_id: str) -> Verdict:
        """The verdict that the plugin would give."""
        one = planned(case_id)
        early = gate(one.case, self.declaration)
        if early:
            return early
        checker = Checker()
        error = self._error_of(one, checker)
        seen = observe_body(error, checker, self.accelerator, generated=_is_generated(one))
        verdict = judge(one.case, self.declaration, seen, self.strictness)
        return self._after_health_check(one.case, replace(verdict, metrics={**verdict.metrics, **checker.metrics}))

    def _error_of(self, one: BundledCase, checker: Checker) -> BaseException | None:
        state = ProcessState.take()
        seed_everything(seed_of(one.case.id), self.accelerator)
        with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
            offered = self._fixtures(one.case, checker, monkeypatch, Path(folder))
            try:
                one.function(**{name: offered[name] for name in inspect.signature(one.function).parameters})
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                return error
            finally:
                state.give_back()
        return None

    def _fixtures(self, case: Case, checker: Checker, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
        return {
            "accelerator": self.accelerator,
            "device": self.device,
            "declaration": self.declaration,
            "case": case,
            "check": checker,
            "monkeypatch": monkeypatch,
            "tmp_path": folder,
            "pytestconfig": _Options(),
            **dict(case.axes),
        }

    def _after_health_check(self, case: Case, verdict: Verdict) -> Verdict:
        complaint = self._health_check.complaint() if self._health_check.active else None
        if complaint is None:
            return verdict
        state = self.declaration.claim(case.requires[0]).state if case.adaptive else None
        return judge_death(state, Reason.POISONED, f"the device is unusable: {complaint}", self.strictness)


@functools.cache
def loaded() -> tuple[Any, Any]:
    """The live simulated accelerator and its declaration."""
    subject = resolve("sim")
    live = subject.load()
    return live, subject.declaration(live)


def _is_generated(one: BundledCase) -> bool:
    family = family_of(one.function)
    return family is not None and family.generated


def is_red(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.FAIL


def function_of(case_id: str) -> str:
    """The check that a case belongs to: all values of its axes are one check."""
    return case_id.split("[", 1)[0]


def functions_of(case_ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(function_of, case_ids)))
