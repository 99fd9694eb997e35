"""What has to be done before work can be captured."""

from __future__ import annotations


def warm_up(accelerator, work, times=1):
    """Run the work on a side stream, where the accelerator has streams: what it sets up once is not in the graph."""
    stream = accelerator.Stream() if accelerator.Stream is not None else None
    accelerator.synchronize()
    with accelerator.stream(stream):
        for _ in range(times):
            work()
    accelerator.synchronize()
