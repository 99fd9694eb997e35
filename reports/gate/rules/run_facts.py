"""G12 to G15: invocation, times, signature and environment of the run."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Final

from conformance.base.options import OPTIONS
from conformance.reports import redaction
from conformance.reports.challenge import complaint, seed_of_challenge
from conformance.reports.gate.command_line import typed
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, note, reject
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line, told_apart
from conformance.reports.profiles import PROFILES, containing
from conformance.reports.totals import was_executed
from conformance.reports.verdict import Outcome

#: Tolerated difference between the clocks of two machines.
_SKEW: Final = timedelta(minutes=10)
#: Factor by which the times of all cases together may exceed the time of the run times its workers.
_SLACK: Final = 1.25
#: Seconds that pytest itself needs for a case, at the least. The published runs take 10 ms for each case.
_QUICKEST: Final = 0.0002
#: Cases that no run finishes within a second.
_MANY: Final = 1_000
#: Seconds. At most half of the passed cases may be shorter.
_TOO_QUICK: Final = 0.00005
#: Different durations of a baseline that are enough to recognise its run, and the share of them that may be equal.
_TELLING: Final = 20
_MOST_EQUAL: Final = 0.5
#: Processes of all shards together; of one machine; and of one machine for each of its cores.
_MOST_WORKERS: Final = 16_384
_FEW_WORKERS: Final = 256
_WORKERS_A_CORE: Final = 16
#: Facts of the machine that every run records.
_FACTS: Final = ("python", "system", "torch")
#: The largest plausible numbers of facts.
_MOST: Final = {"cores": 65_536, "memory_gib": 1 << 20}
_MOST_DEVICES: Final = 65_536
#: A type of devices, or one device with its number; a version of Python.
_DEVICE: Final = re.compile(r"[A-Za-z_]\w*(?::(\d{1,6}))?", re.ASCII)
_PYTHON: Final = re.compile(r"\d+\.\d+(\.\d+)?([a-z+-][\w.+-]*)?", re.ASCII)
#: The beginning of a merged run's id.
MERGED: Final = "merged-"


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
    elif run.invocation.challenge and run.invocation.seed != seed_of_challenge(run.invocation.challenge):
        yield reject("G12", "The seed of the run is not the one that its challenge gives.")
    if type(run.invocation.seed) is not int or run.invocation.seed < 0:
        yield reject("G12", f"No run has this seed: {one_line(str(run.invocation.seed), 40)}.")
    yield from _check_command_line(evidence)
    yield from _check_profile(evidence)
    yield from _check_workers(evidence)


def _check_command_line(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject facts about the run that its own command line contradicts."""
    run = evidence.report.run
    facts = {
        "profile": run.profile or "",
        "strictness": run.strictness,
        "challenge": run.invocation.challenge,
        "seed": str(run.invocation.seed),
    }
    for option in (option for option in OPTIONS if option.judged):
        asked, said = typed(run.invocation.argv, option.name), facts[option.fact]
        if asked is not None and asked != said:
            words = f"{option.name} {one_line(asked, 40)}, and the file says {one_line(said, 40) or '(none)'}"
            yield reject("G12", f"The run was typed with {words}.")


def _check_profile(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a complete run that calls itself a smaller profile: the smaller profile hides failures."""
    said, manifest = evidence.report.run.profile, evidence.manifest
    if said not in PROFILES or manifest is None or manifest.sha256[said] == evidence.plan_sha256:
        return
    larger = (name for name in containing(said) if manifest.sha256[name] == evidence.plan_sha256)
    if name := next(larger, None):
        yield reject("G12", f"The run calls itself a run of profile {said}, and has the plan of {name}.")


def _check_workers(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a number of processes that the machine, or the command line, cannot have had."""
    run = evidence.report.run
    workers, merged = run.invocation.workers, run.id.startswith(MERGED)
    cores = evidence.report.environment.facts.get("cores")
    most = _MOST_WORKERS
    if not merged and isinstance(cores, int):
        most = min(most, max(_FEW_WORKERS, _WORKERS_A_CORE * cores))
    if not 0 <= workers <= most:
        yield reject("G12", f"The run had {workers} processes; at most {most} are plausible on this machine.")
        return
    argv = run.invocation.argv
    asked = typed(argv, "-n", "--numprocesses")
    if merged or "--maxprocesses" in " ".join(argv) or asked is None or not asked.isdecimal():
        return
    if asked != str(workers):
        yield reject("G12", f"The run was typed for {one_line(asked, 20)} processes, and the file says {workers}.")


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
    elif now - started > evidence.policy.max_age:
        days, allowed = (now - started).days, evidence.policy.max_age.days
        yield reject("G13", f"The run began {days} days ago; profile {evidence.profile} accepts {allowed}.")
    yield from _check_order(evidence, started)
    yield from _check_replay(evidence)
    yield from _check_durations(evidence, finished - started)


def is_in_the_future(report: Report, now: datetime) -> bool:
    """Return whether the run is dated later than the clock says, or its dates cannot be compared with the clock."""
    moments = [_moment(text) for text in (report.run.started, report.run.finished) if text]
    return any(moment is None or moment > now + _SKEW for moment in moments)


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


def _check_replay(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a report that repeats the baseline's run under other times."""
    baseline, report = evidence.baseline, evidence.report
    if baseline is None:
        return
    before, now = baseline.run, report.run
    if before.id == now.id:
        if (before.started, before.finished) != (now.started, now.finished):
            yield reject("G13", f"The run {one_line(now.id, 60)} is the baseline's, with other times.")
        return
    # A run does not repeat the microseconds of another run.
    earlier = {case.id: case.seconds for case in baseline.cases if case.outcome is Outcome.PASS}
    if len(set(earlier.values())) < _TELLING:
        return
    both = [case for case in report.cases if case.id in earlier and case.outcome is Outcome.PASS]
    equal = sum(case.seconds == earlier[case.id] for case in both)
    if both and equal > _MOST_EQUAL * len(both):
        yield reject("G13", f"{equal} of {len(both)} durations are those of the baseline: it is the same run.")


def _check_durations(evidence: GateEvidence, wall: timedelta) -> Iterator[GateFinding]:
    """Reject durations that are negative or zero, and sums that do not fit into the time of the run."""
    report = evidence.report
    if backwards := [case.id for case in report.cases if case.seconds < 0]:
        yield reject(
            "G13",
            f"{counted(len(backwards), 'case has', 'cases have')} a negative duration: {named(backwards)}.",
            backwards,
        )
    spent = sum(case.seconds for case in report.cases)
    cores = report.environment.facts.get("cores")
    # A resumed run may have had more processes than its first part, whose number the file gives.
    workers = max(report.run.invocation.workers, cores if isinstance(cores, int) else 1, 1)
    # Dates have whole seconds, so the run may have taken a second more than they say.
    had = wall.total_seconds() + 1
    room = had * workers * _SLACK
    if spent > room:
        yield reject("G13", f"The cases took {spent:.0f} s, more than the run had: {wall} on {workers} processes.")
    # No case passes in no time. Durations of 0 would pass every other check of time.
    if timeless := [case.id for case in report.cases if not case.seconds and case.outcome is Outcome.PASS]:
        yield reject("G13", f"{counted(len(timeless), 'case')} passed in 0 s: {named(timeless)}.", timeless)
    durations = [case.seconds for group in report.groups if group.outcome is Outcome.PASS for case in group.cases]
    quick = sum(0 < seconds < _TOO_QUICK for seconds in durations)
    if quick > len(durations) / 2:
        yield reject("G13", f"{quick} of {len(durations)} passed cases took less than {_TOO_QUICK * 1e6:.0f} µs.")
    executed = sum(len(group.cases) for group in report.groups if was_executed(group.outcome, group.reason))
    # One process of each run takes the results of all its workers. A merged run has as many such processes as shards.
    controllers = workers if report.run.id.startswith(MERGED) else 1
    if executed * _QUICKEST > had * controllers or (executed >= _MANY and not wall):
        yield reject("G13", f"{counted(executed, 'case')} ran within {wall} on {workers} processes.")


def check_environment(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G15: an environment that differs from its fingerprint, or from the requested one."""
    report = evidence.report
    environment = report.environment
    yield from _check_facts(report)
    yield from _check_devices(evidence)
    if environment.fingerprint_sha256 != redaction.fingerprint(environment.facts):
        yield reject("G15", "The hash of the environment's facts is not the fingerprint that the file gives.")
    torch = environment.facts.get("torch")
    if torch is not None and str(torch) != report.accelerator.torch:
        versions = one_line(f"{report.accelerator.torch} here and {torch} there", 120)
        yield reject("G15", f"The file names two versions of torch: {versions}.")
    if evidence.fingerprint and environment.fingerprint_sha256 != evidence.fingerprint:
        seen, required = told_apart(environment.fingerprint_sha256, evidence.fingerprint)
        yield reject("G15", f"The run's environment is {one_line(seen, 80)}, not the {required} that is required.")
    baseline = evidence.baseline
    if baseline and baseline.environment.fingerprint_sha256 != environment.fingerprint_sha256:
        yield note("G15", "The environment differs from the baseline's: changed verdicts may come from it.")


def _check_facts(report: Report) -> Iterator[GateFinding]:
    """Reject facts of the machine that every run records and this file lacks, or that no machine has."""
    facts = report.environment.facts
    if missing := [name for name in _FACTS if not str(facts.get(name, "")).strip()]:
        yield reject("G15", f"The file does not say what every run records of its machine: {named(missing)}.")
    names = [name.casefold() for name in facts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield reject("G15", f"The file has facts with the same name: {named(twice)}.")
    if (python := str(facts.get("python", ""))) and not _PYTHON.fullmatch(python):
        yield reject("G15", f"No interpreter has this version: {one_line(python, 40)}.")
    for name, most in _MOST.items():
        value = facts.get(name, 1)
        if isinstance(value, str) or not 0 < value <= most:
            yield reject("G15", f"No machine has this fact: {name} {one_line(str(value), 40)}.")


def _check_devices(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a number of devices or ranks that contradicts the rest of the file."""
    report = evidence.report
    devices = report.accelerator.devices
    passed = any(group.outcome is Outcome.PASS for group in report.groups)
    if isinstance(devices, str) or not 0 < devices <= _MOST_DEVICES or devices != int(devices):
        if passed:
            yield reject("G15", f"Cases passed on a machine with this many devices: {one_line(str(devices), 60)}.")
    elif not (found := _DEVICE.fullmatch(report.accelerator.device)) or int(found[1] or 0) >= devices:
        device = one_line(report.accelerator.device, 60)
        yield reject("G15", f"The run was on the device {device!a}, none of the {devices:g} that the file has.")
    elif len(report.accelerator.device_names) > devices:
        yield reject("G15", f"The file names more kinds of devices than it has devices: {devices}.")
    if odd := _on_other_ranks(evidence):
        n = counted(len(odd), "case")
        yield reject("G15", f"{n} ran on another number of ranks than planned: {named(odd)}.", odd)


def _on_other_ranks(evidence: GateEvidence) -> list[str]:
    """Return the ids of the cases whose world size or number of ranks is not the planned one."""
    planned = evidence.manifest.cases if evidence.manifest is not None else {}
    odd = []
    for case in evidence.report.cases:
        size = planned[case.id].world_size if case.id in planned else case.world_size
        # Reports did not always name the world size.
        if case.world_size not in (None, size) or case.ranks != (size or 1):
            odd.append(case.id)
    return odd


def check_signature(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return a finding of G14 if a signature is required and missing or invalid, or is of another vendor."""
    signature = evidence.signature
    if signature is None:
        return
    if signature.problem:
        yield reject("G14", one_line(signature.problem, 300))
        return
    name = evidence.report.accelerator.name
    bound = signature.accelerators
    if bound is not None and not any(fnmatch.fnmatchcase(name, pattern) for pattern in bound):
        signer, others = one_line(signature.principal, 100), named(bound) or "no accelerator"
        yield reject("G14", f"{signer} may sign for {others}, and the report is of {one_line(name, 60)!a}.")


RULES = (
    Rule(
        "G12",
        requirement="The run was complete and strict: without -k, -m, --deselect or a selection of this suite, and not "
        "with strictness bring-up. If the gate is given a challenge, the run used it. The command line, the profile, "
        "the strictness and the number of processes do not contradict each other.",
        why="A selection can leave failures out. A run without the challenge may be another vendor's, or last year's.",
        fix="Run pytest --accelerator=NAME with options of workers and folders only, and with --challenge NONCE "
        "if there is one. Merge shards with: conformance merge.",
        check=check_invocation,
    ),
    Rule(
        "G13",
        requirement="The run has a start and an end, in this order. Neither is in the future, older than the profile "
        "accepts, or older than the baseline. The durations of the cases fit between them, and are not the baseline's.",
        why="An old run says nothing about today's driver. Invented times are the easiest sign of an invented run.",
        fix="Run again. Set the clock of the machine: a difference of ten minutes is tolerated.",
        check=check_times,
    ),
    Rule(
        "G14",
        requirement="If the gate is given allowed signers, one of them signed exactly these bytes. With --signers, "
        "the signer may sign for this accelerator.",
        why="Its author can invent everything else in the file. A signature names who answers for it.",
        fix="Sign with: conformance sign REPORT --key KEY. The reviewer adds the public key to the file of "
        "allowed signers.",
        check=check_signature,
    ),
    Rule(
        "G15",
        requirement="The fingerprint of the environment is that of its facts, names the tested torch, and equals the "
        "requested one. The facts, the devices and the ranks are those of one possible machine.",
        why="A result is valid for the software stack that produced it.",
        fix="Run on the stack that is to be certified, and send the file unedited.",
        check=check_environment,
    ),
)
