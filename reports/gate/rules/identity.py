"""G01, G02, G03: the report can be read, and comes from a released suite and its plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, note, reject
from conformance.reports.gate.manifests import torch_series
from conformance.reports.model import RECORDS_STACK
from conformance.reports.plain_text import one_line, told_apart
from conformance.reports.profiles import containing

#: Number of releases that are current, and of older ones that are accepted with a note.
_CURRENT: Final = 2
_STALE: Final = 1
#: The oldest format of a report that is accepted. Format 1 lacks evidence that later rules demand.
OLDEST_SCHEMA: Final = 2


def check_version(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G02: a version of the suite that is unknown or old."""
    if evidence.report.schema < OLDEST_SCHEMA:
        yield reject(
            "G02", f"The report is of format {evidence.report.schema}; run again: {OLDEST_SCHEMA} is the oldest."
        )
    newer = (evidence.report.environment.plugins, evidence.report.run.suite.files_sha256)
    if evidence.report.schema < RECORDS_STACK and any(newer):
        yield reject("G02", f"The file has facts that its format {evidence.report.schema} does not know.")
    version = one_line(evidence.report.run.suite.version, 40) or "(none)"
    if version not in evidence.releases:
        known = ", ".join(evidence.releases[-_CURRENT - _STALE :])
        yield reject("G02", f"Suite version {version} is not a release that this gate knows: {known}.")
        return
    behind = len(evidence.releases) - 1 - evidence.releases.index(version)
    if behind >= _CURRENT + _STALE:
        yield reject("G02", f"Suite version {version} is {behind} releases old; run {evidence.releases[-1]}.")
    elif behind >= _CURRENT:
        yield note("G02", f"Suite version {version} is stale; the next release will no longer accept it.")


def check_manifest(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G03: a plan that is not the released one of the profile or of a larger profile."""
    run, manifest = evidence.report.run, evidence.manifest
    series = torch_series(evidence.report.accelerator.torch) or "an unknown version"
    if manifest is None:
        yield reject("G03", _no_manifest(one_line(run.suite.version, 40), series, evidence.series))
        return
    if (manifest.suite, manifest.torch) != (run.suite.version, torch_series(evidence.report.accelerator.torch)):
        found = one_line(f"suite {run.suite.version} with torch {series}", 80)
        yield reject(
            "G03", f"The manifest is of suite {manifest.suite} with torch {manifest.torch}, the run of {found}."
        )
    released = {name: manifest.sha256[name] for name in containing(evidence.profile)}
    if run.suite.manifest_sha256 not in released.values():
        # Two hashes may begin alike; both are cut where the run's differs from all of them.
        width = max(len(told_apart(run.suite.manifest_sha256, sha256)[0]) for sha256 in released.values())
        short = one_line(run.suite.manifest_sha256[:width], 80) or "(none)"
        wanted = ", ".join(f"{sha256[: max(width, 12)]} ({name})" for name, sha256 in released.items())
        yield reject("G03", f"The run's manifest {short} is not the released one of {evidence.profile}: {wanted}.")


def _no_manifest(suite: str, series: str, known: tuple[str, ...]) -> str:
    """Return the sentence for a plan that no released manifest describes, with the ways out."""
    there = f" There are manifests for torch {', '.join(known)}." if known else ""
    return (
        f"There is no released manifest of suite {suite} with torch {series}.{there} Run with one of these, or make a "
        f"manifest where torch {series} and a suite that you trust are installed: conformance manifest -o "
        "manifest.json.gz. Then give it to the gate: --manifest manifest.json.gz."
    )


def check_parsed(_: GateEvidence) -> Iterable[GateFinding]:
    """Return nothing for G01: a report that reaches the rules was parsed. The command reports all other files."""
    return ()


RULES = (
    Rule(
        "G01",
        title="unreadable",
        requirement="The report can be read: it is UTF-8 JSON of a known schema, without unknown or repeated keys, and "
        "within the size limits.",
        why="A reader that guesses can be made to guess wrong. The exit status is 2, not 1.",
        fix="Send the report.json that the run wrote, unedited. Make one from a journal with: conformance report "
        "FOLDER --format json.",
        check=check_parsed,
    ),
    Rule(
        "G02",
        title="old suite",
        requirement="The suite's version is the newest release or the one before it. The release before that is "
        "accepted with a note, older ones are rejected.",
        why="An old suite does not test for what newer releases find.",
        fix="Install the newest release and run again.",
        check=check_version,
    ),
    Rule(
        "G03",
        title="other plan",
        requirement="The hash of the run's plan is the released hash of the profile, or of a profile that contains it.",
        why="A plan with other cases, or with fewer requirements, is another suite.",
        fix="Run the released suite with a released torch series and without a selection. For another series, make a "
        "manifest with: conformance manifest -o FILE, and name it: --manifest FILE.",
        check=check_manifest,
    ),
)
