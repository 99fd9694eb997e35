"""record_stream(): the allocator does not reuse memory that another stream still uses."""

from __future__ import annotations

import gc

import torch

from conformance.accelerators.capabilities import MEMORY_STATS, STREAM_RECORD
from conformance.plan.case import case

from .conveyor import HOST, Conveyor, numbers


def overwrite(device, dtype=torch.float32, count=8):
    """Return new tensors of the conveyor's size that are filled with -7; they take over freed memory."""
    return [torch.full((256, 256), -7.0, dtype=dtype, device=device) for _ in range(count)]


#: The tensor by which memory is recorded: any view stands for all of it.
RECORDED = {"whole": lambda t: t, "offset": lambda t: t[16:], "strided": lambda t: t[::2, 1::3]}


@case("accelerator.stream.record_keeps_memory", requires=[STREAM_RECORD], axes={"recorded": list(RECORDED)})
def test_record_keeps_memory(accelerator, device, recorded):
    """A freed tensor of any dtype keeps its values until the side stream that recorded a part of it has read them."""
    conveyor, late = Conveyor(accelerator, device), torch.empty(256, 256, device=device)
    # An allocation knows nothing of what its bytes mean: each dtype in which the device computes is served.
    for dtype in accelerator.supported_dtypes():
        # Whole numbers that every dtype holds.
        exact, side = (numbers(HOST) % 13).to(dtype), accelerator.Stream()
        read, source = torch.ones(256, 256).to(dtype).to(device), exact.to(device, copy=True)
        accelerator.synchronize()

        with accelerator.stream(side):
            # The chain delays the read, so the host frees the tensor first.
            conveyor.carry(numbers(device), late)
            read.copy_(source)
        # The allocator knows only the stream that allocated a tensor. Without this call it reuses the memory at once.
        RECORDED[recorded](source).record_stream(side)
        del source
        new_tensors = overwrite(device, dtype)
        side.synchronize()

        wrong = int((read.cpu() != exact).sum())
        assert wrong == 0, f"{wrong} elements of {dtype} were overwritten while the side stream still had to read them"
        assert all(bool((tensor.cpu() == -7).all()) for tensor in new_tensors)


@case("accelerator.stream.record_keeps_written_memory", requires=[STREAM_RECORD])
def test_record_keeps_written_memory(accelerator, device):
    """A side stream that writes late into a freed tensor it recorded does not change new tensors."""
    conveyor, side = Conveyor(accelerator, device), accelerator.Stream()
    target, source = torch.empty(256, 256, device=device), numbers(device)
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, target)
    target.record_stream(side)
    del target
    new_tensors = overwrite(device)
    accelerator.synchronize()

    wrong = sum(int((tensor.cpu() != -7.0).sum()) for tensor in new_tensors)
    assert wrong == 0, f"{wrong} elements of new tensors were overwritten by the side stream's late write"


@case("accelerator.stream.record_lets_go", requires=[STREAM_RECORD, MEMORY_STATS])
def test_record_lets_go(accelerator, device):
    """Recorded memory is free again once the side stream is done."""
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
    torch.ones(1, device=device)  # allocators check their events only when they allocate
    accelerator.empty_cache()

    after = accelerator.memory_allocated()
    assert after <= before, f"{after - before} bytes are still allocated after the side stream was done"
