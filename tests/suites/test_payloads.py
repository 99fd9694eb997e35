"""Payloads of collectives and long lists: each defect shows for these inputs alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.accelerators.capabilities import COMM_AVERAGE
from conformance.judging.checker import Checker
from conformance.plan.case import Case
from conformance.suites.comm.payloads import FILLING, INTEGER, check_reduced, payloads, reduced
from conformance.suites.comm.test_ways import _ops
from conformance.suites.compile import tables
from conformance.suites.foreach import functions, special_lists

CASE = Case(id="comm.ways[symmetric-group-int8]", area="comm")


@pytest.mark.parametrize("dtype", INTEGER)
def test_integers_fill_their_dtype_and_signed_sums_and_products_fit(dtype: str) -> None:
    kind = getattr(torch, dtype)
    limits = torch.iinfo(kind)
    moved = payloads(CASE, 4, 4099, kind)

    assert int(moved.max()) > limits.max * 0.9
    assert int(moved.min()) < limits.min * 0.9 + 9
    assert not bool(((moved == 0) | (moved == FILLING)).any())
    if limits.min:
        for op in ("sum", "product"):
            drawn = payloads(CASE, 4, 4099, kind, op)
            exact = drawn.double().sum(0) if op == "sum" else drawn.double().prod(0)
            assert float(exact.abs().max()) <= limits.max


def test_a_sum_of_bytes_that_saturates_is_wrong() -> None:
    inputs = payloads(CASE, 2, 13, torch.uint8, "sum")
    check_reduced(Checker(), inputs[0] + inputs[1], inputs, "sum")

    with pytest.raises(AssertionError, match="sum"):
        check_reduced(Checker(), reduced(inputs, "sum").clamp(0, 255).to(torch.uint8), inputs, "sum")


def test_operations_are_those_that_the_device_claims() -> None:
    averaging: Any = SimpleNamespace(supports=lambda cell: cell == COMM_AVERAGE.cell)

    assert _ops(averaging, torch.float32) == ["sum", "product", "min", "max", "avg"]
    assert _ops(averaging, torch.int8) == ["sum", "product", "min", "max"]


def test_a_factor_lost_at_the_end_of_a_long_list_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    function = functions.functions()["add"]
    call = next(call for call in function.calls if call.label == "alpha")
    host = list(torch.rand(*special_lists.ONE_LENGTH, 3).unbind())
    right = torch._foreach_add_

    def loses(first: Any, others: Any, *, alpha: Any) -> None:
        right(first[:110], others[:110], alpha=alpha)
        right(first[110:], others[110:], alpha=1)

    special_lists.check_long(Checker(), function, call, ["_"], torch.device("cpu"), host)
    monkeypatch.setattr(torch, "_foreach_add_", loses)
    with pytest.raises(AssertionError, match="alpha, 331 tensors"):
        special_lists.check_long(Checker(), function, call, ["_"], torch.device("cpu"), host)


def test_compiled_tables_are_exact_on_the_host_and_have_names_of_their_own() -> None:
    rows = (*tables.EXACT, *tables.WRITING, *tables.WIDE, *tables.RUNNING)
    given = tables.operands()
    wide = given._replace(special=given.special.double(), halves=given.halves.double())
    wide = wide._replace(
        **{name: getattr(given, name).double() for name in ("terms", "factors", "climbing", "infinite")}
    )

    assert len({name for name, *_ in rows}) == len(rows)
    assert set(tables.SIGNED) <= {name for name, *_ in rows}
    for name, _, _, run in rows:
        narrow, exact = run(given).double().nan_to_num(), run(wide).to(run(given).dtype).double().nan_to_num()
        assert torch.equal(narrow, exact), name
