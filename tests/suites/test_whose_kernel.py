"""Every passed case of area ops says whose kernel ran, and calls only the vendor's own a vendor's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conformance.accelerators.registry import resolve
from conformance.kernels.builders import BUILDERS
from conformance.suites.ops.loading import report_builder, report_kernel, report_own_check


class Metrics:
    """The part of a checker that collects metrics."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def metric(self, name: str, value: Any) -> None:
        self.found[name] = value


def vendors_own(*_: object) -> None:
    """A function that some vendor wrote."""


@pytest.mark.parametrize("report", [report_kernel, report_own_check])
def test_a_function_that_is_not_this_projects_is_the_vendors(report: Any) -> None:
    check = Metrics()

    report(check, vendors_own)

    assert check.found["implementation"] == "vendor"


def test_a_refusal_by_this_projects_check_is_not_the_vendors_even_after_a_vendors_call() -> None:
    check, function = Metrics(), BUILDERS["UtilsBuilder"]().load().cast_to_byte_tensor
    function.used = SimpleNamespace(implementation="vendor")

    report_own_check(check, function)

    assert check.found["implementation"] == "native"
    assert "checked the arguments" in check.found["implementation_reason"]


@pytest.mark.parametrize(
    ("builder", "whose"),
    [(resolve("cpu").unloaded().create_op_builder("UtilsBuilder"), "native"), (object(), "vendor"), (None, "vendor")],
)
def test_whose_builder_answered(builder: Any, whose: str) -> None:
    check = Metrics()

    report_builder(check, builder)

    assert check.found["implementation"] == whose
