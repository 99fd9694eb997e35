"""A browser for tests of the page, the rules of axe-core for accessibility, and what a machine lacks for them.

``CHROMIUM`` names the browser if it is not ``chromium`` on the path, and ``AXE`` an ``axe.min.js`` if the package
axe-playwright-python, which has one, is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

READY = "html[data-ready]"
#: Opens every part that can be folded, so that the rules see it.
UNFOLD = "document.querySelectorAll('details, .why').forEach(d => { d.open = true; d.classList.add('open') })"
#: Milliseconds: all rules over a whole page take seconds, and a minute on a busy machine.
_PATIENCE = 600_000


def program() -> str | None:
    """Return the path of the browser, if there is one."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


def axe() -> Path | None:
    """Return the file of axe-core, if there is one."""
    if named := os.environ.get("AXE"):
        return Path(named)
    found = importlib.util.find_spec("axe_playwright_python")
    files = [Path(folder) / "axe.min.js" for folder in (found.submodule_search_locations or [])] if found else []
    return next((file for file in files if file.exists()), None)


def lacking() -> str:
    """Return what to install for tests in a browser, in one sentence; empty if nothing is missing."""
    missing = []
    if importlib.util.find_spec("playwright") is None:
        missing.append("pip install playwright")
    if not axe():
        missing.append("pip install axe-playwright-python")
    if not program():
        missing.append("apt-get install chromium")
    return f"no browser to look at the page with: {'; '.join(missing)}" if missing else ""


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program(), args=["--no-sandbox"])


@contextmanager
def opened(browser: Browser, address: str, *, width: int = 1280, **options: Any) -> Iterator[Page]:
    """Yield a page that is ready. Afterwards it must have said nothing, and nothing may scroll sideways."""
    with browser.new_context(viewport={"width": width, "height": 900 if width > 600 else 780}, **options) as context:
        context.set_default_timeout(_PATIENCE)
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        page.wait_for_selector(READY, state="attached")
        yield page
        assert said == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def barriers(page: Page) -> list[str]:
    """Return the violations that axe-core finds. The page has to be opened with ``bypass_csp``."""
    page.evaluate(UNFOLD)
    page.add_script_tag(path=axe())
    found = page.evaluate("axe.run()")["violations"]
    return [f"{each['impact']}: {each['id']} {each['nodes'][0]['html'][:200]}" for each in found]
