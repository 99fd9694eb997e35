"""The family of inputs that CONTRIBUTING adds sees a defect that no other family of its cell sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.accelerators.capabilities import Mode
from conformance.judging.checker import Checker
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.inputs import families
from tests.defects import bench
from tests.instruments import ROOT

from .test_operators_detect import run

PACKAGE = "conformance.suites.operators.inputs"
CELL = "operators.sin[float32-inference]"
#: Length of the vectors of the new family.
PRIME = 1009


def example() -> str:
    """Return the file that CONTRIBUTING writes."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("touch one file")[2]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return block[1]


@pytest.fixture
def known() -> Iterator[list[families.Family]]:
    """Load the families of the suite, and remove what a test adds to them."""
    families.families(Mode.INFERENCE)
    before = list(families._FAMILIES)
    yield before
    families._FAMILIES[:] = before
    families.families.cache_clear()


@pytest.fixture
def added(known: list[families.Family]) -> families.Family:
    """Import the file of CONTRIBUTING, as if it lay in the folder of the families."""
    module = ModuleType(f"{PACKAGE}.prime_lengths")
    module.__package__ = PACKAGE
    exec(compile(example(), "prime_lengths.py", "exec"), vars(module))
    families.families.cache_clear()
    (family,) = set(families.families(Mode.INFERENCE)) - set(known)
    return family


def broken_at_a_prime(function: Any, sample: Call, **extra: Any) -> Any:
    """Lose the last element of a vector of one length."""
    result = call(function, sample, **extra)
    if isinstance(result, torch.Tensor) and result.shape == (PRIME,):
        result[-1] = 0
    return result


def test_no_other_family_sees_the_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", broken_at_a_prime)

    run(CELL)


def test_the_new_family_sees_the_defect(monkeypatch: pytest.MonkeyPatch, added: families.Family) -> None:
    assert added.name == "prime_lengths.prime_lengths"
    run(CELL)

    monkeypatch.setattr(execution, "execute", broken_at_a_prime)

    with pytest.raises(AssertionError, match=r"a prime length\).*1/1009 elements differ"):
        run(CELL)


def test_a_family_is_of_the_cells_that_its_decorator_names(known: list[families.Family]) -> None:
    made: list[str] = []

    @families.source(Mode.INFERENCE, lambda cell, sample: made.append(str(cell.dtype)), dtypes=(torch.float64,))
    def nothing(cell: Any) -> list[int]:
        return [1]

    families.families.cache_clear()
    run(CELL)
    run(CELL.replace("float32", "float64"))

    assert made == ["torch.float64"]


@pytest.mark.parametrize(
    ("dtype", "deep", "has"),
    [(torch.float32, False, True), (torch.float64, False, False), (torch.float64, True, True)],
)
def test_a_family_can_be_left_to_the_deep_tier_in_a_dtype(
    known: list[families.Family], monkeypatch: pytest.MonkeyPatch, dtype: Any, deep: bool, has: bool
) -> None:
    families.source(Mode.INFERENCE, lambda cell, sample: None)(new := lambda cell: [])
    added = families._FAMILIES[-1]
    monkeypatch.setattr(families, "left_to_deep", lambda: {added.name: ["float64-inference", "float32-training"]})
    cell = SimpleNamespace(dtype=dtype, deep=deep, values=True, check=Checker())

    assert added.make is new
    assert added.is_of(cell) == has  # type: ignore[arg-type]


def test_a_family_that_is_left_out_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "left_to_deep", lambda: {"gone.gone": ["float32-inference"]})
    families.families.cache_clear()

    with pytest.raises(ValueError, match=r"names gone\.gone, which is no family of inputs\."):
        families.families(Mode.INFERENCE)


def test_each_family_is_left_out_in_axes_that_cases_have() -> None:
    axes = {id.partition("[")[2].removesuffix("]") for id in bench.plan("operators")}

    for name, left in families.left_to_deep().items():
        assert sorted(set(left) - axes) == [], name
        assert list(left) == sorted(set(left)), name
