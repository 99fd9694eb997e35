"""record_stream: memory that another stream still uses is not handed out again."""

from __future__ import annotations

import gc

import torch

from conformance.accelerators.capabilities import MEMORY_STATS, STREAM_RECORD
from conformance.case import case

from .conveyor import Conveyor, numbers

HOST = torch.device("cpu")


def overwrite(device, count=8):
    """Allocate tensors of the conveyor's size, which take over freed memory, and write into them."""
    return [torch.full((256, 256), -7.0, device=device) for _ in range(count)]


@case("accelerator.stream.record_keeps_memory", requires=[STREAM_RECORD])
def test_record_keeps_memory(accelerator, device):
    """A tensor freed while a side stream still reads it keeps its values until the stream is done."""
    conveyor, side = Conveyor(accelerator, device), accelerator.Stream()
    read, source = torch.full((256, 256), -1.0, device=device), numbers(device)
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(numbers(device), torch.empty_like(read))
        read.copy_(source)
    source.record_stream(side)
    del source
    others = overwrite(device)
    side.synchronize()

    wrong = int((read.cpu() != numbers(HOST)).sum())
    assert wrong == 0, f"{wrong} elements were overwritten while the side stream still had to read them"
    assert all(bool((other == -7.0).all()) for other in others)


@case("accelerator.stream.record_keeps_written_memory", requires=[STREAM_RECORD])
def test_record_keeps_written_memory(accelerator, device):
    """A side stream that writes into freed memory it has recorded does not hit its next owner."""
    conveyor, side = Conveyor(accelerator, device), accelerator.Stream()
    target, source = torch.empty(256, 256, device=device), numbers(device)
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, target)
    target.record_stream(side)
    del target
    others = overwrite(device)
    accelerator.synchronize()

    wrong = sum(int((other.cpu() != -7.0).sum()) for other in others)
    assert wrong == 0, f"{wrong} elements of new tensors were hit by the side stream's late write"


@case("accelerator.stream.record_lets_go", requires=[STREAM_RECORD, MEMORY_STATS])
def test_record_lets_go(accelerator, device):
    """Once the side stream is done, recorded memory is free again."""
    side = accelerator.Stream()
    gc.collect()
    accelerator.synchronize()
    before = accelerator.memory_allocated()

    source = torch.ones(1 << 20, device=device)
    accelerator.synchronize()
    with accelerator.stream(side):
        total = (source * 2).sum()
    source.record_stream(side)
    accelerator.current_stream().wait_stream(side)
    assert total.item() == 2 << 20
    del source, total
    accelerator.synchronize()
    torch.ones(1, device=device)  # allocators look at their events when something is allocated
    accelerator.empty_cache()

    after = accelerator.memory_allocated()
    assert after <= before, f"{after - before} bytes are still allocated after the recorded stream was done"
