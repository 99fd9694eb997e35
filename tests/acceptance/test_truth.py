"""The suite on this machine's CPU: nothing false, nothing lost, the same verdicts however it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.reports.declaration.claims import check_claims
from conformance.reports.verdict import Outcome
from tests.layers import longer

from .running import DATABASE, Run, run

#: One part in eighty of every area: a few hundred cases, cheap enough to run several times. The other is a tenth of it.
SLICE, SMALL_SLICE = "--shard=1/80", "--shard=1/800"

#: Claims that have areas of their own.
AREAS = ("operators.", "workloads.", "comm.", "kernels.", "invariance.")


@pytest.fixture(scope="module", params=longer([SMALL_SLICE, SLICE]))
def shard(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def slice_run(shard: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = ("--accelerator=cpu", shard, "-n2" if shard == SLICE else "-n0")
    return run(*words, cwd=tmp_path_factory.mktemp("slice"), timeout=600, imported=DATABASE)


def test_planned_is_accounted_and_nothing_fails(shard: str, slice_run: Run) -> None:
    failed = [case.id for case in slice_run.report.cases if case.outcome is Outcome.FAIL]

    assert slice_run.status == 0, slice_run.output
    assert not failed
    assert not slice_run.report.accounting.unaccounted
    assert len(slice_run.report.cases) == slice_run.report.run.suite.cases >= (200 if shard == SLICE else 15)


@pytest.mark.long
@pytest.mark.parametrize("shard", [SLICE], indirect=True)
@pytest.mark.parametrize(
    "arguments", [["-n0"], ["-n1"], ["-n2", "-p", "randomly", "-p", "no:cacheprovider"]], ids=["n0", "n1", "shuffled"]
)
def test_verdicts_do_not_depend_on_how_the_suite_is_run(
    shard: str, slice_run: Run, arguments: list[str], tmp_path: Path
) -> None:
    again = run("--accelerator=cpu", shard, *arguments, cwd=tmp_path, timeout=600, imported=DATABASE)

    assert again.verdicts == slice_run.verdicts


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.long)])
def units_but_operators(tmp_path_factory: pytest.TempPathFactory) -> Run:
    areas = "--area=accelerator,capabilities,profiling,utils"
    return run("--accelerator=cpu", areas, "-n2", cwd=tmp_path_factory.mktemp("units"), timeout=600, imported=DATABASE)


def test_the_small_areas_are_complete_on_the_cpu(units_but_operators: Run) -> None:
    failed = {case.id: case.message for case in units_but_operators.report.cases if case.outcome is Outcome.FAIL}

    assert units_but_operators.status == 0, units_but_operators.output
    assert not failed


def test_every_claim_about_behaviour_is_verified(units_but_operators: Run) -> None:
    unverified = check_claims(units_but_operators.report).unverified

    assert [cell for cell in unverified if not cell.startswith(AREAS)] == []
