"""The extras of the package install the versions of libraries for which the cases of models were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from conformance.numerics.budgets import load_table
from conformance.suites.workloads import libraries

RANGES = load_table(libraries.__file__, "libraries.toml")


@pytest.mark.parametrize("name", sorted(RANGES))
def test_an_extra_installs_the_tested_range(name: str) -> None:
    row, first, before = RANGES[name], *(".".join(map(str, RANGES[name][key])) for key in ("from", "before"))
    extras = load_table(str(Path(__file__).parents[1]), "pyproject.toml")["project"]["optional-dependencies"]

    found = [each for each in map(Requirement, extras[row["extra"]]) if each.name == name]

    assert found, f"the extra {row['extra']} does not install {name}"
    assert all(each.specifier.contains(first + ".0") for each in found)
    assert not any(each.specifier.contains(before + ".0") for each in found)
    assert not any(each.specifier.contains(f"{row['from'][0]}.{row['from'][1] - 1}.99") for each in found)
