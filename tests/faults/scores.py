"""Scores: the share of live faults that cases on the subject kill, per family, with Wilson's interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .fault import FAMILIES
from .judging import End, Judged

#: The 97.5th percentile of the normal distribution.
_Z = 1.959964
#: The ends of live faults.
_ENDS = [end for end in End if end not in (End.UNPROVEN, End.IMPOSSIBLE)]


@dataclass(frozen=True)
class Score:
    """Killed of live, and the 95 % interval."""

    killed: int
    live: int

    @property
    def share(self) -> float:
        return self.killed / self.live if self.live else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.killed, self.live)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.0%} ({low:.0%}–{high:.0%}), {self.killed} of {self.live}" if self.live else "–"

    def as_plain(self) -> dict[str, Any]:
        """Return this as data for JSON."""
        low, high = self.interval
        return {"killed": self.killed, "live": self.live, "share": round(self.share, 4), "low": low, "high": high}


def wilson(killed: int, live: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    if not live:
        return 0.0, 1.0
    share, square = killed / live, _Z**2
    middle = (share + square / (2 * live)) / (1 + square / live)
    half = _Z / (1 + square / live) * math.sqrt(share * (1 - share) / live + square / (4 * live**2))
    return round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def over_reached(results: Iterable[Judged]) -> Score:
    """Return the score over the kernels and rules that some case reaches."""
    return _score([item for item in results if item.shown.live and item.reached])


def over_public(results: Iterable[Judged]) -> Score:
    """Return the score over all that the public API reaches: what no case reaches has survived."""
    return _score([item for item in results if item.shown.live])


def over_deep(results: Iterable[Judged]) -> Score | None:
    """Return the score of both tiers over what some case reaches; None where the deep tier was not run."""
    live = [item for item in results if item.shown.live and item.reached]
    if any(item.deep is None for item in live):
        return None
    return Score(sum(item.deep is End.KILLED for item in live), len(live))


def by_standard(results: Iterable[Judged]) -> Score:
    """Return the share of the killed faults that the profile ``standard`` kills alone."""
    killed = [item for item in results if item.end is End.KILLED]
    return Score(sum(item.by_standard for item in killed), len(killed))


def _score(live: Sequence[Judged]) -> Score:
    return Score(sum(item.end is End.KILLED for item in live), len(live))


def report(results: Sequence[Judged], facts: dict[str, Any]) -> dict[str, Any]:
    """Return everything that was measured as data. What no legal call can show is in no figure."""
    every, results = results, possible(results)
    return {
        **facts,
        "impossible": len(every) - len(results),
        "reached": over_reached(results).as_plain(),
        "public": over_public(results).as_plain(),
        "standard": by_standard(results).as_plain(),
        "unproven": {
            "faults": sum(not item.shown.live for item in results),
            "share": round(sum(not item.shown.live for item in results) / max(1, len(results)), 4),
        },
        "families": {
            family: {
                "title": FAMILIES[family],
                "drawn": len(mine),
                "unproven": sum(not item.shown.live for item in mine),
                "reached": over_reached(mine).as_plain(),
                "public": over_public(mine).as_plain(),
                "standard": by_standard(mine).as_plain(),
                "deep": deep.as_plain() if (deep := over_deep(mine)) else None,
            }
            for family in FAMILIES
            if (mine := [item for item in results if item.fault.family == family])
        },
        "faults": [item.as_plain() for item in every],
    }


def possible(results: Sequence[Judged]) -> list[Judged]:
    """Return the faults that a legal call can show."""
    return [item for item in results if item.end is not End.IMPOSSIBLE]


def markdown(results: Sequence[Judged], facts: dict[str, Any]) -> str:
    """Return the same as a page: scores, and the survivors with their reasons."""
    every, results = results, possible(results)
    lines = [
        "# Generated faults",
        "",
        f"{len(results)} faults drawn with seed `{facts['seed']}`; {facts['cases']} cases; {facts['seconds']:.0f} s.",
        "",
        f"Over reached kernels: **{over_reached(results)}**. Over the public API: **{over_public(results)}**.",
        f"Of the killed ones, by the profile `standard`: **{by_standard(results)}**.",
        "",
        "| family | drawn | unproven | over reached | over the public API | of these, by `standard` "
        "| over reached, with the deep tier |" + "".join(f" {end.value} |" for end in _ENDS),
        "|---" * (7 + len(_ENDS)) + "|",
    ]
    for family, title in FAMILIES.items():
        mine = [item for item in results if item.fault.family == family]
        if mine:
            live = [item for item in mine if item.shown.live]
            counts = "".join(f" {sum(item.end is end for item in live)} |" for end in _ENDS)
            unproven = len(mine) - len(live)
            lines.append(
                f"| {family} {title} | {len(mine)} | {unproven} ({unproven / len(mine):.0%}) | {over_reached(mine)} "
                f"| {over_public(mine)} | {by_standard(mine)} | {over_deep(mine) or '–'} |{counts}"
            )
    lines += ["", "## By kind", "", "| kind | live | killed | unproven |", "|---|---|---|---|"]
    for kind in sorted({f"{item.fault.family}.{item.fault.kind}" for item in results}):
        mine = [item for item in results if f"{item.fault.family}.{item.fault.kind}" == kind]
        score = over_public(mine)
        lines.append(f"| {kind} | {score.live} | {score.killed} | {len(mine) - score.live} |")
    lines += ["", "## Survivors", "", "| fault | reason | cases on the subject | shown by |", "|---|---|---|---|"]
    lines += [
        f"| `{item.fault}` | {item.end.value}{f': {item.by}' if item.by else ''} | {item.cases} | {item.shown.by} |"
        for item in sorted(results, key=lambda item: str(item.fault))
        if item.shown.live and item.end is not End.KILLED
    ]
    lines += ["", "## Unproven", ""]
    lines += [f"* `{item.fault}`" for item in sorted(results, key=lambda i: str(i.fault)) if not item.shown.live]
    lines += ["", "## Out of the population", "", "No legal call can show these; they are in no figure.", ""]
    lines += [f"* `{item.fault}`: {item.reason}" for item in every if item.end is End.IMPOSSIBLE]
    return "\n".join(lines) + "\n"
