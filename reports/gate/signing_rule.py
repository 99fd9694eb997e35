"""G14: the report is signed by somebody who may."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Finding, reject
from conformance.reports.plain_text import one_line


def check_signature(evidence: Evidence) -> Iterator[Finding]:
    """G14: the signature verifies and its signer is allowed, wherever the gate was told who may sign."""
    if evidence.signature is not None and evidence.signature.problem:
        yield reject("G14", one_line(evidence.signature.problem, 300))
