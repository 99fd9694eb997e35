"""The documentation pages, and their blocks of code, tables and links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
#: Pages for who changes the code beside them.
BESIDE_CODE = (
    "tests/like_cuda/habits.md",
    "benchmarks/README.md",
    "kernels/README.md",
    "tests/faults/README.md",
)


def pages() -> list[Path]:
    """Return the files of README, docs and changelog, and the pages that stand beside code."""
    beside = [ROOT / name for name in BESIDE_CODE]
    return sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "changelog").glob("*.md"), *beside])


def text(path: Path) -> str:
    """Return the text of a page."""
    return path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """Fenced block. ``name`` is the text of its first line, ``# NAME``."""

    language: str
    body: str

    @property
    def name(self) -> str:
        return self.body.splitlines()[0].removeprefix("# ").strip()


def blocks(page: str, language: str) -> list[Block]:
    """Return the fenced blocks of a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(kind, body) for kind, body in found if kind == language]


def without_code(page: str) -> str:
    """Return the page without fenced blocks, because their comments look like headings."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def rows(page: str) -> Iterator[list[str]]:
    """Yield the cells of every table row."""
    for line in page.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def table(headers: Sequence[str], found: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table without padding."""
    rule = "|".join("---" for _ in headers)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (headers, *found)).replace("\n", f"\n|{rule}|\n", 1)


def section(page: str, title: str) -> str:
    """Return the text under a heading, up to the next heading of the same or a higher level, without fenced blocks."""
    page = without_code(page)
    heading = re.search(rf"^(#+) {re.escape(title)}$", page, re.MULTILINE)
    assert heading, f"there is no section '{title}'"
    rest = page[heading.end() :]
    following = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def anchors(page: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def with_part(page: str, name: str, part: str) -> str:
    """Return the page with its generated part in place."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{part}\n{end}{rest.split(end)[1]}"


def links(page: str) -> list[str]:
    """Return the targets of all links."""
    return re.findall(r"\]\(([^)\s]+)\)", page)
