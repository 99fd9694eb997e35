"""Draws faults, judges them and writes scores: ``python -m tests.faults.run --draws N --seed S --family F``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.defects import bench

from . import corpus, forks, population, recording, scores
from .fault import FAMILIES
from .judging import judged


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 when the score has fallen, or 4 for wrong usage."""
    options = _options(arguments)
    started = time.perf_counter()
    bench.loaded()
    forks.prepare()
    found = recording.kept(narrow=options.narrow, processes=options.jobs, only_new=options.only_new, say=_say)
    known = corpus.read()
    assert known is not None
    red = {id: record.red for id, record in found.cases.items() if record.red}
    for id, why in red.items():
        _say(f"red without a fault: {id}: {why}")
    faults = population.drawn(options.family or population.families(), options.draws, options.seed, found, known.inputs)
    _say(f"{len(faults)} faults drawn; {len(found.cases)} cases in the map; {time.perf_counter() - started:.0f} s")
    results = judged(faults, found, known, options.jobs, _say)
    facts = {"seed": options.seed, "cases": len(found.cases), "seconds": time.perf_counter() - started}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "faults.json").write_text(json.dumps(scores.report(results, facts), indent=1), encoding="utf-8")
    (options.out / "faults.md").write_text(scores.markdown(results, facts), encoding="utf-8")
    print(scores.markdown(results, facts).split("## By kind")[0])
    print(f"written: {options.out / 'faults.md'} and faults.json")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="faults to draw, the same number of each family")
    parser.add_argument("--seed", default="0", help="any text; the same seed draws the same faults")
    parser.add_argument("--family", action="append", choices=[*FAMILIES], help="only this family; repeatable")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes side by side")
    parser.add_argument(
        "--narrow", action="store_true", help="operators in float32, int64, complex64 and bool alone: as in CI"
    )
    parser.add_argument(
        "--only-new", action="store_true", help="record only the cases that the newest map lacks; while writing cases"
    )
    parser.add_argument("--out", type=Path, default=Path("faults-report"), help="folder for faults.json and faults.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
