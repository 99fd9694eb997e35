"""The cases that follow from the specifications: calls, refusals, and properties of several calls."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.accelerators.capabilities import Cell
from conformance.case import Case, case_id
from conformance.kernels.specification import KernelSample, KernelSpecification, Property, Refusal
from conformance.kernels.specifications import specifications


@dataclass(frozen=True)
class Task:
    """What one case does, with one kernel in one dtype."""

    kernel: KernelSpecification
    dtype: str
    what: KernelSample | Refusal | Property


def results() -> list[Case]:
    """One call each."""
    return [
        _case(Task(kernel, dtype, sample))
        for kernel in specifications()
        for dtype in kernel.dtypes
        for sample in kernel.samples
        if not sample.dtypes or dtype in sample.dtypes
    ]


def refusals() -> list[Case]:
    """One bad call each, in the kernel's first dtype."""
    return [_case(Task(one, one.dtypes[0], refusal), "refuses") for one in specifications() for refusal in one.refusals]


def properties() -> list[Case]:
    """Several calls each."""
    return [
        _case(Task(one, dtype, what), "property")
        for one in specifications()
        for dtype in one.dtypes
        for what in one.properties
    ]


def _case(task: Task, word: str = "") -> Case:
    """Adaptive: a kernel that is not claimed is tried all the same, and a "no" has to be one."""
    mode, name = task.kernel.mode.value, task.kernel.name
    axes = (("dtype", task.dtype), ("mode", mode), ("sample", task.what.name))
    return Case(
        id=case_id(f"ops.{name}.{word}" if word else f"ops.{name}", axes),
        area="ops",
        axes=axes,
        requires=(Cell(f"kernels.{name}", task.dtype, mode),),
        adaptive=True,
        payload=task,
    )
