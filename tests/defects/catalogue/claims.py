"""False claims: more than there is, less than there is, another kind than there is."""

from __future__ import annotations

import time
from typing import Any

import torch

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import Capabilities, lacks
from conformance.plan.run_options import Strictness
from conformance.reports.verdict import Reason
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, on_device, spoiled

CLAIMS = "DeepSpeed asks devices by name and believes their answers"
NO = "the declaration says so"


def over(
    name: str, cell: Any, caught_by: str, *touch: str, reason: Reason | None = None, run: tuple[str, ...] = ()
) -> Mutant:
    what = Fault(name, "over-declared", CLAIMS, Where.DECLARATION, caught_by)
    return Mutant(what, touch, run, claims=frozenset({cell}), reason=reason)


def under(name: str, claims: Capabilities, caught_by: str, *touch: str, run: tuple[str, ...] = ()) -> Mutant:
    what = Fault(name, "under-declared", CLAIMS, Where.DECLARATION, caught_by)
    return Mutant(what, touch, run, claims, Strictness.CERTIFY, Reason.UNDER_DECLARED)


def _wrong(call: Any, args: list[Any]) -> list[Any]:
    results = call(args)
    results[0].add_(1)
    return list(results)


CUMPROD = Cell("operators.cumprod", "float32", "inference")
UNSAFE = Mutant(
    Fault("a refused operator answers wrongly", "unclean refusal", "a no that corrupts silently", Where.DECLARATION,
          "operators.cumprod[float32-inference]", operators={"aten::cumprod": _wrong}),
    also_run=("operators.cumprod[float32-inference]",), claims=lacks(CUMPROD, NO), reason=Reason.UNSAFE,
)  # fmt: skip

WAITING = Mutant(
    Fault("claims to be synchronous, and waits in synchronize()", "over-declared", CLAIMS, Where.DECLARATION,
          "accelerator.flags.synchronous_time",
          context=accelerator(synchronize=lambda old: lambda self, device_index=None:
                              _slowly(old, self, device_index))),
    ("accelerator.flags.*", "capabilities.execution.*"), claims=frozenset({can.SYNCHRONOUS}),
)  # fmt: skip
CONSTANT_TIME = Mutant(
    Fault("claims host timers, and synchronize() takes as long whatever there is to do", "over-declared", CLAIMS,
          Where.DECLARATION, "accelerator.flags.host_timers_scale",
          context=accelerator(synchronize=lambda old: lambda self, device_index=None:
                              _slowly(old, self, device_index))),
    ("accelerator.flags.*", "capabilities.execution.*"), claims=frozenset({can.HOST_TIMERS}),
)  # fmt: skip
FULL = Mutant(
    Fault("claims backpressure, and the queue fills the memory", "over-declared", CLAIMS, Where.DECLARATION,
          "accelerator.flags.backpressure", context=lambda: spoiled(ones=filling())()),
    ("accelerator.flags.*", "capabilities.execution.*"), claims=frozenset({can.BACKPRESSURE}),
)  # fmt: skip


def _slowly(old: Any, self: Any, device_index: int | None) -> None:
    old(self, device_index)
    time.sleep(0.1)


def filling() -> Any:
    """Large tensors of ones stay in memory, and there is room for thirty."""
    made: list[int] = []

    def ones(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.numel() >= 1 << 23:
            made.append(result.numel())
        if len(made) > 30:
            raise torch.OutOfMemoryError("thirty blocks of 32 MiB wait in the queue")
        return result

    return ones


MUTANTS = (
    over("claims an order between streams it lacks", can.ORDERED, "accelerator.flags.ordered", "accelerator.flags.*",
         "capabilities.execution.*"),
    over("claims to be synchronous", can.SYNCHRONOUS, "accelerator.flags.synchronous_values", "accelerator.flags.*",
         "capabilities.execution.*"),
    over("claims that host timers are needed", can.HOST_TIMERS, "accelerator.flags.as_declared[use_host_timers]",
         "accelerator.flags.*", "capabilities.execution.*"),
    over("claims to handle backpressure", can.BACKPRESSURE,
         "accelerator.flags.as_declared[handles_memory_backpressure]", "accelerator.flags.*",
         "capabilities.execution.*"),
    over("claims Triton", can.TRITON, "capabilities.triton", reason=Reason.OVER_DECLARED),
    over("claims an operator that raises", Cell("operators.to_sparse", "float32", "inference"),
         "operators.to_sparse[float32-inference]", reason=Reason.OVER_DECLARED,
         run=("operators.to_sparse[float32-inference]",)),
    over("claims an operator in a dtype it lacks", Cell("operators.mm", "bool", "inference"),
         "operators.mm[bool-inference]", reason=Reason.OVER_DECLARED, run=("operators.mm[bool-inference]",)),
    under("hides its streams", lacks(can.STREAM, NO), "capabilities.stream", "capabilities.*"),
    under("hides its graphs", lacks(can.GRAPH_CAPTURE, NO), "capabilities.graph.capture", "capabilities.*"),
    under("hides bfloat16", lacks(can.DTYPE.on("bfloat16"), NO), "capabilities.dtype[bfloat16]", "capabilities.*"),
    under("hides its memory statistics", lacks(can.MEMORY_STATS, NO), "capabilities.memory.stats", "capabilities.*"),
    under("hides an operator", lacks(Cell("operators.mm", "float32", "inference"), NO),
          "operators.mm[float32-inference]", run=("operators.mm[float32-inference]",)),
    UNSAFE,
    WAITING,
    CONSTANT_TIME,
    FULL,
)  # fmt: skip
