"""The page in a real browser. Not collected by itself: ``tox run -e page`` names this file, and needs Chromium.

``CHROMIUM`` names the browser if it is not ``chromium`` on the path; ``AXE`` an ``axe.min.js``, for the accessibility
check; screenshots go to ``SCREENSHOTS`` if it is set.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from conformance.reports.model import Report
from conformance.reports.page import publish
from conformance.reports.page.columns import PublishedReport
from conformance.reports.report_json import to_json
from tests.reports.page import many

READY = "html[data-ready]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two runs of supa, one of npu."""
    old, new = many.large("supa", 400, 1), many.large("supa", 400, 2)
    older = Report(many.report("supa", (), "2026-01-01T00:00:00+00:00").run, old.accelerator, cases=old.cases)
    folder = tmp_path_factory.mktemp("page")
    publish.publish(map(PublishedReport, (older, new, many.large("npu", 300, 3))), folder)
    return (folder / "index.html").as_uri()


@pytest.fixture
def page(browser: Browser, index: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        opened = context.new_page()
        said: list[str] = []
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(index)
        opened.wait_for_selector(READY, state="attached")
        yield opened
        _keep(opened, request.node.name)
        assert said == []


def _keep(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def cells(page: Page) -> list[list[str]]:
    """The visible cells of the matrix."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#matrix tbody tr')].filter(row => row.offsetParent)"
        ".map(row => [...row.cells].filter(cell => cell.offsetParent).map(cell => cell.textContent.trim()))"
    )
    return found


def test_the_script_counts_as_the_html_does(browser: Browser, index: str) -> None:
    """With every area open and no filter, all cells are what they are without JavaScript."""
    with browser.new_context(java_script_enabled=False) as context:
        still = context.new_page()
        still.goto(index)
        plain = [row.inner_text().split("\t") for row in still.locator("#matrix tbody tr").all()]
        assert still.locator("noscript p").is_visible()
    with browser.new_context() as context:
        alive = context.new_page()
        alive.goto(f"{index}#open=operators")
        alive.wait_for_selector(READY, state="attached")
        assert [[cell.strip() for cell in row] for row in plain] == cells(alive)


def test_filters_narrow_the_matrix(page: Page) -> None:
    page.select_option("[name=on]", "supa")
    page.select_option("[name=dtype]", "float32")
    page.fill("[name=text]", "operator_7[")
    rows = cells(page)
    assert [row[0] for row in rows] == ["operators", "family_0.operator_7"]
    assert {len(row) for row in rows} == {2}
    assert rows[1][1].endswith("2")  # inference and training


def test_failures_alone(page: Page) -> None:
    page.select_option("[name=outcome]", "fail")
    assert all("✕" in "".join(row) for row in cells(page))


def test_regressions_are_told_by_the_run_before(page: Page) -> None:
    page.select_option("[name=ask]", "regressions")
    rows = cells(page)
    assert len(rows) > 5
    assert {row[1] for row in rows} == {"–"}  # npu has no earlier run


def test_a_cell_opens_and_its_address_brings_it_back(page: Page) -> None:
    page.click("#matrix th button")
    page.click("tr:has(th:text-is('family_0.operator_0')) td:nth-of-type(2) button")
    assert page.inner_text("#cell-title") == "operators.family_0.operator_0 on supa"
    page.click("#cell tbody tr:nth-child(3) button")
    chosen = page.inner_text(".one h3")
    assert "--accelerator=supa --case 'operators.family_0.operator_0[" in page.inner_text(".one")
    page.reload()
    page.wait_for_selector("#cell[open]")
    assert page.inner_text(".one h3") == chosen
    page.keyboard.press("Escape")
    page.wait_for_selector("#cell[open]", state="detached")
    page.wait_for_function("!location.hash.includes('cell=')")  # the browser tells of the closing a moment later
    assert "cell=" not in page.url


def test_keys_alone(page: Page) -> None:
    page.focus("#matrix th button")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.closest('#matrix') !== null")


def test_dropping_a_report_compares(page: Page, tmp_path: Path) -> None:
    other = many.large("supa", 400, 5)
    file = tmp_path / "report.json"
    file.write_text(to_json(other), encoding="utf-8")
    page.set_input_files("#other", file)
    page.wait_for_selector("#difference")
    title = page.inner_text("#difference-title")
    here = {case.id: (case.outcome, case.reason) for case in many.large("supa", 400, 2).cases}
    different = sum(1 for case in other.cases if here[case.id] != (case.outcome, case.reason))
    assert title == f"supa against report.json: {different} cases differ"
    assert page.locator("#difference tbody tr").count() == min(different, 500)


@pytest.mark.parametrize("text", ["", "[1]", '{"cases": 3}', "\x00"])
def test_dropping_something_else_is_one_sentence(page: Page, tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    page.set_input_files("#other", file)
    page.wait_for_selector("#difference")
    assert page.inner_text("#difference-title").endswith("Drop the report.json of a run.")


def test_a_wrong_address_is_no_error(page: Page, index: str) -> None:
    page.goto(f"{index}#cell=nobody|nothing&area=%00&on=x&open=y,z")
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert len(cells(page)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barrier(browser: Browser, index: str, scheme: Any) -> None:
    with browser.new_context(color_scheme=scheme, bypass_csp=True) as context:
        page = context.new_page()
        page.goto(f"{index}#open=operators")
        page.wait_for_selector(READY, state="attached")
        page.add_script_tag(path=os.environ["AXE"])
        assert _barriers(page) == []
        page.goto(f"{index}#cell=supa|operators.family_0.operator_0")
        page.wait_for_selector("#cell[open]")
        assert _barriers(page) == []


def _barriers(page: Page) -> list[str]:
    found = page.evaluate("axe.run()")["violations"]
    return [f"{one['impact']}: {one['id']} {one['nodes'][0]['html'][:200]}" for one in found]


def test_markup_in_reports_does_not_run(browser: Browser, tmp_path: Path) -> None:
    publish.publish([PublishedReport(many.hostile())], tmp_path)
    with browser.new_context() as context:
        page = context.new_page()
        asked: list[str] = []
        page.on("dialog", lambda dialog: asked.append(dialog.message))
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_selector(READY, state="attached")
        page.select_option("[name=outcome]", "fail")
        page.click("#matrix td button")
        assert "onerror" in page.inner_text(".one")
        assert asked == []
        assert page.locator("img").count() == 0


def test_twenty_thousand_cases_of_nine_accelerators(browser: Browser, tmp_path: Path) -> None:
    names = [f"accelerator{salt}" for salt in range(9)]
    publish.publish([PublishedReport(many.large(name, 20_000, salt)) for salt, name in enumerate(names)], tmp_path)
    size = (tmp_path / "index.html").stat().st_size
    with browser.new_context() as context:
        page = context.new_page()
        began = time.monotonic()
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_selector(READY, state="attached")
        ready = time.monotonic() - began
        began = time.monotonic()
        page.fill("[name=text]", "operator_77")
        page.wait_for_function("document.getElementById('found').textContent.startsWith('990')")
        filtered = time.monotonic() - began
    print(f"\n{size / 1024:,.0f} KiB; interactive after {ready:.2f} s; a filter takes {filtered:.2f} s")
    assert size <= 2**20


@pytest.mark.parametrize("lost", ["delete window.DecompressionStream", "window.JSON.parse = () => { throw Error() }"])
def test_a_browser_in_which_the_script_cannot_work_shows_the_whole_matrix(
    browser: Browser, index: str, lost: str
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script(lost)
        page.goto(index)
        page.wait_for_selector("#matrix tbody.open", state="attached")

        rows = page.locator("#matrix tbody tr")
        assert all(row.is_visible() for row in rows.all())
        assert rows.count() > len(page.locator("#matrix tbody").all())


def test_rows_that_nobody_has_opened_are_not_laid_out(page: Page) -> None:
    assert page.locator("#matrix tbody tr.area").first.is_visible()
    assert page.locator("#matrix tbody tr:not(.area):visible").count() == 0

    page.locator("#matrix tr.area button").first.click()

    assert page.locator("#matrix tbody tr:not(.area):visible").count() > 0


def test_it_prints(page: Page, tmp_path: Path) -> None:
    page.emulate_media(media="print")
    assert not page.is_visible("#filters")
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
