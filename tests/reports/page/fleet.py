"""Ten accelerators that are made from this repository's own published run: what a page of vendors looks like."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.reports.gate.finding import Decision, reject
from conformance.reports.loading import load
from conformance.reports.model import CaseRecord, Report
from conformance.reports.page.columns import PublishedReport, ReportOrigin
from conformance.reports.verdict import Outcome, Reason

PUBLISHED = Path(__file__).parents[3] / "reports" / "published" / "runs"
BEFORE, NOW = "2026-11-14T08:00:00+00:00", "2026-11-21T08:00:00+00:00"

Change = Callable[[CaseRecord], CaseRecord]


@dataclass(frozen=True)
class Maker:
    """An accelerator: what differs from the run it is made from, now and in the run before."""

    name: str
    now: tuple[Change, ...] = ()
    before: tuple[Change, ...] = ()
    signer: str = "ci@vendor.example"
    rules: tuple[str, ...] = ()
    origin: ReportOrigin = ReportOrigin.VENDOR
    first: bool = False
    judged: bool = True


def _to(case: CaseRecord, outcome: Outcome, reason: Reason, message: str, **metrics: float) -> CaseRecord:
    return replace(case, outcome=outcome, reason=reason, message=message, metrics={**case.metrics, **metrics})


def fails(part: str, message: str, reason: Reason = Reason.WRONG, dtype: str = "", **metrics: float) -> Change:
    def change(case: CaseRecord) -> CaseRecord:
        if part not in case.id or (dtype and case.axes.get("dtype") != dtype) or case.outcome is not Outcome.PASS:
            return case
        return _to(case, Outcome.FAIL, reason, message, **metrics)

    return change


def skips(part: str, reason: Reason, message: str, dtype: str = "") -> Change:
    def change(case: CaseRecord) -> CaseRecord:
        if part not in case.id or (dtype and case.axes.get("dtype") != dtype):
            return case
        return _to(case, Outcome.SKIP, reason, message)

    return change


def slower(factor: float) -> Change:
    def change(case: CaseRecord) -> CaseRecord:
        median = case.metrics.get("step_ms_median")
        if not isinstance(median, float):
            return case
        return replace(case, metrics={**case.metrics, "step_ms_median": median * factor})

    return change


WEAK_CONV = fails(
    "conv2d[", "max_ulp 212 over the budget 4 at [0, 3, 1]; the products are summed in bfloat16", dtype="bfloat16",
    max_budget_ratio=3.7,
)  # fmt: skip
LOST_GRAPHS = fails("accelerator.graph", "worker died with signal SIGSEGV", Reason.CRASH)
DUPLICATES = fails("scatter_add", "two of four updates with one index are lost", max_budget_ratio=40.0)
RNG = fails("accelerator.rng", "a restored generator state gives other numbers")

MAKERS = (
    Maker("nova", (WEAK_CONV, LOST_GRAPHS, DUPLICATES, slower(0.4)), (slower(0.32),), rules=("G07",)),
    Maker(
        "supa",
        (
            skips(
                "cumsum[",
                Reason.WAIVED,
                "not-yet, SUPA-118, until 2027-01-30: sums are kept in the input's type",
                "float16",
            ),
            skips("", Reason.UNDECLARED, "the dtype is not declared", "float64"),
            slower(0.7),
        ),
        (fails("index_add", "raises NotImplementedError", Reason.RAISED), slower(0.8)),
    ),
    Maker("cpu", origin=ReportOrigin.UPSTREAM, signer=""),
    Maker(
        "orca",
        (
            skips("-training]", Reason.UNSUPPORTED, "training is declared unsupported; the device refused"),
            skips("comm.", Reason.ENVIRONMENT, "this machine has 1 device; the case needs 2"),
        ),
        signer="",
        first=True,
    ),
    Maker(
        "tera-research-prototype",
        (RNG, fails("comm.reduce_scatter", "timed out after 60 s", Reason.HANG)),
        rules=("G06", "G07"),
    ),
    Maker("kestrel-5000", judged=False),
    Maker("lynx", (skips("moe.", Reason.UNDECLARED, "nothing is declared about it"),)),
    Maker(
        "mistral-x",
        (fails("softmax", "the sum of a row is 0.98", dtype="float16", max_budget_ratio=1.4),),
        rules=("G06",),
    ),
    Maker("onyx", (skips("pipe.", Reason.UNSUPPORTED, "declared unsupported; the device refused"),)),
    Maker("quartz", first=True, judged=False, signer=""),
)


def _report(maker: Maker, base: Report, started: str, changes: tuple[Change, ...], driver: str) -> Report:
    cases = []
    for case in base.cases:
        for change in changes:
            case = change(case)
        cases.append(case)
    run = replace(base.run, id=f"{maker.name}-{started[:10]}", started=started, finished=started)
    accelerator = replace(base.accelerator, name=maker.name, spec=maker.name, driver=driver)
    return replace(base, run=run, accelerator=accelerator, cases=tuple(cases))


def fleet(number: int, every: int = 1) -> list[PublishedReport]:
    """So many accelerators, the run before of most of them too. ``every`` keeps each n-th case, for speed."""
    whole = load(PUBLISHED / "cpu.json.gz")
    drawn = random.Random(7)
    kept = tuple(
        case
        for place, case in enumerate(whole.cases)
        if place % every == 0 or any(name in case.id for name in ("conv2d", "modules.Conv2d[", ".cumsum"))
    )
    base = replace(whole, cases=kept)
    found = []
    for maker in MAKERS[:number]:
        driver = f"{drawn.randrange(9)}.{drawn.randrange(9)}"
        now = _report(maker, base, NOW, maker.now, f"{driver}.2")
        if not maker.first:
            before = _report(maker, base, BEFORE, maker.before, f"{driver}.1")
            decision = _decision(maker, before) if maker.judged else None
            found.append(PublishedReport(before, maker.origin, maker.signer, decision))
        found.append(PublishedReport(now, maker.origin, maker.signer, _decision(maker, now) if maker.judged else None))
    return found


def _decision(maker: Maker, report: Report) -> Decision:
    findings = tuple(reject(rule, f"what {rule} demands does not hold for 38 cases") for rule in maker.rules)
    waived = sum(case.reason is Reason.WAIVED for case in report.cases)
    return Decision(
        maker.name, "full", findings, run=report.run.id, started=report.run.started, signer=maker.signer, waived=waived,
        unchecked=("whether the run is new (--challenge)",),
    )  # fmt: skip
