"""Tests of the selection of cases by id, area, dtype and shard."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.base.errors import UsageError
from conformance.plan.case import Case, Tier, case_id, seed_of
from conformance.plan.run_options import RunOptions, read_options
from conformance.plan.selection import areas_of, in_shard, matches, selector
from conformance.reports.challenge import seed_of_challenge
from conformance.reports.profiles import PROFILES, in_profile

SOFTMAX = Case("operators.softmax[float16-training]", "operators", axes=(("dtype", "float16"), ("mode", "training")))
SEED = Case("accelerator.rng.seed", "accelerator")
DEEP = Case(
    "operators.add[float32-inference-deep]", "operators", tier=Tier.DEEP, axes=(("dtype", "float32"), ("depth", "deep"))
)
GPT = Case("workloads.gpt.train[float32-training]", "workloads", tier=Tier.WORKLOAD, axes=(("dtype", "float32"),))
ALL = (SOFTMAX, SEED, DEEP, GPT)
DEFAULTS = {
    "--strictness": "ci",
    "--conformance-seed": "0",
    "--rank-isolation": "reuse",
    "--conformance-report": "out",
}


def options_of(typed: dict[str, Any]) -> RunOptions:
    """Return the options of a command line."""
    given = {**DEFAULTS, "--accelerator": "cpu", **typed}
    config = SimpleNamespace(getoption=lambda name: given.get(f"--{name.replace('_', '-')}"))
    return read_options(config)  # type: ignore[arg-type]


def chosen(**options: object) -> list[Case]:
    select = selector(RunOptions("cpu", **options))  # type: ignore[arg-type]
    return [case for case in ALL if select(case.planned)]


def test_options_narrow_together() -> None:
    assert chosen() == [SOFTMAX, SEED, GPT]
    assert chosen(areas=("operators",)) == [SOFTMAX]
    assert chosen(tier="workload") == [GPT]
    assert chosen(dtypes=("float16", "float32"), tier="unit") == [SOFTMAX]
    assert chosen(cases=("accelerator.*", "workloads.*")) == [SEED, GPT]
    assert chosen(cases=("accelerator.rng.seed", "*softmax*")) == [SOFTMAX, SEED]
    assert chosen(cases=("operators.softmax",)) == []


def test_the_deep_tier_runs_only_where_it_is_asked_for() -> None:
    assert chosen(tier="deep") == [DEEP]
    assert chosen(areas=("operators",)) == [SOFTMAX]
    assert chosen(cases=("operators.*",)) == [SOFTMAX]
    assert chosen(cases=(DEEP.id,)) == [DEEP]
    assert not any(in_profile(profile, DEEP.planned) for profile in PROFILES)


def test_a_file_of_cases_adds_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "cases.txt"
    file.write_text("# the ones that failed\n\n  accelerator.rng.seed\nworkloads.*\naccelerator.rng.seed\n")
    typed = {"--accelerator": "cpu", "--case": ["operators.add[int8-inference]"], "--case-file": [str(file)]}

    options = options_of(typed)

    assert options.cases == ("operators.add[int8-inference]", "accelerator.rng.seed", "workloads.*")


def test_a_challenge_gives_the_seed() -> None:
    options = options_of({"--challenge": "a-new-word"})

    assert (options.challenge, options.seed) == ("a-new-word", seed_of_challenge("a-new-word"))
    assert options_of({}).challenge == ""
    assert seed_of(SEED.id, options.seed) != seed_of(SEED.id, options_of({"--challenge": "another-word"}).seed)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"--challenge-answers": "x"}, "--challenge-answers needs --challenge"),
        ({"--challenge": "a-new-word", "--challenge-answers": "nowhere"}, "there is no file nowhere"),
        ({"--challenge": "a-new-word", "--conformance-seed": "1"}, "cannot be used together"),
        ({"--challenge": ""}, "expected 8 to 128 letters"),
    ],
)
def test_a_challenge_that_makes_no_sense_is_refused(typed: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        options_of(typed)


@pytest.mark.parametrize(
    ("pattern", "hit"),
    [
        ("operators.softmax[float16-training]", True),  # brackets stand for themselves
        ("operators.*[float16-*]", True),
        ("operators.softmax", False),
        ("operators.softma?[float16-training]", False),
    ],
)
def test_case_patterns(pattern: str, hit: bool) -> None:
    assert matches(pattern, SOFTMAX.id) is hit


def test_shards_are_disjoint_and_complete() -> None:
    ids = [f"operators.op{n}[float32-inference]" for n in range(500)]

    parts = [{id for id in ids if in_shard(id, k, 3)} for k in (1, 2, 3)]

    assert set.union(*parts) == set(ids)
    assert sum(map(len, parts)) == len(ids)
    assert min(map(len, parts)) > 100


def test_only_the_areas_a_case_pattern_needs_are_looked_at() -> None:
    known = ["accelerator", "operators", "workloads"]

    assert areas_of(RunOptions("cpu", cases=("operators.add*",)), known) == ["operators"]
    assert areas_of(RunOptions("cpu", cases=("*softmax*",)), known) == known
    assert areas_of(RunOptions("cpu", areas=("workloads",)), known) == ["workloads"]


def test_seeds_depend_on_id_and_base_alone() -> None:
    assert seed_of("a.b") == seed_of("a.b")
    assert len({seed_of("a.b"), seed_of("a.c"), seed_of("a.b", 1)}) == 3
    assert 0 <= seed_of("a.b") < 2**31


def test_ids_read_area_subject_axes() -> None:
    assert case_id("accelerator.copy", (("dtype", "int8"), ("size", "7"))) == "accelerator.copy[int8-7]"
    assert SOFTMAX.subject == "softmax"
