"""Cases of a profile's parts: the operations of each module, and a trace that is read back."""

from __future__ import annotations

import json
import warnings

import torch
from torch import nn, profiler
from torch.utils.flop_counter import FlopCounterMode

from conformance.accelerators.capabilities import MEMORY, PROFILER
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

#: Rows of the input, and sizes of the layers.
ROWS, WIDE, HIDDEN, NARROW = 9, 33, 65, 7


class Layers(nn.Module):
    """Model of a block with two layers and a layer beside it, whose operations are counted by hand."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDE))
        self.head = nn.Linear(WIDE, NARROW, bias=False)

    def forward(self, x):
        return self.head(self.block(x) + x)


def layers():
    """Return the model on the host, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Layers()


#: Two operations for each multiplication with its addition.
BY_HAND = {
    "Layers": 2 * ROWS * (2 * WIDE * HIDDEN + WIDE * NARROW),
    "Layers.block": 2 * ROWS * 2 * WIDE * HIDDEN,
    "Layers.block.0": 2 * ROWS * WIDE * HIDDEN,
    "Layers.block.2": 2 * ROWS * WIDE * HIDDEN,
    "Layers.head": 2 * ROWS * WIDE * NARROW,
}


@case("profiling.flops.modules", requires=[MEMORY])
def test_flops_modules(check, device):
    """The FLOP counter gives each module the count by hand, for products that have the right values."""
    x = torch.randn(ROWS, WIDE, generator=torch.Generator().manual_seed(6))
    model = layers().to(device)

    with FlopCounterMode(display=False) as counter:
        output = model(x.to(device))

    counts = {
        name: sum(counter.get_flop_counts()[name].values()) for name in BY_HAND if name in counter.get_flop_counts()
    }
    check.equal(counts, BY_HAND, "operations of each module")
    # Operations are counted where they are called. Only the values show that they were done.
    near(check, "the output", output.detach(), layers().double()(x.double()).detach(), Near.GRADIENTS)


def within(span, other):
    """Return whether a span of a trace lies in another one. An operation may call one of the same name."""
    return span is not other and other["ts"] <= span["ts"] and span["ts"] + span["dur"] <= other["ts"] + other["dur"]


@case("profiling.trace", requires=[PROFILER])
def test_trace(accelerator, check, device, tmp_path):
    """An exported trace is read back: each product stands in its range, and the device's work has a duration."""
    left = torch.ones(257, 257, device=device)
    products = 5

    def work():
        with profiler.record_function("five products"):
            for _ in range(products):
                result = torch.mm(left, left)
        return result

    work()
    accelerator.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # device profilers warn about events that they do not count
        with profiler.profile(activities=profiler.supported_activities()) as profile:
            result = work()
            accelerator.synchronize()
    file = tmp_path / "trace.json"
    profile.export_chrome_trace(str(file))

    spans = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("ph") == "X"]
    (outer,) = [span for span in spans if span["name"] == "five products" and span["cat"] == "user_annotation"]
    # A device may run its queue in another thread of this process, whose spans have the same names.
    called = [span for span in spans if span["name"] == "aten::mm" and span["tid"] == outer["tid"]]
    inside = [span for span in called if within(span, outer) and not any(within(span, other) for other in called)]
    check.equal(len(inside), products, "number of products inside the range of the trace")
    check.equal(bool((result == 257).all().item()), True, "whether a product of ones is its inner size")
    if device.type != "cpu":
        # Where the host is the device, its operations are the device's work.
        of_device = [span for span in spans if span["cat"] not in HOST and span["dur"] > 0]
        check.that(
            bool(of_device), f"the trace has no work of the device; categories: {sorted({s['cat'] for s in spans})}"
        )


#: Categories of a trace's spans that the host makes.
HOST = {"cpu_op", "user_annotation", "python_function", "Trace", "Operator"}
