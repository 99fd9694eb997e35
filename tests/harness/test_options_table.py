"""The table of options: what follows from it is complete, and a row is enough for a new option."""

from __future__ import annotations

from dataclasses import fields

from conformance.base.options import BY_NAME, OPTIONS, Option, Value
from conformance.plan.options import _settings
from conformance.plan.run_options import _READERS, RunOptions
from conformance.reports.redaction import SELECTING
from conformance.reports.repro import _REPEATED


def test_each_member_of_the_run_options_has_one_row() -> None:
    """``calls`` stands behind the ids of ``--case``."""
    assert sorted([*(option.field for option in OPTIONS if option.field), "calls"]) == sorted(
        field.name for field in fields(RunOptions)
    )
    assert len(BY_NAME) == len(OPTIONS)


def test_each_kind_of_value_is_read() -> None:
    assert {option.value for option in OPTIONS if option.field} == _READERS.keys()
    assert {option.name for option in OPTIONS if not option.field} == {"--case-file"}, "read with --case"


def test_each_row_is_explained() -> None:
    assert [option.name for option in OPTIONS if not option.help or not option.docs] == []
    assert [option.name for option in OPTIONS if (option.value is Value.FLAG) is bool(option.metavar)] == []


def test_what_narrows_a_run_is_seen_on_its_command_line() -> None:
    assert [option.name for option in OPTIONS if option.narrows and option.name not in SELECTING] == []


def test_the_gate_judges_only_facts_of_the_header() -> None:
    assert all(option.fact for option in OPTIONS if option.judged)
    assert [option.name for option in _REPEATED] == [
        "--capabilities",
        "--conformance-seed",
        "--strictness",
        "--rank-isolation",
    ]


def test_an_option_that_repeats_keeps_every_value() -> None:
    assert _settings(BY_NAME["--area"])["action"] == "append"
    assert "action" not in _settings(BY_NAME["--profile"])
    assert isinstance(BY_NAME["--profile"], Option)
