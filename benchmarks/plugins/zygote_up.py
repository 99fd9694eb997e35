"""A pytest plugin that notes when the pool of ranks hears that its zygote is up: ``-p zygote_up``. It changes nothing.

The seconds since the epoch go to the file that ZYGOTE_UP_FILE names.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any


def pytest_configure() -> None:
    from conformance.ranks.pool import Pool

    plain = Pool._note

    @functools.wraps(plain)
    def note(self: Pool, message: dict[str, Any]) -> bool:
        if message["kind"] == "up":
            Path(os.environ["ZYGOTE_UP_FILE"]).write_text(str(time.time()), encoding="utf-8")
        return plain(self, message)

    Pool._note = note  # type: ignore[method-assign]
