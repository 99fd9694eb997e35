"""synchronize() completes all queued work, and reads on the host are right without it."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import SYNCHRONIZE
from conformance.judging.finding import environment_lacks
from conformance.plan.case import Level, case

from .conveyor import Conveyor, numbers, stale


def aside(accelerator):
    """Return the context of a new stream, or of the only stream where there are no streams.

    Reading on the host waits for the current stream by itself. It does not wait for work on another stream.
    """
    return accelerator.stream(None if accelerator.Stream is None else accelerator.Stream())


@case("accelerator.synchronize.index", requires=[SYNCHRONIZE], level=Level.CORE)
def test_index(accelerator, device):
    """synchronize() waits for long work, with an index by position or by name, with None, and without."""
    conveyor, source = Conveyor(accelerator, device, milliseconds=5.0), numbers(device)
    here = accelerator.current_device()

    for wait in (
        lambda: accelerator.synchronize(),
        lambda: accelerator.synchronize(here),
        lambda: accelerator.synchronize(device_index=here),
        lambda: accelerator.synchronize(None),
    ):
        target = torch.full_like(source, -1.0)
        accelerator.synchronize()
        with aside(accelerator):
            conveyor.carry(source, target)
        wait()
        assert stale(target) == 0, "synchronize() returned before the queued work was complete"


@case("accelerator.synchronize.idle", requires=[SYNCHRONIZE], level=Level.CORE)
def test_idle(accelerator, device):
    """synchronize() returns when nothing is queued, any number of times."""
    kept = numbers(device)
    flat = kept.view(-1)
    view = flat[3:]

    for _ in range(3):
        accelerator.synchronize()

    assert torch.equal(kept.cpu(), numbers(torch.device("cpu"))), "values changed while nothing was queued"
    for number, written in ((5, view), (6, flat)):
        before = kept.cpu().clone()  # the host's cpu() gives the tensor itself
        written.fill_(float(number))
        after = kept.cpu()
        assert not torch.equal(after, before), "a view made before synchronize() shares no memory with its base"
        wrong = int((after.view(-1)[3:] != number).sum())
        assert wrong == 0, f"fill_() of a view wrote elsewhere: {wrong} elements of the base are not {number}"


@case("accelerator.synchronize.every_device", requires=[SYNCHRONIZE], level=Level.CORE)
def test_every_device(accelerator, device):
    """synchronize(index) completes the work of that device, whichever device is current and stays so."""
    before, count = accelerator.current_device(), accelerator.device_count()
    try:
        for index in range(count):
            accelerator.set_device(index)
            target_device = torch.device(accelerator.device_name(index))
            conveyor, source = Conveyor(accelerator, target_device), numbers(target_device)
            target = torch.full_like(source, -1.0)
            accelerator.synchronize(index)
            with aside(accelerator):
                conveyor.carry(source, target)
            # Make another device current: synchronize(index) must not fall back to the current device.
            accelerator.set_device((index + 1) % count)
            accelerator.synchronize(index)
            now = accelerator.current_device()
            assert now == (index + 1) % count, f"synchronize({index}) made device {now} current"
            assert stale(target) == 0, f"synchronize({index}) left work on device {index} undone"
    finally:
        accelerator.set_device(before)


READERS = {
    "cpu": lambda tensor: tensor.cpu().flatten().tolist(),
    "tolist": lambda tensor: tensor.flatten().tolist(),
    # One element a row: item() on all 65,536 elements would be slow.
    "item": lambda tensor: [row[0].item() for row in tensor],
    "copy": lambda tensor: torch.empty(tensor.shape).copy_(tensor).flatten().tolist(),
    "numpy": lambda tensor: tensor.cpu().numpy().flatten().tolist(),
}


@case("accelerator.synchronize.host_read", requires=[SYNCHRONIZE], level=Level.CORE, axes={"reader": sorted(READERS)})
def test_host_read(accelerator, device, reader):
    """PyTorch's own ways to read a value on the host wait for the value without synchronize()."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    if reader == "tolist" and type(source) is not torch.Tensor:
        environment_lacks("PyTorch has no tolist() for a subclass of Tensor")
    target = torch.full_like(source, -1.0)
    expected = READERS[reader](numbers(torch.device("cpu")))

    conveyor.carry(source, target)
    found = READERS[reader](target)

    wrong = sum(value != right for value, right in zip(found, expected, strict=True))
    if wrong:
        accelerator.synchronize()
        again = sum(value != right for value, right in zip(READERS[reader](target), expected, strict=True))
        how = "wrongly, also after synchronize()" if again else "before they were written"
        raise AssertionError(f"{reader} read {wrong} of {len(expected)} values {how}")


@case("accelerator.synchronize.decisions", requires=[SYNCHRONIZE], level=Level.CORE)
def test_decisions(accelerator, device):
    """Conditions and shapes that depend on values wait for those values."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)

    conveyor.carry(source, target)

    assert bool((target >= 0).all()), "a condition was evaluated before the values were written"
    assert target.nonzero().shape[0] == int((numbers(torch.device("cpu")) != 0).sum()), (
        "nonzero() read values too early"
    )
