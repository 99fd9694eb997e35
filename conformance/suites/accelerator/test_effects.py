"""Members that must return a value or have an effect; a member that does neither is a stub.

These are the members whose effect no other case tests. The other cases tell "no effect" from "a wrong effect"
themselves, and report a stub where nothing happens.
"""

from __future__ import annotations

import gc

import torch

from conformance.accelerators.capabilities import (
    DEVICE,
    MEMORY_PEAK,
    MEMORY_PINNED,
    MEMORY_STATS,
    RNG_GENERATOR,
    RNG_STATE,
)
from conformance.judging.finding import stub
from conformance.plan.case import case

from .test_interface import member_of

MIB = 1 << 20

#: Call of each member. The ``interface`` cases call the members that need no arguments and return plain values.
CALLS = {
    "device": lambda accelerator, member: member(),
    "random": lambda accelerator, member: member(),
    "stream": lambda accelerator, member: member(None),
    "pin_memory": lambda accelerator, member: member(torch.ones(3)),
    "pin_empty": lambda accelerator, member: member(3, dtype=torch.float32),
    "pin_empty_like": lambda accelerator, member: member(torch.ones(3)),
    "is_pinned": lambda accelerator, member: member(torch.ones(3)),
    "on_accelerator": lambda accelerator, member: member(torch.ones(3)),
    "build_extension": lambda accelerator, member: member(),
}


@case("accelerator.effect.answer", requires=[DEVICE], axes={"member": list(CALLS)})
def test_answer(accelerator, member):
    """The member returns a value other than None."""
    answer = CALLS[member](accelerator, member_of(accelerator, member))

    if answer is None:
        stub(f"{member}() returned None")


@case("accelerator.effect.answer", requires=[DEVICE, RNG_GENERATOR], axes={"member": ["default_generator"]})
def test_answer_of_default_generator(accelerator, member):
    """The member returns a generator and not None; a device may have random numbers without generator objects."""
    if member_of(accelerator, member)(accelerator.current_device()) is None:
        stub(f"{member}() returned None")


@case(
    "accelerator.effect.answer",
    requires=[DEVICE],
    axes={"member": {"get_rng_state": (RNG_STATE,), "memory_stats": (MEMORY_STATS,)}},
)
def test_answer_of_declared_state(accelerator, member):
    """The member returns a value other than None on a device that declares its capability."""
    if member_of(accelerator, member)() is None:
        stub(f"{member}() returned None")


@case("accelerator.effect.empty_cache", requires=[MEMORY_STATS])
def test_empty_cache(accelerator, device):
    """empty_cache() gives back memory that is cached and unused on the current device, each time."""
    first = accelerator.current_device()
    try:
        for index in (first, 1 - min(first, 1))[: accelerator.device_count()]:
            if index != first:
                accelerator.set_device(index)
                device = accelerator.current_device_name()
            for _ in range(3):
                before, after = _reserved_around_empty_cache(accelerator, device)
                if after == before:
                    stub(f"empty_cache() has no effect on {device}: {before} bytes are reserved before and after it")
    finally:
        if accelerator.current_device() != first:
            accelerator.set_device(first)


def _reserved_around_empty_cache(accelerator, device):
    """Return the reserved bytes before and after empty_cache(); None after it if little freed memory was kept."""
    # Many blocks of two sizes: an allocator may keep one of them for later, or give back whole segments only.
    blocks = [torch.zeros(size, dtype=torch.uint8, device=device) for size in (MIB, 32 * MIB) for _ in range(8)]
    accelerator.synchronize()
    held, alive = accelerator.memory_allocated(), sum(block.nbytes for block in blocks)
    assert held >= alive, f"memory_allocated() is {held} with {alive} bytes in use"
    del blocks
    gc.collect()
    accelerator.synchronize()
    before = accelerator.memory_reserved()
    if before - accelerator.memory_allocated() < 128 * MIB:
        return before, None  # nothing has to be given back

    accelerator.empty_cache()

    return before, accelerator.memory_reserved()


@case("accelerator.effect.reset_max_memory_cached", requires=[MEMORY_PEAK])
def test_reset_max_memory_cached(accelerator, device):
    """Resetting the peak of reserved memory lowers it once that memory is free."""
    accelerator.reset_peak_memory_stats()  # earlier cases may have used most of the memory
    accelerator.empty_cache()
    torch.empty(accelerator.max_memory_cached() + 16 * MIB, dtype=torch.uint8, device=device)
    accelerator.synchronize()
    accelerator.empty_cache()
    before = accelerator.max_memory_cached()

    accelerator.reset_max_memory_cached()

    if accelerator.max_memory_cached() == before > accelerator.memory_cached():
        stub(f"reset_max_memory_cached() has no effect: max_memory_cached() is {before} before and after it")


@case("accelerator.effect.register_host_memory", requires=[MEMORY_PINNED])
def test_register_host_memory(accelerator):
    """register_host_memory() returns a bool, and the memory keeps its values."""
    register = member_of(accelerator, "register_host_memory")
    alignment = member_of(accelerator, "pin_memory_alignment")()
    memory = torch.arange(4 * MIB, dtype=torch.int32).view(torch.uint8)
    # Registration works on whole pages, so begin at the first aligned byte.
    start = -memory.data_ptr() % alignment

    answer = register(memory.data_ptr() + start, MIB // alignment * alignment)

    if answer is None:
        stub("register_host_memory() returned None")
    assert type(answer) is bool, f"register_host_memory() returned {answer!r}; it must return a bool"
    if answer:
        accelerator.unregister_host_memory(memory.data_ptr() + start)
    assert torch.equal(memory.view(torch.int32), torch.arange(4 * MIB, dtype=torch.int32)), (
        "registering changed the values in the memory"
    )
