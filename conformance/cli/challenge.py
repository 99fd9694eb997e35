"""``conformance challenge``: create a challenge, or recompute a sample of the answers in a report."""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.base.errors import ConformanceError, JournalError, UsageError

if TYPE_CHECKING:
    from conformance.reports.model import CaseRecord, Report

SUMMARY = "Create a challenge, or recompute a sample of the answers in a report."

#: Random cases. If 2 % of the answers are wrong, a sample of 200 misses all of them once in 50 times.
_DEFAULT_CASES: Final = 200
#: Wrong answers that are printed. One is enough for a rejection.
_MAX_SHOWN: Final = 10


class CannotRecompute(ConformanceError):
    """Failure to recompute cases on this machine; it says nothing about the report."""

    exit_status = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "report",
        metavar="REPORT",
        type=Path,
        nargs="?",
        help="a report.json or a report folder; if omitted, print a new nonce",
    )
    add("--nonce", metavar="NONCE", help="the challenge that the report must answer")
    add(
        "--cases",
        metavar="N",
        type=_number,
        default=_DEFAULT_CASES,
        help=f"number of cases to recompute, or 'all' (default: {_DEFAULT_CASES})",
    )
    add("--accelerator", metavar="NAME", default="cpu", help="the accelerator to recompute on (default: cpu)")


def _number(word: str) -> int | None:
    """Return a positive number, or ``None`` for the word 'all'."""
    if word == "all":
        return None
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number or 'all', not {word!r}")
    return int(word)


def run(arguments: argparse.Namespace) -> int:
    """Print a new nonce, or check the report's answers. Exit status 1 means that they are not accepted."""
    from conformance.reports.challenge import answering, checked_nonce, complaint, new_nonce

    if arguments.report is None:
        print(checked_nonce(arguments.nonce) if arguments.nonce else new_nonce())
        return 0
    if not arguments.nonce:
        raise UsageError("--nonce NONCE is missing: name the challenge that the report must answer.")
    nonce, report = checked_nonce(arguments.nonce), _load(arguments.report)
    if problem := complaint(report, nonce):
        print(problem)
        return 1
    answered = answering(report)
    if problem := _problem_of(report, answered):
        print(problem)
        return 1
    sample = _sample(answered, arguments.cases)
    return _print_result(sample, _recompute(sample, nonce, arguments.accelerator))


def _load(path: Path) -> Report:
    """Load the report. An unreadable report exits like one that the gate cannot judge."""
    from conformance.cli.gate import CannotJudge, require
    from conformance.reports.loading import load

    require(path)
    try:
        return load(path)
    except JournalError as error:
        raise CannotJudge(error) from None


def _require_same_suite(report: Report) -> None:
    """Raise CannotRecompute unless this machine has the report's version of the suite and series of torch.

    Other versions draw other samples from the same seed.
    """
    from conformance.plan.bundled import suite_version, torch_version
    from conformance.reports.gate.manifests import torch_series
    from conformance.reports.plain_text import one_line

    reported = (report.run.suite.version, torch_series(report.accelerator.torch))
    installed = (suite_version(), torch_series(torch_version()))
    if reported != installed:
        there, here = (one_line(f"suite {suite} with torch {torch}", 80) for suite, torch in (reported, installed))
        raise CannotRecompute(
            f"the report is from {there}, but {here} is installed here: install the report's versions to recompute it."
        )


def _problem_of(report: Report, answered: Sequence[CaseRecord]) -> str:
    """Return why the report is not accepted whatever a recomputation says; empty if nothing is wrong so far.

    The sender chooses versions, ids and answers. Invented ones are a fault of the report, and not of this machine.
    """
    from conformance.plan.bundled import bundled_cases, suite_version, torch_version
    from conformance.reports.challenge import AREAS
    from conformance.reports.gate.finding import counted, named
    from conformance.reports.gate.manifests import RELEASES, released_series, torch_series
    from conformance.reports.plain_text import one_line

    version = report.run.suite.version
    if version not in (*RELEASES, suite_version()):
        return f"Suite version {one_line(version, 40) or '(none)'} is not a release: {', '.join(RELEASES)}."
    series = torch_series(report.accelerator.torch)
    if series not in (*released_series(version), torch_series(torch_version())):
        return f"No release has a plan for torch {one_line(series or report.accelerator.torch, 40) or '(none)'}."
    _require_same_suite(report)
    if not answered:
        return "The report has no passing case in the areas that answer a challenge."
    known = {bundled.case.id for bundled in bundled_cases(sorted(AREAS))}
    if odd := [case.id for case in answered if case.id not in known]:
        return f"{counted(len(odd), 'id is not that of a case', 'ids are not those of cases')}: {named(odd)}."
    return next(filter(None, map(_malformed, answered)), "")


def _malformed(case: CaseRecord) -> str:
    """Return why the case's answer cannot be read; empty if it can."""
    from conformance.reports.challenge import answer_of, parsed

    try:
        parsed(answer_of(case))
    except JournalError as error:
        return f"{case.id}: {error}"
    return ""


def _sample(cases: Sequence[CaseRecord], number: int | None) -> list[CaseRecord]:
    """Return a random choice of ``number`` cases, or all of them for None."""
    if number is None or number >= len(cases):
        return list(cases)
    # The sender of the report must not be able to predict which cases are recomputed.
    return secrets.SystemRandom().sample(cases, number)


def _recompute(sample: Sequence[CaseRecord], nonce: str, accelerator: str) -> Report:
    """Run the cases here with the report's answers in place of computed results, and return the report of that run."""
    from conformance.process.python import child_pytest, death_of_pytest
    from conformance.reports.challenge import answer_of
    from conformance.reports.loading import load

    with tempfile.TemporaryDirectory() as folder:
        answers, ids = Path(folder) / "answers.json", Path(folder) / "cases"
        answers.write_text(json.dumps({case.id: answer_of(case) for case in sample}), encoding="utf-8")
        ids.write_text("\n".join(case.id for case in sample), encoding="utf-8")
        options = [f"--accelerator={accelerator}", f"--challenge={nonce}", f"--challenge-answers={answers}"]
        report = Path(folder) / "report"
        options += [f"--case-file={ids}", f"--conformance-report={report}", "-q", "-p", "no:cacheprovider"]
        command = child_pytest(*options)
        completed = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)  # noqa: S603
        status, output = completed.returncode, completed.stderr or completed.stdout
        if death := death_of_pytest(status, output, report, run=f"pytest on {accelerator}", accelerator=accelerator):
            raise CannotRecompute(f"the cases could not be recomputed: {death}")
        return load(report)


def _print_result(sample: Sequence[CaseRecord], recomputed: Report) -> int:
    """Print the result; return 1 if an answer is wrong, or if too few were judged, else 0."""
    from conformance.reports.challenge import MINIMUM_SHARE
    from conformance.reports.plain_text import one_line
    from conformance.reports.verdict import Outcome

    found: defaultdict[Outcome, list[CaseRecord]] = defaultdict(list)
    for case in recomputed.cases:
        found[case.outcome].append(case)
    lost = len(sample) - len(recomputed.cases)
    right = [case for case in found[Outcome.PASS] if "answer" in case.metrics]
    wrong = found[Outcome.FAIL]
    for case in wrong[:_MAX_SHOWN]:
        print(one_line(f"{case.id}: {case.message}", 300))
    if len(wrong) > _MAX_SHOWN:
        print(f"and {len(wrong) - _MAX_SHOWN} more")
    unanswered = len(found[Outcome.PASS]) - len(right)
    print(
        f"{len(sample)} passing cases recomputed on {recomputed.accelerator.name}: {len(right)} correct, "
        f"{len(wrong)} wrong, {unanswered} without an answer, {len(found[Outcome.SKIP]) + lost} cannot run here"
    )
    if wrong:
        return 1
    if len(right) < MINIMUM_SHARE * len(sample):
        print(f"not accepted: {len(right)} of {len(sample)} results were checked; at least {MINIMUM_SHARE:.0%} must be")
        return 1
    return 0
