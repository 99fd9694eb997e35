"""Cases about files of a monitor: device values are written, and read back with the same bits."""

from __future__ import annotations

import csv
import importlib.util
import math
import struct

import torch

from conformance.accelerators.capabilities import DTYPE, MEMORY
from conformance.judging.finding import environment_lacks
from conformance.plan.case import About, case

FLOATS = ("float32", "float64", "float16", "bfloat16")


def values(dtype):
    """Return eleven numbers that need every bit of the dtype: thirds, the largest, the smallest normal, and -0.0."""
    info = torch.finfo(dtype)
    first = [1 / 3, -2 / 3, info.max, -info.max, info.tiny, 1 + info.eps, -0.0, 1e-3, 65.0, 0.1, math.pi]
    return torch.tensor(first, dtype=torch.float64).to(dtype)


def bits(numbers):
    """Return numbers as their bits in float64, because -0.0 equals 0.0."""
    return [struct.pack("<d", number).hex() for number in numbers]


@case("monitor.csv", requires=[DTYPE], axes={"dtype": FLOATS})
def test_csv(check, device, dtype, tmp_path):
    """Scalars of each dtype on the device keep every bit through a CSV file, in rising steps."""
    exact, path = values(getattr(torch, dtype)), tmp_path / "loss.csv"
    there = exact.to(device)

    for step in range(len(exact)):
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([step * 10, repr(there[step].item())])
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(int(step), float(value)) for step, value in csv.reader(file)]

    check.equal([step for step, _ in rows], [10 * step for step in range(len(exact))], "the steps in the file")
    check.equal(bits(value for _, value in rows), bits(exact.double().tolist()), "bits of the values in the file")


@case("monitor.tensorboard", requires=[MEMORY], about=About.LIBRARY, axes={"kind": ("scalars", "histogram")})
def test_tensorboard(check, device, kind, tmp_path):
    """Device tensors that are given to a SummaryWriter are in its event file, in rising steps."""
    if importlib.util.find_spec("tensorboard") is None:
        environment_lacks("tensorboard is not installed; install it with: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    logged = torch.arange(1, 9, dtype=torch.float32) / 3
    there = logged.to(device)
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(len(logged)):
            if kind == "scalars":
                writer.add_scalar("loss", there[step], step * 10)
            else:
                writer.add_histogram("gradient", there * step, step * 10)
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "histograms": 0}).Reload()

    rows = events.Scalars("loss") if kind == "scalars" else events.Histograms("gradient")
    check.equal([row.step for row in rows], [10 * step for step in range(len(logged))], "the logged steps")
    if kind == "scalars":
        check.equal([row.value for row in rows], logged.tolist(), "the logged losses")
        return
    for step, row in enumerate(rows):
        found, exact = row.histogram_value, (logged * step).double()
        summary = [found.num, found.min, found.max, found.sum, found.sum_squares]
        right = [8.0, exact.min(), exact.max(), exact.sum(), exact.square().sum()]
        check.that(all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(summary, right, strict=True)),
                   f"number, min, max, sum and squares of step {step} are {summary}")  # fmt: skip
