"""Pytest plugin that records when the fork server of the rank pool is up: ``-p fork_server_up``. It changes nothing.

The environment variable FORK_SERVER_UP_FILE names the file. It gets the seconds since the epoch at which the pool hears
of it.
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
            Path(os.environ["FORK_SERVER_UP_FILE"]).write_text(str(time.time()), encoding="utf-8")
        return plain(self, message)

    Pool._note = note  # type: ignore[method-assign]
