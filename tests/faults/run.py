"""Draws faults, judges them and writes scores: ``python -m tests.faults.run --draws N --seed S --family F``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from conformance.base.errors import ConformanceError
from tests.defects import bench

from . import corpus, forks, parts, population, recording, scores
from .fault import FAMILIES
from .graphs import judging as graphs
from .judging import Judged, judged, judged_deep, judged_wide
from .pairs import families as pairs
from .recording import Map

#: The figures by which CI judges a draw, and how far below them the score may fall.
MEASURED = Path(__file__).parent / "measured.json"
_FALL = 0.10


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 1 when a healthy device fails or the score has fallen, or 4 for an unknown accelerator."""
    options = _options(arguments)
    started = time.perf_counter()
    try:
        bench.loaded(options.accelerator)
    except ConformanceError as error:
        print(error, file=sys.stderr)
        return 4
    forks.prepare()
    families = options.family or population.families()
    of_pairs = [family for family in families if family in pairs.FAMILIES]
    if of_pairs and options.accelerator != "sim":
        print("families T, S and K break the simulated accelerator; leave --accelerator out", file=sys.stderr)
        return 4
    if graphs.FAMILY in families and options.accelerator != "sim":
        print("family M breaks compiled code of the simulated accelerator; leave --accelerator out", file=sys.stderr)
        return 4
    of_kernels = [family for family in families if family not in (*of_pairs, graphs.FAMILY)]
    found, results = Map(), []
    if of_kernels:
        found, results = _of_kernels(of_kernels, options, len(of_kernels) / len(families), started)
    if graphs.FAMILY in families:
        share = round(options.draws / len(families))
        results += graphs.drawn_and_judged(share, options.seed, options.jobs, _say)
    if of_pairs:
        share = options.draws - len(results)
        results += pairs.drawn_and_judged(of_pairs, share, options.seed, options.jobs, _say)
    seconds = round(time.perf_counter() - started, 1)
    facts = {"seed": options.seed, "cases": len(found.cases), "seconds": seconds}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "faults.json").write_text(json.dumps(scores.report(results, facts), indent=1), encoding="utf-8")
    (options.out / "faults.md").write_text(scores.markdown(results, facts), encoding="utf-8")
    print(scores.markdown(results, facts).split("## By kind")[0])
    print(f"written: {options.out / 'faults.md'} and faults.json")
    fallen = complaint(scores.over_public(_measured(results, MEASURED)), MEASURED) if options.watch else None
    healthy = [f"{id} fails without a fault: {record.red}" for id, record in found.cases.items() if record.red]
    for text in filter(None, (*healthy, fallen)):
        print(text, file=sys.stderr)
    return 1 if healthy or fallen else 0


def _of_kernels(
    families: Sequence[str], options: argparse.Namespace, part: float, started: float
) -> tuple[Map, list[Judged]]:
    """Draw and judge faults of kernels and derivative rules; ``part`` of the draws is theirs."""
    found = recording.kept(
        accelerator=options.accelerator,
        narrow=options.narrow,
        processes=options.jobs,
        only_new=options.only_new,
        chosen=options.part.cases if options.part else list,
        say=_say,
    )
    known = corpus.read()
    assert known is not None
    chosen = [parts.chosen(found)] if options.part else []
    faults = population.drawn(families, round(options.draws * part), options.seed, found, known.inputs, *chosen)
    _say(f"{len(faults)} faults drawn; {len(found.cases)} cases in the map; {time.perf_counter() - started:.0f} s")
    results = judged(faults, options.accelerator, found, known, options.jobs, _say)
    if options.narrow:
        results = judged_wide(results, options.accelerator, found, options.jobs)
    return found, judged_deep(results, options.accelerator, found, options.jobs) if options.deep else results


def _measured(results: Sequence[Judged], measured: Path) -> list[Judged]:
    """Return the faults of those families that have a committed figure there."""
    families = json.loads(measured.read_text(encoding="utf-8"))["families"]
    return [item for item in results if item.fault.family in families]


def complaint(score: scores.Score, measured: Path) -> str | None:
    """Return a sentence when the score over the public API has fallen too far below the committed one."""
    committed = json.loads(measured.read_text(encoding="utf-8"))["public"]["share"]
    if score.share >= committed - _FALL:
        return None
    return (
        f"the suite kills {score} of the drawn faults; {measured.name} has {committed:.0%}.\n"
        "  See the survivors in faults.md. If fewer kills are right, measure again and commit the figure: "
        "tox run -e instrument -- faults --narrow --draws 3000"
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="faults to draw, the same number of each family")
    parser.add_argument("--seed", default="0", help="any text; the same seed draws the same faults")
    parser.add_argument("--family", action="append", choices=[*FAMILIES], help="only this family; repeatable")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes side by side")
    parser.add_argument("--accelerator", default="sim", help="a device that runs in this process; sim unless named")
    parser.add_argument("--watch", action="store_true", help="end with status 1 if the score has fallen by 10 points")
    parser.add_argument(
        "--narrow",
        action="store_true",
        help="operators in float32, int64, complex64 and bool alone, and no workloads: as in CI",
    )
    parser.add_argument(
        "--only-new", action="store_true", help="record only the cases that the newest map lacks; while writing cases"
    )
    parser.add_argument("--deep", action="store_true", help="survivors also go through the cases of the deep tier")
    parser.add_argument(
        "--part",
        type=parts.Part.of,
        metavar="K/N",
        help="only faults of every N-th operator, by its own cases",
    )
    parser.add_argument("--out", type=Path, default=Path("faults-report"), help="folder for faults.json and faults.md")
    options = parser.parse_args(arguments)
    for name in ("draws", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(options, name)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
