"""Defects that tests/suites puts into stand-in objects, without a device, and the case each turns red."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.suites import test_accelerator_suite_detects as accelerator_suite
from tests.suites import test_dtype_detects as dtypes
from tests.suites import test_memory_detects as memory
from tests.suites import test_workloads_red as workloads
from tests.suites.accelerator_defects import HOST_DEFECTS, LATE_DEFECTS
from tests.suites.operator_defects import DEFECTS as OPERATOR_DEFECTS


@dataclass(frozen=True)
class ObjectDefect:
    """A defect, the case that its test sees red, and what the defect is in."""

    name: str
    case: str
    subject: str


def object_defects() -> list[ObjectDefect]:
    return [*_accelerators(), *_operators(), *_workloads()]


def _accelerators() -> Iterator[ObjectDefect]:
    for defect in HOST_DEFECTS:
        yield ObjectDefect(defect.name, defect.case, "the CPU accelerator with another member")
    for defect in LATE_DEFECTS:
        yield ObjectDefect(defect.name, defect.case, "a device that is late")
    for case, members in accelerator_suite.PRETENDERS.items():
        yield ObjectDefect(f"pretends: {', '.join(members)}", case, "the CPU accelerator with another member")
    for kind, case in memory.DEFECTS:
        yield ObjectDefect(kind.__name__, case, "an allocator that counts")
    for case, operators, spoil, _ in dtypes.DEFECTS:
        yield ObjectDefect(f"{spoil.__name__} in {', '.join(operators)}", case, "the host's kernels, spoiled")


def _operators() -> Iterator[ObjectDefect]:
    for defect in OPERATOR_DEFECTS:
        yield ObjectDefect(defect.name, defect.case, "one operator, spoiled")


def _workloads() -> Iterator[ObjectDefect]:
    (mark,) = workloads.test_a_defect_of_the_device_is_found.pytestmark  # type: ignore[attr-defined]
    for subject, dtype, defect, _ in mark.args[1]:
        yield ObjectDefect(defect.__name__, f"workloads.{subject}[{dtype}]", "one side of a workload")
