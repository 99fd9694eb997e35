"""Recording of a function by torch.profiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import profiler


def record(accelerator: Any, function: Callable[[], object]) -> dict[str, Any]:
    """Run the function under the profiler and return its averaged events by name."""
    # A first run outside the profiler does one-time work, such as loading kernels.
    function()
    accelerator.synchronize()
    with warnings.catch_warnings():
        # Device profilers warn about events that they do not count; the cases look at what is recorded.
        warnings.simplefilter("ignore")
        with profiler.profile(activities=profiler.supported_activities()) as profile:
            function()
            accelerator.synchronize()
        return {event.key: event for event in profile.key_averages()}


def device_microseconds(events: dict[str, Any]) -> float:
    """Return the time on the device in microseconds that the profiler attributes to operations and kernels."""
    return sum(float(getattr(event, "self_device_time_total", 0.0)) for event in events.values())
