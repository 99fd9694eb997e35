"""A small run with every kind of ending, as the manifest and the journal that a real one would leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.reports.fold import fold
from conformance.reports.journal import JournalWriter, read_journal
from conformance.reports.model import Report
from conformance.reports.verdict import Reason, Verdict, failed, passed, skipped

SHA = "5f" * 32


def entry(id: str, level: str = "standard", tier: str = "unit", **axes: str) -> dict[str, Any]:
    """A manifest's entry; the case needs the cell of its own id."""
    area = id.split(".", 1)[0]
    full = f"{id}[{'-'.join(axes.values())}]" if axes else id
    return {
        "id": full,
        "area": area,
        "tier": tier,
        "axes": axes,
        "requires": [full],
        "level": level,
        "nodeid": f"suites/{area}/test_it.py::test_it[{full}]",
    }


#: Cases with their verdicts; None: began and never ended; absent from the journal altogether: ``LATE``.
ENDINGS: list[tuple[dict[str, Any], Verdict | None]] = [
    (entry("accelerator.device.count", level="core"), passed()),
    (entry("accelerator.rng.state_roundtrip"), passed(Reason.EMULATED)),
    (
        entry("accelerator.dtype.copy_roundtrip", dtype="int8"),
        skipped(Reason.UNDECLARED, "dtype[int8] is not declared"),
    ),
    (entry("operators.add", dtype="float32", mode="inference"), passed(max_ulp=1.5, budget=4)),
    (
        entry("operators.add", dtype="float32", mode="training"),
        failed(Reason.WRONG, "max_ulp 12 > budget 4\nat [3, 7]"),
    ),
    (
        entry("operators.add", dtype="bfloat16", mode="training"),
        failed(Reason.OVER_DECLARED, "add raises NotImplementedError"),
    ),
    (entry("operators.eig", dtype="complex64", mode="inference"), skipped(Reason.UNSUPPORTED, "confirmed: refused")),
    (
        entry("operators.eig", dtype="float64", mode="inference"),
        skipped(Reason.UNDER_DECLARED, "declared unsupported but works"),
    ),
    (
        entry("workloads.gpt", tier="workload", dtype="float32", mode="training"),
        passed(tokens_per_s=12345.6, step_ms_median=12.3, peak_memory_bytes=13 * 2**20),
    ),
    (
        entry("workloads.vit", tier="workload", dtype="float32", mode="training"),
        skipped(Reason.ENVIRONMENT, "no scikit-learn"),
    ),
    (entry("profiling.trace"), None),
]
LATE = entry("profiling.late")

HEADER: dict[str, Any] = {
    "run": "r-1",
    "manifest": SHA,
    "suite": "0.1.0",
    "accelerator": "supa",
    "spec": "supa",
    "started": "2026-01-02T03:04:05+00:00",
    "argv": ["--accelerator=supa"],
    "seed": 7,
    "strictness": "ci",
    "profile": None,
    "workers": 2,
    "environment": {
        "fingerprint_sha256": "00",
        "facts": {"python": "3.11.7", "system": "Linux", "hostname": "alices-laptop", "packages": {"torch": "2.13.0"}},
    },
}
REPORTED: dict[str, Any] = {
    "name": "supa",
    "device": "supa:0",
    "devices": 1,
    "communication_backend": "bccl",
    "declaration": {"sha256": "ab" * 32, "cells": [["operators.*[float32-inference]", "supported", "native", ""]]},
}


def manifest(entries: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {"schema": 1, "sha256": SHA, "suite": "0.1.0", "torch": "2.13.0", "cases": entries, **changes}


def write_run(
    folder: Path,
    endings: list[tuple[dict[str, Any], Verdict | None]],
    late: tuple[dict[str, Any], ...] = (),
    **header: Any,
) -> Path:
    """Write a manifest and a journal; the journal's path."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [one for one, _ in endings] + list(late)
    (folder / "manifest.json").write_text(json.dumps(manifest(entries)), encoding="utf-8")
    writer = JournalWriter(folder / "journal.jsonl", "gw0")
    writer.run(**{**HEADER, **header})
    writer.accelerator(**REPORTED)
    for one, verdict in endings:
        writer.start(one["id"])
        if verdict is not None:
            writer.end(one["id"], verdict, 0.25)
    writer.close()
    return folder / "journal.jsonl"


def write_sample(folder: Path) -> Path:
    """The run above, killed before it was over."""
    return write_run(folder, ENDINGS, (LATE,))


def report_of(folder: Path, *endings: tuple[dict[str, Any], Verdict | None], **header: Any) -> Report:
    """The report of a run with these endings."""
    journal = write_run(folder, list(endings), **header)
    return fold(json.loads((folder / "manifest.json").read_text()), read_journal(journal))


def sample_report(folder: Path) -> Report:
    journal = write_sample(folder)
    return fold(json.loads((folder / "manifest.json").read_text()), read_journal(journal))
