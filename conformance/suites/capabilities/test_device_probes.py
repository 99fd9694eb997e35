"""Probes of devices, memory, copies, random numbers, and the four flags."""

from __future__ import annotations

import io

import torch

from conformance.accelerators.capabilities import (
    BACKPRESSURE,
    CHECKPOINT,
    COPY,
    DEVICE,
    DEVICE_INDEX,
    DEVICE_MULTIPLE,
    DEVICE_VISIBILITY,
    DTYPE,
    DTYPES,
    HOST_TIMERS,
    MEMORY,
    ORDERED,
    RNG,
    RNG_GENERATOR,
    RNG_PER_DEVICE,
    RNG_STATE,
    SYNCHRONIZE,
    SYNCHRONOUS,
)
from conformance.case import Level, case
from conformance.finding import Refused, stub
from conformance.suites.accelerator import test_environment, test_flags
from conformance.suites.accelerator.conveyor import Conveyor, numbers
from conformance.suites.accelerator.draws import differing
from conformance.suites.accelerator.patterns import bytes_of, random_bits

from .refusals import refuse_if_false, refuse_on_one_device


@case("capabilities.device", requires=[DEVICE], level=Level.CORE, adaptive=True)
def test_device(accelerator):
    """A device can be selected, current_device() reports it, and new tensors go there."""
    count, before = accelerator.device_count(), accelerator.current_device()
    assert type(count) is int and count >= 1, f"device_count() returned {count!r}; it must return a positive int"
    assert type(before) is int, f"current_device() returned {before!r}; it must return an int"

    # The last device: device 0 is current by default, so selecting it shows nothing where there are several.
    accelerator.set_device(count - 1)
    now, tensor = accelerator.current_device(), torch.ones(3, device=accelerator.device_name())
    accelerator.set_device(before)

    assert now == count - 1, f"after set_device({count - 1}), current_device() is {now!r}"
    assert tensor.device.type == accelerator.device_name() and tensor.tolist() == [1.0] * 3


@case("capabilities.memory", requires=[MEMORY], level=Level.CORE, adaptive=True)
def test_memory(device):
    """Two live tensors keep their own values."""
    first, second = torch.full((4099,), 3.0, device=device), torch.full((4099,), 5.0, device=device)

    assert bool((first == 3).all()) and bool((second == 5).all()), "two tensors share memory"


@case("capabilities.copy", requires=[COPY], level=Level.CORE, adaptive=True)
def test_copy(device):
    """Random bits come back from the device unchanged."""
    source = random_bits(torch.float32, 4099)

    found = source.to(device, copy=True).cpu()

    assert torch.equal(bytes_of(found), bytes_of(source)), "bits changed on the way to the device and back"


@case("capabilities.rng", requires=[RNG], level=Level.CORE, adaptive=True)
def test_rng(accelerator, device):
    """The same seed repeats the same numbers, and another seed gives other numbers."""
    drawn = []
    for seed in (5, 5, 6):
        accelerator.manual_seed(seed)
        drawn.append(torch.randn(129, device=device))

    assert differing(drawn[0], drawn[1]) == 0, "the same seed gives other numbers"
    assert differing(drawn[0], drawn[2]) > 100, "another seed gives the same numbers"


@case("capabilities.checkpoint", requires=[CHECKPOINT], level=Level.CORE, adaptive=True)
def test_checkpoint(device):
    """A device tensor survives torch.save() and torch.load(), both to the device and to the host."""
    source, buffer = numbers(device), io.BytesIO()
    torch.save({"weight": source}, buffer)

    for target_device in (device, torch.device("cpu")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=target_device, weights_only=True)["weight"]
        assert loaded.device.type == target_device.type and loaded.dtype is source.dtype, (
            f"{loaded.dtype} on {loaded.device}"
        )
        assert torch.equal(loaded.cpu(), source.cpu()), "values changed through a checkpoint"


@case("capabilities.synchronize", requires=[SYNCHRONIZE], level=Level.CORE, adaptive=True)
def test_synchronize(accelerator, device):
    """Long work is complete after synchronize(), whichever stream it was queued on."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)
    stream = accelerator.Stream() if accelerator.Stream is not None else None
    accelerator.synchronize()

    with accelerator.stream(stream):
        conveyor.carry(source, target)
    accelerator.synchronize()

    assert torch.equal(target.cpu(), source.cpu()), "work is not complete after synchronize()"


@case("capabilities.dtype", requires=[DTYPE], adaptive=True, axes={"dtype": DTYPES})
def test_dtype(device, dtype):
    """Random bits of the dtype survive copies, and small integers survive casts to other dtypes and back."""
    source = random_bits(getattr(torch, dtype), 513)
    there = source.to(device, copy=True)

    assert there.dtype is source.dtype, f"asked for {dtype}, got {there.dtype}"
    assert torch.equal(bytes_of(there.cpu()), bytes_of(source)), "bits changed in a copy"
    small = torch.tensor([0, 1, 1, 0]).to(source.dtype).to(device)
    # PyTorch warns when a cast drops the imaginary part.
    real = small.real if small.is_complex() else small
    assert small.cpu().to(torch.complex64).real.tolist() == [0.0, 1.0, 1.0, 0.0], "casts changed values"
    assert real.to(torch.float32).cpu().tolist() == [0.0, 1.0, 1.0, 0.0], "casts to float32 changed values"


@case("capabilities.device.index", requires=[DEVICE_INDEX], adaptive=True)
def test_device_index(accelerator):
    """device_name(i) and device(i) carry the index i."""
    if accelerator.device_name(0) == accelerator.device_name():
        raise Refused("device_name(0) has no index")

    assert torch.device(accelerator.device_name(0)).index == 0, f"device_name(0) is {accelerator.device_name(0)!r}"
    assert torch.device(accelerator.device(0)).index == 0, f"device(0) is {accelerator.device(0)!r}"


@case("capabilities.device.multiple", requires=[DEVICE_MULTIPLE], adaptive=True)
def test_device_multiple(accelerator, declaration):
    """Tensors exist on two devices, and a copy between the devices keeps its values."""
    if accelerator.device_count() < 2:
        refuse_on_one_device(declaration, DEVICE_MULTIPLE)

    first = numbers(torch.device(accelerator.device_name(0)))
    second = first.to(accelerator.device_name(1))

    assert (first.device.index, second.device.index) == (0, 1), f"tensors are on {first.device} and {second.device}"
    assert torch.equal(first.cpu(), second.cpu()), "values changed between devices"


@case("capabilities.device.visibility", requires=[DEVICE_VISIBILITY], adaptive=True, deadline=120)
def test_device_visibility(accelerator, declaration, pytestconfig):
    """A process that is shown one of two devices sees one device."""
    if accelerator.device_count() < 2:
        refuse_on_one_device(declaration, DEVICE_VISIBILITY)

    test_environment.test_visible_count(accelerator, pytestconfig)


@case("capabilities.rng.state", requires=[RNG_STATE], adaptive=True)
def test_rng_state(accelerator, device):
    """A restored state repeats the same numbers, also when it is restored by device index."""
    state = accelerator.get_rng_state()
    first = torch.randn(129, device=device)
    moved = accelerator.get_rng_state()
    accelerator.set_rng_state(state, accelerator.current_device())

    if torch.equal(accelerator.get_rng_state(), moved) and not torch.equal(moved, state):
        stub("set_rng_state() has no effect: the state is the same before and after the call")
    assert differing(first, torch.randn(129, device=device)) == 0, "a restored state gives other numbers"


@case("capabilities.rng.generator", requires=[RNG_GENERATOR], adaptive=True)
def test_rng_generator(accelerator, device):
    """Two generators with the same seed draw the same numbers and do not advance the default generator."""
    before = accelerator.get_rng_state()

    drawn = [torch.randn(129, device=device, generator=torch.Generator(device=device).manual_seed(3)) for _ in range(2)]

    assert differing(*drawn) == 0, "two generators with the same seed differ"
    assert torch.equal(accelerator.get_rng_state(), before), (
        "drawing from a separate generator advanced the default generator"
    )


@case("capabilities.rng.per-device", requires=[RNG_PER_DEVICE], adaptive=True)
def test_rng_per_device(accelerator, declaration):
    """Drawing on one device does not advance the generator of another device."""
    if accelerator.device_count() < 2:
        refuse_on_one_device(declaration, RNG_PER_DEVICE)
    before = [accelerator.get_rng_state(index) for index in (0, 1)]

    torch.randn(129, device=accelerator.device_name(0))

    assert not torch.equal(accelerator.get_rng_state(0), before[0]), "drawing on device 0 did not advance its generator"
    assert torch.equal(accelerator.get_rng_state(1), before[1]), (
        "drawing on device 0 advanced the generator of device 1"
    )


@case("capabilities.execution.synchronous", requires=[SYNCHRONOUS], adaptive=True)
def test_synchronous(accelerator, device):
    """The flag is set, and calls take the time of their work."""
    refuse_if_false(accelerator.is_synchronized_device(), "is_synchronized_device()")

    test_flags.test_synchronous_time(accelerator, device)
    test_flags.test_synchronous_values(accelerator, device)


@case("capabilities.execution.host-timers", requires=[HOST_TIMERS], adaptive=True)
def test_host_timers(accelerator, device):
    """The flag is set, and the host's clock measures the device's work."""
    refuse_if_false(accelerator.use_host_timers(), "use_host_timers()")

    test_flags.test_host_timers_scale(accelerator, device)


@case("capabilities.execution.ordered", requires=[ORDERED], adaptive=True)
def test_ordered(accelerator, device):
    """The flag is set, and no wait is needed between streams."""
    refuse_if_false(accelerator.resolves_data_dependency(), "resolves_data_dependency()")

    test_flags.test_ordered(accelerator, device)


@case("capabilities.execution.backpressure", requires=[BACKPRESSURE], adaptive=True)
def test_backpressure(accelerator, device):
    """The flag is set, and queueing much work does not run out of memory."""
    refuse_if_false(accelerator.handles_memory_backpressure(), "handles_memory_backpressure()")

    test_flags.test_backpressure(accelerator, device)
