"""Planned cases that follow from the specifications: calls, refusals, and properties of several calls."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.accelerators.capabilities import Cell
from conformance.kernels.specification import KernelSample, KernelSpecification, Property, Refusal
from conformance.kernels.specifications import specifications
from conformance.plan.case import Case, case_id


@dataclass(frozen=True)
class KernelTask:
    """Payload of one case: a sample, refusal or property of one kernel in one dtype."""

    kernel: KernelSpecification
    dtype: str
    what: KernelSample | Refusal | Property


def results() -> list[Case]:
    """Return a case for every sample of every kernel and dtype; each makes one call."""
    return [
        _case(KernelTask(kernel, dtype, sample))
        for kernel in specifications()
        for dtype in kernel.dtypes
        for sample in kernel.samples
        if not sample.dtypes or dtype in sample.dtypes
    ]


def refusals() -> list[Case]:
    """Return a case for every refusal; each makes one invalid call, in the kernel's first dtype."""
    return [
        _case(KernelTask(kernel, kernel.dtypes[0], refusal), "refuses")
        for kernel in specifications()
        for refusal in kernel.refusals
    ]


def properties() -> list[Case]:
    """Return a case for every property of every kernel and dtype; each makes several calls."""
    return [
        _case(KernelTask(kernel, dtype, relation), "property")
        for kernel in specifications()
        for dtype in kernel.dtypes
        for relation in kernel.properties
    ]


def _case(task: KernelTask, word: str = "") -> Case:
    """Return the case of one task.

    It is adaptive: an unclaimed kernel runs as well, and a claim that it is unsupported has to be true.
    """
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
