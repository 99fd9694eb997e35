"""The figures in README and docs are those of the released manifest, the registries and the published run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.record import read, record
from benchmarks.table import Row
from conformance.plan.bundled import area_names
from tests.defects import measuring, table
from tests.rows import every_row

from . import areas, figures, renew
from .pages import DOCS, pages, text, with_part

RENEW = "run: python -m tests.docs.renew"
#: A number of cases as this suite has them. Sizes of other things, such as 20,000 cases of a benchmark, do not match.
COUNT = re.compile(r"\b1\d,?\d{3}(?= (?:planned )?cases\b)|(?<=planned )1\d,?\d{3}\b")
CAPABILITIES = re.compile(r"\b\d+ capabilities\b")


@pytest.mark.parametrize(
    ("page", "name", "make"), renew.PARTS, ids=[f"{page.stem}-{name}" for page, name, _ in renew.PARTS]
)
def test_the_generated_parts_are_up_to_date(page: Path, name: str, make: Callable[[], str]) -> None:
    assert with_part(text(page), name, make()) == text(page), RENEW


def test_the_tables_of_defects_are_up_to_date() -> None:
    measured = measuring.read(table.MEASURED)

    assert text(table.PAGE) == table.page(measured), RENEW
    assert text(table.TABLES) == table.tables(measured), RENEW


def test_the_manifest_has_the_areas_of_the_suite() -> None:
    assert sorted(figures.cases_by_area()) == area_names(), "run: conformance manifest --release"


def test_the_published_run_has_the_cases_of_the_manifest() -> None:
    ran = Counter(case.area for case in figures.published().cases)

    assert ran == figures.cases_by_area(), "run: tox run -e published, then: python -m tests.docs.renew"


def test_every_area_describes_itself() -> None:
    assert [area for area in area_names() if f"| `{area}` |" not in areas.areas()] == []
    assert " |  |\n" not in areas.areas() + "\n", "write a docstring in conformance/suites/AREA/__init__.py"


@every_row(pages, name=lambda page: page.name)
def test_no_count_stands_outside_the_generated_parts(page: Path) -> None:
    """A count that is typed by hand becomes stale. Fragments of the changelog and examples of output are exempt."""
    if page.parent.name == "changelog":
        return
    typed = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->|^```.*?^```$", "", text(page), flags=re.M | re.S)

    assert COUNT.findall(typed) + CAPABILITIES.findall(typed) == [], f"leave the number out, or generate it; {RENEW}"


def test_the_documentation_is_fourteen_pages_at_most() -> None:
    sizes = [len(page.read_bytes()) for page in DOCS.glob("*.md")]

    assert len(sizes) <= 14
    assert sum(sizes) <= 182_000, "a fact stands once; what only developers need stands beside its code"


@pytest.mark.parametrize("sentence", ["15,291 cases", "12701 cases", "planned 15341"])
def test_the_scan_finds_typed_counts(sentence: str) -> None:
    assert COUNT.search(sentence)


def test_a_recorded_row_replaces_the_row_of_its_metric(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    record([Row("collecting", "9 s"), Row("gate", "0.4 s")], file)

    record([Row("gate", "0.3 s", goal="≤ 0.5 s")], file)

    assert [(row["metric"], row["here"], row["goal"]) for row in read(file)] == [
        ("collecting", "9 s", ""),
        ("gate", "0.3 s", "≤ 0.5 s"),
    ]
    assert all(row["date"] and row["commit"] and row["machine"] for row in read(file))
