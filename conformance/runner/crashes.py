"""Crashes and hangs: the case that ended a process gets a verdict, and the cases that had not begun run elsewhere.

xdist names the item at the head of a dead worker's queue. The journal is more exact: the culprit is the case with a
start line of that worker and no end line. An item at the head of the queue without a start line is scheduled again.
With ``-n0`` there is no controller, so a child process waits for the death of pytest and prints the culprit.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from conformance.accelerators.declaration import State
from conformance.judging.verdicts import judge_death
from conformance.process.deaths import evidence, how_it_ended, output_path, read_text, timed_out
from conformance.process.last_call import call_path, read_call
from conformance.process.time_limits import MOST_CASE_SECONDS
from conformance.process.watchdog import fatal_error, read_stacks, readable, stacks_path, step_of, was_hung
from conformance.reports.calls import CALL, is_selector
from conformance.reports.journal import CaseStart, JournalWriter, read_journal
from conformance.reports.verdict import Outcome, Reason, Verdict
from conformance.reports.waivers.applying import apply
from conformance.runner.case_runner import POISONED_EXIT, Stopped, in_call
from conformance.runner.context import RunContext, open_journal, repro_of
from conformance.runner.facts import environment_facts
from conformance.runner.waivers import for_device, today, waivers_of

#: Exit status of a run that stops before its plan is finished.
EXIT_UNACCOUNTED = 6
#: Number of workers that may die in a row without a new verdict; then the run stops.
_MOST_DEATHS_WITHOUT_PROGRESS = 4
#: Exit statuses of a worker that somebody asked to end, as a terminal or a job scheduler asks all processes of a run.
_REQUESTS_TO_END = frozenset(
    -int(number) for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
#: Seconds after which such a request has reached every process of the run.
_REQUEST_REACHES_ALL = 1.0


class CrashHandler:
    """Hooks of the controller that handle dead workers."""

    def __init__(self, config: pytest.Config, context: RunContext, case_ids: Mapping[str, str]) -> None:
        self.config, self.context, self.case_ids = config, context, case_ids
        self._ended_at_last_death = -1
        self._deaths_without_verdict = 0
        #: Workers that Ctrl-C ended. Their cases have no verdict.
        self._interrupted: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Let xdist survive a write to a worker that has just died."""
        send = node.sendcommand

        def send_to_the_living(name: str, **arguments: Any) -> None:
            # When two workers die at once, xdist sends work to the second before it knows of that death, and the broken
            # pipe would end the run. The scheduler has noted the work and reassigns it when the death is reported.
            with contextlib.suppress(OSError):
                send(name, **arguments)

        node.sendcommand = send_to_the_living

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Judge the case that ended the worker, and put the other cases back into the queue."""
        worker = report.node.gateway.id
        if report.node.gateway.id in self._interrupted:
            self._reset(report)
            return
        status = _exit_status(report.node)
        if status in _REQUESTS_TO_END:
            # The signal may be meant for the whole run. Then this process ends too, and the case has no verdict.
            time.sleep(_REQUEST_REACHES_ALL)
        records = read_journal(self.context.folder.journal)
        culprit = next((started for started in records.in_flight.values() if started.worker == worker), None)
        head = self.case_ids.get(crashitem)
        # xdist names the first test in the worker's queue, but the journal knows which case was really running.
        if culprit is not None:
            verdict = self._judge(culprit, status)
            if culprit.id == head:
                self._rewrite(report, culprit.id, verdict)
                return
        self._reset(report)
        if head not in records.ended:
            sched.mark_test_pending(crashitem)

    def _judge(self, culprit: CaseStart, status: int | None) -> Verdict:
        """Write the verdict of the case that ended a worker, and return it."""
        stacks = read_stacks(stacks_path(self.context.folder.path, culprit.worker))
        verdict = death_verdict(culprit, stacks, status, self.context)
        journal = open_journal(self.context)
        journal.end(culprit.id, verdict, 0.0)
        journal.close()
        return verdict

    def _rewrite(self, report: pytest.TestReport, case_id: str, verdict: Verdict) -> None:
        """Replace the outcome in xdist's report by the verdict."""
        # xdist gives a crash no phase of pytest's. As "call" it is the outcome of the case itself.
        report.when = "call"
        report.outcome = {"pass": "passed", "skip": "skipped", "fail": "failed"}[verdict.outcome.value]  # type: ignore[assignment]
        command = repro_of(self.context, case_id, verdict.metrics)
        report.longrepr = f"{verdict.reason.value}: {verdict.message}\nrepro: {command}"
        if verdict.outcome is Outcome.SKIP:
            report.longrepr = (report.nodeid, 0, verdict.message)
        report.user_properties = [
            ("conformance.id", case_id),
            ("conformance.outcome", verdict.outcome.value),
            ("conformance.reason", verdict.reason.value),
        ]

    def _reset(self, report: pytest.TestReport) -> None:
        """Turn xdist's report about an innocent case into a passed set-up, which counts as nothing."""
        report.when = "setup"
        report.outcome = "passed"
        report.longrepr = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Stop the run when workers die again and again without a case that ends in between."""
        if not error:
            return
        if error == "keyboard-interrupt":  # as xdist names it; the run ends
            self._interrupted.add(node.gateway.id)
            return
        setup_error = self.context.folder.setup_error(self.context.run)
        if setup_error.exists() and not self.case_ids:
            # The worker could not even be configured. Those that can, collect nothing, and the controller reads it.
            raise pytest.UsageError(setup_error.read_text())
        ended = len(read_journal(self.context.folder.journal).ended) if self.context.folder.journal.exists() else 0
        # Any verdict in between is progress: one bad case after another may each end its worker.
        self._deaths_without_verdict = self._deaths_without_verdict + 1 if ended == self._ended_at_last_death else 1
        self._ended_at_last_death = ended
        output, stacks = self._left_behind(node.gateway.id)
        if output is not None and was_hung(stacks):
            self._stop(f"worker {node.gateway.id} did not load its accelerator: {timed_out()}", stacks, output)
        if self._deaths_without_verdict >= _MOST_DEATHS_WITHOUT_PROGRESS:
            how = _how_it_died(stacks, _exit_status(node))
            when = "while they load the accelerator" if output is not None else "before any case ends"
            self._stop(f"{self._deaths_without_verdict} workers died {when}; of the last one, {how}", stacks, output)

    def _left_behind(self, worker: str) -> tuple[str | None, str]:
        """Return a worker's output, or None if it had loaded its accelerator, and the stacks that it has left."""
        folder = self.context.folder.path
        output = output_path(folder, worker)
        return read_text(output) if output.exists() else None, read_stacks(stacks_path(folder, worker))

    def _stop(self, fact: str, stacks: str, output: str | None) -> NoReturn:
        """End the run. Raising is needed: xdist replaces dead workers for ever, also in a run that should stop."""
        known = bool(self.case_ids)
        account = (
            "The report names the cases without a verdict." if known else "No case has run, and no report is written."
        )
        name = shlex.quote(self.context.accelerator.text)
        sentence = f"the run stops: {fact}.\n  {account} To find the cause: conformance doctor {name}"
        if known:
            raise Stopped(sentence + evidence(stacks, output or ""), returncode=EXIT_UNACCOUNTED)
        raise pytest.UsageError(sentence + evidence(stacks, output or ""))


def death_verdict(culprit: CaseStart, stacks: str, status: int | None, context: RunContext) -> Verdict:
    """Return crash or hang as the verdict of a case, with the call and the stacks that the process has left."""
    reason = Reason.HANG if was_hung(stacks) else Reason.CRASH
    how = _timed_out(culprit) if reason is Reason.HANG else _how_it_died(stacks, status)
    call = read_call(call_path(context.folder.path, culprit.worker))
    key, where = in_call(call) if call else ("", step_of(stacks))
    message = "\n".join(filter(None, (how, where, readable(stacks)))).rstrip()
    verdict = judge_death(State(culprit.claim) if culprit.claim else None, reason, message, context.options.strictness)
    if is_selector(key):
        verdict = replace(verdict, metrics={**verdict.metrics, CALL: key})
    return _waived(verdict, culprit.id, context)


def _timed_out(culprit: CaseStart) -> str:
    """Return a clause on a case that ran until its deadline. A run that is resumed later does not know how long."""
    seconds = time.time() - culprit.at
    after = f" after {seconds:.0f} s" if 0 < seconds < 2 * MOST_CASE_SECONDS else ""
    return f"timed out{after}: no end before the deadline"


def _waived(verdict: Verdict, case: str, context: RunContext) -> Verdict:
    """Return the verdict after the waivers. The plan has been checked: no waiver names a case of the core."""
    waivers = waivers_of(context.options.waivers)
    if not waivers:
        return verdict
    facts = read_journal(context.folder.journal).accelerator or {}
    applying = for_device(waivers, facts, environment_facts()["facts"]["packages"].get("torch", ""))
    return apply(verdict, case, False, applying, today())


def _how_it_died(stacks: str, status: int | None) -> str:
    """Return a clause on how a worker died."""
    if status == POISONED_EXIT and not fatal_error(stacks):
        return "the process left because its device was unusable"
    return how_it_ended(stacks, status)


def _exit_status(node: Any) -> int | None:
    """Return the worker's exit status, or None where execnet does not expose its process."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    try:
        status: int | None = process.wait(timeout=5)
    except Exception:  # noqa: BLE001 - the status is only a detail of the message
        return None
    return status


def settle_hangs_of_a_dead_run(context: RunContext, journal: JournalWriter) -> None:
    """Write the verdict of a case that hung in a run with ``-n0``, where the watchdog ends the whole run.

    A case that was in flight when the run was killed for another reason has no verdict, and runs again.
    """
    for culprit in read_journal(context.folder.journal, context.journal_limit).in_flight.values():
        stacks = read_stacks(stacks_path(context.folder.path, culprit.worker))
        if culprit.worker == "main" and was_hung(stacks):
            journal.end(culprit.id, death_verdict(culprit, stacks, None, context), 0.0)


# --- Without workers ------------------------------------------------------------------------------------------------

#: Not with -n0 again: the same case would end the resumed run as well.
_NEXT_STEP = "No verdict is lost. Rerun with --resume -n1: then a crash ends only a worker."
#: Seconds between two checks that the parent is alive. The pipe alone is not enough, because forks that a case has made
#: hold it open.
_POLL = 0.5


class DeathWatcher:
    """Child process that prints why pytest died, for runs with ``-n0``. It waits from ``begin`` to ``end``."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._child = 0
        self._pipe = -1

    def begin(self) -> None:
        """Start the child. Do nothing where processes cannot fork."""
        if not hasattr(os, "fork"):
            return
        parent = os.getpid()
        read_end, self._pipe = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on a fork beside threads warns. The child takes no lock that another thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
        if self._child:
            os.close(read_end)
            return
        try:
            os.close(self._pipe)
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # a terminal sends Ctrl-C to both processes, and pytest handles it
            if _parent_dies(parent, read_end):
                os.write(2, _death_notice(self._context, parent).encode(errors="replace"))
        finally:
            os._exit(0)

    def end(self) -> None:
        """End the child, because this process ends in order."""
        if not self._child:
            return
        os.write(self._pipe, b".")
        os.close(self._pipe)
        os.waitpid(self._child, 0)
        self._child = 0


def _parent_dies(parent: int, read_end: int) -> bool:
    """Wait until the parent says that it ends in order (return False) or dies (return True)."""
    while not select.select([read_end], [], [], _POLL)[0]:
        if os.getppid() != parent:
            return True
    return not os.read(read_end, 1)


def _death_notice(context: RunContext, dead: int) -> str:
    """Return what the journal and the stacks say about a run whose process ``dead`` has just died."""
    stacks, culprit = read_stacks(stacks_path(context.folder.path, "main")), _in_flight(context, dead)
    if culprit is None:
        output = read_text(output_path(context.folder.path, "main"))
        lines = ["conformance: pytest's process died, and no case was running." + evidence(stacks, output)]
    else:
        verdict = death_verdict(culprit, stacks, None, context)
        lines = [f"conformance: {culprit.id} has ended the run · {verdict.reason.value}", verdict.message]
    return "\n".join(["", *lines, _NEXT_STEP, ""])


def _in_flight(context: RunContext, process: int) -> CaseStart | None:
    """Return the case that process ``process`` had begun and not ended, if any."""
    if not context.folder.journal.exists():
        return None
    records = read_journal(context.folder.journal)
    return next((started for started in records.in_flight.values() if started.pid == process), None)
