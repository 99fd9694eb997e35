"""Promises of operators: PyTorch's expected failures are read on any machine."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

import pytest
from torch.testing._internal.common_utils import LazyVal
from torch.testing._internal.opinfo.core import DecorateInfo

from conformance.suites.operators.judge.promises import is_excused


def _cuda_that_is_none() -> bool:
    raise AssertionError("Torch not compiled with CUDA enabled")


@pytest.mark.parametrize(
    ("condition", "excused"),
    [(True, True), (False, False), (LazyVal(lambda: True), True), (LazyVal(_cuda_that_is_none), False)],
    ids=["always", "never", "here", "where a package answers for CUDA"],
)
def test_a_condition_that_cannot_be_asked_excuses_nothing(condition: Any, excused: bool) -> None:
    entry = DecorateInfo(unittest.expectedFailure, "TestCommon", "test_noncontiguous_samples", active_if=condition)

    assert is_excused(SimpleNamespace(decorators=[entry]), "test_noncontiguous_samples") is excused
