"""Facts name operators that exist, and a wrong name or type in a table is one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.base.errors import ConformanceError
from conformance.numerics import budgets
from conformance.numerics.budgets import load_table
from conformance.suites.operators.calls import facts, work
from conformance.suites.operators.calls.database import database
from conformance.suites.operators.calls.facts import Facts, kernel_facts

#: Operators of facts.toml that only another series of torch has.
OF_OTHER_SERIES: frozenset[str] = frozenset()


def test_every_fact_is_about_an_operator_of_the_database() -> None:
    """A full name, as that of a variant, is none: facts are asked for by name."""
    names = {info.name for info in database().values()}

    assert set(facts.operators()) - OF_OTHER_SERIES - names == set()


def test_signs_of_zeros_have_a_standard() -> None:
    assert {facts.facts(name).signed_zeros for name in facts.operators()} == {"", "IEEE 754", "C17"}


def test_every_kernel_with_facts_exists() -> None:
    schemas = torch._C._jit_get_all_schemas()
    names = {schema.name.partition("::")[2] for schema in schemas if schema.name.startswith("aten::")}
    rows = load_table(facts.__file__, "facts.toml")["kernels"]

    assert [name for name in rows if "*" not in name and name not in names] == []
    classes = load_table(budgets.__file__, "functions.toml")["kernel"]
    assert {name for each in classes.values() for name in each} - names == set()
    assert kernel_facts("mkldnn_linear").foreign
    assert kernel_facts("grid_sampler_2d").finite
    assert not any(vars(kernel_facts("add")).values())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"narow": True}, r"^facts.toml, operators, add: there is no 'narow'; the names are narrow, .*resizes\.$"),
        ({"narrow": 1}, r"^facts.toml, operators, add: 'narrow' is 1, and has to be bool\.$"),
        (
            {"choice_dim": "0"},
            r"^facts.toml, operators, add: 'choice_dim' is '0', and has to be int \| None\.$",
        ),
    ],
)
def test_a_wrong_name_or_type_is_refused_in_one_sentence(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ConformanceError, match=said):
        facts.read(Facts, row, "facts.toml, operators, add")


def test_facts_have_tuples_and_defaults() -> None:
    assert facts.facts("nn.functional.conv2d").unequal == ((1, -1), (1, -2))
    assert facts.facts("cummax").window_dims == 0
    assert facts.facts("no such operator") == Facts()


@pytest.mark.parametrize(
    ("section", "row", "said"),
    [
        ("large", {"element": 1}, "work.toml, large: there is no 'element'"),
        ("larger", {"elements": 1}, "work.toml: there is no 'larger'"),
    ],
)
@pytest.mark.parametrize("is_change", [False, True])
def test_a_wrong_name_in_the_amounts_of_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, section: str, row: dict[str, int], said: str, is_change: bool
) -> None:
    tables = load_table(work.__file__, "work.toml")
    wrong = {"deep": {**tables["deep"], section: row}} if is_change else {section: {**tables.get(section, {}), **row}}
    monkeypatch.setattr(work, "load_table", lambda *_: {**tables, **wrong})
    work.work.cache_clear()

    with pytest.raises(ConformanceError, match=said):
        work.work(deep=True)


def test_a_missing_amount_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = load_table(work.__file__, "work.toml")
    monkeypatch.setattr(work, "load_table", lambda *_: {**tables, "edges": {}})
    work.work.cache_clear()

    with pytest.raises(ConformanceError, match=r"^work.toml, edges: 'sizes' is missing\.$"):
        work.work(deep=True)
