"""Preparation that graph capture needs."""

from __future__ import annotations


def warm_up(accelerator, work, times=1):
    """Run the work ``times`` times before it is captured, on a side stream if the accelerator has streams.

    One-time set-up, such as library handles and workspaces, then happens outside the graph.
    """
    stream = accelerator.Stream() if accelerator.Stream is not None else None
    accelerator.synchronize()
    with accelerator.stream(stream):
        for _ in range(times):
            work()
    accelerator.synchronize()
