"""Work on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


def on_a_thread(work: Callable[[], object]) -> None:
    """Do some work on a new thread, and raise its error here."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
