"""The controller: accepts the manifest, opens and closes the journal, and answers for the report and exit status."""

from __future__ import annotations

import gc
import json
import os
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from conformance.accelerators.declaration import State
from conformance.errors import ConformanceError, JournalError
from conformance.reports.fold import fold
from conformance.reports.journal import read_journal
from conformance.reports.json_files import collector_paused
from conformance.reports.model import Report
from conformance.reports.redaction import selection
from conformance.reports.writer import write_report
from conformance.runner.collection import Collection, reject_unknown_cases
from conformance.runner.context import Settings, open_journal, told_to_workers
from conformance.runner.crashes import settle_hangs_of_a_dead_run
from conformance.runner.facts import environment_facts, read_facts
from conformance.runner.progress import Progress
from conformance.runner.repro import header_of
from conformance.runner.waivers import check_plan, waivers_of
from conformance.runner.xdist_reports import tear_downs_matter

EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_NO_TESTS = 2, 3, 4, 5
#: Where output is no terminal (CI logs, files), the width the matrix is laid out for.
_WIDTH_OF_A_LOG = 120


class Controller:
    """One per run. Knows what is planned as soon as a first worker has collected."""

    def __init__(self, config: pytest.Config, settings: Settings, collection: Collection) -> None:
        self.config, self.settings, self.collection = config, settings, collection
        self.manifest: dict[str, Any] | None = None
        self.report: Report | None = None
        #: Node id → case id; filled when the plan is known, and read by whoever hears of a dead worker.
        self.case_ids: dict[str, str] = {}
        self.progress = Progress(config)

    # --- before -----------------------------------------------------------------------------------------------------

    def pytest_report_header(self) -> list[str]:
        options, subject = self.settings.options, self.settings.subject
        environment = environment_facts()["facts"]
        cells = subject.static_declaration.cells.values()
        count = {state: sum(claim.state is state for claim in cells) for state in State}
        declared = f"{count[State.SUPPORTED]} cells and patterns supported, {count[State.UNSUPPORTED]} unsupported"
        versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
        return [
            f"conformance: accelerator {subject.name}, strictness {options.strictness.value}, seed {options.seed}"
            + (f", profile {options.profile}" if options.profile else ""),
            f"conformance: declared {declared}",
            f"conformance: {versions}",
            f"conformance: report in {os.path.relpath(self.settings.folder.path)}",
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        told = told_to_workers(self.settings)
        node.workerinput["conformance"] = told | {"tear_downs": tear_downs_matter(self.config)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._accept_once()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        if not self.config.option.numprocesses:
            self._accept_once()

    def _accept_once(self) -> None:
        if self.manifest is not None:
            return
        try:
            self._accept()
        except ConformanceError as error:
            _stop(str(error))

    def _accept(self) -> None:
        """Take the workers' manifest as this run's, or say why not before anything is touched."""
        folder, run = self.settings.folder, self.settings.run
        setup_error = folder.setup_error(run)
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
            reject_unknown_cases(self.settings.options, [entry["id"] for entry in manifest["cases"]])
            complete = self.settings.bundled and not selection(self.settings.argv)
            check_plan(waivers_of(self.settings.options.waivers), manifest["cases"], complete=complete)
            self._check_resume(manifest)
        except ConformanceError:
            new.unlink()
            raise
        if not self.settings.options.resume and folder.journal.exists():
            os.truncate(folder.journal, 0)  # not unlinked: workers hold it open already
        new.replace(folder.manifest)
        self.manifest = manifest
        self.case_ids.update({entry["nodeid"]: entry["id"] for entry in manifest["cases"]})
        self._open_journal()
        self.progress.begin(len(manifest["cases"]) - len(self.settings.done), manifest["sha256"])

    def _accept_nothing(self) -> None:
        reject_unknown_cases(self.settings.options, [])

    def _check_resume(self, manifest: dict[str, Any]) -> None:
        folder = self.settings.folder
        if not self.settings.options.resume or not folder.journal.exists():
            return
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

    def _open_journal(self) -> None:
        options, journal = self.settings.options, open_journal(self.settings)
        if self.settings.done or options.resume:
            settle_hangs_of_a_dead_run(self.settings, journal)
        assert self.manifest is not None
        journal.run(
            run=self.settings.run,
            manifest=self.manifest["sha256"],
            suite=self.manifest["suite"],
            started=_now(),
            **header_of(self.settings),
            workers=self.config.option.numprocesses or 0,
            environment=environment_facts(),
        )
        facts = self.settings.folder.path / f"facts.{self.settings.run}.json"
        journal.accelerator(name=self.settings.subject.name, **read_facts(facts))
        facts.unlink(missing_ok=True)
        journal.close()

    # --- during -----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        # A file that cannot be collected has a report as well, which has no properties.
        if self.config.option.verbose > 0 or "conformance.id" not in dict(getattr(report, "user_properties", ())):
            return None
        # Thousands of dots say nothing; Progress prints one line now and then.
        return (report.outcome, "", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if "conformance.outcome" in properties:
            self.progress.step(str(properties["conformance.outcome"]))

    # --- after ------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.manifest is None:
            self._clean_up()
            return
        self.progress.end()
        self._finish(session, int(exitstatus))

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        with collector_paused():
            status = self._report(exitstatus)
        gc.freeze()  # the process ends with what was made there: nobody looks through it for garbage any more
        self._clean_up()  # workers that collected later have written the manifest once more
        session.exitstatus = status

    def _report(self, exitstatus: int) -> int:
        """Write the report of what the journal holds; the run's exit status."""
        folder, finished = self.settings.folder, _now()
        report = fold(self.manifest, read_journal(folder.journal))  # type: ignore[arg-type]
        status = run_status(exitstatus, int(report.exit_status()))
        journal = open_journal(self.settings)
        journal.finish(exit=status, finished=finished)
        journal.close()
        self.report = replace(report, run=replace(report.run, finished=finished))  # as the journal says it now
        write_report(self.report, folder.path)
        return status

    def _clean_up(self) -> None:
        run = self.settings.run
        for path in (self.settings.folder.new_manifest(run), self.settings.folder.path / f"facts.{run}.json"):
            path.unlink(missing_ok=True)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        from conformance.reports.views.text import body

        if self.report is None:
            if self.settings.bundled and self.manifest is None and exitstatus == EXIT_NO_TESTS:
                terminalreporter.write_line("nothing verified: the selection holds no case. See: conformance list")
            return
        terminalreporter.write_sep("=", f"conformance of {self.settings.subject.name}")
        terminalreporter.write_line(body(self.report, width=_width(terminalreporter)))
        terminalreporter.write_line(f"report: {os.path.relpath(self.settings.folder.path)}")


def run_status(pytest_status: int, report_status: int) -> int:
    """The run's exit status: an interruption stands, then the report's word, then failures of plain tests."""
    if pytest_status in (EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE):
        return pytest_status
    if report_status == 0 and pytest_status == EXIT_NO_TESTS:
        return 0  # a resumed run that had nothing left to do
    return report_status or pytest_status


def _stop(sentence: str) -> None:
    pytest.exit(sentence, returncode=EXIT_USAGE)


def _width(reporter: Any) -> int:
    return int(reporter._tw.fullwidth) if reporter.isatty else _WIDTH_OF_A_LOG


def _now() -> str:
    return datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="seconds")
