"""Contents of the profile ``standard``, which are measured and not derived from what a case is."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("standard.json.gz")


@cache
def standard_ids() -> frozenset[str]:
    """Return the ids of the chosen cases. The file has the axes of the cases by the ids without them."""
    chosen: dict[str, list[str]] = _read()["cases"]
    return frozenset(f"{name}[{axes}]" if axes else name for name, rows in chosen.items() for axes in rows)


def standard_families(id: str) -> frozenset[str]:
    """Return the names of the families of inputs that an operator's case has in this profile, by its axes."""
    families: dict[str, list[str]] = _read()["families"]
    return frozenset(families.get(id.partition("[")[2].removesuffix("]"), ()))


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return found
