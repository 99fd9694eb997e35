"""A small honest world: a plan, its released manifest, a run of it that the gate accepts, and an older such run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from conformance.reports.gate.manifests import Manifest, dump, make_manifest
from conformance.reports.model import (
    AcceleratorRecord,
    CaseRecord,
    DeclarationRecord,
    DeclaredCell,
    Environment,
    Invocation,
    Report,
    Run,
    Suite,
    count_cases,
    declared_sha256,
    manifest_sha256,
)
from conformance.reports.planned import PlannedCase
from conformance.reports.report_json import to_json
from conformance.reports.stack import with_fingerprint
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.model import Waiver, WaiverKind

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=timezone.utc)
TORCH = "2.13.0+acme"
FACTS = {"python": "3.11.7", "pytest": "9.2.0", "system": "Linux", "torch": TORCH}
PLUGINS = ("accelerator-conformance 0.1.0", "pytest-xdist 3.8.0")
FILES = "5e" * 32


def planned(id: str, level: str = "standard", tier: str = "unit", adaptive: bool = False, **axes: str) -> PlannedCase:
    full = f"{id}[{'-'.join(axes.values())}]" if axes else id
    need = full if adaptive or axes else id.split(".", 1)[1]
    return PlannedCase(full, id.split(".", 1)[0], tier, axes, (need,), level, adaptive)


def operator(name: str, dtype: str, mode: str) -> PlannedCase:
    return planned(f"operators.{name}", adaptive=True, dtype=dtype, mode=mode)


PLAN = (
    planned("accelerator.device", level="core"),
    planned("accelerator.rng", level="core"),
    planned("accelerator.stream"),
    planned("accelerator.graph"),
    operator("add", "float32", "inference"),
    operator("add", "float32", "training"),
    operator("mul", "float32", "inference"),
    operator("mul", "float32", "training"),
    operator("mul", "bfloat16", "training"),
    operator("eig", "float32", "training"),
    planned("workloads.gpt", tier="workload", dtype="float32", mode="training"),
    planned("workloads.gpt", tier="workload", dtype="float32", mode="inference"),
)
CLAIMS = (
    DeclaredCell("device", "supported", "native"),
    DeclaredCell("rng", "supported", "native"),
    DeclaredCell("stream", "supported", "native"),
    DeclaredCell("graph", "unsupported", "not-yet", "no graphs yet"),
    DeclaredCell("operators.*[float32-inference]", "supported", "native"),
    DeclaredCell("operators.*[float32-training]", "supported", "native"),
    DeclaredCell("operators.eig[float32-training]", "unsupported", "hardware", "no solver"),
    DeclaredCell("workloads.gpt[float32-training]", "supported", "native"),
    DeclaredCell("workloads.gpt[float32-inference]", "supported", "native"),
)
#: Everything else passes.
SKIPPED = {
    "accelerator.graph": Reason.UNSUPPORTED,
    "operators.mul[bfloat16-training]": Reason.UNDECLARED,
    "operators.eig[float32-training]": Reason.UNSUPPORTED,
}


def manifest(plan: tuple[PlannedCase, ...] = PLAN) -> Manifest:
    return make_manifest("0.1.0", TORCH, plan)


def case(one: PlannedCase) -> CaseRecord:
    reason = SKIPPED.get(one.id, Reason.NATIVE)
    outcome = Outcome.PASS if reason is Reason.NATIVE else Outcome.SKIP
    metrics = {"comparisons": 3} if one.area == "operators" and outcome is Outcome.PASS else {}
    message = "" if outcome is Outcome.PASS else f"{one.requires[0]} is {reason.value}"
    return CaseRecord(**vars(one), outcome=outcome, reason=reason, message=message, seconds=0.25, metrics=metrics)


def consistent(report: Report) -> Report:
    """The report with every number, list and hash made to fit: what a careful forger would write."""
    suite = replace(
        report.run.suite,
        cases=len(report.cases) + len(report.accounting.unaccounted),
        manifest_sha256=manifest_sha256(report),
    )
    return with_fingerprint(
        replace(
            report,
            run=replace(report.run, suite=suite),
            totals=count_cases(report.cases, report.accounting),
            declaration=DeclarationRecord(declared_sha256(report.declaration.cells), report.declaration.cells),
        )
    )


def honest(id: str = "new", days: int = 1, plan: tuple[PlannedCase, ...] = PLAN) -> Report:
    """A run that ended so many days ago."""
    end = NOW - timedelta(days=days)
    suite = Suite("0.1.0", "", 0, files_sha256=FILES)
    invocation = Invocation(("--accelerator=acme",), workers=1)
    run = Run(id, (end - timedelta(minutes=5)).isoformat(), suite, end.isoformat(), invocation)
    report = Report(
        run=run,
        accelerator=AcceleratorRecord(
            "acme", "acme", "acme:0", 1, ("Acme One",), "acmeccl", driver="1.2", torch=TORCH, torch_build="2f3c"
        ),
        environment=Environment(facts=FACTS, plugins=PLUGINS),
        declaration=DeclarationRecord(cells=CLAIMS),
        cases=tuple(map(case, plan)),
    )
    return consistent(report)


def with_case(report: Report, id: str, **changes: Any) -> Report:
    """The report with one case changed, and everything that counts it mended."""
    cases = tuple(replace(one, **changes) if one.id == id else one for one in report.cases)
    assert cases != report.cases, id
    return consistent(replace(report, cases=cases))


def waiver(*cases: str, verdict: Reason = Reason.WRONG, **changes: Any) -> Waiver:
    known = {
        "kind": WaiverKind.BUG,
        "ticket": "https://acme.example/1",
        "reason": "rounds the wrong way",
        "owner": "ada@acme.example",
        "expires": NOW.date() + timedelta(days=30),
    }
    return Waiver(cases, verdict, **{**known, **changes})


def toml(*waivers: Waiver) -> str:
    """The waivers as a file."""
    tables = []
    for one in waivers:
        rows = {"cases": list(one.cases), "verdict": one.verdict.value, "kind": one.kind.value}
        rows |= {name: getattr(one, name) for name in ("ticket", "reason", "owner")}
        lines = [f"{name} = {json.dumps(value)}" for name, value in rows.items()]
        tables.append("\n".join(["[[waiver]]", *lines, f"expires = {one.expires}"]))
    return "\n\n".join(tables) + "\n"


@dataclass
class Files:
    """The files that a gate is given, as values that a test may tamper with."""

    report: dict[str, Any]
    baseline: dict[str, Any]
    manifest: Manifest
    waivers: str = ""
    arguments: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> list[str]:
        """Write them; the gate's arguments."""
        (folder / "report.json").write_text(json.dumps(self.report))
        (folder / "baseline.json").write_text(json.dumps(self.baseline))
        (folder / "manifest.json.gz").write_bytes(dump(self.manifest))
        (folder / "waivers.toml").write_text(self.waivers)
        return [
            "gate",
            str(folder / "report.json"),
            f"--baseline={folder / 'baseline.json'}",
            f"--manifest={folder / 'manifest.json.gz'}",
            f"--waivers={folder / 'waivers.toml'}",
            "--profile=training",
            *self.arguments,
        ]


Tampering = Callable[[Files], None]


def plain(report: Report) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(to_json(report))
    return value


def honest_files() -> Files:
    return Files(plain(honest()), plain(honest("old", days=10)), manifest())
