"""Time of collecting everything, time to the first test, and cost of the plugin in runs that do not use it."""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.process import Finished, conformance, pytest
from benchmarks.table import Row, main

PLAIN_TEST = "def test_nothing():\n    pass\n"
WITHOUT_PLUGIN = ("-p", "no:conformance")
#: Numbers of TorchCTS 0.4.1 on two cores. Collecting all of it takes minutes, so they are not measured again.
PEER_COLLECTION, PEER_MEMORY, PEER_FIRST = "441 s", "1,230 MB", "250 s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=30, help="pairs of plain pytest runs (default: 30)")
    parser.add_argument("--first-area", default="accelerator", help="area for the time to the first test")


def measure(arguments: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        collect(here)  # Python compiles torch's modules in a fresh environment, which takes memory
        shutil.rmtree(here / "cache")
        cold, warm = (collect(here) for _ in range(2))
        first = conformance(f"--area={arguments.first_area}", "-n0", "-q", cwd=here, environment=cache(here))
        added, torch = unused_cost(here, arguments.repeats)
    collected = f"({warm.outcomes['selected']:,} cases)"
    return [
        Row("collecting every case, cold cache", f"{seconds(cold)} {collected}", "≤ 10 s", PEER_COLLECTION),
        Row("collecting every case, warm cache", f"{seconds(warm)} {collected}", "≤ 10 s", PEER_COLLECTION),
        Row("collecting: peak memory, cold", f"{cold.peak_mb:.0f} MB", "≤ 400 MB", PEER_MEMORY),
        Row("collecting: peak memory, warm", f"{warm.peak_mb:.0f} MB", "≤ 400 MB", PEER_MEMORY),
        Row(f"start to the first test of {arguments.first_area}", f"{first.to_first_test:.1f} s", "≤ 5 s", PEER_FIRST),
        Row(f"start to the first verdict of {arguments.first_area}", f"{first.to_first_verdict:.1f} s"),
        Row(f"plugin installed but unused, {arguments.repeats} pairs (quartiles)", milliseconds(added), "≤ 5 ms"),
        Row("torch imported by it", "yes" if torch else "no", "no"),
    ]


def collect(folder: Path) -> Finished:
    return conformance("--collect-only", "-q", cwd=folder, environment=cache(folder))


def cache(folder: Path) -> dict[str, str]:
    """Return the environment variable of a cache folder that is empty at the first run and filled at the second."""
    return {"XDG_CACHE_HOME": str(folder / "cache")}


def seconds(finished: Finished) -> str:
    return f"{finished.seconds:.1f} s"


def milliseconds(quartiles: list[float]) -> str:
    low, median, high = (f"{quartile * 1e3:+.1f}" for quartile in quartiles)
    return f"{median} ms ({low} … {high})"


def unused_cost(folder: Path, repeats: int) -> tuple[list[float], bool]:
    """Return the quartiles of the processor seconds that the plugin adds to a plain run, and whether torch is imported.

    The runs are pairs, one with the plugin and one without, in a random order; the quartiles are of their differences.
    """
    (folder / "test_plain.py").write_text(PLAIN_TEST, encoding="utf-8")
    _plain(folder), _plain(folder, *WITHOUT_PLUGIN)  # pytest compiles the test and the plugin here
    order = random.Random(repeats)
    pairs = [_pair(folder, order) for _ in range(repeats)]
    # Differences within a pair: another process that slows the machine for seconds slows both runs of a pair.
    added = [plugin.cpu_seconds - without.cpu_seconds for plugin, without in pairs]
    return statistics.quantiles(added, n=4), any(plugin.torch for plugin, _ in pairs)


def _pair(folder: Path, order: random.Random) -> tuple[Finished, Finished]:
    """Run pytest with the plugin and without it; which one comes first is drawn by lot."""
    sides = order.sample([(), WITHOUT_PLUGIN], 2)
    runs = {side: _plain(folder, *side) for side in sides}
    return runs[()], runs[WITHOUT_PLUGIN]


def _plain(folder: Path, *arguments: str) -> Finished:
    return pytest("-q", *arguments, "test_plain.py", cwd=folder)


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
