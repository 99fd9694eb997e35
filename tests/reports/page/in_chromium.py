"""The page in a real browser. Not collected by itself: ``tox run -e instrument -- page`` runs it.

``CHROMIUM`` names the browser if it is not ``chromium`` on the path; ``AXE`` an ``axe.min.js``, for the accessibility
check; screenshots go to ``SCREENSHOTS`` if it is set.
"""

from __future__ import annotations

import gzip
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from conformance.reports.page import publish
from conformance.reports.page.columns import PublishedReport
from conformance.reports.report_json import to_json
from conformance.reports.views import packed
from tests.reports.page import many
from tests.reports.page.browser import READY, barriers, launched, opened
from tests.reports.page.fleet import fleet

WIDTHS = (320, 390, 800, 1280)
CONV = "operators.nn.functional.conv2d"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Addresses of pages with 3, 7 and 10 accelerators."""
    found = {}
    for number in (3, 7, 10):
        folder = tmp_path_factory.mktemp(f"page{number}")
        publish.publish(fleet(number, every=3), folder)
        found[number] = (folder / "index.html").as_uri()
    return found


@pytest.fixture
def page(browser: Browser, pages: dict[int, str]) -> Iterator[Page]:
    with opened(browser, pages[3]) as page:
        yield page


def _keep(page: Page, name: str, **options: Any) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", **options)


def ask(page: Page, text: str) -> str:
    """Type a question; the answer's sentence."""
    page.fill("#question", text)
    page.keyboard.press("Enter")
    answer: str = page.inner_text("#answer h2")
    return " ".join(answer.split())


def until(page: Page, condition: str) -> None:
    """Wait until an expression is true. The page's policy forbids Playwright's own way, which is eval()."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def cells(page: Page) -> list[list[str]]:
    """The visible cells of the matrix. The HTML leaves out the class of the most frequent kind, ``ok``."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].filter(row => row.offsetParent)"
        ".map(row => [...row.cells].map(cell => (cell.className || (cell.tagName === 'TD' ? 'ok' : ''))"
        " + ' ' + cell.textContent.trim().replace(/\\s+/g, ' ')))"
    )
    return found


# --- the three questions ---------------------------------------------------------------------------------------------


def test_the_three_questions_and_the_actions_that_each_takes(page: Page) -> None:
    """Typing counts as one action. A reader's first screen is 900 pixels high."""
    actions = {}
    page.fill("#question", "conv2d bf16 training nova")
    page.wait_for_selector("#answer h2:has-text('fails')")
    actions["Does X support bf16 training of conv2d?"] = 1

    page.click("nav a[href='#changed']")
    text = page.inner_text(".change:has(h3:has-text('nova'))")
    assert "pass → wrong" in text
    assert "driver" in text
    actions["What regressed?"] = 1

    page.reload()
    page.wait_for_selector(READY, state="attached")
    box = page.locator(".state").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900
    assert [row.split("\n")[0] for row in page.locator(".state tbody tr:first-child th").all_inner_texts()] == [
        "cpu (upstream)", "nova", "supa"
    ]  # fmt: skip
    actions["How do we stand?"] = 0
    print("\n| question | actions |\n|---|---|")
    print("\n".join(f"| {question} | {number} |" for question, number in actions.items()))
    assert list(actions.values()) == [1, 1, 0]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("conv2d bf16 training cpu", "Yes. cpu (upstream) runs conv2d in bfloat16 for training, natively"),
        ("Does nova support bfloat16 training of conv2d?", "No, it fails. conv2d in bfloat16 for training on nova"),
        ("conv2d nova", "Partly. 2 cases of 14 of conv2d fail on nova: max_ulp 212"),
        ("cumsum fp16 training supa", "Not yet. cumsum in float16 for training fails on supa, and is waived: not-yet,"),
        ("conv2d fp64 supa", "Unknown. supa declares nothing about conv2d in float64"),
        ("conv2d int8 training", "Does not apply. There is no case of conv2d in int8 for training."),
        ("conv2d bf16 training", "2 of 3 run conv2d in bfloat16 for training: cpu (upstream), supa."),
        ("conv2d", "1 of 3 run conv2d: cpu (upstream); 2 in part."),
        ("cnov2d bf16", "Unknown. Nothing here is called “cnov2d”. Did you mean:"),
    ],
)  # fmt: skip
def test_answers(page: Page, question: str, answer: str) -> None:
    assert ask(page, question).startswith(answer)


def test_a_declared_no_and_what_did_not_run(browser: Browser, pages: dict[int, str]) -> None:
    with opened(browser, pages[10]) as page:
        assert ask(page, "conv2d bf16 training orca").startswith("No. orca declares that it does not run conv2d")
        assert ask(page, "comm.all_reduce orca").startswith("Unknown.")
        assert "did not run on orca: this machine has 1 device" in ask(page, "comm.all_reduce orca")


def test_a_typo_gets_names_that_can_be_clicked(page: Page) -> None:
    ask(page, "cnov2d bf16 nova")
    page.click("#answer .acts button:text-is('conv2d')")
    assert page.inner_text("#answer h2").startswith("No, it fails.")
    assert page.input_value("#question") == "conv2d bf16 nova"


def test_capital_letters_tell_a_layer_from_a_function(page: Page) -> None:
    """Conv2d is a layer, conv2d a function; the answer about one leads to the other."""
    assert ask(page, "conv2d bf16 training cpu").startswith("Yes. cpu (upstream) runs conv2d in bfloat16")
    page.click("#answer .acts button:text-is('See also modules.Conv2d')")
    assert page.input_value("#question") == "modules.Conv2d bf16 training cpu"
    assert page.inner_text("#answer h2").startswith("Yes. cpu (upstream) runs Conv2d in bfloat16")
    assert ask(page, "CONV2D BF16 Training CPU").startswith(
        "Yes. cpu (upstream) runs “CONV2D” (2 subjects) in bfloat16"
    )


def test_an_answer_has_its_evidence_and_opens_the_cases(page: Page) -> None:
    ask(page, "conv2d bf16 training nova")
    assert {"0 of 1 pass", "2026-11-21", "ci@vendor.example"} <= set(page.locator("#answer dd").all_inner_texts())
    page.click("#answer button:text-is('Open the cases')")
    assert page.inner_text(".one h3") == f"{CONV}[bfloat16-training]"
    assert page.locator(".grid button:not(.dim)").count() == 1


def test_questions_that_mean_nothing_are_no_error(page: Page) -> None:
    for text in ("?", "<img src=x onerror=alert(1)>", "a" * 5_000, "[[[", "the of in", "%00", "__proto__ constructor"):
        page.fill("#question", text)
        page.keyboard.press("Enter")
    assert page.locator("img").count() == 0


# --- the matrix ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 10])
def test_the_script_counts_as_the_html_does(browser: Browser, pages: dict[int, str], number: int) -> None:
    """With every area open and no filter, all cells are what they are without JavaScript."""
    with browser.new_context(java_script_enabled=False) as context:
        still = context.new_page()
        still.goto(pages[number])
        plain = cells(still)
        assert still.locator("noscript p").is_visible()
        assert still.locator("#ask").is_hidden()
    with opened(browser, pages[number]) as page:
        page.fill("#filters [name=text]", ".")  # every name has a dot: every row is filled by the script
        assert cells(page) == plain


def test_filters_narrow_the_matrix(page: Page) -> None:
    page.select_option("#filters [name=dtype]", "bfloat16")
    page.select_option("#filters [name=mode]", "training")
    page.fill("#filters [name=text]", "functional.conv2d[")
    rows = cells(page)
    assert [row[0].split()[0] for row in rows] == ["operators", "nn.functional.conv2d"]
    assert [row[1:] for row in rows] == [["ok ✓ 1", "x3 ✕ 1", "ok ✓ 1"]] * 2


def test_filtered_out_is_not_the_same_as_not_run(browser: Browser, pages: dict[int, str]) -> None:
    with opened(browser, pages[10]) as page:
        comm = page.locator("#table tr.area:has(th:has-text('comm '))")
        assert "nr – not run" in comm.evaluate("row => [...row.cells].map(c => c.className + ' ' + c.textContent)")
        page.select_option("#filters [name=mode]", "training")
        assert comm.is_hidden()


@pytest.mark.parametrize("value", ["fail", "differ", "changed"])
def test_rows_of_one_kind(page: Page, value: str) -> None:
    before = len(cells(page))
    page.check(f"#filters [value={value}]", force=True)
    assert 0 < len(cells(page)) < before


def test_an_area_opens_by_click_and_by_key(page: Page) -> None:
    assert page.locator("#table tbody tr:not(.area):visible").count() == 0
    page.click("#table tr.area:has(th:has-text('comm ')) td:nth-of-type(2) button")
    assert page.locator("#table tbody tr:not(.area):visible").count() > 3
    page.keyboard.press("Enter")
    assert page.locator("#table tbody tr:not(.area):visible").count() == 0


def test_a_large_area_shows_what_differs_first_and_everything_when_asked(page: Page) -> None:
    page.evaluate("[...document.querySelectorAll('button.fold')].find(f => f.textContent === 'operators').click()")
    few = len(cells(page))
    assert "conv2d" in str(cells(page))
    page.click("#table tr.rest button")
    assert len(cells(page)) > few + 100


def test_keys_alone(page: Page) -> None:
    """One stop of the Tab key for the table; arrows, Home and End inside it; a dialog gives the focus back."""
    page.focus("#found ~ *, #filters button")
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#table') !== null"):
            break
    assert page.evaluate("document.activeElement.textContent") == "accelerator"
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    last = page.evaluate("document.activeElement.closest('td').cellIndex")
    page.keyboard.press("Enter")
    page.wait_for_selector("#cell[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#cell[open]", state="detached")
    assert last == 3
    assert page.evaluate("document.activeElement.closest('td')?.cellIndex") == 3


def test_slash_goes_to_the_question(page: Page) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "question"


@pytest.mark.parametrize("width", [390, 1280])
def test_every_column_can_be_reached_and_heads_stay(browser: Browser, pages: dict[int, str], width: int) -> None:
    with opened(browser, f"{pages[10]}#at=operators", width=width) as page:
        page.wait_for_timeout(200)
        page.keyboard.press("End")
        page.wait_for_timeout(200)
        box = page.evaluate("(b => [b.left, b.right])(document.activeElement.getBoundingClientRect())")
        heads = page.evaluate(
            "[...document.querySelectorAll('#table thead th')].map(h => h.getBoundingClientRect().top)"
        )
        first = page.evaluate("document.querySelector('#table tr.hit th').getBoundingClientRect().left")
        assert box[0] >= 0
        assert box[1] <= width
        assert 0 <= heads[-1] < 780
        assert 0 <= first < 40


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("number", [3, 7, 10])
def test_no_words_leave_their_cell(browser: Browser, pages: dict[int, str], number: int, width: int) -> None:
    """A cell without a number has words, such as "? undeclared": in a narrow column they ran into the next one."""
    for hash in ("#open=operators,comm&at=operators", f"#case=nova|{CONV}[bfloat16-training]"):
        with opened(browser, pages[number] + hash, width=width) as page:
            wide = page.evaluate(
                "[...document.querySelectorAll('#table td, #table th, #table td button, .grid td, .grid button')]"
                ".filter(box => box.offsetParent && box.scrollWidth > box.clientWidth + 1).map(box => box.textContent)"
            )
            assert wide == []
            assert page.evaluate(
                "[...document.querySelectorAll('.inner, .inner *')].every(b => b.scrollWidth <= innerWidth)"
            )


# --- addresses, dialog, comparison -----------------------------------------------------------------------------------


def test_a_cell_opens_and_its_address_brings_the_case_back(page: Page) -> None:
    page.fill("#filters [name=text]", "functional.conv2d[")
    page.click("tr:has(th a) td:nth-of-type(2) button")
    assert page.inner_text("#cell-title").startswith(f"{CONV} on nova")
    page.click(".grid button >> nth=2")
    chosen = page.inner_text(".one h3")
    assert f"--accelerator=nova --case '{chosen}'" in page.inner_text(".one")
    page.reload()
    page.wait_for_selector("#cell[open]")
    assert page.inner_text(".one h3") == chosen
    assert page.locator(".grid [aria-pressed=true]").count() == 1
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('case=')")  # the browser tells of the closing a moment later


def test_the_dialog_goes_to_another_accelerator(page: Page) -> None:
    page.evaluate(f"location.hash = 'case=' + encodeURIComponent('nova|{CONV}[bfloat16-training]')")
    page.click(".others button:has-text('supa')")
    assert page.inner_text("#cell-title").startswith(f"{CONV} on supa")
    assert page.inner_text(".one h3") == f"{CONV}[bfloat16-training]"


def test_a_case_shows_its_earlier_runs(page: Page) -> None:
    page.evaluate(f"location.hash = 'case=' + encodeURIComponent('nova|{CONV}[bfloat16-training]')")
    runs = page.locator(".runs li").all_inner_texts()
    assert [run.split()[:2] for run in runs] == [["✓", "pass"], ["wrong", "2026-11-21"]]


def test_an_address_scrolls_to_what_it_names(browser: Browser, pages: dict[int, str]) -> None:
    with opened(browser, f"{pages[3]}#at={CONV}") as page:
        top = page.evaluate("document.querySelector('tr.hit').getBoundingClientRect().top")
        assert 0 < top < 900
        assert page.inner_text("tr.hit th a") == "nn.functional.conv2d"


def test_a_wrong_address_is_no_error(page: Page, pages: dict[int, str]) -> None:
    page.goto(f"{pages[3]}#cell=nobody|nothing&case=%00|&show=x&open=y,z&at=none&dtype=q")
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert len(cells(page)) > 20


@pytest.mark.parametrize("form", ["json", "json.gz", "packed.json.gz"])
def test_choosing_a_report_compares(page: Page, tmp_path: Path, form: str) -> None:
    other = next(source.report for source in fleet(3, every=3) if source.report.accelerator.name == "nova")
    text = packed.render(other) if form.startswith("packed") else to_json(other)
    file = tmp_path / f"report.{form}"
    file.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    page.set_input_files("#other", file)
    page.wait_for_selector("#difference")
    number = page.locator("#difference tbody tr").count()
    assert number > 3
    assert page.inner_text("#difference-title") == f"nova against {file.name}: {number} cases differ"


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b'{"cases": 3}', b"\0", b"\x1f\x8b broken", b'{"accelerator":{},"rows":[1,[]],"shapes":[]}'],
)
def test_choosing_something_else_is_one_sentence(page: Page, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)
    page.set_input_files("#other", file)
    page.wait_for_selector("#difference")
    assert page.inner_text("#difference-title").startswith(("other.json is no", "cpu (upstream) against other.json"))


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "bomb.json.gz"
    with gzip.open(file, "wb", 9) as stream:
        for _ in range(130):
            stream.write(b" " * 2**20)
    page.set_input_files("#other", file)
    page.wait_for_selector("#difference", timeout=60_000)
    assert "larger than 128 MiB" in page.inner_text("#difference-title")


# --- looks -----------------------------------------------------------------------------------------------------------

STATES = {
    "first": "",
    "answer": "#q=conv2d+bf16+training+nova",
    "counted": "#q=conv2d+bf16+training",
    "unknown": "#q=cnov2d",
    "open": "#open=accelerator&at=accelerator",
    "subject": f"#at={CONV}",
    "filtered": "#dtype=bfloat16&mode=training&open=operators",
    "case": f"#case=nova|{CONV}[bfloat16-training]",
}


@pytest.mark.parametrize("number", [3, 10])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways_and_nothing_is_said(
    browser: Browser, pages: dict[int, str], number: int, width: int
) -> None:
    for scheme in ("light", "dark"):
        for state, hash in STATES.items():
            with opened(browser, pages[number] + hash, width=width, color_scheme=scheme) as page:
                page.wait_for_timeout(100)
                _keep(page, f"{number}-{width}-{scheme}-{state}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_barrier(browser: Browser, pages: dict[int, str], scheme: Any, width: int) -> None:
    for hash in STATES.values():
        with opened(browser, pages[10] + hash, width=width, color_scheme=scheme, bypass_csp=True) as page:
            assert barriers(page) == [], hash


@pytest.mark.parametrize("number", [3, 10])
def test_it_prints(browser: Browser, pages: dict[int, str], number: int, tmp_path: Path) -> None:
    with opened(browser, pages[number]) as page:
        page.emulate_media(media="print")
        assert not page.is_visible("#filters")
        folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
        page.pdf(path=folder / f"{number}.pdf", prefer_css_page_size=True)
        assert (folder / f"{number}.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("kind", ["deuteranopia", "protanopia", "tritanopia", "achromatopsia"])
def test_without_some_colours(browser: Browser, pages: dict[int, str], kind: str) -> None:
    """Every kind of cell has a symbol of its own, so that colour is never the only sign; a picture to look at."""
    with opened(browser, f"{pages[10]}#open=accelerator&at=comm") as page:
        page.context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", {"type": kind})
        _keep(page, f"10-1280-{kind}")
        signs = page.evaluate(
            "[...new Set([...document.querySelectorAll('#table tr.area td')].map("
            "c => c.className.replace(/[123]$/, '') + c.textContent.trim()[0]))].sort()"
        )
        assert len({sign[:-1] for sign in signs}) == len({sign[-1] for sign in signs}) >= 4


# --- hostile reports, old browsers, many cases -----------------------------------------------------------------------


def test_markup_in_reports_does_not_run(browser: Browser, tmp_path: Path) -> None:
    publish.publish([PublishedReport(many.hostile())], tmp_path)
    with opened(browser, (tmp_path / "index.html").as_uri()) as page:
        asked: list[str] = []
        page.on("dialog", lambda dialog: asked.append(dialog.message))
        page.fill("#question", many.HOSTILE)
        page.keyboard.press("Enter")
        page.check("#filters [value=fail]", force=True)
        page.click("#table tr.area button")
        page.click("#table tr:not(.area) td button")
        assert "onerror" in page.inner_text(".one")
        assert asked == []
        assert page.locator("img").count() == 0


def _runs(name: str, salt: int, number: int) -> Iterator[PublishedReport]:
    """Yield so many runs of an accelerator; each differs from the one before in every hundredth case."""
    drawn = random.Random(salt)
    made = many.large(name, 20_000, salt)
    for day in range(number):
        other, cases = many.large(name, 20_000, salt + 100), list(made.cases)
        for place in drawn.sample(range(len(cases)), len(cases) // 100):
            cases[place] = other.cases[place]
        started = f"2026-03-{day + 1:02}T05:06:07+00:00"
        made = replace(made, run=replace(made.run, id=f"{name}-{day}", started=started), cases=tuple(cases))
        yield PublishedReport(made)


@pytest.mark.parametrize(("accelerators", "runs", "most"), [(9, 1, 1.0), (10, 20, 1.0)])
def test_the_first_answer_about_twenty_thousand_cases(
    browser: Browser, tmp_path: Path, accelerators: int, runs: int, most: float
) -> None:
    publish.publish((run for salt in range(accelerators) for run in _runs(f"accelerator{salt}", salt, runs)), tmp_path)
    size = (tmp_path / "index.html").stat().st_size
    with browser.new_context() as context:
        page = context.new_page()
        began = time.monotonic()
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_selector(READY, state="attached")
        ready = time.monotonic() - began
        began = time.monotonic()
        page.fill("#question", "operator_77 bf16 training accelerator3")
        page.wait_for_selector("#answer .reply")
        answered = time.monotonic() - began
        began = time.monotonic()
        page.fill("#filters [name=text]", "operator_77")
        until(page, "document.querySelectorAll('#table tbody tr:not([hidden])').length < 200")
        filtered = time.monotonic() - began
    print(
        f"\n{accelerators} × {runs}: {size / 1024:,.0f} KiB; interactive after {ready:.2f} s; "
        f"first answer {answered:.2f} s; filter {filtered:.2f} s"
    )
    assert size <= most * 2**20
    assert answered <= 1.0


@pytest.mark.parametrize("lost", ["delete window.DecompressionStream", "window.JSON.parse = () => { throw Error() }"])
def test_a_browser_in_which_the_script_cannot_work_shows_the_whole_matrix(
    browser: Browser, pages: dict[int, str], lost: str
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script(lost)
        page.goto(pages[3])
        page.wait_for_selector("#table tbody.open", state="attached")

        rows = page.locator("#table tbody tr")
        assert page.evaluate("[...document.querySelectorAll('#table tbody tr')].every(row => row.offsetParent)")
        assert rows.count() > len(page.locator("#table tbody").all())
