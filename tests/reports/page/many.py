"""Large reports, and a hostile one."""

from __future__ import annotations

import random

from conformance.reports.model import AcceleratorRecord, CaseRecord, Environment, Invocation, Report, Run, Suite
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome, Reason

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e'\""
_DTYPES = ("float32", "bfloat16", "float16", "float64", "int64")


def report(name: str, cases: tuple[CaseRecord, ...], started: str = "2026-03-04T05:06:07+00:00") -> Report:
    run = Run(f"run-of-{name}", started, Suite("0.1.0", "ab" * 32, len(cases)))
    return Report(run, AcceleratorRecord(name, spec=name), cases=cases)


def large(name: str, number: int, salt: int) -> Report:
    """So many cases with the verdicts, messages and numbers that real runs have, in shares like theirs."""
    drawn = random.Random(salt)
    return report(name, tuple(_case(place, salt, drawn) for place in range(number)))


def _case(place: int, salt: int, drawn: random.Random) -> CaseRecord:
    dtype, mode = _DTYPES[place % 5], ("inference", "training")[place // 5 % 2]
    operator = f"operators.family_{place // 10 % 7}.operator_{place // 10}"
    mixed = drawn.randrange(1000)
    outcome, reason, message = Outcome.PASS, Reason.NATIVE, ""
    if mixed < 300:
        outcome, reason = Outcome.SKIP, Reason.UNDECLARED
        message = f"{operator}[{dtype}-{mode}] is not declared; probe: not implemented: {mixed % 7}"
    elif mixed < 303:
        outcome, reason, message = Outcome.FAIL, Reason.WRONG, f"max_ulp {mixed} > budget 4 at [{place % 9}, {salt}]"
    ratio = drawn.choice((0.0, drawn.lognormvariate(-3, 1.5)))
    return CaseRecord(
        f"{operator}[{dtype}-{mode}]",
        "operators",
        axes={"dtype": dtype, "mode": mode},
        requires=(f"{operator}[{dtype}-{mode}]",),
        outcome=outcome,
        reason=reason,
        message=message,
        metrics={"max_budget_ratio": ratio, "comparisons": 40, "max_abs": ratio / 1e6},
        seconds=0.01,
    )


def hostile() -> Report:
    """Markup in every string that reaches the page."""
    case = CaseRecord(
        f"{HOSTILE}.{HOSTILE}[{HOSTILE}]",
        HOSTILE,
        tier="workload",
        axes={"dtype": HOSTILE, HOSTILE: HOSTILE},
        outcome=Outcome.FAIL,
        reason=Reason.WRONG,
        message=HOSTILE,
        metrics={HOSTILE: HOSTILE, "max_budget_ratio": 1e308, "step_ms_median": 1e308, "step_ms_p90": -1.0},
        repro=HOSTILE,
    )
    lost = CaseRecord("x.y", "x", metrics={"max_budget_ratio": 2.0, "step_ms_median": 0.0, "step_ms_p90": 0.0})
    made = report(HOSTILE, (case, lost), HOSTILE)
    return Report(
        Run(HOSTILE, HOSTILE, Suite(HOSTILE, HOSTILE, 2), HOSTILE, Invocation((HOSTILE,))),
        AcceleratorRecord(*[HOSTILE] * 3, 1, (HOSTILE,), *[HOSTILE] * 5),
        Environment(HOSTILE, {HOSTILE: HOSTILE}),
        notes=(HOSTILE,),
        cases=made.cases,
    )


def planned(case: CaseRecord) -> PlannedCase:
    return PlannedCase(case.id, case.area, axes=case.axes, requires=case.requires)
