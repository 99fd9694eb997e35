"""Terminal output of a run: no letter for each case, no tracebacks by default, and the report as the last section.

A device that fails hundreds of cases has few defects. The report names them by cause, and pytest's sections, with a
traceback and a line for each failure, are printed on request only.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from conformance.process.peak import peak_line
from conformance.reports.declaration.corrections import PROBE
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line
from conformance.reports.profiles import PROFILES
from conformance.reports.repro import rerun, whole
from conformance.reports.totals import ExitStatus
from conformance.reports.verdict import Outcome, Reason
from conformance.runner.context import RunContext, header_of

if TYPE_CHECKING:
    from conformance.runner.controller import Controller

#: Width of the report in columns where the output is no terminal (CI logs, files).
_WIDTH_OF_A_LOG: Final = 120
#: Probes of undeclared cells that are shown if nothing else ran, and characters of their messages.
_SHOWN_PROBES: Final = 5
_LONGEST_PROBE: Final = 240
#: pytest's own defaults of ``-r`` and ``--tb``.
_DEFAULT_SHORT_SUMMARY, _DEFAULT_TRACEBACKS = "fE", "auto"
#: What stands for a character that an output does not know.
_PLAIN: Final = {ord(drawn): plain for drawn, plain in {"─": "-", "·": ".", "–": "-", "…": "...", "×": "x"}.items()}
#: Names under which pytest keeps the reports of failures.
_FAILURES: Final = ("failed", "error")


class Terminal:
    """Hooks for what pytest prints about cases. Plain tests are printed as without this plugin."""

    def __init__(self, config: pytest.Config, context: RunContext, controller: Controller) -> None:
        self.config, self.context, self.controller = config, context, controller
        self._tests_have_ended = False
        self._hidden: dict[str, list[Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        """Suppress pytest's letter for each case, unless the output is verbose."""
        if self._tests_have_ended or self.config.option.verbose > 0 or not is_case(report):
            return None  # the short summary needs pytest's words, such as FAILED
        # Thousands of dots tell nothing; Progress prints one line every ten seconds.
        return (report.outcome, "", "")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> Generator[None, None, None]:
        """Print the report below everything else, and keep pytest from printing tracebacks of cases."""
        self._tests_have_ended = True
        if not self._wants_tracebacks():
            self._hide(terminalreporter.stats)
        try:
            yield
        finally:
            self._show(terminalreporter.stats)  # pytest's last line counts all failures
        self._print(terminalreporter, exitstatus)

    # pytest calls it after the tracebacks and before the short summary.
    @pytest.hookimpl(specname="pytest_terminal_summary", tryfirst=True)
    def pytest_terminal_summary_of_ids(self, terminalreporter: Any) -> None:
        """Let pytest name the failures in its short summary if the command line has ``-r``."""
        if self.config.option.reportchars != _DEFAULT_SHORT_SUMMARY:
            self._show(terminalreporter.stats)

    def _wants_tracebacks(self) -> bool:
        """Tell whether the tracebacks of cases are asked for: by options, or by a run of one case."""
        option, manifest = self.config.option, self.controller.manifest
        planned = len(manifest["cases"]) if manifest else 0
        return option.verbose > 0 or option.tbstyle != _DEFAULT_TRACEBACKS or planned == 1

    def _hide(self, stats: dict[str, list[Any]]) -> None:
        """Take the failures of cases out of pytest's statistics, from which it prints."""
        for name in _FAILURES:
            if name in stats:
                self._hidden[name] = stats[name]
                stats[name] = [report for report in stats[name] if not is_case(report)]

    def _show(self, stats: dict[str, list[Any]]) -> None:
        """Put back what ``_hide`` has taken out."""
        stats.update(self._hidden)
        self._hidden.clear()

    def _print(self, reporter: Any, exitstatus: int) -> None:
        """Print the report and the next steps, or say that the selection was empty."""
        from conformance.reports.views.text import body
        from conformance.runner.controller import EXIT_NO_TESTS

        report = self.controller.report
        if report is None:
            if self.context.bundled and self.controller.manifest is None and exitstatus == EXIT_NO_TESTS:
                reporter.write_line("nothing verified: the selection contains no case. See: conformance list")
            return
        reporter.write_sep("=", f"conformance of {self.context.accelerator.name}")
        text = body(report, width=int(reporter._tw.fullwidth) if reporter.isatty else _WIDTH_OF_A_LOG)
        # pytest writes a text with one character that the output cannot show as one line of escapes.
        for line in printable(text, getattr(reporter._tw._file, "encoding", None)).split("\n"):
            reporter.write_line(line)
        if changed := self.controller.changed_by_loading:
            reporter.write_line(
                f"loading the accelerator changed this process: {', '.join(changed)}; every program that imports it "
                "gets this too (case accelerator.environment.import_keeps_it)"
            )
        if line := peak_line(self._peaks()):
            reporter.write_line(line)
        for line in next_steps(report, self.context, self.controller.kept):
            reporter.write_line(line)

    def _peaks(self) -> list[tuple[int, str]]:
        """Return the peaks of workers, or of this process where it has run the cases itself."""
        runner = self.config.pluginmanager.getplugin("conformance-runner")
        return [*self.controller.peaks, *([(runner.peak.bytes, runner.peak.case)] if runner else [])]


def printable(text: str, encoding: str | None) -> str:
    """Return a text with a plain character in place of each that an output with this encoding cannot show."""
    if not encoding or encoding.lower().replace("-", "") == "utf8":
        return text
    drawn = text.translate(_PLAIN)
    return drawn.encode(encoding, errors="replace").decode(encoding)


def is_case(report: object) -> bool:
    """Tell whether a report of pytest is about a case, and not about a plain test or a file."""
    return "conformance.id" in dict(getattr(report, "user_properties", ()))


def fitted(lines: list[str], reporter: Any) -> list[str]:
    """Return lines for the head of pytest's output, wrapped between words where the output is a terminal."""
    if reporter is None or not reporter.isatty:
        return lines
    width = int(reporter._tw.fullwidth)
    return [
        part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
    ]


def blame_step(report: Report, folder: str) -> Iterator[str]:
    """Yield the command that tells which failing operators a failing workload calls, if there are both."""
    failed = {
        case.tier if case.area != "operators" else case.area for case in report.cases if case.outcome is Outcome.FAIL
    }
    if {"workload", "operators"} <= failed:
        yield f"      {shlex.join(['conformance', 'blame', '--from', folder])}"


def probed(report: Report) -> list[str]:
    """Return a line with the bugs that a run's probes of undeclared cells found, if nothing else was verified."""
    if report.exit_status() is not ExitStatus.NOTHING_VERIFIED:
        return []
    found = [case for case in report.cases if case.reason is Reason.UNDECLARED and case.metrics.get(PROBE)]
    kinds = Counter(str(case.metrics[PROBE]) for case in found)
    if not kinds:
        return []
    said = ", ".join(f"{kind} {number}" for kind, number in kinds.items())
    shown = [f"  {case.id}: {one_line(case.message, _LONGEST_PROBE)}" for case in found[:_SHOWN_PROBES]]
    return [f"no cell of these cases is declared; their probes, which count nowhere: {said}", *shown]


def next_steps(report: Report, context: RunContext, kept: Path | None) -> Iterator[str]:
    """Yield where the report is, and the commands that follow from it."""
    folder = os.path.relpath(context.folder.path)
    status = report.exit_status()
    yield f"report: {folder}"
    if kept is not None:
        yield f"the run before: {os.path.relpath(kept)}"
    if status is ExitStatus.UNACCOUNTED:
        yield "next: repeat the command with --resume; it runs the cases that have no verdict"
    elif found := probed(report):
        yield from found
        yield f"next: {shlex.join(['conformance', 'explain', '--report', folder])} CASE"
    elif status is ExitStatus.NOTHING_VERIFIED:
        yield f"next: {shlex.join(['conformance', 'doctor', context.options.accelerator])}"
    elif report.counts.failed:
        yield f"next: {rerun(header_of(context), os.path.join(folder, 'failed.txt'))}"  # noqa: PTH118 - relative
        yield f"      {shlex.join(['conformance', 'explain', '--report', folder])} CASE"
        yield from blame_step(report, folder)
        if kept is not None:
            yield f"      {shlex.join(['conformance', 'diff', folder])}"
    elif report.badge:
        profile = report.run.profile or report.badge
        words = ["conformance", "gate", os.path.join(folder, "report.json"), "--profile", profile]  # noqa: PTH118
        yield f"next: {shlex.join(words)}"
    if report.run.profile in PROFILES and not PROFILES[report.run.profile].badge:
        yield f"every case with all its inputs, as badges and the gate ask for: {whole(header_of(context))}"
