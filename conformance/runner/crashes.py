"""Deaths of workers: the culprit gets a verdict, and what it had not begun runs elsewhere.

xdist names the item at the head of a dead worker's queue. The journal knows better: the culprit is the case that has
a start line of that worker and no end line. A queue head without a start line is innocent and is scheduled again.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from conformance.accelerators.declaration import State
from conformance.process.watchdog import fatal_error, read_stacks, readable, stacks_path, was_hung
from conformance.reports.journal import CaseStart, JournalWriter, read_journal
from conformance.reports.verdict import Outcome, Reason, Verdict
from conformance.reports.waivers.applying import apply
from conformance.runner.case_runner import POISONED_EXIT
from conformance.runner.context import Settings, open_journal
from conformance.runner.facts import environment_facts
from conformance.runner.repro import repro_of
from conformance.runner.waivers import for_device, today, waivers_of
from conformance.verdicts import judge_death

#: Workers that die this often in a row without ending a case will not do better.
_MOST_DEATHS_WITHOUT_PROGRESS = 4


class Crashes:
    """Hears of every dead worker."""

    def __init__(self, config: pytest.Config, settings: Settings, case_ids: Mapping[str, str]) -> None:
        self.config, self.settings, self.case_ids = config, settings, case_ids
        self._ended_at_last_death = -1
        self._fruitless = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        send = node.sendcommand

        def send_to_the_living(name: str, **arguments: Any) -> None:
            # When two workers die at once, xdist hands work to the second before it has heard of its death, and the
            # broken pipe ends the run. The scheduler has noted the work already: it goes on when the news arrives.
            with contextlib.suppress(OSError):
                send(name, **arguments)

        node.sendcommand = send_to_the_living

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        worker = report.node.gateway.id
        records = read_journal(self.settings.folder.journal)
        culprit = next((s for s in records.in_flight.values() if s.worker == worker), None)
        head = self.case_ids.get(crashitem)
        if culprit is not None:
            verdict = self._convict(culprit, _exit_status(report.node))
            if culprit.id == head:
                self._tell(report, culprit.id, verdict)
                return
        self._acquit(report)
        if head not in records.ended:
            sched.mark_test_pending(crashitem)

    def _convict(self, culprit: CaseStart, status: int | None) -> Verdict:
        stacks = read_stacks(stacks_path(self.settings.folder.path, culprit.worker))
        verdict = death_verdict(culprit, stacks, status, self.settings)
        journal = open_journal(self.settings)
        journal.end(culprit.id, verdict, 0.0)
        journal.close()
        return verdict

    def _tell(self, report: pytest.TestReport, case_id: str, verdict: Verdict) -> None:
        """Rewrite xdist's report: an outcome of ours, without xdist's guess."""
        report.when = "call"
        report.outcome = {"pass": "passed", "skip": "skipped", "fail": "failed"}[verdict.outcome.value]  # type: ignore[assignment]
        command = repro_of(self.settings, case_id)
        report.longrepr = f"{verdict.reason.value}: {verdict.message}\nrepro: {command}"
        if verdict.outcome is Outcome.SKIP:
            report.longrepr = (report.nodeid, 0, verdict.message)
        report.user_properties = [
            ("conformance.id", case_id),
            ("conformance.outcome", verdict.outcome.value),
            ("conformance.reason", verdict.reason.value),
        ]

    def _acquit(self, report: pytest.TestReport) -> None:
        report.when = "setup"
        report.outcome = "passed"
        report.longrepr = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if not error:
            return
        ended = len(read_journal(self.settings.folder.journal).ended) if self.settings.folder.journal.exists() else 0
        self._fruitless = self._fruitless + 1 if ended == self._ended_at_last_death else 0
        self._ended_at_last_death = ended
        if self._fruitless >= _MOST_DEATHS_WITHOUT_PROGRESS:
            stacks = read_stacks(stacks_path(self.settings.folder.path, node.gateway.id))
            session = self.config.pluginmanager.getplugin("dsession")
            session.shouldstop = f"workers keep dying before they end a case; the last one left:\n{readable(stacks)}"


def death_verdict(culprit: CaseStart, stacks: str, status: int | None, settings: Settings) -> Verdict:
    """Crash or hang, with what the process left behind."""
    reason = Reason.HANG if was_hung(stacks) else Reason.CRASH
    how = "no end before the deadline" if reason is Reason.HANG else _how_it_died(stacks, status)
    message = f"{how}\n{readable(stacks)}".rstrip()
    verdict = judge_death(State(culprit.claim) if culprit.claim else None, reason, message, settings.options.strictness)
    return _waived(verdict, culprit.id, settings)


def _waived(verdict: Verdict, case: str, settings: Settings) -> Verdict:
    """The verdict that the waivers make of a death. That none names a case of the core was checked with the plan."""
    waivers = waivers_of(settings.options.waivers)
    if not waivers:
        return verdict
    facts = read_journal(settings.folder.journal).accelerator or {}
    applying = for_device(waivers, facts, environment_facts()["facts"]["packages"].get("torch", ""))
    return apply(verdict, case, False, applying, today())


def _how_it_died(stacks: str, status: int | None) -> str:
    fatal = fatal_error(stacks)
    if status is not None and status < 0:
        return f"the process was killed by {signal.Signals(-status).name}" + (f" ({fatal})" if fatal else "")
    if fatal:
        return f"the process died: {fatal}"
    if status == POISONED_EXIT:
        return "the process left because its device was unusable"
    return f"the process ended with exit status {status}" if status is not None else "the process ended"


def _exit_status(node: Any) -> int | None:
    """The worker's exit status, where execnet lets us see its process."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    try:
        status: int | None = process.wait(timeout=5)
    except Exception:  # noqa: BLE001 - the status only decorates the message
        return None
    return status


def settle_hangs_of_a_dead_run(settings: Settings, journal: JournalWriter) -> None:
    """With ``-n0`` the watchdog ends the whole run; on resume the case that hung gets its verdict.

    A case that merely was in flight when the run was killed is innocent, and runs again.
    """
    for culprit in read_journal(settings.folder.journal, settings.journal_limit).in_flight.values():
        stacks = read_stacks(stacks_path(settings.folder.path, culprit.worker))
        if culprit.worker == "main" and was_hung(stacks):
            journal.end(culprit.id, death_verdict(culprit, stacks, None, settings), 0.0)
