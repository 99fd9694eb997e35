"""G12 to G15: invocation, times, signature and environment of the run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Final

from conformance.reports import redaction
from conformance.reports.challenge import complaint
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, note, reject
from conformance.reports.plain_text import one_line, told_apart
from conformance.reports.totals import was_executed

#: Tolerated difference between the clocks of two machines.
_SKEW: Final = timedelta(minutes=10)
#: Factor by which the times of all cases together may exceed the time of the run times its workers.
_SLACK: Final = 1.25


def check_invocation(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G12: a selection, strictness bring-up, or a challenge other than the requested one."""
    run = evidence.report.run
    # Read from the command line again: the selection that the file states may have been edited.
    typed = redaction.selection(run.invocation.argv)
    selecting = sorted({*run.invocation.selection, *typed})
    if selecting:
        yield reject("G12", f"The run left cases out by {named(selecting)}; a profile needs a complete run.")
    if run.strictness not in ("ci", "certify"):
        yield reject("G12", f"The run had strictness {one_line(run.strictness, 40)}, which turns failures into notes.")
    if evidence.challenge and (said := complaint(evidence.report, evidence.challenge)):
        yield reject("G12", said)


def check_times(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G13: missing, reversed, future or old dates, and durations that do not fit between them."""
    run, now = evidence.report.run, evidence.now
    started, finished = _moment(run.started), _moment(run.finished)
    if not run.finished:
        yield reject("G13", "The run has no end: it was killed, or is still going on.")
    if started is None or (run.finished and finished is None):
        yield reject("G13", "The start or the end of the run is not a date with a time zone.")
    if started is None or finished is None:
        return
    if finished < started:
        yield reject("G13", f"The run ended before it began: {finished.isoformat()} is before {started.isoformat()}.")
        return
    if max(started, finished) > now + _SKEW:
        yield reject("G13", f"The run is dated in the future: it is now {now.isoformat(timespec='seconds')}.")
    if now - finished > evidence.policy.max_age:
        days, allowed = (now - finished).days, evidence.policy.max_age.days
        yield reject("G13", f"The run is {days} days old; profile {evidence.profile} accepts {allowed}.")
    yield from _check_order(evidence, started)
    yield from _check_durations(evidence, finished - started)


def _moment(text: str) -> datetime | None:
    """Return a date with its time zone, or None if the text is none."""
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
        return moment.astimezone(timezone.utc) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _check_order(evidence: GateEvidence, started: datetime) -> Iterator[GateFinding]:
    before = _moment(evidence.baseline.run.started) if evidence.baseline else None
    if before is not None and before > started + _SKEW:
        yield reject("G13", "The baseline's run began after the report's, so it cannot have been accepted before.")


def _check_durations(evidence: GateEvidence, wall: timedelta) -> Iterator[GateFinding]:
    """Reject durations that are negative, all zero, or longer in sum than the workers had time."""
    report = evidence.report
    if backwards := [case.id for case in report.cases if case.seconds < 0]:
        yield reject(
            "G13",
            f"{counted(len(backwards), 'case has', 'cases have')} a negative duration: {named(backwards)}.",
            backwards,
        )
    spent = sum(case.seconds for case in report.cases)
    workers = max(report.run.invocation.workers, 1)
    room = wall.total_seconds() * workers * _SLACK + _SKEW.total_seconds()
    if spent > room:
        yield reject("G13", f"The cases took {spent:.0f} s, more than the run had: {wall} on {workers} processes.")
    # Durations that are all 0 would pass every other check of time.
    executed = 0 if spent else sum(was_executed(case.outcome, case.reason) for case in report.cases)
    if executed:
        yield reject("G13", f"{counted(executed, 'case')} ran, and every duration is 0.")


def check_environment(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G15: an environment that differs from its fingerprint, or from the requested one."""
    report = evidence.report
    environment = report.environment
    if environment.fingerprint_sha256 != redaction.fingerprint(environment.facts):
        yield reject("G15", "The hash of the environment's facts is not the fingerprint that the file gives.")
    torch = environment.facts.get("torch")
    if torch is not None and torch != report.accelerator.torch:
        versions = one_line(f"{report.accelerator.torch} here and {torch} there", 120)
        yield reject("G15", f"The file names two versions of torch: {versions}.")
    if evidence.fingerprint and environment.fingerprint_sha256 != evidence.fingerprint:
        seen, required = told_apart(environment.fingerprint_sha256, evidence.fingerprint)
        yield reject("G15", f"The run's environment is {one_line(seen, 80)}, not the {required} that is required.")
    baseline = evidence.baseline
    if baseline and baseline.environment.fingerprint_sha256 != environment.fingerprint_sha256:
        yield note("G15", "The environment differs from the baseline's: changed verdicts may come from it.")


def check_signature(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return a finding of G14 if a signature is required and missing or invalid."""
    if evidence.signature is not None and evidence.signature.problem:
        yield reject("G14", one_line(evidence.signature.problem, 300))


RULES = (
    Rule(
        "G12",
        requirement="The run was complete and strict: without -k, -m, --deselect or a selection of this suite, and not "
        "with strictness bring-up. If the gate is given a challenge, the run used it.",
        why="A selection can leave failures out. A run without the challenge may be another vendor's, or last year's.",
        fix="Run pytest --accelerator=NAME with options of workers and folders only, and with --challenge NONCE "
        "if there is one. Merge shards with: conformance merge.",
        check=check_invocation,
    ),
    Rule(
        "G13",
        requirement="The run has a start and an end, in this order. Neither is in the future, older than the profile "
        "accepts, or older than the baseline. The durations of the cases fit between them.",
        why="An old run says nothing about today's driver. Invented times are the easiest sign of an invented run.",
        fix="Run again. Set the clock of the machine: a difference of ten minutes is tolerated.",
        check=check_times,
    ),
    Rule(
        "G14",
        requirement="If the gate is given allowed signers, one of them signed exactly these bytes.",
        why="Its author can invent everything else in the file. A signature names who answers for it.",
        fix="Sign with: conformance sign REPORT --key KEY. The reviewer adds the public key to the file of "
        "allowed signers.",
        check=check_signature,
    ),
    Rule(
        "G15",
        requirement="The fingerprint of the environment is that of its facts, names the tested torch, and equals the "
        "requested one.",
        why="A result is valid for the software stack that produced it.",
        fix="Run on the stack that is to be certified, and send the file unedited.",
        check=check_environment,
    ),
)
