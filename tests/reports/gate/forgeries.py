"""Forgeries that are generated, not thought of: every field of an honest report with every kind of edit.

After each edit the counts, lists and hashes are made to fit, as a careful forger would. Values come from the report
itself, from another honest report, and from cases with another verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from conformance.reports.model import CaseRecord, Report
from conformance.reports.verdict import Outcome, Reason, check_pair


@dataclass(frozen=True)
class Forgery:
    """Edited report. ``field`` is the path of the edited member, ``edit`` the kind of the edit."""

    field: str
    edit: str
    report: Report

    @property
    def name(self) -> str:
        return f"{self.field}: {self.edit}"


def forgeries(honest: Report, other: Report) -> Iterator[Forgery]:
    """Yield every edit of the head, of the claims and of cases. ``other`` is the report of another accelerator."""
    yield from _of_head(honest, other)
    yield from _of_claims(honest, other)
    yield from _of_cases(honest, other)


# --- the head -------------------------------------------------------------------------------------------------------


def _of_head(honest: Report, other: Report) -> Iterator[Forgery]:
    for part in ("run", "accelerator", "environment", "accounting"):
        for path, value, foreign in _members(getattr(honest, part), getattr(other, part), (part,)):
            for edit, changed in _edits(value, foreign):
                if changed != value:
                    yield Forgery(".".join(path), edit, _with(honest, path, changed))
        yield Forgery(part, "replaced by another report's", replace(honest, **{part: getattr(other, part)}))
    yield Forgery("notes", "removed", replace(honest, notes=()))


def _members(one: Any, other: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield path, value, and the other report's value of every member, of facts too."""
    for field in dataclasses.fields(one):
        value, foreign = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(value):
            yield from _members(value, foreign, (*path, field.name))
        elif isinstance(value, dict):
            yield from (((*path, field.name, key), member, foreign.get(key)) for key, member in value.items())
        else:
            yield (*path, field.name), value, foreign


def _with(value: Any, path: tuple[str, ...], changed: Any) -> Any:
    """Return the value with the member at this path changed; None removes a fact."""
    name, *rest = path
    if isinstance(value, dict):
        return {
            key: changed if key == name else member
            for key, member in value.items()
            if key != name or changed is not None
        }
    return replace(value, **{name: _with(getattr(value, name), tuple(rest), changed) if rest else changed})


def _edits(value: Any, foreign: Any) -> Iterator[tuple[str, Any]]:
    """Yield edits of one value: removed, doubled, made higher and lower, of another type, of another report."""
    if foreign is not None:
        yield "of another report", foreign
    if isinstance(value, str):
        yield "removed", ""
        yield "doubled", value + value
        yield "shortened", value[:-1]
        yield "in capitals", value.upper()
        yield "with other digits", value.translate(str.maketrans("0123456789", "1234567890"))
    elif isinstance(value, (int, float)):
        yield from {"zero": 0, "negative": -1, "one higher": value + 1, "a thousandfold": value * 1_000}.items()
    elif isinstance(value, tuple):
        yield "emptied", ()
        yield "doubled", value + value
        yield "shortened", value[:-1]
        yield "in another order", value[::-1]


# --- claims ---------------------------------------------------------------------------------------------------------


def _of_claims(honest: Report, other: Report) -> Iterator[Forgery]:
    cells = honest.declaration.cells
    kinds = {(claim.state, claim.detail): place for place, claim in reversed(list(enumerate(cells)))}
    for (state, detail), place in kinds.items():
        claim, what = cells[place], f"a claim {state} {detail}".rstrip()
        changes: dict[str, Any] = {
            f"{field} {edit}": replace(claim, **{field: text})
            for field in ("cell", "state", "detail", "reason")
            for edit, text in _edits(getattr(claim, field), None)
        }
        changes |= {f"turned to {pair}": replace(claim, state=pair[0], detail=pair[1]) for pair in kinds}
        for edit, changed in changes.items():
            if changed != claim:
                yield _claims(honest, what, edit, (*cells[:place], changed, *cells[place + 1 :]))
        yield _claims(honest, what, "removed", (*cells[:place], *cells[place + 1 :]))
    yield _claims(honest, "the claims", "removed", ())
    yield _claims(honest, "the claims", "doubled", cells + cells)
    yield _claims(honest, "the claims", "of another report", other.declaration.cells)


def _claims(honest: Report, field: str, edit: str, cells: tuple[Any, ...]) -> Forgery:
    return Forgery(field, edit, replace(honest, declaration=replace(honest.declaration, cells=cells)))


# --- cases ----------------------------------------------------------------------------------------------------------


def _of_cases(honest: Report, other: Report) -> Iterator[Forgery]:
    """Yield edits of one case, and of all cases, of each verdict."""
    kinds: dict[Reason, list[CaseRecord]] = {}
    for case in honest.cases:
        if case.level != "core":
            kinds.setdefault(case.reason, []).append(case)
    foreign = {case.id: case for case in other.cases}
    for reason, cases in kinds.items():
        for edit, change in _changes(reason, kinds, foreign):
            for many in (False, True):
                chosen = cases if many else [case for case in cases if case.axes.get("mode")][:1] or cases[:1]
                what = f"{'every' if many else 'one'} case that is {reason.value}"
                forged = _changed(honest, {case.id for case in chosen}, change)
                if forged is not None:
                    yield Forgery(what, edit, forged)
    yield from _of_many_cases(honest)


def _changed(honest: Report, ids: set[str], change: Callable[[CaseRecord], CaseRecord]) -> Report | None:
    """Return the report with these cases changed; None if nothing changes, or if no case can be like that."""
    try:
        cases = tuple(change(case) if case.id in ids else case for case in honest.cases)
    except ValueError:
        return None
    return None if cases == honest.cases else replace(honest, cases=cases)


def _changes(
    reason: Reason, kinds: dict[Reason, list[CaseRecord]], foreign: dict[str, CaseRecord]
) -> Iterator[tuple[str, Callable[[CaseRecord], CaseRecord]]]:
    for field in dataclasses.fields(CaseRecord):
        name = field.name
        if name in ("id", "outcome", "reason"):
            continue
        yield (
            f"{name} of another report",
            lambda case, name=name: replace(case, **{name: getattr(foreign.get(case.id, case), name)}),
        )
        for otherwise, others in kinds.items():
            if otherwise is not reason:
                lender = others[0]
                yield (
                    f"{name} of one that is {otherwise.value}",
                    lambda case, name=name, lender=lender: replace(case, **{name: getattr(lender, name)}),
                )
    yield from _turns(reason)
    yield from _numbers()


def _turns(reason: Reason) -> Iterator[tuple[str, Callable[[CaseRecord], CaseRecord]]]:
    """Yield changes to every other verdict, with all evidence left as it is."""
    for outcome in Outcome:
        for otherwise in Reason:
            if outcome in otherwise.facts.outcomes and otherwise is not reason:
                yield (
                    f"turned to {outcome.value} {otherwise.value}",
                    lambda case, o=outcome, r=otherwise: _turned(case, o, r),
                )


def _numbers() -> Iterator[tuple[str, Callable[[CaseRecord], CaseRecord]]]:
    """Yield changes of durations, ranks, texts and metrics."""
    for name, values in (("seconds", (0.0, -1.0, 1e5)), ("ranks", (0, 2, 64)), ("world_size", (1, 2))):
        yield from ((f"{name} {v}", lambda case, name=name, v=v: replace(case, **{name: v})) for v in values)
    for name in ("message", "repro"):
        yield f"{name} removed", lambda case, name=name: replace(case, **{name: ""})
    yield "metrics removed", lambda case: replace(case, metrics={})
    for metric, values in _METRICS.items():
        for value in values:
            yield (
                f"{metric} {value!r}",
                lambda case, m=metric, v=value: replace(case, metrics={**case.metrics, m: v}),
            )


def _turned(case: CaseRecord, outcome: Outcome, reason: Reason) -> CaseRecord:
    check_pair(outcome, reason)
    return replace(case, outcome=outcome, reason=reason)


#: Values that no honest run writes for a metric.
_METRICS: dict[str, tuple[Any, ...]] = {
    "max_abs": (-1.0, "nan", 1e300),
    "max_budget_ratio": (-0.5, 2.0, "0"),
    "error_of_bound": (-0.5, 2.0, "0"),
    "comparisons": (0, -3, 2.5, "many"),
    "samples": (0, -3, 2.5, "many"),
    "answer": ("made up",),
    "an_invented_metric": (1.0, "x"),
}


def _of_many_cases(honest: Report) -> Iterator[Forgery]:
    """Yield edits of the list of cases itself: shortened, and with values moved between cases."""
    cases = honest.cases
    yield Forgery("the cases", "one removed", replace(honest, cases=tuple(cases[:-1])))
    yield Forgery("the cases", "half of them removed", replace(honest, cases=tuple(cases[::2])))
    yield Forgery(
        "the cases", "one repeated under another id", replace(honest, cases=(*cases, replace(cases[-1], id="x.y")))
    )
    for name in ("seconds", "metrics"):
        moved = [getattr(case, name) for case in (*cases[1:], cases[0])]
        changed = tuple(replace(case, **{name: value}) for case, value in zip(cases, moved, strict=True))
        yield Forgery("every case", f"{name} of the next case", replace(honest, cases=changed))
    passed = [case for case in cases if case.outcome is Outcome.PASS]
    for name in ("seconds", "metrics"):
        same = tuple(replace(c, **{name: getattr(passed[0], name)}) if c.outcome is Outcome.PASS else c for c in cases)
        yield Forgery("every case", f"the same {name}", replace(honest, cases=same))
