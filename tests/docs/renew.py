"""Renews everything in README and docs that is generated: ``python -m tests.docs.renew``.

It reads the released manifest, the registries, the published reports, and the measured benchmarks and defects. It runs
no case.
"""

from __future__ import annotations

from tests.defects import measuring, table
from tests.docs import areas, explained, figures, known_gaps


def renew() -> list[str]:
    """Write every generated page and part; return the names of the pages that have changed."""
    before = {}
    for path, name, make in (*explained.PARTS, *figures.PARTS):
        page = path.read_text(encoding="utf-8")
        before.setdefault(path, page)
        path.write_text(explained.with_part(page, name, make()), encoding="utf-8")
    defects = measuring.read(table.MEASURED)
    whole = {
        explained.PAGE: explained.page(),
        areas.PAGE: areas.page(),
        table.PAGE: table.page(defects),
        table.TABLES: table.tables(defects),
        known_gaps.PAGE: known_gaps.with_table(known_gaps.PAGE.read_text(encoding="utf-8"), known_gaps.current()),
    }
    for path, page in whole.items():
        before[path] = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(page, encoding="utf-8")
    return [path.name for path, page in before.items() if path.read_text(encoding="utf-8") != page]


if __name__ == "__main__":
    print("renewed:", ", ".join(renew()) or "nothing, all pages are up to date")
