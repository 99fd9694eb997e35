"""A fast part of ``tox run -e instrument -- defects``: some mutants of each family, each against one case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.running import DATABASE, python
from tests.layers import longer

from . import measuring
from .catalogue import MUTANTS, by_name
from .measuring import Result
from .mutant import How, Mutant, fast_subset
from .through_pytest import run_mutant

ROOT = Path(__file__).parents[2]
FORKED = fast_subset(mutant for mutant in MUTANTS if mutant.how is How.FORK)
FEW = FORKED[::24]


@pytest.fixture(scope="module", params=longer([FEW, FORKED], FEW), ids=["few", "some of each family"])
def mutants(request: pytest.FixtureRequest) -> list[Mutant]:
    chosen: list[Mutant] = request.param
    return chosen


def with_tests(folder: Path) -> Path:
    """Put the tests alone into a folder: beside them stands a folder conformance/ that is not the installed package."""
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


#: Plants every mutant on the simulated accelerator, and prints those that cannot be planted.
PLANTING = """
import sys
sys.path.insert(0, ".")
from tests.defects import bench
from tests.defects.catalogue import MUTANTS
from tests.defects.faults import armed

bench.loaded("sim")
for mutant in MUTANTS:
    try:
        with armed(mutant.fault):
            pass
    except Exception as error:
        print(f"{mutant.name}: {error!r}")
print(f"planted {len(MUTANTS)}")
"""


def test_every_mutant_can_be_planted(tmp_path: Path) -> None:
    """A mutant of what has gone from the product would be run by nobody for weeks: most are run at night alone."""
    assert python("-c", PLANTING, cwd=with_tests(tmp_path)).stdout == f"planted {len(MUTANTS)}\n"


@pytest.fixture(scope="module")
def measured(mutants: list[Mutant], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """One process for all: it forks a copy for each mutant, and a process with threads could not."""
    folder = with_tests(tmp_path_factory.mktemp("defects"))
    names = [f"--mutant={mutant.name}" for mutant in mutants]
    words = ("-m", "tests.defects.run", "--quick", "--jobs=1", "--out=measured.json", *names)
    done = python(*words, cwd=folder, timeout=900, imported=DATABASE)
    found = measuring.read(folder / "measured.json").by_name
    assert found, f"status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return found


def test_each_mutant_is_killed(mutants: list[Mutant], measured: dict[str, Result]):
    alive = [
        f"{mutant.name}: {mutant.fault.caught_by} is green; red is {measured[mutant.name].reds}"
        for mutant in mutants
        if not measured[mutant.name].catching(mutant)
    ]

    assert not alive, "\n".join(alive)
    assert len(mutants) > 10


def test_the_same_cases_are_green_without(mutants: list[Mutant], measured: dict[str, Result]):
    assert not [name for name, result in measured.items() if measuring.is_healthy(name) and result.reds]
    assert measured[measuring.HEALTHY].ran > len(mutants) / 8


@pytest.mark.parametrize("name", longer(["event.query is always True", "an operator aborts"]))
def test_a_whole_run_says_the_same(name: str):
    """The accelerator breaks itself when it is loaded; xdist, the watchdog and the report do the rest."""
    mutant = by_name(name)

    result = run_mutant(
        mutant, measuring.cases_of(mutant) if mutant.how is How.PYTEST else measuring.naming_cases(mutant)
    )

    assert result.catching(mutant), f"{mutant.fault.caught_by} is green; red is {result.reds}"
    assert not result.accused(mutant), "cases beside it are red as well"
