"""After synchronize() everything queued is complete; and host reads are right without it."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import SYNCHRONIZE
from conformance.case import Level, case

from .conveyor import Conveyor, numbers


def aside(accelerator):
    """The stream for work that reading on the host does not wait for by itself; without streams the only one."""
    return accelerator.stream(None if accelerator.Stream is None else accelerator.Stream())


@case("accelerator.synchronize.index", requires=[SYNCHRONIZE], level=Level.CORE)
def test_index(accelerator, device):
    """After synchronize() a result that takes long is there; it takes an index, by position and by name, or None."""
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
        assert torch.equal(target.cpu(), source.cpu()), "synchronize() returned before the queued work was complete"


@case("accelerator.synchronize.idle", requires=[SYNCHRONIZE], level=Level.CORE)
def test_idle(accelerator, device):
    """With nothing queued it returns, as often as one likes."""
    kept = numbers(device)

    for _ in range(3):
        accelerator.synchronize()

    assert torch.equal(kept.cpu(), numbers(torch.device("cpu"))), "values changed while nothing was queued"


@case("accelerator.synchronize.every_device", requires=[SYNCHRONIZE], level=Level.CORE)
def test_every_device(accelerator, device):
    """Each device is synchronized by its index, whichever is current."""
    before, count = accelerator.current_device(), accelerator.device_count()
    try:
        for index in range(count):
            accelerator.set_device(index)
            place = torch.device(accelerator.device_name(index))
            conveyor, source = Conveyor(accelerator, place), numbers(place)
            target = torch.full_like(source, -1.0)
            accelerator.synchronize(index)
            with aside(accelerator):
                conveyor.carry(source, target)
            accelerator.set_device((index + 1) % count)
            accelerator.synchronize(index)
            assert torch.equal(target.cpu(), source.cpu()), f"synchronize({index}) left work on device {index} undone"
    finally:
        accelerator.set_device(before)


READERS = {
    "cpu": lambda tensor: tensor.cpu().flatten().tolist(),
    "tolist": lambda tensor: tensor.flatten().tolist(),
    "item": lambda tensor: [row[0].item() for row in tensor] + [0.0],
    "copy": lambda tensor: torch.empty(tensor.shape).copy_(tensor).flatten().tolist(),
    "numpy": lambda tensor: tensor.cpu().numpy().flatten().tolist(),
}


@case("accelerator.synchronize.host_read", requires=[SYNCHRONIZE], level=Level.CORE, axes={"reader": sorted(READERS)})
def test_host_read(accelerator, device, reader):
    """torch's own ways to read a value on the host wait for it, without synchronize()."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)
    expected = READERS[reader](numbers(torch.device("cpu")))

    conveyor.carry(source, target)
    found = READERS[reader](target)

    wrong = sum(a != b for a, b in zip(found, expected, strict=True))
    assert not wrong, f"{reader} read {wrong} of {len(expected)} values before they were written"


@case("accelerator.synchronize.decisions", requires=[SYNCHRONIZE], level=Level.CORE)
def test_decisions(accelerator, device):
    """Conditions and sizes that depend on values wait for them."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)

    conveyor.carry(source, target)

    assert bool((target >= 0).all()), "a condition was decided before the values were there"
    assert target.nonzero().shape[0] == int((numbers(torch.device("cpu")) != 0).sum()), "nonzero() read too early"
