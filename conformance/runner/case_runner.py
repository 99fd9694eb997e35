"""Runs cases in this process: gate before, timeout around, health check after, a journal line at start and end."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import time
import traceback
from collections.abc import Collection, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.accelerators.declaration import Claim, State
from conformance.accelerators.interface import MissingMember
from conformance.judging.checker import Checker
from conformance.judging.finding import Finding
from conformance.judging.observation import Seen, observe, observe_body
from conformance.judging.verdicts import claim_of, gate, judge, judge_death, with_strictness
from conformance.plan.bundled import family_of, noted_call
from conformance.plan.case import Case, seed_of
from conformance.process import last_call, peak
from conformance.process.machine import slowdown
from conformance.process.state import EarlierObjects, ProcessState, collect_seldom, seed_everything
from conformance.process.time_limits import case_seconds
from conformance.process.watchdog import Watchdog
from conformance.reports.calls import CALL, is_selector
from conformance.reports.journal import JournalWriter, read_journal
from conformance.reports.verdict import Outcome, Reason, Verdict, failed, skipped
from conformance.runner.collection import case_of
from conformance.runner.context import RUN_CONTEXT, AcceleratorUnderTest, RunContext, repro_of
from conformance.runner.waivers import waive

if TYPE_CHECKING:
    from conformance.judging.answers import Answers

VERDICT = pytest.StashKey[Verdict]()
CHECKER = pytest.StashKey[Checker]()
#: Exit status of a worker that leaves because its device is unusable.
POISONED_EXIT = 70
#: Elements of the health check's tensor.
_HEALTH_CHECK_SIZE = 16
#: Errors that a device may still have in its queue after a case.
_LATE_ERRORS = 8
#: First word of a complaint about a number, which is no exception that arrives late.
_WRONG_SUM = "adding"


class HealthCheck:
    """Small computation after each case: it adds on the device and reads the result back.

    It is off where the device cannot do even that before the first case.
    """

    def __init__(self, accelerator: Any, device: Any) -> None:
        self._accelerator, self._device = accelerator, device
        self.active = self.complaint() is None

    def complaint(self) -> str | None:
        """Return what is wrong with the device, or None."""
        import torch

        size = _HEALTH_CHECK_SIZE
        try:
            total = (torch.ones(size, device=self._device) + 1).sum().item()
            with contextlib.suppress(MissingMember):  # the cases about it judge that, and item() has waited
                self._accelerator.synchronize()
        except Exception as error:  # noqa: BLE001 - any exception means that the device is unusable
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return None if total == 2 * size else f"{_WRONG_SUM} {size} ones to ones gives {total}, not {2 * size}"

    def recovers(self, complaint: str, error: BaseException | None) -> bool:
        """Return whether the device computes right after it has raised what calls before have left.

        A device that records calls refuses a call again at each synchronization, while its result lives: in the frames
        of the exception that ended the case, or of one that the case has caught.
        """
        if error is not None:
            traceback.clear_frames(error.__traceback__)
        gc.collect()
        for _ in range(_LATE_ERRORS):
            if complaint.startswith(_WRONG_SUM):
                return False
            again = self.complaint()
            if again is None:
                return True
            complaint = again
        return False


#: Factor for the first call of an operator or kernel. Devices compile shaders then, which has taken 76 s.
FIRST_CALL = 3.0
#: Families of cells whose first call may compile code for the device.
_COMPILED_ON_FIRST_CALL = ("operators.", "kernels.")


def deadline_of(case: Case, hung: Collection[str], slowdown: float) -> float:
    """Return the deadline of a case, in seconds, at most ``MOST_CASE_SECONDS``.

    ``hung`` are the subjects of cases that have timed out in this run.

    The first call of an operator has a second chance: a longer deadline. After one case of an operator has timed out,
    its other cases have the usual deadline, so that an operator that always hangs does not stop the run.
    """
    compiles = any(cell.subject.startswith(_COMPILED_ON_FIRST_CALL) for cell in case.requires)
    factor = FIRST_CALL if compiles and subject_of(case.id) not in hung else 1.0
    return case_seconds(case.deadline * slowdown * factor)


def subject_of(case_id: str) -> str:
    """Return the id without its axes: the same for all dtypes and modes of an operator."""
    return case_id.partition("[")[0]


def hung_subjects(context: RunContext) -> frozenset[str]:
    """Return the subjects of the cases that have timed out in this run, from its journal."""
    if not context.folder.journal.exists():
        return frozenset()
    ended = read_journal(context.folder.journal).ended
    return frozenset(subject_of(id) for id, end in ended.items() if end.verdict.reason is Reason.HANG)


def is_about_memory(case: Case) -> bool:
    """Tell whether a case needs a capability of memory."""
    return any(cell.subject.startswith("memory.") for cell in case.requires)


def in_call(call: last_call.LastCall) -> tuple[str, str]:
    """Return the selector of a noted call, which may be empty, and a clause for a message that names it."""
    key, label = noted_call(call.fields)
    return key, f"in the call {' '.join(label.split())}{f' {key}' if key else ''}, {call.doing}"


class Stopped(pytest.exit.Exception):  # type: ignore[name-defined,misc]  # pytest sets this name at run time
    """End of a run that cannot go on."""

    # pytest prints a class outside of builtins with its module, as "_pytest.outcomes.Exit: the run stops".
    __module__ = "builtins"


class CaseRunner:
    """Hooks that run cases in this process. Plain tests pass through untouched."""

    def __init__(
        self, context: RunContext, subject: AcceleratorUnderTest, journal: JournalWriter, watchdog: Watchdog
    ) -> None:
        self.context, self.options = context, context.options
        self.subject, self.journal, self.watchdog = subject, journal, watchdog
        self.health_check = HealthCheck(subject.accelerator, subject.device)
        self._poisoned_by: str | None = None
        self._probing_since: float | None = None
        self._hung = hung_subjects(context)
        self.peak, self._freed = peak.PeakMemory(), peak.FreedMemory()
        self._earlier = EarlierObjects()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        # The plan lives as long as the process, so garbage collection need not look through it.
        collect_seldom()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Write the journal's start and end of a case, and hold it to its deadline with the watchdog."""
        case = case_of(item)
        if self._poisoned_by:
            self._leave(item.session)
        if case is None:
            return (yield)
        started = time.perf_counter()
        last_call.forget()
        self.journal.start(case.id, self._state_of(case))
        # After the journal's start, so that the case is known as running when the watchdog ends the process.
        self.watchdog.arm(self._deadline(case))
        try:
            result = yield
        finally:
            self.watchdog.disarm()
        # Not in the `finally`: a case that Ctrl-C or pytest.exit() interrupts has no verdict and runs again.
        # A case that ended without a verdict fails: no path through pytest's hooks may end in silence.
        verdict = item.stash.get(VERDICT, failed(Reason.RAISED, "the case ended without a verdict"))
        self.journal.end(case.id, verdict, time.perf_counter() - started)
        self.peak.note(case.id)
        self._freed.give_back()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send this worker's peak memory to the controller, and take its objects out of the last collections."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[peak.OUTPUT] = (self.peak.bytes, self.peak.case)
            gc.freeze()  # pytest collects garbage as it ends, which took seconds with the objects of a whole run

    def _deadline(self, case: Case) -> float:
        """Return the case's deadline on the machine as it is now, in seconds."""
        return deadline_of(case, self._hung, slowdown())

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Keep pytest-timeout from timing a case: its exception would look like a wrong result of the device."""
        return True if case_of(item) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """Keep pytest-timeout from cancelling a timer that a case has not got."""
        return True if case_of(item) else None

    def pytest_enter_pdb(self) -> None:
        self.watchdog.disarm()  # a person in a debugger has no deadline

    def _state_of(self, case: Case) -> str | None:
        claim = self._claim(case)
        return claim.state.value if claim else None

    def _claim(self, case: Case) -> Claim | None:
        return claim_of(case, self.subject.declaration) if case.adaptive else None

    def _leave(self, session: pytest.Session) -> None:
        """End a process whose device is unusable. xdist replaces the worker, and the remaining cases run there."""
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(POISONED_EXIT)
        session.shouldstop = f"{self._poisoned_by} left the device unusable; continue with --resume"
        # Without workers nothing can replace this process, so the run ends here.
        raise Stopped(str(session.shouldstop))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a case that the declaration or the time budget excludes, before its fixtures are made."""
        case = case_of(item)
        if case is None:
            return
        verdict = gate(case, self.subject.declaration, self.options.strictness) or self._over_budget(case)
        if verdict:
            item.stash[VERDICT] = verdict
            raise_outcome(verdict, None)

    def _over_budget(self, case: Case) -> Verdict | None:
        """Return the verdict of an undeclared cell that is not probed because the time budget is used up, or None."""
        claim = self._claim(case)
        if self.options.time_budget is None or claim is None or claim.state is not State.UNDECLARED:
            return None
        # The budget begins with the first probe, not with the run.
        self._probing_since = self._probing_since or first_probe(self.context.folder.budget(self.context.run))
        if time.time() - self._probing_since <= self.options.time_budget:
            return None
        message = f"{case.requires[0]} is not declared; not probed within the time budget"
        return with_strictness(skipped(Reason.UNDECLARED, message), self.options.strictness)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Run the body from seeded random state and turn any end of it into a verdict."""
        case = case_of(item)
        if case is None:
            yield
            return
        state = None
        if case.world_size is None:  # else the body runs on ranks, which take and restore their own state
            if is_about_memory(case):
                self._earlier.set_aside()
            else:
                self._earlier.take_back()
            state = ProcessState.take()
            seed_everything(seed_of(case.id, self.options.seed), self.subject.accelerator)
        error: BaseException | None = None
        try:
            yield
            self._answer(item, case)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit too: a case that ends the process has failed
            error = raised
        leaked = state.give_back() if state else []
        self._settle(item, case, error, leaked)

    def _answer(self, item: pytest.Item, case: Case) -> None:
        """Keep the case's answer to the challenge. A case without the fixture ``check`` gets a checker for it."""
        if CHECKER not in item.stash and (answers := answers_of(item, case)) is not None:
            item.stash[CHECKER] = Checker(answers)
        # Ranks answer themselves.
        item.stash.get(CHECKER, Checker()).answer(None if case.world_size else self.subject.device)

    def _settle(self, item: pytest.Item, case: Case, error: BaseException | None, leaked: list[str]) -> None:
        """Turn the end of the body into a verdict, and the verdict into pytest's outcome."""
        checker = item.stash.get(CHECKER, Checker())
        observation = observe_body(error, checker, self.subject.accelerator, generated=_is_generated(item))
        verdict = judge(case, self.subject.declaration, observation, self.options.strictness)
        if verdict.outcome is Outcome.FAIL and checker.on_failure is not None:
            checker.metrics.update(checker.on_failure())
        # They hold tensors, and the checker lives as long as the item.
        checker.failed = checker.on_failure = None
        metrics = {**verdict.metrics, **checker.metrics, **({"leaked": ",".join(leaked)} if leaked else {})}
        # Before the waivers: a waiver for the case's own failure must not excuse an unusable device.
        verdict = self._after_health_check(case, replace(verdict, metrics=metrics), checker.context_ended_by, error)
        # A device that is unusable does not run a body once more.
        if verdict.outcome is Outcome.FAIL and self._poisoned_by is None:
            # Imported here: it imports torch, which a run of cases that need none does not load.
            from conformance.runner.refused_calls import attributed

            verdict = attributed(
                verdict,
                observation,
                case,
                self.subject.declaration,
                self.options.strictness,
                lambda: self._again(item, case),
                self.subject.device,
            )
        item.stash[VERDICT] = waive(verdict, case, self.subject.waivers)
        raise_outcome(item.stash[VERDICT], error)

    def _again(self, item: pytest.Item, case: Case) -> None:
        """Run a case's body once more, from the same seeded state."""
        assert isinstance(item, pytest.Function)
        given = {name: item.funcargs[name] for name in inspect.signature(item.function).parameters}
        state = ProcessState.take()
        seed_everything(seed_of(case.id, self.options.seed), self.subject.accelerator)
        try:
            item.function(**{**given, **({"check": Checker()} if "check" in given else {})})
        finally:
            state.give_back()

    def _after_health_check(self, case: Case, verdict: Verdict, ended_by: str, error: BaseException | None) -> Verdict:
        """Return the verdict, or "poisoned" if the device is unusable after the case.

        A device may refuse an index by ending its context: the refusal is right, and the process has to be replaced.
        """
        if not self.health_check.active:
            return verdict
        complaint = self.health_check.complaint()
        if complaint is None:
            return verdict
        # A refusal may arrive late, at the next synchronization, and the device computes right after it.
        if self.health_check.recovers(complaint, error):
            return _refused_late(verdict, complaint)
        self._poisoned_by = case.id
        if ended_by:
            return verdict
        claim = self._claim(case)
        own = verdict.message or verdict.outcome.value
        noted = last_call.noted()
        key, where = in_call(noted) if noted else ("", "")
        message = f"the device is unusable after this case: {complaint}; the case itself: {own}"
        message += f"\nit ended {where}" if where else ""
        found = judge_death(claim.state if claim else None, Reason.POISONED, message, self.options.strictness)
        named = {CALL: key} if is_selector(key) else {}
        return replace(found, metrics={**found.metrics, **named})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give failures outside the body a verdict too, and put the verdict into pytest's report."""
        report = yield
        case = case_of(item)
        if case is None:
            return report
        # A failed teardown overrules a passed body: it may have left the device in a bad state.
        if (call.excinfo and VERDICT not in item.stash) or (call.excinfo and call.when == "teardown"):
            item.stash[VERDICT] = self._outside_the_body(call)
        if call.when == "call" or not report.passed:
            describe(report, case, item.stash[VERDICT], self.context)
        return report

    def _outside_the_body(self, call: pytest.CallInfo[None]) -> Verdict:
        """Return the verdict of a fixture whose set-up or tear-down raised."""
        assert call.excinfo is not None
        observation = observe(call.excinfo.value)
        if observation.seen is Seen.ENVIRONMENT:
            return skipped(Reason.ENVIRONMENT, observation.message)
        reason = Reason.SUITE_ERROR if observation.seen is Seen.SUITE_ERROR else Reason.RAISED
        return failed(reason, f"in {call.when}: {observation.message}")


def _refused_late(verdict: Verdict, complaint: str) -> Verdict:
    """Return the verdict of a case after which the device raised once, and was usable then."""
    note = f"refused late: {complaint}; the device computes right after it"
    if verdict.outcome is Outcome.PASS:
        # What raised after its call has returned was no result of the case, and nobody has compared it.
        return failed(Reason.RAISED, note, **verdict.metrics)
    return replace(verdict, message=f"{verdict.message}\n{note}".strip())


def _is_generated(item: pytest.Item) -> bool:
    family = family_of(getattr(item, "function", None))
    return family is not None and family.generated


def first_probe(file: Path) -> float:
    """Return when the first probe of this run began, in any of its processes: a worker that crashes is replaced."""
    try:
        with file.open("x", encoding="ascii") as mine:
            mine.write(repr(time.time()))
    except FileExistsError:
        pass
    try:
        return float(file.read_text(encoding="ascii"))
    except ValueError:
        return time.time()  # another process writes it in this moment


def answers_of(item: pytest.Item, case: Case) -> Answers | None:
    """Return the case's answers to the challenge, or None in a run without a challenge and in a plain test."""
    context = item.config.stash.get(RUN_CONTEXT, None)
    if context is None or not context.options.challenge:
        return None
    # Imported here, so that a run without a challenge does not load it.
    from conformance.judging.answers import Answers

    claimed = context.claimed_answers
    return Answers(context.options.challenge, case.id, None if claimed is None else claimed.get(case.id, ""))


def raise_outcome(verdict: Verdict, error: BaseException | None) -> None:
    """Express a verdict in pytest's terms: return, skip, or raise, with the original traceback where there is one."""
    if verdict.outcome is Outcome.PASS:
        return
    if verdict.outcome is Outcome.SKIP:
        raise pytest.skip.Exception(f"{verdict.reason.value}: {verdict.message}", _use_item_location=True)
    # Raised again, a skip would count as a skip, but the verdict is a failure.
    if error is not None and not isinstance(error, pytest.skip.Exception):
        raise error
    raise Finding(verdict.reason, verdict.message)


def describe(report: pytest.TestReport, case: Case, verdict: Verdict, context: RunContext) -> None:
    """Add flat properties, which cross the process border, and the repro line that people read."""
    report.user_properties += [
        ("conformance.id", case.id),
        ("conformance.outcome", verdict.outcome.value),
        ("conformance.reason", verdict.reason.value),
    ]
    if verdict.outcome is Outcome.FAIL:
        command = repro_of(context, case.id, verdict.metrics)
        report.sections.append(("conformance", f"{verdict.reason.value}: {verdict.message}\nrepro: {command}"))
