"""Where cases run: the gate before, the watchdog around, the canary after, a journal line at either end."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import pytest

from conformance.accelerators.declaration import Claim, Declaration, State
from conformance.accelerators.interface import MissingMember
from conformance.case import Case, seed_of
from conformance.checker import Checker
from conformance.finding import EnvironmentLacks, Finding, Refused
from conformance.plan import family_of
from conformance.process.state import ProcessState, collect_seldom, seed_everything
from conformance.process.watchdog import Watchdog
from conformance.reports.journal import JournalWriter
from conformance.reports.verdict import Outcome, Reason, Verdict, failed, skipped
from conformance.reports.waivers.model import Waiver
from conformance.runner.collection import case_of
from conformance.runner.context import Settings
from conformance.runner.health_check import Canary
from conformance.runner.repro import repro_of
from conformance.runner.waivers import waive
from conformance.verdicts import Observation, Observed, Seen, claim_of, gate, judge, judge_death

VERDICT = pytest.StashKey[Verdict]()
CHECKER = pytest.StashKey[Checker]()
_LONGEST_MESSAGE = 2000
#: The exit status of a worker that leaves because its device is unusable.
POISONED_EXIT = 70


@dataclass(frozen=True)
class Subject:
    """The accelerator of this process: live object, what it declares, and its device."""

    accelerator: Any
    declaration: Declaration
    device: Any
    #: Those that apply to the device.
    waivers: tuple[Waiver, ...] = ()


SUBJECT = pytest.StashKey[Subject]()


class CaseRunner:
    """Runs cases in this process. Plain tests pass through untouched."""

    def __init__(self, settings: Settings, subject: Subject, journal: JournalWriter, watchdog: Watchdog) -> None:
        self.settings, self.options = settings, settings.options
        self.subject, self.journal, self.watchdog = subject, journal, watchdog
        self.canary = Canary(subject.accelerator, subject.device)
        self._poisoned_by: str | None = None
        self._probing_since: float | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        # The plan lives as long as the process. Cases that look for garbage need not look through it.
        collect_seldom()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        case = case_of(item)
        if self._poisoned_by:
            self._leave(item.session)
        if case is None:
            return (yield)
        started = time.perf_counter()
        self.journal.start(case.id, self._state_of(case))
        self.watchdog.arm(case.deadline)
        try:
            return (yield)
        finally:
            self.watchdog.disarm()
            verdict = item.stash.get(VERDICT, failed(Reason.RAISED, "the case ended without a verdict"))
            self.journal.end(case.id, verdict, time.perf_counter() - started)

    def pytest_enter_pdb(self) -> None:
        self.watchdog.disarm()  # whoever looks at a case with a debugger has all the time there is

    def _state_of(self, case: Case) -> str | None:
        claim = self._claim(case)
        return claim.state.value if claim else None

    def _claim(self, case: Case) -> Claim | None:
        return claim_of(case, self.subject.declaration) if case.adaptive else None

    def _leave(self, session: pytest.Session) -> None:
        """End a process whose device is unusable. xdist replaces it, and what it had not begun runs there."""
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(POISONED_EXIT)
        session.shouldstop = f"{self._poisoned_by} left the device unusable; continue with --resume"
        raise pytest.exit.Exception(str(session.shouldstop))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        case = case_of(item)
        if case is None:
            return
        verdict = gate(case, self.subject.declaration) or self._over_budget(case)
        if verdict:
            item.stash[VERDICT] = verdict
            raise pytest.skip.Exception(verdict.message, _use_item_location=True)

    def _over_budget(self, case: Case) -> Verdict | None:
        claim = self._claim(case)
        if self.options.time_budget is None or claim is None or claim.state is not State.UNDECLARED:
            return None
        self._probing_since = self._probing_since or time.monotonic()
        if time.monotonic() - self._probing_since <= self.options.time_budget:
            return None
        return skipped(Reason.UNDECLARED, f"{case.requires[0]} is not declared; not probed within the time budget")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        case = case_of(item)
        if case is None:
            yield
            return
        state = None
        if case.world_size is None:  # else the body runs in other processes, which see to this themselves
            state = ProcessState.take()
            seed_everything(seed_of(case.id, self.options.seed), self.subject.accelerator)
        error: BaseException | None = None
        try:
            yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit too: a case that ends the process has failed
            error = raised
        leaked = state.give_back() if state else []
        self._settle(item, case, error, leaked)

    def _settle(self, item: pytest.Item, case: Case, error: BaseException | None, leaked: list[str]) -> None:
        """Turn what the body did into a verdict, and the verdict into pytest's outcome."""
        checker = item.stash.get(CHECKER, Checker())
        seen = observe_body(error, checker, self.subject.accelerator, generated=_is_generated(item))
        verdict = judge(case, self.subject.declaration, seen, self.options.strictness)
        metrics = {**verdict.metrics, **checker.metrics, **({"leaked": ",".join(leaked)} if leaked else {})}
        verdict = self._after_canary(case, replace(verdict, metrics=metrics))
        item.stash[VERDICT] = waive(verdict, case, self.subject.waivers)
        express(item.stash[VERDICT], error)

    def _after_canary(self, case: Case, verdict: Verdict) -> Verdict:
        if not self.canary.trusted:
            return verdict
        complaint = self.canary.complaint()
        if complaint is None:
            return verdict
        self._poisoned_by = case.id
        claim = self._claim(case)
        itself = verdict.message or verdict.outcome.value
        message = f"the device is unusable after this case: {complaint}; the case itself: {itself}"
        return judge_death(claim.state if claim else None, Reason.POISONED, message, self.options.strictness)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        case = case_of(item)
        if case is None:
            return report
        if (call.excinfo and VERDICT not in item.stash) or (call.excinfo and call.when == "teardown"):
            item.stash[VERDICT] = self._outside_the_body(call)
        if call.when == "call" or not report.passed:
            describe(report, case, item.stash[VERDICT], self.settings)
        return report

    def _outside_the_body(self, call: pytest.CallInfo[None]) -> Verdict:
        """A fixture's set-up or tear-down ended with an exception."""
        assert call.excinfo is not None
        seen = observe(call.excinfo.value)
        if seen.seen is Seen.ENVIRONMENT:
            return skipped(Reason.ENVIRONMENT, seen.message)
        return failed(Reason.RAISED, f"in {call.when}: {seen.message}")


def _is_generated(item: pytest.Item) -> bool:
    family = family_of(getattr(item, "function", None))
    return family is not None and family.generated


def observe_body(error: BaseException | None, checker: Checker, accelerator: Any, *, generated: bool) -> Observation:
    """What a body's end says, with what it compared and with what the device says of its memory."""
    seen = observe(error)
    if is_out_of_memory(error) and (complaint := unexplained(accelerator)):
        return Observation(Seen.RAISED, f"{complaint}: {_first_lines(error)}")
    if seen.seen is Seen.RIGHT and generated and not checker.count:
        return Observation(Seen.FINDING, "the case compared nothing, so it verified nothing", Reason.WRONG)
    return seen


def observe(error: BaseException | None) -> Observation:
    """What the way a body ended says. Types decide, never an exception's text."""
    if error is None:
        return Observation(Seen.RIGHT)
    if isinstance(error, Observed):
        return error.observation
    message = _first_lines(error)
    if isinstance(error, Finding):
        return Observation(Seen.FINDING, error.message, error.reason)
    for types, seen in _SEEN_BY_TYPE:
        if isinstance(error, types):
            return Observation(seen, message)
    if is_out_of_memory(error):
        return Observation(Seen.ENVIRONMENT, f"out of memory on this machine: {message}")
    return Observation(Seen.RAISED, f"{type(error).__name__}: {message}")


def is_out_of_memory(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether it is torch's exception of that name, without importing torch for plain Python cases."""
    return type(error).__name__ == "OutOfMemoryError"


def unexplained(accelerator: Any) -> str | None:
    """Why being out of memory is the device's fault: it counts its memory, and most of it is free.

    Asked while the exception still holds what the case had allocated. No case needs half of a device.
    """
    try:
        free, total = int(accelerator.available_memory()), int(accelerator.total_memory())
    except Exception:  # noqa: BLE001 - a device that cannot say what is free may well be full
        return None
    if total <= 0 or free < total / 2:
        return None
    return f"out of memory, although {free >> 20} of {total >> 20} MiB are free"


_SEEN_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], Seen], ...] = (
    ((EnvironmentLacks, pytest.skip.Exception), Seen.ENVIRONMENT),
    ((Refused,), Seen.REFUSED),
    ((AssertionError, pytest.fail.Exception), Seen.WRONG),
    ((NotImplementedError, MissingMember), Seen.NOT_IMPLEMENTED),
)


def _first_lines(error: BaseException) -> str:
    """The sentence of an exception. pytest appends the expression of an assert to it; a sentence needs none."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    sentence = list(itertools.takewhile(lambda line: not line.startswith("assert "), lines))
    return "\n".join((sentence or lines)[:4])[:_LONGEST_MESSAGE]


def express(verdict: Verdict, error: BaseException | None) -> None:
    """Say a verdict in pytest's words: return, skip, or fail with the original traceback where there is one."""
    if verdict.outcome is Outcome.PASS:
        return
    if verdict.outcome is Outcome.SKIP:
        raise pytest.skip.Exception(f"{verdict.reason.value}: {verdict.message}", _use_item_location=True)
    if error is not None and not isinstance(error, pytest.skip.Exception):
        raise error
    raise Finding(verdict.reason, verdict.message)


def describe(report: pytest.TestReport, case: Case, verdict: Verdict, settings: Settings) -> None:
    """Flat properties that cross the process border, and the repro line people read."""
    report.user_properties += [
        ("conformance.id", case.id),
        ("conformance.outcome", verdict.outcome.value),
        ("conformance.reason", verdict.reason.value),
    ]
    if verdict.outcome is Outcome.FAIL:
        command = repro_of(settings, case.id)
        report.sections.append(("conformance", f"{verdict.reason.value}: {verdict.message}\nrepro: {command}"))
