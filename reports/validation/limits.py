"""How much a value in a report may hold."""

from __future__ import annotations

from typing import Final

MAX_ITEMS: int = 200_000
MAX_KEYS: Final = 256
MAX_TEXT: Final = 20_000
MAX_INT: Final = 2**63
