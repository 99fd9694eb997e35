"""Writing and reading tensors past the page cache, compared with dd and fio with direct I/O on the same file."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.table import Row, main, times
from conformance.kernels.async_io import native_handle

_BLOCK, _DEPTH = 1 << 20, 128

#: Function that moves the whole file and returns its seconds.
Side = Callable[[], float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--io-mebibytes", type=int, default=256, help="size of the file (default: 256)")
    parser.add_argument("--io-rounds", type=int, default=5, help="alternating rounds (default: 5)")
    parser.add_argument("--io-folder", default=".", help="folder of the file, not on tmpfs (default: here)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=arguments.io_folder) as folder:
        file = Path(folder) / "tensor.bin"
        size = arguments.io_mebibytes << 20
        handle = native_handle()(_BLOCK, _DEPTH, False, True, 1)
        locked = handle.new_cpu_locked_tensor(size, torch.zeros(1, dtype=torch.uint8)).random_()
        ordinary = locked.clone()
        handle.sync_pwrite(locked, file)
        rows = []
        for direction, call in (("write", handle.sync_pwrite), ("read", handle.sync_pread)):
            here: dict[str, Side] = {
                "a locked tensor": functools.partial(_seconds, call, locked, file),
                "an ordinary tensor": functools.partial(_seconds, call, ordinary, file),
            }
            rows += _rows(direction, here, _peers(direction, file, size), size, arguments.io_rounds)
        handle.close()
        if not torch.equal(locked, ordinary):
            raise SystemExit("the data read differ from the data written")
        return rows


def _rows(direction: str, here: dict[str, Side], peers: dict[str, Side], size: int, rounds: int) -> list[Row]:
    sides = {**here, **peers}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken[name].append(side())
    speed = {name: size / statistics.median(seconds) for name, seconds in taken.items()}
    return [
        Row(
            f"{direction} {size >> 20} MiB, {what}",
            f"{speed[what] / 1e6:,.0f} MB/s",
            "≥ 1×",
            f"{speed[peer] / 1e6:,.0f} MB/s ({peer})",
            times(speed[what] / speed[peer]),
        )
        for what in here
        for peer in peers
    ]


def _seconds(call: Callable[..., int], tensor: torch.Tensor, file: Path) -> float:
    start = time.perf_counter()
    call(tensor, file)
    return time.perf_counter() - start


def _peers(direction: str, file: Path, size: int) -> dict[str, Side]:
    found: dict[str, Side] = {"dd": functools.partial(_dd, direction, file, size)}
    if shutil.which("fio"):
        found["fio"] = functools.partial(_fio, direction, file, size)
    return found


def _dd(direction: str, file: Path, size: int) -> float:
    """Return the seconds that dd reports, which are without its start."""
    ends = ["if=/dev/zero", f"of={file}", "oflag=direct", "conv=notrunc"]
    if direction == "read":
        ends = [f"if={file}", "of=/dev/null", "iflag=direct"]
    command = ["dd", *ends, f"bs={_BLOCK}", f"count={size // _BLOCK}"]
    environment = {**os.environ, "LC_ALL": "C"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr
    match = re.search(r"copied, ([\d.e+-]+) s", output)
    if match is None:
        raise SystemExit(f"dd reports no time: {output}")
    return float(match[1])


def _fio(direction: str, file: Path, size: int) -> float:
    """Return the seconds that fio reports, with the engine, block size and queue depth of the handle."""
    settings = {"name": "peer", "filename": file, "rw": direction, "bs": _BLOCK, "size": size, "iodepth": _DEPTH}
    options = [f"--{key}={value}" for key, value in settings.items()]
    command = ["fio", *options, "--ioengine=libaio", "--direct=1", "--output-format=json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bytes_per_second: float = json.loads(output)["jobs"][0][direction]["bw_bytes"]
    return size / bytes_per_second


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
