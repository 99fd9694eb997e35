"""The pages, and what stands in them: blocks of code, tables, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"


def pages() -> list[Path]:
    """Everything that is written for people."""
    return sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "changelog").glob("*.md")])


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``name`` is what a first line ``# NAME`` says."""

    language: str
    body: str

    @property
    def name(self) -> str:
        return self.body.splitlines()[0].removeprefix("# ").strip()


def blocks(page: str, language: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(kind, body) for kind, body in found if kind == language]


def without_code(page: str) -> str:
    """The page without fenced blocks, whose comments look like headings."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def rows(page: str) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in page.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def section(page: str, title: str) -> str:
    """What stands under a heading, down to the next one of the same or a higher level, without blocks of code."""
    page = without_code(page)
    heading = re.search(rf"^(#+) {re.escape(title)}$", page, re.MULTILINE)
    assert heading, f"there is no section '{title}'"
    rest = page[heading.end() :]
    following = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def anchors(page: str) -> set[str]:
    """The anchors that a forge gives to headings."""
    titles = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page)
