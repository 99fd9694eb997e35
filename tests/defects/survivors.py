"""Why a mutant that survives does."""

from __future__ import annotations

SURVIVORS: dict[str, str] = {}
