"""Work on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def on_a_thread(work: Callable[[], object]) -> None:
    """Do some work on a new thread, and raise its error here.

    The host's sums have one order only with one thread, and each thread has a number of its own.
    """
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pool.submit(work).result()
