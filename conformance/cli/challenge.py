"""``conformance challenge``: make a challenge, and compute again a sample of what a report answers to it."""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.errors import ConformanceError, JournalError, UsageError

if TYPE_CHECKING:
    from conformance.reports.model import CaseRecord, Report

SUMMARY = "Make a challenge, or recompute a sample of a report's answers to it."

_CASES: Final = 200
_SHOWN: Final = 10
_RUN: Final = "import sys; from pytest import console_main; sys.exit(console_main())"
#: pytest ran: nothing failed, something failed, nothing could be verified.
_RAN: Final = (0, 1, 5)


class CannotRecompute(ConformanceError):
    """The cases could not be computed again here, so that nothing is known of the report."""

    exit_status = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report", metavar="REPORT", type=Path, nargs="?", help="a report.json, or a report folder; without it: a nonce")
    add("--nonce", metavar="NONCE", help="the challenge that the report has to answer")
    add("--cases", metavar="N", type=_number, default=_CASES, help=f"compute so many again (default: {_CASES}), or all")
    add("--accelerator", metavar="NAME", default="cpu", help="compute on this one (default: cpu)")


def _number(word: str) -> int | None:
    if word == "all":
        return None
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number or 'all', not {word!r}")
    return int(word)


def run(arguments: argparse.Namespace) -> int:
    from conformance.reports.challenge import answering, checked_nonce, complaint, new_nonce

    if arguments.report is None:
        print(checked_nonce(arguments.nonce) if arguments.nonce else new_nonce())
        return 0
    if not arguments.nonce:
        raise UsageError("name the challenge that the report has to answer: --nonce NONCE")
    nonce, report = checked_nonce(arguments.nonce), _load(arguments.report)
    if said := complaint(report, nonce):
        print(said)
        return 1
    _require_same_suite(report)
    sample = _sample(answering(report), arguments.cases)
    if not sample:
        print("No case that answers has passed.")
        return 1
    return _tell(sample, _computed_again(sample, nonce, arguments.accelerator))


def _load(path: Path) -> Report:
    from conformance.cli.gate import CannotJudge, require
    from conformance.reports.loading import load

    require(path)
    try:
        return load(path)
    except JournalError as error:
        raise CannotJudge(error) from None


def _require_same_suite(report: Report) -> None:
    """Other versions draw other samples from the same seed."""
    from conformance.plan import suite_version, torch_version
    from conformance.reports.gate.manifests import torch_series
    from conformance.reports.plain_text import one_line

    theirs = (report.run.suite.version, torch_series(report.accelerator.torch))
    ours = (suite_version(), torch_series(torch_version()))
    if theirs != ours:
        they, we = (one_line(f"suite {suite} with torch {torch}", 80) for suite, torch in (theirs, ours))
        raise CannotRecompute(f"the run was of {they}, and here is {we}: install that to compute the same cases.")


def _sample(cases: Sequence[CaseRecord], number: int | None) -> list[CaseRecord]:
    """Cases that the sender cannot have foreseen."""
    return list(cases) if number is None or number >= len(cases) else secrets.SystemRandom().sample(cases, number)


def _computed_again(sample: Sequence[CaseRecord], nonce: str, accelerator: str) -> Report:
    """The report of a run of these cases in which the answers stand in for what this machine computes."""
    from conformance.process.python import child_python
    from conformance.reports.challenge import answer_of
    from conformance.reports.loading import load

    with tempfile.TemporaryDirectory() as folder:
        answers, ids = Path(folder) / "answers.json", Path(folder) / "cases"
        answers.write_text(json.dumps({case.id: answer_of(case) for case in sample}), encoding="utf-8")
        ids.write_text("\n".join(_safe_ids(sample)), encoding="utf-8")
        words = [f"--accelerator={accelerator}", f"--challenge={nonce}", f"--challenge-answers={answers}"]
        words += [f"--case-file={ids}", f"--conformance-report={folder}/report", "-q", "-p", "no:cacheprovider"]
        command = child_python(_RUN, *words)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)  # noqa: S603
        if done.returncode not in _RAN:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise CannotRecompute(f"the cases could not be computed again: {lines[0] if lines else 'no word of why'}")
        return load(Path(folder) / "report")


def _safe_ids(sample: Iterable[CaseRecord]) -> list[str]:
    """The ids as lines of a case file; a stranger's may mean more than one case there."""
    for case in sample:
        if any(sign in case.id for sign in "*\r\n") or case.id.startswith("#") or case.id != case.id.strip():
            raise CannotRecompute(f"{case.id!r} is not the id of a case.")
    return [case.id for case in sample]


def _tell(sample: Sequence[CaseRecord], again: Report) -> int:
    """Print what came out; 1 if an answer is not right, or if there was none to judge."""
    from conformance.reports.plain_text import one_line
    from conformance.reports.verdict import Outcome

    found: defaultdict[Outcome, list[CaseRecord]] = defaultdict(list)
    for case in again.cases:
        found[case.outcome].append(case)
    lost = len(sample) - len(again.cases)
    right = [case for case in found[Outcome.PASS] if "answer" in case.metrics]
    wrong = found[Outcome.FAIL]
    for case in wrong[:_SHOWN]:
        print(one_line(f"{case.id}: {case.message}", 300))
    if len(wrong) > _SHOWN:
        print(f"and {len(wrong) - _SHOWN} more")
    silent = len(found[Outcome.PASS]) - len(right)
    print(
        f"{len(sample)} passing cases computed again on {again.accelerator.name}: {len(right)} answered rightly, "
        f"{len(wrong)} wrongly, {silent} have nothing to answer, {len(found[Outcome.SKIP]) + lost} cannot run here"
    )
    return 1 if wrong or not right else 0
