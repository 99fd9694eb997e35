"""G12 to G15: invocation, times, signature and environment of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from conformance.reports import redaction
from conformance.reports.challenge import complaint, seed_of_challenge
from conformance.reports.gate.command_line import contradictions, foreign_words, is_known, words_of
from conformance.reports.gate.durations import check_durations, check_replay, check_workers
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, note, reject
from conformance.reports.gate.signers import may_sign
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line, told_apart
from conformance.reports.profiles import PROFILES, containing
from conformance.reports.stack import difference, fingerprint
from conformance.reports.times import moment
from conformance.reports.verdict import Outcome

#: Tolerated difference between the clocks of two machines.
_SKEW: Final = timedelta(minutes=10)
#: Facts of the machine that every run records.
_FACTS: Final = ("python", "system", "torch", "pytest")
#: The largest plausible numbers of facts.
_MOST: Final = {"cores": 65_536, "memory_gib": 1 << 20}
_MOST_DEVICES: Final = 65_536
#: A type of devices, or one device with its number; a version of Python.
_DEVICE: Final = re.compile(r"[A-Za-z_]\w*(?::(0|[1-9]\d{0,5}))?", re.ASCII)
_PYTHON: Final = re.compile(r"\d+\.\d+(\.\d+)?([a-z+-][\w.+-]*)?", re.ASCII)
#: A date as a run writes it. No place on earth is further from UTC than 14 hours.
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-3]):[0-5]\d|[+-]14:00)", re.ASCII)
#: Oldest versions that this suite runs with.
_OLDEST: Final = {"python": (3, 10), "pytest": (7, 0), "numpy": (1, 21)}
#: Systems that torch is built for, as Python names them.
_SYSTEMS: Final = frozenset({"Linux", "Darwin", "Windows", "FreeBSD"})
#: Name of an environment variable, and of pytest's setting.
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: A commit of this project, and a SHA-256, as a report writes them.
_COMMIT: Final = re.compile(r"[0-9a-f]{7,40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
#: A plugin of an installed package: its name and its version. Other plugins are modules that nobody published.
_PUBLISHED_PLUGIN: Final = re.compile(r"[A-Za-z0-9._-]+ \d[\w.+!-]*")
#: Variable with which torch itself computes on the host where the device lacks an operator.
_FALLBACK: Final = "PYTORCH_ENABLE_MPS_FALLBACK"
#: Plugins that every run loads.
_OWN_PLUGINS: Final = ("accelerator-conformance", "pytest-xdist")


def check_invocation(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G12: a selection, strictness bring-up, or a challenge other than the requested one."""
    run = evidence.report.run
    # Read from the command line again: the selection that the file states may have been edited.
    words = words_of(evidence.report)
    selecting = sorted({*run.invocation.selection, *redaction.selection(words)})
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
    if foreign := foreign_words(words):
        yield reject("G12", f"A run that can be judged is not typed with {named(foreign)}.")
    yield from (reject("G12", sentence) for sentence in contradictions(evidence.report))
    yield from _check_profile(evidence)
    yield from check_workers(evidence.report)
    yield from _check_plugins(evidence.report)


def _check_plugins(report: Report) -> Iterator[GateFinding]:
    """Reject plugins that nobody published: they can change the judge. Older reports do not name any."""
    if not is_known(report):
        return
    plugins, variables = report.environment.plugins, report.environment.variables
    if loaded := str(variables.get("PYTEST_PLUGINS", "")):
        yield reject("G12", f"The run loaded plugins that a variable names: {one_line(loaded, 80)}.")
    if preloaded := str(variables.get("LD_PRELOAD", "")):
        yield note("G12", f"The run replaced functions of its libraries (LD_PRELOAD): {one_line(preloaded, 80)}.")
    if str(variables.get("PYTHONOPTIMIZE", "")) not in ("", "0"):
        yield reject("G12", "The run was without assertions (PYTHONOPTIMIZE), and some checks are assertions.")
    if len(set(plugins)) < len(plugins):
        yield reject("G12", "The file names a plugin twice.")
    if str(variables.get(_FALLBACK, "0")) not in ("", "0"):
        yield note("G12", f"torch computed on the host what the device lacks ({_FALLBACK}).")
    if unknown := [plugin for plugin in plugins if not _PUBLISHED_PLUGIN.fullmatch(plugin)]:
        yield reject("G12", f"The run loaded code that belongs to no installed package: {named(unknown)}.")
    if missing := [own for own in _OWN_PLUGINS if not any(plugin.startswith(f"{own} ") for plugin in plugins)]:
        yield reject("G12", f"The file does not name the plugins that every run loads: {named(missing)}.")
    yield from (reject("G12", f"The file names two versions of {name}: {said}.") for name, said in _unlike(report))


def _unlike(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the plugins whose version differs from the one that the file gives elsewhere."""
    known = {_OWN_PLUGINS[0]: report.run.suite.version, _OWN_PLUGINS[1]: report.environment.facts.get(_OWN_PLUGINS[1])}
    for name, version in (plugin.rsplit(" ", 1) for plugin in report.environment.plugins if " " in plugin):
        # A version of a working tree has a suffix.
        if known.get(name) and not version.startswith(str(known[name])):
            yield name, one_line(f"{version} and {known[name]}", 80)


def _check_profile(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a complete run that calls itself a smaller profile: the smaller profile hides failures."""
    said, manifest = evidence.report.run.profile, evidence.manifest
    if said not in PROFILES or manifest is None or manifest.sha256[said] == evidence.plan_sha256:
        return
    larger = (name for name in containing(said) if manifest.sha256[name] == evidence.plan_sha256)
    if name := next(larger, None):
        yield reject("G12", f"The run calls itself a run of profile {said}, and has the plan of {name}.")


def check_times(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G13: missing, reversed, future or old dates, and durations that do not fit between them."""
    run, now = evidence.report.run, evidence.now
    started, finished = moment(run.started), moment(run.finished)
    if not run.finished:
        yield reject("G13", "The run has no end: it was killed, or is still going on.")
    if started is None or (run.finished and finished is None):
        yield reject("G13", "The start or the end of the run is not a date with a time zone.")
    if started is None or finished is None:
        return
    if not all(map(_DATE.fullmatch, (run.started, run.finished))) or run.started[-6:] != run.finished[-6:]:
        yield reject("G13", "The start and the end of the run are not written as a run writes them, in one time zone.")
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
    yield from check_replay(evidence.report, evidence.baseline)
    yield from check_durations(evidence.report, finished - started)


def is_in_the_future(report: Report, now: datetime) -> bool:
    """Return whether the run is dated later than the clock says, or its dates cannot be compared with the clock."""
    moments = [moment(text) for text in (report.run.started, report.run.finished) if text]
    return any(found is None or found > now + _SKEW for found in moments)


def _check_order(evidence: GateEvidence, started: datetime) -> Iterator[GateFinding]:
    before = moment(evidence.baseline.run.started) if evidence.baseline else None
    if before is not None and before > started + _SKEW:
        yield reject("G13", "The baseline's run began after the report's, so it cannot have been accepted before.")


def check_environment(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G15: an environment that differs from its fingerprint, or from the requested one."""
    report = evidence.report
    environment = report.environment
    yield from _check_facts(report)
    yield from _check_devices(evidence)
    if environment.fingerprint_sha256 != fingerprint(report):
        yield reject("G15", "The hash of the run's stack is not the fingerprint that the file gives.")
    torch = environment.facts.get("torch")
    if torch is not None and str(torch) != report.accelerator.torch:
        versions = one_line(f"{report.accelerator.torch} here and {torch} there", 120)
        yield reject("G15", f"The file names two versions of torch: {versions}.")
    if evidence.fingerprint and environment.fingerprint_sha256 != evidence.fingerprint:
        seen, required = told_apart(environment.fingerprint_sha256, evidence.fingerprint)
        yield reject("G15", f"The run's environment is {one_line(seen, 80)}, not the {required} that is required.")
    baseline = evidence.baseline
    if baseline and (said := difference(baseline, report)):
        yield note("G15", f"The stack differs from the baseline's, and changed verdicts may come from it: {said}.")
    yield from _check_suite_files(report)


def _check_suite_files(report: Report) -> Iterator[GateFinding]:
    """Reject a commit or a hash that is none, and note that an older format does not say which files ran."""
    suite = report.run.suite
    if suite.commit and not _COMMIT.fullmatch(suite.commit):
        yield reject("G15", f"No suite has this commit: {one_line(suite.commit, 60)}.")
    if not is_known(report):
        return
    if not _SHA256.fullmatch(suite.files_sha256):
        yield reject("G15", "The file does not have the hash of the suite's installed files.")
    elif not report.accelerator.torch_build.strip():
        yield reject("G15", "The file does not name the build of torch.")


def _check_facts(report: Report) -> Iterator[GateFinding]:
    """Reject facts of the machine that every run records and this file lacks, or that no machine has."""
    facts = report.environment.facts
    if missing := [name for name in _FACTS if not str(facts.get(name, "")).strip()]:
        yield reject("G15", f"The file does not say what every run records of its machine: {named(missing)}.")
    names = [name.casefold() for name in facts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield reject("G15", f"The file has facts with the same name: {named(twice)}.")
    python = str(facts.get("python", ""))
    if python and (not _PYTHON.fullmatch(python) or _series(python) < _OLDEST["python"]):
        yield reject("G15", f"No interpreter that runs this suite has this version: {one_line(python, 40)}.")
    for package in ("pytest", "numpy"):
        if (version := str(facts.get(package, ""))) and _series(version) < _OLDEST[package]:
            yield reject("G15", f"This {package} does not run this suite: {one_line(version, 40)}.")
    if (system := str(facts.get("system", ""))).strip() and system not in _SYSTEMS:
        yield reject("G15", f"No torch is built for this system: {one_line(system, 40)}.")
    if odd := [name for name in report.environment.variables if not _VARIABLE.fullmatch(name)]:
        yield reject("G15", f"No environment variable has this name: {named([ascii(name) for name in odd])}.")
    for name, most in _MOST.items():
        value = facts.get(name, 1)
        if isinstance(value, str) or not 0 < value <= most or (name == "cores" and value != int(value)):
            yield reject("G15", f"No machine has this fact: {name} {one_line(str(value), 40)}.")


def _series(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _check_devices(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a number of devices or ranks that contradicts the rest of the file."""
    report = evidence.report
    devices = report.accelerator.devices
    passed = any(group.outcome is Outcome.PASS for group in report.groups)
    if type(devices) is not int or not 0 < devices <= _MOST_DEVICES:
        if passed:
            yield reject("G15", f"Cases passed on a machine with this many devices: {one_line(str(devices), 60)}.")
    elif not (found := _DEVICE.fullmatch(report.accelerator.device)) or int(found[1] or 0) >= devices:
        device = one_line(report.accelerator.device, 60)
        yield reject("G15", f"The run was on the device {device!a}, none of the {devices:g} that the file has.")
    elif (kinds := report.accelerator.device_names) and (
        len(set(kinds)) < len(kinds) or not all(map(str.strip, kinds))
    ):
        yield reject("G15", "The file names a kind of devices twice, or one without a name.")
    elif len(report.accelerator.device_names) > devices:
        yield reject("G15", f"The file names more kinds of devices than it has devices: {devices}.")
    on_ranks = any(case.ranks > 1 and case.outcome is Outcome.PASS for case in report.cases)
    if on_ranks and not report.accelerator.communication_backend.strip():
        yield reject("G15", "Cases passed on several ranks, and the accelerator has no backend for collectives.")
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
    if not may_sign(signature, name):
        signer, others = one_line(signature.principal, 100), named(signature.accelerators or ()) or "no accelerator"
        yield reject("G14", f"{signer} may sign for {others}, and the report is of {one_line(name, 60)!a}.")


RULES = (
    Rule(
        "G12",
        title="command line",
        requirement="The run was complete and strict: without -k, -m, --deselect or a selection of this suite, and not "
        "with strictness bring-up. The command line has only options that a judged run may have, and no plugin of its "
        "own. If the gate is given a challenge, the run used it. The command line, the profile, the strictness, the "
        "seed and the number of processes do not contradict each other.",
        why="A selection can leave failures out. A run without the challenge may be another vendor's, or last year's.",
        fix="Run pytest --accelerator=NAME with options of workers and folders only, and with --challenge NONCE "
        "if there is one. Merge shards with: conformance merge.",
        check=check_invocation,
    ),
    Rule(
        "G13",
        title="times",
        requirement="The run has a start and an end, in this order. Neither is in the future, older than the profile "
        "accepts, or older than the baseline. The durations of the cases fit between them, differ, and do not follow "
        "from the baseline's.",
        why="An old run says nothing about today's driver. Invented times are the easiest sign of an invented run.",
        fix="Run again. Set the clock of the machine: a difference of ten minutes is tolerated.",
        check=check_times,
    ),
    Rule(
        "G14",
        title="signature",
        requirement="If the gate is given allowed signers, one of them signed exactly these bytes. With --signers, "
        "the signer may sign for this accelerator.",
        why="Its author can invent everything else in the file. A signature names who answers for it.",
        fix="Sign with: conformance sign REPORT --key KEY. The reviewer adds the public key to the file of "
        "allowed signers.",
        check=check_signature,
    ),
    Rule(
        "G15",
        title="stack",
        requirement="The fingerprint is that of the run's stack, names the tested torch, and equals the requested one. "
        "The facts, the devices and the ranks are those of one possible machine. The stack names the build of torch "
        "and the suite's files.",
        why="A result is valid for the software stack that produced it.",
        fix="Run on the stack that is to be certified, and send the file unedited.",
        check=check_environment,
    ),
)
