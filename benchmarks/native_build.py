"""Time to build the compiled CPU kernels with an empty cache, and to load them in later processes."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.process import run
from benchmarks.table import Row, main

LIBRARIES = (
    "conformance.kernels.optimizers.compiled",
    "conformance.kernels.quantization.compiled",
    "conformance.kernels.compression.packing",
    "conformance.kernels.async_io.engines",
    "conformance.kernels.low_latency.segment",
)
#: The clock runs while a library is found, built and loaded. Imports are not counted, because their time is torch's.
_PROGRAM = """
import importlib, json, sys, time
modules = [importlib.import_module(name) for name in sys.argv[1:]]
seconds = {}
for module in modules:
    begun = time.perf_counter()
    module.library()
    seconds[module.__name__] = time.perf_counter() - begun
print(json.dumps(seconds))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--loads", type=int, default=5, help="processes that load the built libraries (default: 5)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        cold = _seconds(Path(folder))
        warm = [_seconds(Path(folder)) for _ in range(arguments.loads)]
    slowest = max(max(seconds.values()) for seconds in warm)
    parts = len(LIBRARIES)
    return [
        Row(f"building the {parts} compiled parts with an empty cache (s)", f"{sum(cold.values()):.1f}", "≤ 60"),
        Row(f"loading them once built, the slowest process of {len(warm)} (ms)", _ms(max(map(_total, warm)))),
        Row("loading one of them, the slowest (ms)", _ms(slowest), "≤ 50"),
    ]


def _total(seconds: dict[str, float]) -> float:
    return sum(seconds.values())


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _seconds(folder: Path) -> dict[str, float]:
    """Return the seconds until each library is loaded, in a new process that uses the cache in ``folder``."""
    finished = run(
        [sys.executable, "-c", _PROGRAM, *LIBRARIES], cwd=folder, environment={"XDG_CACHE_HOME": str(folder / "cache")}
    )
    if finished.status:
        raise SystemExit(f"the compiled kernels could not be loaded:\n{finished.output[-2000:]}")
    seconds: dict[str, float] = json.loads(finished.output.splitlines()[-1])
    return seconds


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
