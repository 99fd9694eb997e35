"""Each family of kernels in sequences of calls: other data, other sizes, threads, streams and devices in between."""

from __future__ import annotations

import contextlib
import gc

import torch

from conformance.accelerators.capabilities import DEVICE_MULTIPLE, DTYPE, MEMORY_STATS, STREAM
from conformance.plan.case import case
from conformance.suites.threads import on_a_thread

from .families import NEEDS, check_family
from .settings import check_kept, settings_of
from .test_device import need_two


@contextlib.contextmanager
def current(accelerator, index):
    """Make a device current while the context lasts."""
    before = accelerator.current_device()
    accelerator.set_device(index)
    try:
        yield
    finally:
        accelerator.set_device(before)


@contextlib.contextmanager
def default_dtype(dtype):
    """Make a dtype the default one while the context lasts."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@case("accelerator.families.other_device", requires=[DEVICE_MULTIPLE], axes={"family": NEEDS})
def test_other_device(accelerator, check, device, family):
    """A call runs on the device of its inputs and leaves its results there, whichever device is current."""
    need_two(accelerator)
    for now, place in ((0, 1), (1, 0), (1, 1), (0, 1)):
        with current(accelerator, now):
            for training in (False, True):
                what = f"on device {place} while {now} is current"
                check_family(check, family, 5 + now, f"{device.type}:{place}", what, training=training)
            check.equal(accelerator.current_device(), now, f"{family}: the current device after a call on {place}")


@case("accelerator.families.sequence", axes={"family": NEEDS})
def test_sequence(accelerator, declaration, check, device, family):
    """A call gives its own results after calls without gradients, of other sizes, on other threads, and after an error.

    No call changes a setting of the process or of the device, and none of these draws.
    """
    before = settings_of(accelerator, device, declaration)

    check_family(check, family, 6, device, "without gradients", training=False)
    check_family(check, family, 6, device, "after a call without gradients")
    check_family(check, family, 9, device, "of another size")
    with torch.no_grad():
        check_family(check, family, 6, device, "within no_grad()", training=False)
    check_family(check, family, 6, device, "after no_grad()")
    if declaration.supports(DTYPE.on("float64")):
        with default_dtype(torch.float64):
            check_family(check, family, 6, device, "where float64 is the default dtype")
    _fails(device)
    check_family(check, family, 6, device, "after an error")
    on_a_thread(lambda: check_family(check, family, 9, device, "on another thread"))
    check_family(check, family, 6, device, "after a call on another thread")
    if declaration.supports(STREAM.cell):
        accelerator.synchronize()
        with accelerator.stream(accelerator.Stream()):
            check_family(check, family, 7, device, "on another stream")
        accelerator.synchronize()
        check_family(check, family, 6, device, "after a call on another stream")

    check_kept(check, before, settings_of(accelerator, device, declaration), family)


#: Steps of one call with its backward; more than a cache or a workspace of a library serves.
STEPS, WARM = 12, 3


@case("accelerator.families.memory", requires=[MEMORY_STATS], axes={"family": NEEDS})
def test_memory(accelerator, check, device, family):
    """Allocated memory does not grow with repeated calls and their backwards, also where the sizes change."""
    grown = []
    for step in range(STEPS):
        check_family(check, family, 6 + step % 3, device, f"in step {step}")
        gc.collect()
        accelerator.synchronize()
        grown.append(accelerator.memory_allocated())

    # The first steps may allocate what a library keeps. Each later step has the sizes of one before it.
    check.that(max(grown[-3:]) <= max(grown[WARM:6]), f"{family}: {grown} bytes are allocated after {STEPS} steps")


def _fails(device):
    """Make a call that raises an error before it reaches the device."""
    with contextlib.suppress(RuntimeError):
        torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
