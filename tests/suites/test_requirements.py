"""Requirements of cases: a case is skipped only for a capability that it uses."""

from __future__ import annotations

import pytest

from conformance.accelerators.capabilities import COMM, COMM_AVERAGE, COMM_DTYPE
from conformance.case import case
from conformance.plan import bundled_cases, family_of


def _requirements(pattern: str) -> dict[str, set[str]]:
    """Return the requirements of the bundled cases whose id begins with the pattern."""
    planned = {row.case.id: set(map(str, row.case.requires)) for row in bundled_cases()}
    return {id: needs for id, needs in planned.items() if id.startswith(pattern)}


@pytest.mark.parametrize("subject", ["parity", "sharding", "accumulation", "clipping", "overflow"])
def test_engines_of_torch_state_their_own_requirements(subject: str) -> None:
    """DDP and ZeroRedundancyOptimizer divide by the number of ranks themselves; FSDP2 asks the backend to average."""
    found = _requirements(f"runtime.{subject}[")

    averaging = {id for id, needs in found.items() if "comm.average" in needs}
    assert averaging == {id for id in found if "[fsdp" in id}
    assert all({"comm.dtype[int32]", "comm.dtype[int64]"} <= needs for id, needs in found.items() if "[fsdp" not in id)


def test_an_axis_gives_each_value_its_own_requirements() -> None:
    @case("x.y", requires=[COMM], axes={"engine": {"a": (), "b": (COMM_AVERAGE,)}, "n": ["1"]}, world_size=(2, 3))
    def test_body() -> None: ...

    family = family_of(test_body)

    assert family is not None
    assert {planned.id: planned.requires for planned in family.expand()} == {
        f"x.y[{engine}-1-{world}]": needs
        for engine, needs in (("a", (COMM.cell,)), ("b", (COMM.cell, COMM_AVERAGE.cell)))
        for world in "23"
    }


def test_requirements_of_an_axis_get_the_dtype() -> None:
    @case("x.y", axes={"dtype": ["int8"], "way": {"a": (COMM_DTYPE,)}}, world_size=2)
    def test_body() -> None: ...

    family = family_of(test_body)

    assert family is not None
    assert [planned.requires for planned in family.expand()] == [(COMM_DTYPE.on("int8"),)]
