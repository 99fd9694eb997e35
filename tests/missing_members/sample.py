"""The sample of cases that every device with a missing member runs. Importing it imports all that they need."""

from __future__ import annotations

import hashlib
import importlib
from collections import defaultdict
from collections.abc import Iterable

from conformance.plan.bundled import bundled_cases
from conformance.plan.case import Case
from conformance.plan.costs import measured
from conformance.plan.selection import matches

#: What cases import when they first need it; each run would take seconds for it.
_IMPORTED_LATE = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed",
    "torch.profiler",
    "torch.distributed.checkpoint",
)
#: Cases that touch the device by a way of their own, besides some of every area.
CHOSEN = (
    "accelerator.interface.bool[is_available]",
    "accelerator.interface.int[*]",
    "operators.add[float32-*]",
    "operators.nn.functional.dropout[float32-*]",
    "operators.normal[float32-inference]",
    "operators.nn.functional.linear[float32-training]",
    "compile.breaks",
    "checkpoint.places[float32]",
    "checkpoint.training",
    "comm.all_reduce[sum-float32-1-2]",
    "autotuning.order*",
    "autotuning.trials*",
    "model_parallelism.rng[2]",
    "hybrid_engine.*",
)
#: Areas and cases that start processes, compile, or train for long.
LEFT_OUT = (
    "launcher.*",
    "elasticity.*",
    "accelerator.environment.*",
    "autotuning.batch*",
    "autotuning.memory*",
    "compile.parity*",
    "workloads.mixtral*",
)
#: The most seconds of a case of the sample, and the cases of each area beside the accelerator's.
_DEAREST, _OF_AN_AREA = 0.6, 2


def sample(cases: Iterable[Case] = ()) -> list[str]:
    """Return one case of each check about the accelerator, some of every other area, and those that are chosen."""
    planned = [case for case in cases or (entry.case for entry in bundled_cases()) if _is_cheap(case)]
    areas: dict[str, dict[str, str]] = defaultdict(dict)
    for case in sorted(planned, key=lambda case: hashlib.sha256(case.id.encode()).digest()):
        areas[case.area].setdefault(case.id.partition("[")[0], case.id)
    few = {
        id
        for area, checks in areas.items()
        for id in list(checks.values())[: None if area == "accelerator" else _OF_AN_AREA]
    }
    return [case.id for case in planned if case.id in few or any(matches(pattern, case.id) for pattern in CHOSEN)]


def _is_cheap(case: Case) -> bool:
    """Return whether a case takes little time on a CPU. Ranks take seconds to start: one case on them is enough."""
    if any(matches(pattern, case.id) for pattern in LEFT_OUT):
        return False
    return measured().seconds(case.id) <= _DEAREST and (case.world_size is None or case.id in CHOSEN)


for _name in _IMPORTED_LATE:
    importlib.import_module(_name)
PLANNED = {entry.case.id: entry.case.planned for entry in bundled_cases()}
SAMPLE = sample()
