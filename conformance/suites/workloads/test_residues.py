"""Cases of trainings over residues: deep, for many steps, and with the same bits in any order and on any engine."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, Cell
from conformance.plan.case import Case, Tier, case_id, cases

from .exact import ranks, residues
from .parallel import models
from .parallel.layouts import LAYOUTS
from .parallel.planned import planned
from .planned import DEADLINE

RANK_IMPORTS = tuple(name for name in models.IMPORTS if not name.startswith("transformers"))
#: Operators of int64 without which there is no training over residues.
OPERATORS = ("remainder", "mul", "add", "sub", "sum", "index_add", "index_select")
MATRIX_PRODUCT = Cell("operators.mm", "int64", "inference")


def integer_cases():
    """Return the case ``workloads.exact.residues[int64-inference]``: gradients are written out, not differentiated."""
    axes = (("dtype", "int64"), ("mode", "inference"))
    needs = (DTYPE.on("int64"), *(Cell(f"operators.{name}", "int64", "inference") for name in OPERATORS))
    return [
        Case(id=case_id("workloads.exact.residues", axes), area="workloads", tier=Tier.WORKLOAD, axes=axes,
             requires=needs, deadline=DEADLINE)
    ]  # fmt: skip


@cases(integer_cases)
def test_integers(device, declaration, check):
    """A deep training over residues in int64 has the bits of the same training in float64."""
    has_product = declaration.supports(MATRIX_PRODUCT)
    residues.check_integers(check, device, torch.mm if has_product else residues.by_terms)


def wide_cases():
    """Return the case ``workloads.exact.residues[float64-training]``."""
    axes = (("dtype", "float64"), ("mode", "training"))
    needs = (DTYPE.on("float64"), Cell("operators.remainder", "float64", "training"))
    return [
        Case(id=case_id("workloads.exact.residues", axes), area="workloads", tier=Tier.WORKLOAD, axes=axes,
             requires=needs, deadline=DEADLINE)
    ]  # fmt: skip


@cases(wide_cases)
def test_wide(device, check):
    """A deep training over residues in float64 has the bits of the same training in int64, however it is computed."""
    residues.check_ways(check, device)


def engine_cases():
    """Return a case for each number of ranks, such as ``workloads.exact.residues_on_ranks[2]``."""
    own = [need for name in ranks.ENGINES for need in LAYOUTS[name].needs]
    needs = (COMM, COMM_DTYPE.on("float64"), DTYPE.on("float64"), Cell("operators.remainder", "float64", "training"))
    return [planned("exact.residues_on_ranks", (("world", str(size)),), (*needs, *own), size) for size in (2, 4)]


@cases(engine_cases)
def test_engines(check, device, world_size, group):
    """A deep training over residues under each engine has the bits of one process, on every rank."""
    for engine in ranks.ENGINES:
        residues.check_engine(check, engine, device)
