"""Objects that stand in for an accelerator: the host computes, and one part of it can be wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from conformance.accelerators.registry import resolve
from conformance.plan.bundled import BundledCase
from conformance.reports.verdict import Outcome, Reason, Verdict
from tests.defects.faults import Fault, Where

from . import bench
from .counting_device import CountingDevice
from .late_device import LateDevice
from .mutant import Mutant, StandIn


def cpu() -> Any:
    return resolve("cpu").load()


#: A CPU without an allocator of its own counts nothing.
HOST = StandIn(
    "the CPU accelerator with another member", cpu, red_when_sound=("accelerator.memory.allocated_follows[65537]",)
)
#: Late streams are neither synchronous nor ordered, and the two flags say so.
LATE = StandIn(
    "a device that is late",
    LateDevice,
    red_when_sound=("accelerator.flags.ordered", "accelerator.flags.synchronous_values"),
)
COUNTING = StandIn("an allocator that counts", CountingDevice)


def on(
    stand_in: StandIn,
    title: str,
    case: str,
    where: Where,
    *,
    broken: Callable[[], Any] | None = None,
    context: Callable[[], AbstractContextManager[Any]] | None = None,
    reason: Reason | None = None,
    message: str = "",
) -> Mutant:
    """Return a defect of a stand-in: another object (``broken``), or a context around the body of the case."""
    # Several cases may see one defect, and each has to: so each is a mutant, and the case is part of its name.
    fault = Fault(f"{title}: {case}", stand_in.name, "tests of this suite", where, case, context=context)
    return Mutant(fault, stand_in=stand_in, broken=broken, reason=reason, message=message)


@functools.cache
def planned() -> dict[str, BundledCase]:
    """Return the cases that need no ranks and no operator database, by id."""
    areas = ("accelerator", "capabilities", "profiling", "ulysses_alst", "utils")
    return {id: case for area in areas for id, case in bench.plan(area).items()}


def verdict_on(case_id: str, stand_in: StandIn) -> Verdict:
    """Return the verdict of a case on a sound stand-in."""
    return bench.StandInBench(stand_in).run(case_id)


def run_body(case_id: str, stand_in: StandIn) -> None:
    """Raise AssertionError unless a sound stand-in passes the case."""
    verdict = verdict_on(case_id, stand_in)
    assert verdict.outcome is Outcome.PASS, f"{verdict.reason.value}: {verdict.message}"


class Altered:
    """Our CPU accelerator with some members replaced."""

    def __init__(self, **members: Any) -> None:
        self._host = resolve("cpu").load()
        for name, member in members.items():
            setattr(self, name, member)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


def constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def lose_index(new_state: torch.Tensor) -> None:
    torch.set_rng_state(new_state)


class StringDevice(Altered):
    """Its current device is a string, as DeepSpeed's CPU answers under a launcher. For runs of the whole plugin."""

    capabilities = frozenset({"device", "rng.state", "device.index"})

    def __init__(self) -> None:
        super().__init__(current_device=constant("0"), set_rng_state=lose_index)
