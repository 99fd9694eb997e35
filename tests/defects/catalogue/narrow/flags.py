"""Flags that are declared and answered alike, and are wrong: only behaviour tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import Capabilities, lacks
from tests.defects.catalogue.claims import filling
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant, spoiled

from .streams import Context, both

CLAIMS = "DeepSpeed asks devices by name and believes their answers"
FLAGS = ("accelerator.flags.*", "capabilities.execution.*")
NO = "the declaration says so"


def flag(name: str, caught_by: str, *touch: str, claims: Capabilities = frozenset(), family: str = "over-declared",
         **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, family, CLAIMS, Where.DECLARATION, caught_by, **fault), (*FLAGS, *touch), claims=claims)


def says(member: str, *more: Context) -> Context:
    return both(accelerator(**{member: constant(True)}), *more)


def _slow(old: Any) -> Any:
    def synchronize(self: Any, device_index: int | None = None) -> None:
        old(self, device_index)
        time.sleep(0.1)

    return synchronize


SLOWLY = accelerator(synchronize=_slow)


def _waiting(*operators: str) -> Context:
    """These operators wait for every other stream by themselves."""
    seen: set[torch.Stream] = set()

    def wait(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        now = torch.accelerator.current_stream()
        for stream in seen:
            if stream != now and stream.device_index == now.device_index:
                now.wait_stream(stream)
        seen.add(now)
        return call(*args, **kwargs)

    def go(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.add(torch.accelerator.current_stream())
        return call(*args, **kwargs)

    return spoiled(**(dict.fromkeys(("mm", "copy_", "add", "fill_"), go) | dict.fromkeys(operators, wait)))


def _busy(old: Any) -> Callable[[Any], bool]:
    return lambda self: not torch.accelerator.current_stream().query()


MUTANTS = (
    flag("a flag tells the load", "accelerator.flags.answer[resolves_data_dependency]", family="stub",
         context=accelerator(resolves_data_dependency=_busy)),
    flag("says it is synchronous", "accelerator.flags.synchronous_values", claims=frozenset({can.SYNCHRONOUS}),
         context=says("is_synchronized_device")),
    flag("says it is synchronous, and is ordered", "accelerator.flags.synchronous_time",
         claims=frozenset({can.SYNCHRONOUS}),
         context=says("is_synchronized_device", SLOWLY, lambda: _waiting("mm", "copy_", "_to_copy", "add", "fill_")())),
    flag("orders writes behind reads only", "accelerator.flags.ordered", claims=frozenset({can.ORDERED}),
         context=says("resolves_data_dependency", lambda: _waiting("fill_")())),
    flag("orders reads behind writes only", "accelerator.flags.ordered_overwrite", claims=frozenset({can.ORDERED}),
         context=says("resolves_data_dependency", lambda: _waiting("mm", "copy_", "_to_copy", "add")())),
    flag("says host timers, and synchronize() takes as long whatever there is to do",
         "accelerator.flags.host_timers_scale",
         claims=frozenset({can.HOST_TIMERS}) | lacks(can.EVENT_TIMING, NO), context=says("use_host_timers", SLOWLY)),
    flag("says host timers in spite of events", "accelerator.flags.device_timers",
         "capabilities.event*", claims=frozenset({can.HOST_TIMERS}), context=says("use_host_timers")),
    flag("says backpressure, and the queue fills the memory", "accelerator.flags.backpressure",
         claims=frozenset({can.BACKPRESSURE}),
         context=says("handles_memory_backpressure", lambda: spoiled(ones=filling())())),
)  # fmt: skip
