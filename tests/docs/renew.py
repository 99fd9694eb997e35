"""Renews everything in README and docs that is generated: ``python -m tests.docs.renew``.

It reads the released manifest, the registries, the published reports, and the measured benchmarks and defects. It runs
no case. ``python -m tests.docs.parity --write`` renews the table of parallel engines, because it runs their cases.
"""

from __future__ import annotations

from typing import Final

from tests.defects import measuring, table
from tests.docs import areas, explained, figures, known_gaps
from tests.docs.pages import text, with_part

#: Page, name of a generated part, and the function that makes it.
PARTS: Final = (*explained.PARTS, *figures.PARTS, *areas.PARTS, *known_gaps.PARTS)


def renew() -> list[str]:
    """Write every generated page and part; return the names of the pages that have changed."""
    before = {path: text(path) for path in (*(path for path, _, _ in PARTS), table.PAGE, table.TABLES)}
    for path, name, make in PARTS:
        path.write_text(with_part(text(path), name, make()), encoding="utf-8")
    defects = measuring.read(table.MEASURED)
    table.PAGE.write_text(table.page(defects), encoding="utf-8")
    table.TABLES.write_text(table.tables(defects), encoding="utf-8")
    return [path.name for path, page in before.items() if text(path) != page]


if __name__ == "__main__":
    print("renewed:", ", ".join(renew()) or "nothing, all pages are up to date")
