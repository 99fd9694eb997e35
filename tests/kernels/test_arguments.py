"""Wrong arguments: the argument, what was expected, what came."""

from __future__ import annotations

import pytest
import torch

from conformance.base.errors import UsageError
from conformance.kernels.arguments import check_number, check_tensor, check_tensor_lists, tensors_in

ONE = torch.ones(3, 2)


@pytest.mark.parametrize(
    ("value", "rules", "sentence"),
    [
        ([1.0], {}, "argument p: expected a tensor, got list"),
        (ONE.half(), {"dtypes": (torch.float32, torch.float64)}, "expected float32 or float64, got float16"),
        (ONE, {"like": torch.ones(6)}, r"expected shape \(6,\), got \(3, 2\)"),
        (ONE.t(), {}, "expected a contiguous tensor, got strides"),
        (ONE.to("meta"), {"device": "cpu"}, "expected a tensor on cpu, got one on meta"),
    ],
)
def test_a_tensor_that_is_none_of_them(value: object, rules: dict, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_tensor("p", value, **rules)

    assert check_tensor("p", ONE, dtypes=(torch.float32,), like=ONE, device="cpu") is ONE


@pytest.mark.parametrize(
    ("lists", "sentence"),
    [
        ([[ONE]], r"argument lists: expected 2 lists \(left, right\), got 1"),
        (ONE, r"expected 2 lists \(left, right\), got Tensor"),
        ([[ONE], []], r"argument lists\[1\] \(right\): expected 1 tensors, as left, got 0"),
        ([[ONE], [ONE.double()]], r"argument lists\[1\]\[0\]: expected float32, got float64"),
        ([[ONE.long()], [ONE]], r"argument lists\[0\]\[0\]: expected float32 or float64, got int64"),
        ([[ONE], [ONE[:2]]], r"argument lists\[1\]\[0\]: expected shape \(3, 2\), got \(2, 2\)"),
    ],
)
def test_lists_that_do_not_fit(lists: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_tensor_lists("lists", lists, ("left", "right"), (torch.float32, torch.float64))


@pytest.mark.parametrize(("value", "sentence"), [(True, "a number, got True"), (-1, "at least 0.0, got -1")])
def test_a_number_that_is_none(value: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_number("lr", value, at_least=0.0)


def test_a_number_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at least 0\.0, got nan"):
        check_number("lr", float("nan"), at_least=0.0)


def test_tensors_have_paths() -> None:
    found = dict(tensors_in({"a": [[ONE], (ONE, {"b": ONE})], "c": 3, "d": ONE}))

    assert list(found) == ["a[0][0]", "a[1][0]", "a[1][1].b", "d"]
