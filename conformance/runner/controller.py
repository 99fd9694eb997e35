"""Controller of a run: it accepts the manifest, opens and closes the journal, writes the report, sets the status."""

from __future__ import annotations

import gc
import json
import os
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.declaration import State
from conformance.base.errors import ConformanceError, JournalError
from conformance.base.suite_files import suite_files_sha256
from conformance.plan.costs import measured
from conformance.process import peak
from conformance.process.deaths import last_said
from conformance.reports.fold import fold, head
from conformance.reports.history import keep_run
from conformance.reports.journal import JournalRecords, read_journal
from conformance.reports.json_files import collector_paused
from conformance.reports.model import Report
from conformance.reports.redaction import selection
from conformance.reports.stack import difference
from conformance.reports.writer import write_report
from conformance.runner.collection import Collection, reject_unknown_cases
from conformance.runner.context import RunContext, header_of, open_journal, worker_input
from conformance.runner.crashes import settle_hangs_of_a_dead_run
from conformance.runner.facts import CHANGED, environment_facts, read_facts, software_facts
from conformance.runner.progress import Progress
from conformance.runner.terminal import fitted
from conformance.runner.waivers import check_plan, waivers_of

#: Exit statuses of pytest.
EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_NO_TESTS = 2, 3, 4, 5


class Controller:
    """Hooks of the process that owns the report. The plan is known as soon as the first worker has collected."""

    def __init__(self, config: pytest.Config, context: RunContext, collection: Collection) -> None:
        self.config, self.context, self.collection = config, context, collection
        self.manifest: dict[str, Any] | None = None
        self.report: Report | None = None
        #: Folder in which the results of the run before are kept.
        self.kept: Path | None = None
        #: Node id → case id. Filled when the plan is known; the crash handler reads it.
        self.case_ids: dict[str, str] = {}
        #: Global state of torch that loading the accelerator has changed, in words.
        self.changed_by_loading: list[str] = []
        self.progress = Progress(config, lambda: last_said(context.folder.path))
        #: Peak memory in bytes of each worker that has ended, and the case that made it.
        self.peaks: list[tuple[int, str]] = []

    # --- before -----------------------------------------------------------------------------------------------------

    def pytest_sessionstart(self) -> None:
        self.progress.start()

    def pytest_report_header(self) -> list[str]:
        """Return the lines about accelerator, declaration and versions for the head of pytest's output."""
        options, accelerator, folder = self.context.options, self.context.accelerator, self.context.folder
        environment = environment_facts()["facts"]
        cells = accelerator.static_declaration.cells.values()
        count = {state: sum(claim.state is state for claim in cells) for state in State}
        declared = f"{count[State.SUPPORTED]} cells and patterns supported, {count[State.UNSUPPORTED]} unsupported"
        versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
        lines = [
            f"conformance: accelerator {accelerator.name}, strictness {options.strictness.value}, seed {options.seed}"
            + (f", profile {options.profile}" if options.profile else ""),
            f"conformance: declared {declared}; sources: {', '.join(self._declaration_sources())}",
            f"conformance: {versions}",
            f"conformance: report in {os.path.relpath(folder.path)}"
            + (f"; the complete run in {os.path.relpath(folder.beside)} is kept" if folder.beside else ""),
        ]
        return fitted(lines, self.config.pluginmanager.getplugin("terminalreporter"))

    def _declaration_sources(self) -> list[str]:
        """Return the sources of the declaration. A file that is not installed is then missed at once."""
        file = self.context.options.capabilities
        return [*self.context.accelerator.declaration_sources, *([f"--capabilities {file.name}"] if file else [])]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["conformance"] = worker_input(self.context)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Return the scheduler of a run with workers."""
        from conformance.runner.scheduling import GroupScheduling

        # The plan is known when the workers have collected, and not yet.
        return GroupScheduling(config, log, lambda: self.manifest["cases"] if self.manifest else [])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._accept_once()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        # With xdist the workers collect, and the plan comes from them.
        if not self.config.option.numprocesses:
            self._accept_once()

    def _accept_once(self) -> None:
        """Accept the plan of the first worker that has collected; the plans of the others are the same."""
        if self.manifest is not None:
            return
        try:
            self._accept()
        except ConformanceError as error:
            raise pytest.UsageError(str(error)) from None

    def _accept(self) -> None:
        """Take the workers' manifest as this run's. Raise ConformanceError before any earlier file changes."""
        folder, run = self.context.folder, self.context.run
        setup_error = folder.setup_error(run)
        # A worker could not load the accelerator; it has left the sentence for this process.
        if setup_error.exists():
            sentence = setup_error.read_text()
            setup_error.unlink()
            raise ConformanceError(sentence)
        new = folder.new_manifest(run)
        if not new.exists():
            self._accept_nothing()
            return
        manifest = json.loads(new.read_text())
        try:
            reject_unknown_cases(self.context.options, [entry["id"] for entry in manifest["cases"]])
            # A profile leaves cases out: one file of known failures serves every profile.
            whole = self.context.options.profile in (None, "full")
            complete = self.context.bundled and whole and not selection(self.context.argv)
            check_plan(waivers_of(self.context.options.waivers), manifest["cases"], complete=complete)
            self._check_resume(manifest)
            if not (self.context.options.resume and self.context.journal_limit):
                self.kept = keep_run(folder.path)
        except ConformanceError:
            new.unlink()
            raise
        if not self.context.options.resume and folder.journal.exists():
            os.truncate(folder.journal, 0)  # not unlinked: workers have opened it already
        new.replace(folder.manifest)
        self.manifest = manifest
        self.case_ids.update({entry["nodeid"]: entry["id"] for entry in manifest["cases"]})
        self._open_journal()
        costs, done = measured(), self.context.done
        due = {entry["id"]: costs.seconds(entry["id"]) for entry in manifest["cases"] if entry["id"] not in done}
        self.progress.begin(due, manifest["sha256"])

    def _accept_nothing(self) -> None:
        reject_unknown_cases(self.context.options, [])

    def _check_resume(self, manifest: dict[str, Any]) -> None:
        """Raise ``JournalError`` where ``--resume`` meets the journal of another plan."""
        folder = self.context.folder
        if not self.context.options.resume or not self.context.journal_limit:
            return  # a run that was killed before its plan leaves an empty journal: there is nothing to continue
        try:
            old = json.loads(folder.manifest.read_text())["sha256"]
        except (OSError, ValueError, KeyError):
            raise JournalError(
                f"--resume: {folder.manifest} is missing or unreadable, so the journal beside it cannot be continued. "
                "Run without --resume to start anew."
            ) from None
        if old != manifest["sha256"]:
            raise JournalError(
                f"--resume: the journal in {folder.path} belongs to manifest {old[:12]}, this run plans "
                f"{manifest['sha256'][:12]}. Repeat the earlier command line, or run without --resume to start anew."
            )

        self._check_same_stack(manifest)

    def _check_same_stack(self, manifest: dict[str, Any]) -> None:
        """Raise ``JournalError`` where ``--resume`` meets a journal of another stack: one report has one stack."""
        folder = self.context.folder
        old = read_journal(folder.journal, self.context.journal_limit)
        if not old.started and (old.run is None or old.accelerator is None):
            return  # a run that was stopped before it knew its stack: it has no verdict that another stack could spoil
        header = {**self._stack_header(), **header_of(self.context)}
        reported = {"name": self.context.accelerator.name, **read_facts(folder.facts(self.context.run))}
        now = JournalRecords(header, reported)
        said = difference(head(manifest, old), head(manifest, now))
        if said:
            raise JournalError(
                f"--resume: the journal in {folder.path} was begun on another stack: {said}. "
                "Restore that stack, or run without --resume to start anew."
            )

    def _stack_header(self) -> dict[str, Any]:
        """Return the facts of the stack that this process knows, for the journal's header."""
        return {
            "environment": {**environment_facts(), **software_facts(self.config)},
            "suite_files": suite_files_sha256(),
        }

    def _open_journal(self) -> None:
        """Open the journal with the facts about run and accelerator. Hangs of a resumed run get their verdict first."""
        options, journal = self.context.options, open_journal(self.context)
        if self.context.done or options.resume:
            settle_hangs_of_a_dead_run(self.context, journal)
        assert self.manifest is not None
        journal.run(
            run=self.context.run,
            manifest=self.manifest["sha256"],
            suite=self.manifest["suite"],
            started=_now(),
            **self._stack_header(),
            **header_of(self.context),
            workers=self.config.option.numprocesses or 0,
        )
        facts = self.context.folder.facts(self.context.run)
        known = read_facts(facts)
        self.changed_by_loading = known.pop(CHANGED, [])
        journal.accelerator(name=self.context.accelerator.name, **known)
        # The facts are in the journal now. The file only carried them here from the device host.
        facts.unlink(missing_ok=True)
        journal.close()

    # --- during -----------------------------------------------------------------------------------------------------

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if nodeid in self.case_ids:
            self.progress.enter(self.case_ids[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if "conformance.outcome" in properties:
            self.progress.step(str(properties["conformance.id"]), str(properties["conformance.outcome"]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        if crashitem in self.case_ids:
            self.progress.leave(self.case_ids[crashitem])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the peak memory of a worker that has ended. One that crashed leaves none."""
        sent = getattr(node, "workeroutput", {}).get(peak.OUTPUT)
        self.peaks += [(int(sent[0]), str(sent[1]))] if sent else []

    # --- after ------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the report and set pytest's exit status, if there was a plan."""
        self.progress.end()
        if self.manifest is None:
            self._clean_up()
            return
        self._finish(session, int(exitstatus))

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the report with the collector paused, clean up, and set the session's exit status."""
        with collector_paused():
            try:
                status = self._report(self._ended(exitstatus))
            except OSError as error:  # a full disk, a folder that has become read-only
                status = EXIT_USAGE
                self._say(
                    f"ERROR: the report could not be written into {os.path.relpath(self.context.folder.path)}: "
                    f"{error.strerror or error}. No verdict in the journal is lost: make room, then repeat the command "
                    "with --resume."
                )
        gc.freeze()  # the process ends soon, so these objects need no garbage collection
        self._clean_up()  # workers that collected later have written the manifest again
        session.exitstatus = status

    def _ended(self, exitstatus: int) -> int:
        """Return pytest's status. With workers a run that ``-x`` or ``--maxfail`` stops counts as interrupted."""
        most = self.config.option.maxfail
        stopped = bool(most) and self.progress.failed >= most
        return int(pytest.ExitCode.TESTS_FAILED) if stopped and exitstatus == EXIT_INTERRUPTED else exitstatus

    def _say(self, line: str) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line, red=True)

    def _report(self, exitstatus: int) -> int:
        """Write the report of what the journal holds, and return the run's exit status."""
        folder, finished = self.context.folder, _now()
        report = fold(self.manifest, read_journal(folder.journal))  # type: ignore[arg-type]
        # pytest's own status counts too: an interrupt or an internal error must not look like a verdict.
        status = run_status(exitstatus, int(report.exit_status()))
        journal = open_journal(self.context)
        journal.finish(exit=status, finished=finished)
        journal.close()
        self.report = replace(
            report, run=replace(report.run, finished=finished)
        )  # the journal has it since a moment ago
        write_report(self.report, folder.path)
        return status

    def _clean_up(self) -> None:
        folder, run = self.context.folder, self.context.run
        for path in (folder.new_manifest(run), folder.facts(run), folder.setup_error(run), folder.budget(run)):
            path.unlink(missing_ok=True)


def run_status(pytest_status: int, report_status: int) -> int:
    """Return the run's exit status: an interruption counts first, then the report, then failures of plain tests."""
    if pytest_status in (EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE):
        return pytest_status
    if report_status == 0 and pytest_status == EXIT_NO_TESTS:
        return 0  # a resumed run for which no case was left
    return report_status or pytest_status


def _now() -> str:
    # Two short runs can start within one second, and earlier runs are sorted by their start.
    return datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
