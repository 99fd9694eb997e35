"""Questions in the box: names in all common forms are answered, or lead to a suggestion. Needs node, and no browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.reports.loading import load
from conformance.reports.page.columns import PublishedReport, make_columns
from conformance.reports.page.packing import aliases, payload
from conformance.reports.page.table import make_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
TEMPLATES = HERE.parents[2] / "reports" / "page" / "templates"
RUNS = HERE.parents[2] / "reports" / "published" / "runs"
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    columns = make_columns(PublishedReport(load(RUNS / f"{name}.json.gz")) for name in ("cpu", "sim", "supa"))
    return payload(make_table(columns), columns)


def asked(page: dict[str, Any], *questions: str) -> list[dict[str, Any]]:
    given = json.dumps({"data": page, "questions": questions})
    command = ["node", str(HERE / "answers.js"), str(TEMPLATES)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_common_names_are_answered_or_suggested(page: dict[str, Any]) -> None:
    questions = tomllib.loads((HERE / "queries.toml").read_text(encoding="utf-8"))
    wanted = {question: names for group in questions.values() for question, names in group.items()}

    answers = asked(page, *wanted)

    assert len(wanted) >= 300
    wrong = {
        question: answer["names"][:4]
        for (question, names), answer in zip(wanted.items(), answers, strict=True)
        if answer["kind"] == "dead" or not set(names) & set(answer["names"])
    }
    assert wrong == {}


def test_an_alias_leads_to_a_subject(page: dict[str, Any]) -> None:
    """An entry that leads nowhere would be a dead end that nobody sees."""
    known = {name for area, name, _ in page["rows"]} | {f"{area}.{name}" for area, name, _ in page["rows"]}
    parts = {part for name in known for part in (name, name.rpartition(".")[2], name.removeprefix("nn.functional."))}
    table = aliases()

    assert [name for name, subject in table["same"].items() if subject not in parts] == []
    assert [name for name, subjects in table["topics"].items() if not set(subjects) & parts] == []
    assert [name for part in table.values() for name in part if name != name.lower()] == []
    assert [name for name in table["patterns"].values() if name not in {**table["devices"], **table["topics"]}] == []


def test_an_unknown_product_or_dtype_is_no_question_about_all_that_is_here(page: dict[str, Any]) -> None:
    """An answer about every accelerator, or every dtype, would be taken for one about the product or the dtype."""
    table = aliases()
    titles = {column["title"] for column in page["columns"]}
    absent = [name for name, backend in table["devices"].items() if backend not in titles and backend != "supa"]

    about = dict(zip(absent, asked(page, *(f"conv2d {name}" for name in absent)), strict=True))
    dtypes = dict(zip(table["dtypes"], asked(page, *(f"conv2d {name}" for name in table["dtypes"])), strict=True))

    assert [name for name, answer in about.items() if not answer.get("device")] == []
    assert [name for name, answer in dtypes.items() if not answer.get("lacking")] == []


def test_words_that_every_object_has_are_no_entries(page: dict[str, Any]) -> None:
    answers = asked(page, "constructor", "__proto__ constructor", "toString valueOf", "conv2d hasOwnProperty")

    assert [answer["kind"] for answer in answers if answer["kind"] == "answered"] == []


def test_no_number_and_no_letter_is_suggested(page: dict[str, Any]) -> None:
    answers = asked(page, "Acme 3", "Acme X 9000", "a b c", "gpu2000 7")

    assert [name for answer in answers for name in answer["names"] if len(name) < 3] == []


def test_cells_that_pytorch_lacks_count_nowhere(page: dict[str, Any]) -> None:
    (relu,) = asked(page, "relu")

    assert (relu["columns"][0]["title"], relu["columns"][0]["kind"]) == ("cpu", "yes")


def test_the_worst_error_is_that_of_failures_too(page: dict[str, Any]) -> None:
    place = page["ids"].index("operators.nn.functional.relu[float32-inference]")
    column = page["columns"][0]
    failing = next(letter for letter, pair in page["letters"].items() if pair == ["fail", "wrong"])
    worse = {
        **column,
        "verdicts": column["verdicts"][:place] + failing + column["verdicts"][place + 1 :],
        "shares": column["shares"][:place] + page["shares"][60] + column["shares"][place + 1 :],
    }

    (relu,) = asked({**page, "columns": [worse]}, "relu")

    assert relu["columns"][0]["worst"] > 10


def test_fp8_means_both_of_its_dtypes_and_a_part_of_a_name_finds_the_accelerator(page: dict[str, Any]) -> None:
    renamed = [
        {**column, "title": title} for column, title in zip(page["columns"], ("cpu", "sim", "delta-test"), strict=True)
    ]

    fp8, delta = asked({**page, "columns": renamed}, "copy fp8", "conv2d delta")

    assert fp8["dtype"] == "float8_e4m3fn|float8_e5m2"
    assert [column["title"] for column in delta["columns"]] == ["delta-test"]
