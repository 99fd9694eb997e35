"""Keeps the score of ``standard``: ``python -m tests.standard.score FAULTS.json… --report WHOLE --profile STANDARD``.

FAULTS.json is what ``python -m tests.faults.run --out FOLDER`` writes; several files have different families. WHOLE and
STANDARD are the reports of a whole run and of a run of the profile. ``docs/detection.md`` shows what is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from conformance.reports.loading import load
from tests.faults.fault import FAMILIES
from tests.faults.scores import Score

MEASURED = Path(__file__).parent / "measured.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file of the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.standard.score", description=__doc__)
    parser.add_argument("faults", metavar="FAULTS.json", type=Path, nargs="+")
    parser.add_argument("--report", metavar="WHOLE", type=Path, required=True, help="report of a whole run")
    parser.add_argument("--profile", metavar="STANDARD", type=Path, required=True, help="report of a run of standard")
    options = parser.parse_args(arguments)
    drawn = [json.loads(path.read_text(encoding="utf-8")) for path in options.faults]
    families: dict[str, Any] = {}
    for report in drawn:
        for family, found in report["families"].items():
            families[family] = {key: found[key] for key in ("public", "standard")}
    whole, standard = load(options.report).cases, load(options.profile).cases
    facts = {
        "seeds": sorted({str(report["seed"]) for report in drawn}),
        "cases": [len(standard), len(whole)],
        "map": max(report["cases"] for report in drawn),
        "seconds": [round(sum(case.seconds for case in cases)) for cases in (standard, whole)],
    }
    MEASURED.write_text(json.dumps({**facts, "families": families}, indent=1) + "\n", encoding="utf-8")
    print(table())
    return 0


def table() -> str:
    """Return the kept score as a table, with a sentence about the cost."""
    kept = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = []
    for family, found in kept["families"].items():
        rows.append((f"{family} {FAMILIES[family]}", *_row(found["public"], found["standard"])))
    sums = [_sum(found[key] for found in kept["families"].values()) for key in ("public", "standard")]
    rows.append(("all", *_row(*sums)))
    (some, every), (part, whole) = kept["cases"], kept["seconds"]
    headers = ("family", "live faults", "killed by `full`", "of these by `standard`", "95 % interval")
    return (
        f"`standard` has {some:,} of {every:,} cases and {part} of {whole} worker-seconds on a CPU. "
        f"Faults drawn after the choice, with the seed {', '.join(f'`{seed}`' for seed in kept['seeds'])}, "
        f"in {kept['map']:,} cases of all dtypes:\n\n"
        # Without the padding of tabulate: the pages have a limit.
        + "\n".join(f"| {' | '.join(map(str, row))} |" for row in (headers, ("---", *["--:"] * 4), *rows))
    )


def _row(public: dict[str, Any], standard: dict[str, Any]) -> tuple[int, int, str, str]:
    return (
        public["live"],
        public["killed"],
        f"{standard['killed']}: {standard['share']:.1%}",
        f"{standard['low']:.1%} to {standard['high']:.1%}",
    )


def _sum(scores: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found = list(scores)
    return Score(sum(score["killed"] for score in found), sum(score["live"] for score in found)).as_plain()


if __name__ == "__main__":
    sys.exit(main())
