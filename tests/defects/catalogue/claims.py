"""False claims: more than there is, less than there is, another kind than there is."""

from __future__ import annotations

from typing import Any

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import Capabilities, lacks
from conformance.accelerators.simulated.faults import Fault, Where
from conformance.reports.verdict import Reason
from conformance.run_options import Strictness
from tests.defects.mutant import Mutant

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
)  # fmt: skip
