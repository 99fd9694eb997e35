"""The page in a browser has no barrier and no sideways scrolling, in every state, width and scheme of colours.

Only a part of the cases is on these pages: more rows bring no other kinds of elements. The instrument ``page`` has many
more questions to the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from conformance.reports.loading import load
from conformance.reports.page import publish
from conformance.reports.page.columns import PublishedReport
from tests.reports.page.browser import barriers, lacking, launched, opened
from tests.reports.page.fleet import PUBLISHED, fleet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(lacking()), reason=lacking() or "a browser is installed")]
CONV = "operators.nn.functional.conv2d"
STATES = {
    "first": "",
    "answer": "#q=conv2d+bf16+training+nova",
    "counted": "#q=conv2d+bf16+training",
    "unknown": "#q=cnov2d",
    "product": "#q=conv2d+MI300X",
    "dtype": "#q=conv2d+complex+half",
    "open": "#open=accelerator&at=accelerator",
    "filtered": "#dtype=bfloat16&mode=training&open=operators",
    "case": f"#case=nova|{CONV}[bfloat16-training]",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a page of ten accelerators with earlier runs, and of a page of the published runs."""
    found = {}
    sources = {
        "ten": fleet(10, every=200),
        "published": [PublishedReport(load(PUBLISHED / f"{name}.json.gz")) for name in ("cpu", "sim", "supa")],
    }
    for name, reports in sources.items():
        folder = tmp_path_factory.mktemp(name)
        publish.publish(reports, folder)
        found[name] = (folder / "index.html").as_uri()
    return found


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_ten_accelerators_have_no_barrier(browser: Browser, pages: dict[str, str], scheme: str, width: int) -> None:
    # Every state once in each scheme, and once in each width.
    shown = STATES if (width, scheme) in ((390, "dark"), (1280, "light")) else {"counted": STATES["counted"]}
    for state, hash in shown.items():
        with opened(browser, pages["ten"] + hash, width=width, color_scheme=scheme, bypass_csp=True) as page:
            assert barriers(page) == [], state


def test_the_published_runs_have_no_barrier(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["published"], bypass_csp=True) as page:
        assert barriers(page) == []


def test_a_barrier_is_found(browser: Browser, pages: dict[str, str]) -> None:
    with opened(browser, pages["ten"], bypass_csp=True) as page:
        page.evaluate("document.querySelector('main').append(new Image())")
        page.evaluate("document.querySelector('#question').style.color = document.body.style.background = '#888'")
        assert any("image-alt" in barrier for barrier in barriers(page))


def test_questions_of_every_kind_have_their_answer(browser: Browser, pages: dict[str, str]) -> None:
    """A product without a report, and a dtype without a case, are told, and the buttons put another in their place."""
    with opened(browser, pages["ten"], bypass_csp=True) as page:
        assert _asked(page, "conv2d MI300X").startswith(
            "Unknown. No report of “MI300X” is on this page; its backend is cuda."
        )
        page.click("#answer .acts button:text-is('lynx')")
        assert page.input_value("#question") == "conv2d lynx"
        assert _asked(page, "conv2d complex half lynx").startswith(
            "Does not apply. No case has the dtype “complex half”."
        )
        page.click("#answer .acts button:text-is('float16')")
        assert page.input_value("#question") == "conv2d float16 lynx"
        assert page.inner_text("#answer h2").startswith("Yes.")


def _asked(page: Page, text: str) -> str:
    page.fill("#question", text)
    page.keyboard.press("Enter")
    return " ".join(page.inner_text("#answer h2").split())
