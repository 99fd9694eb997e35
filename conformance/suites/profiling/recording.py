"""What torch.profiler sees of a function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import profiler


def record(accelerator: Any, function: Callable[[], object]) -> dict[str, Any]:
    """Run the function under the profiler; its averaged events by name."""
    function()
    accelerator.synchronize()
    with warnings.catch_warnings():
        # Profilers of devices warn about what they do not count; what they record is the question here.
        warnings.simplefilter("ignore")
        with profiler.profile(activities=profiler.supported_activities()) as profile:
            function()
            accelerator.synchronize()
        return {event.key: event for event in profile.key_averages()}


def device_microseconds(events: dict[str, Any]) -> float:
    """Time on the device, as the profiler attributes it to operations and kernels."""
    return sum(float(getattr(event, "self_device_time_total", 0.0)) for event in events.values())
