"""What the tests import is installed by one extra: pip and tox install the same."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from conformance.numerics.budgets import load_table
from tests.rows import every_row

ROOT = Path(__file__).parents[1]
#: Of this checkout.
OWN = {"conformance", "tests", "benchmarks"}
#: Pytest itself requires it.
WITH_PYTEST = {"packaging"}


def required(*extras: str) -> set[str]:
    """Return the names of the distributions that the package and these extras ask for, with the extras they name."""
    project: dict[str, Any] = load_table(str(ROOT / "setup.py"), "pyproject.toml")["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for line in lines:
        if named := re.fullmatch(r"accelerator-conformance\[(.*)\]", line):
            lines += [line for extra in named[1].split(",") for line in project["optional-dependencies"][extra]]
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in lines}


def imported(file: Path) -> set[str]:
    """Return the packages that a module imports when it is imported."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found - OWN - set(sys.stdlib_module_names)


#: It reads what every installed package says of itself.
distributions_of_packages = cache(packages_distributions)


@every_row(sorted((ROOT / "tests").rglob("test_*.py")))
def test_collecting_needs_only_what_the_extra_installs(file: Path) -> None:
    distributions = distributions_of_packages()
    names = {name.lower() for package in imported(file) for name in distributions.get(package, [package])}

    assert names <= required("test") | WITH_PYTEST


def test_tox_installs_the_extra() -> None:
    text = (ROOT / "tox.ini").read_text(encoding="utf-8")
    tests = text.partition("[testenv:tests]\n")[2].partition("\n\n")[0]

    assert re.search(r"^extras = test$", tests, re.MULTILINE)
    assert "deps" not in tests, "what the tests need stands in the extra"
