"""Cases of exact workloads in one process: every way to train gives the bits of exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.capabilities import CHECKPOINT, COMPILE, GRAPH_CAPTURE, STREAM, Cell
from conformance.plan.case import Case, Tier, case_id, cases

from .exact.families import families
from .exact.training import WAYS, check_resumed, check_way
from .planned import DEADLINE

#: Requirements of a way besides those of a training.
NEEDS = {"compiled": (COMPILE.cell,), "resumed": (CHECKPOINT.cell,), "captured": (GRAPH_CAPTURE.cell, STREAM.cell)}
#: Families that are compiled. A compiler takes ten seconds for each.
COMPILED = ("bags",)
#: Families that are not captured: an expert's tokens are counted on the host.
NOT_CAPTURED = ("routed",)
#: Families whose first step is exact in formats of 11 and 8 bits; later steps have finer weights. The proof checks it.
NARROW = {"float16": ("plain", "bent", "volumes", "bags", "recurrent", "graph"), "bfloat16": ("plain",)}


def _case(way, dtype, *needs):
    axes = (("dtype", dtype), ("mode", "training"))
    return Case(
        id=case_id(f"workloads.exact.{way}", axes), area="workloads", tier=Tier.WORKLOAD, axes=axes,
        requires=(Cell("workloads.exact", dtype, "training"), *needs), deadline=DEADLINE,
    )  # fmt: skip


def wide_cases():
    """Return a case for each way, such as ``workloads.exact.eager[float32-training]``."""
    return [_case(way, "float32", *NEEDS.get(way, ())) for way in WAYS]


@cases(wide_cases)
def test_way(accelerator, device, case, check):
    """Exact models have the bits of exact arithmetic after every step, in whatever order the device adds."""
    way = case.subject.rpartition(".")[2]
    for name, family in families().items():
        if {"compiled": name in COMPILED, "captured": name not in NOT_CAPTURED}.get(way, True):
            check_way(check, way, family, accelerator, device, case.dtype)


@cases(lambda: [_case("resumed", "float32", *NEEDS["resumed"])])
def test_resumed(device, check, tmp_path):
    """Exact models that are saved and loaded again have the bits of exact arithmetic."""
    for family in families().values():
        check_resumed(check, family, device, tmp_path)


@cases(lambda: [_case("narrow", dtype) for dtype in NARROW])
def test_narrow(accelerator, device, case, check):
    """Exact models in 16 bits have the bits of exact arithmetic forward and backward, in whatever order."""
    for name in NARROW[case.dtype]:
        check_way(check, "eager", replace(families()[name], steps=1), accelerator, device, case.dtype)
