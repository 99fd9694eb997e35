"""Runs bundled cases in this process: on the simulated accelerator, judged as the plugin does, and on stand-ins."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.claims import Element, declaration_of
from conformance.accelerators.registry import resolve
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks, Refused
from conformance.judging.observation import observe_body
from conformance.judging.verdicts import gate, judge, judge_death
from conformance.plan.bundled import BundledCase, bundled_cases, family_of
from conformance.plan.case import Case, Tier, seed_of
from conformance.plan.run_options import Strictness
from conformance.plan.selection import matches
from conformance.process.state import ProcessState, seed_everything
from conformance.reports.standard import standard_families
from conformance.reports.verdict import Outcome, Reason, Verdict, failed, passed, skipped
from conformance.reports.waivers.file import read_waivers
from conformance.reports.waivers.model import Waiver
from conformance.runner.case_runner import HealthCheck
from conformance.runner.refused_calls import attributed

from .mutant import Mutant, StandIn

#: Known failures of the simulated accelerator.
WAIVERS = Path(__file__).resolve().parents[2] / "accelerators" / "waivers" / "sim.toml"


@functools.cache
def plan(area: str) -> dict[str, BundledCase]:
    """The cases of one area by id, in the order in which the plugin runs them: file order."""
    return {entry.case.id: entry for entry in bundled_cases([area])}


@functools.cache
def deep_plan() -> dict[str, BundledCase]:
    """The cases of the deep tier by id."""
    return {entry.case.id: entry for entry in bundled_cases(deep=True) if entry.case.tier is Tier.DEEP}


def area_of(pattern: str) -> str:
    """The area of a case id or a pattern of ids, which names its area in full."""
    return pattern.split(".", 1)[0]


@functools.cache
def red_when_healthy() -> tuple[Waiver, ...]:
    """The waivers of the simulated accelerator: what these cases find is a bug of PyTorch itself, and no defect."""
    return tuple(read_waivers(WAIVERS))


def select(patterns: Iterable[str]) -> list[str]:
    """The ids that any of the patterns names, in plan order and once each, without those that are red when healthy."""
    chosen = list(patterns)
    areas = sorted({area_of(pattern) for pattern in chosen})
    return [
        id
        for area in areas
        for id in plan(area)
        if any(matches(pattern, id) for pattern in chosen if area_of(pattern) == area)
        and not any(waiver.covers(id) for waiver in red_when_healthy())
    ]


def planned(case_id: str) -> BundledCase:
    usual = plan(area_of(case_id))
    return usual[case_id] if case_id in usual else deep_plan()[case_id]


def on_ranks(case_id: str) -> bool:
    """Whether the case runs on ranks, for which a whole run is needed."""
    return planned(case_id).case.world_size is not None


class _Options:
    """What a body asks pytest's configuration for."""

    def __init__(self, accelerator: str) -> None:
        self._accelerator = accelerator

    def getoption(self, name: str) -> str:
        assert name == "--accelerator", name
        return self._accelerator


def _end_of(
    entry: BundledCase, context: Callable[[], AbstractContextManager[Any]], **given: Any
) -> BaseException | None:
    """Run a case's body with the fixtures that it names, inside ``context``; return what it raised."""
    state = ProcessState.take()
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        offered = {
            **given,
            "case": entry.case,
            "monkeypatch": monkeypatch,
            "tmp_path": Path(folder),
            **dict(entry.case.axes),
        }
        seed_everything(seed_of(entry.case.id), given["accelerator"])
        try:
            with context():
                entry.function(**{name: offered[name] for name in inspect.signature(entry.function).parameters})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return error
        finally:
            state.give_back()
    return None


class Bench:
    """An accelerator of this process, the simulated one unless another is named, and what is claimed of it."""

    def __init__(
        self, claims: Iterable[Element] = (), strictness: Strictness = Strictness.CI, accelerator: str = "sim"
    ) -> None:
        self._name = accelerator
        self.accelerator, declared = loaded(accelerator)
        self.declaration = declared.overridden_by(declaration_of(claims))
        self.strictness = strictness
        self.device = torch.empty(0, device=self.accelerator.current_device_name()).device
        self._health_check = HealthCheck(self.accelerator, self.device)

    def run(self, case_id: str, *, standard: bool = False) -> Verdict:
        """Return the verdict that the plugin would give; with ``standard``, in a run of this profile."""
        entry = planned(case_id)
        early = gate(entry.case, self.declaration, self.strictness)
        if early:
            return early
        checker = Checker()
        checker.families = standard_families(case_id) if standard else None
        given = {"accelerator": self.accelerator, "device": self.device, "declaration": self.declaration}
        error = _end_of(entry, nullcontext, **given, check=checker, pytestconfig=_Options(self._name))
        seen = observe_body(error, checker, self.accelerator, generated=_is_generated(entry))
        verdict = judge(entry.case, self.declaration, seen, self.strictness)
        again = functools.partial(self._again, entry, given)
        verdict = attributed(verdict, seen, entry.case, self.declaration, self.strictness, again, self.device)
        return self._after_health_check(entry.case, replace(verdict, metrics={**verdict.metrics, **checker.metrics}))

    def _again(self, entry: BundledCase, given: dict[str, Any]) -> None:
        options = _Options(self._name)
        if (error := _end_of(entry, nullcontext, **given, check=Checker(), pytestconfig=options)) is not None:
            raise error

    def _after_health_check(self, case: Case, verdict: Verdict) -> Verdict:
        complaint = self._health_check.complaint() if self._health_check.active else None
        if complaint is None:
            return verdict
        state = self.declaration.claim(case.requires[0]).state if case.adaptive else None
        return judge_death(state, Reason.POISONED, f"the device is unusable: {complaint}", self.strictness)


class StandInBench:
    """A stand-in in the accelerator's place. It claims nothing, so only the end of a body is judged."""

    def __init__(self, stand_in: StandIn, mutant: Mutant | None = None) -> None:
        self._stand_in = stand_in
        self._make = (mutant.broken if mutant else None) or stand_in.make
        self._context = (mutant.fault.context if mutant else None) or stand_in.context

    def run(self, case_id: str) -> Verdict:
        """Return a failure for an assertion or an error, and a skip for a refusal or a lack of the machine."""
        entry, accelerator, checker = planned(case_id), self._make(), Checker()
        given = {"accelerator": accelerator, "device": torch.device("cpu"), "declaration": self._stand_in.declared()}
        with accelerator if isinstance(accelerator, TorchDispatchMode) else nullcontext():
            error = _end_of(entry, self._context, **given, check=checker, pytestconfig=_Options("cpu"))
        if error is None and _is_generated(entry) and not checker.count:
            return failed(Reason.WRONG, "the case compared nothing")
        return _verdict_of(error)


def _verdict_of(error: BaseException | None) -> Verdict:
    if error is None:
        return passed()
    if isinstance(error, Refused):
        return skipped(Reason.UNSUPPORTED, str(error))
    if isinstance(error, (EnvironmentLacks, torch.OutOfMemoryError, pytest.skip.Exception)):
        return skipped(Reason.ENVIRONMENT, str(error))
    return failed(Reason.WRONG if isinstance(error, AssertionError) else Reason.RAISED, str(error))


@functools.cache
def loaded(accelerator: str = "sim") -> tuple[Any, Any]:
    """The live accelerator and its declaration."""
    subject = resolve(accelerator)
    live = subject.load()
    return live, subject.declaration(live)


def _is_generated(entry: BundledCase) -> bool:
    family = family_of(entry.function)
    return family is not None and family.generated


def is_red(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.FAIL


def function_of(case_id: str) -> str:
    """The check that a case belongs to: all values of its axes are one check."""
    return case_id.split("[", 1)[0]


def functions_of(case_ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(function_of, case_ids)))
