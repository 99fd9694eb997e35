"""Work on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def on_a_thread(work: Callable[[], object]) -> None:
    """Do some work on a new thread, and raise its error here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
