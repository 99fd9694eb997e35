"""Probes of devices, memory, copies, random numbers, and the four flags."""

from __future__ import annotations

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
    TORCH_ACCELERATOR,
    TORCH_ACCELERATOR_DTYPES,
    TORCH_ACCELERATOR_GRAPH,
)
from conformance.judging.finding import Refused
from conformance.plan.case import Level, case
from conformance.suites.accelerator import test_device as devices
from conformance.suites.accelerator import test_dtypes, test_environment, test_flags, test_generators
from conformance.suites.accelerator import test_rng as random_numbers
from conformance.suites.accelerator import test_synchronize as synchronizing
from conformance.suites.accelerator.patterns import random_bits
from conformance.suites.checkpoint import test_files
from conformance.suites.torch_accelerator import test_devices as torch_devices
from conformance.suites.torch_accelerator import test_dtypes as torch_dtypes
from conformance.suites.torch_accelerator import test_graphs as torch_graphs

from .refusals import refuse_if_false, refuse_on_one_device


@case("capabilities.device", requires=[DEVICE], level=Level.CORE, adaptive=True)
def test_device(accelerator):
    """A device can be selected, current_device() reports it, and new tensors go there."""
    devices.test_count(accelerator)
    devices.test_current(accelerator)
    devices.test_set(accelerator)
    assert torch.ones(3, device=accelerator.device_name()).device.type == accelerator.device_name()


@case("capabilities.memory", requires=[MEMORY], level=Level.CORE, adaptive=True)
def test_memory(device):
    """Two live tensors keep their own values."""
    first, second = torch.full((4099,), 3.0, device=device), torch.full((4099,), 5.0, device=device)

    assert bool((first.cpu() == 3).all()) and bool((second.cpu() == 5).all()), "two tensors share memory"


@case("capabilities.copy", requires=[COPY], level=Level.CORE, adaptive=True)
def test_copy(check, device):
    """Random bits come back from the device unchanged."""
    test_dtypes.test_float32_copy(check, device)


@case("capabilities.rng", requires=[RNG], level=Level.CORE, adaptive=True)
def test_rng(accelerator, declaration, device):
    """The same seed repeats the same numbers, and another seed gives other numbers."""
    random_numbers.test_seed_repeats(accelerator, declaration, device, "randn")
    random_numbers.test_seeds_differ(accelerator, declaration, device, "randn")


@case("capabilities.checkpoint", requires=[CHECKPOINT], level=Level.CORE, adaptive=True)
def test_checkpoint(check, device):
    """A device tensor survives torch.save() and torch.load(), both to the device and to the host."""
    test_files.test_places(check, device, "float32")


@case("capabilities.synchronize", requires=[SYNCHRONIZE], level=Level.CORE, adaptive=True)
def test_synchronize(accelerator, device):
    """Long work is complete after synchronize(), whichever stream it was queued on."""
    synchronizing.test_index(accelerator, device)


@case("capabilities.dtype", requires=[DTYPE], adaptive=True, axes={"dtype": DTYPES})
def test_dtype(check, device, dtype):
    """Random bits of the dtype survive copies, and small integers survive casts to other dtypes and back."""
    kind = getattr(torch, dtype)
    there = random_bits(kind, 513).to(device, copy=True)
    assert there.dtype is kind, f"asked for {dtype}, got {there.dtype}"

    test_dtypes.test_copy(check, device, dtype)

    small = torch.tensor([0, 1, 1, 0]).to(kind).to(device)
    real = small.real if small.is_complex() else small
    assert small.cpu().to(torch.complex64).real.tolist() == [0.0, 1.0, 1.0, 0.0], "casts changed values"
    assert real.to(torch.float32).cpu().tolist() == [0.0, 1.0, 1.0, 0.0], "casts to float32 changed values"


@case("capabilities.device.index", requires=[DEVICE_INDEX], adaptive=True)
def test_device_index(accelerator):
    """device_name(i) and device(i) carry the index i."""
    if accelerator.device_name(0) == accelerator.device_name():
        raise Refused("device_name(0) has no index")

    devices.test_name_index(accelerator)
    devices.test_torch_device_index(accelerator)


@case("capabilities.device.multiple", requires=[DEVICE_MULTIPLE], adaptive=True)
def test_device_multiple(accelerator, declaration):
    """Tensors exist on two devices, and a copy between the devices keeps its values."""
    if accelerator.device_count() < 2:
        refuse_on_one_device(declaration, DEVICE_MULTIPLE)

    devices.test_copies_between(accelerator)


@case("capabilities.device.visibility", requires=[DEVICE_VISIBILITY], adaptive=True, deadline=120)
def test_device_visibility(accelerator, declaration, pytestconfig):
    """A process that is shown one of two devices sees one device."""
    if accelerator.device_count() < 2:
        refuse_on_one_device(declaration, DEVICE_VISIBILITY)

    test_environment.test_visible_count(accelerator, pytestconfig)


@case("capabilities.rng.state", requires=[RNG_STATE], adaptive=True)
def test_rng_state(accelerator, declaration, device):
    """A restored state repeats the same numbers, also when it is restored by device index."""
    random_numbers.test_state_roundtrip(accelerator, declaration, device, "randn")
    random_numbers.test_state_index(accelerator)


@case("capabilities.rng.generator", requires=[RNG_GENERATOR], adaptive=True)
def test_rng_generator(accelerator, device):
    """Two generators with the same seed draw the same numbers and do not advance the default generator."""
    test_generators.check_own(accelerator, device)
    test_generators.test_independent(accelerator, device)


@case("capabilities.rng.per-device", requires=[RNG_PER_DEVICE], adaptive=True)
def test_rng_per_device(accelerator, declaration):
    """Drawing on one device does not advance the generator of another device."""
    if accelerator.device_count() < 2:
        refuse_on_one_device(declaration, RNG_PER_DEVICE)
    before = [accelerator.get_rng_state(index) for index in (0, 1)]

    torch.randn(129, device=accelerator.device_name(0))

    after = [accelerator.get_rng_state(index) for index in (0, 1)]
    assert not torch.equal(after[0], before[0]), "drawing on device 0 did not advance its generator"
    if torch.equal(*before) and torch.equal(*after):
        raise Refused("one generator draws for both devices")
    assert torch.equal(after[1], before[1]), "drawing on device 0 advanced the generator of device 1"


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


@case("capabilities.torch-accelerator", requires=[TORCH_ACCELERATOR], adaptive=True)
def test_torch_accelerator(accelerator, device):
    """torch.accelerator is this device, and its count and its current device are those of the vendor's module."""
    _refuse_unless_current(device)

    torch_devices.test_device_count(accelerator, device)
    torch_devices.test_current(accelerator, device, "current_device_index")


@case("capabilities.torch-accelerator.dtypes", requires=[TORCH_ACCELERATOR_DTYPES], adaptive=True)
def test_torch_accelerator_dtypes(device):
    """The backend claims float32, which the device stores."""
    _refuse_unless_current(device)
    try:
        names = torch_dtypes.claimed(device)
    except RuntimeError as error:
        raise Refused(str(error)) from None

    assert "float32" in names, (
        f"get_device_capability() names {', '.join(sorted(names))}, and float32 is not among them"
    )
    assert torch_dtypes.refusal(device, "float32") is None


@case("capabilities.torch-accelerator.graph", requires=[TORCH_ACCELERATOR_GRAPH], adaptive=True)
def test_torch_accelerator_graph(accelerator, device):
    """Work that torch.accelerator.Graph captures runs in each replay."""
    _refuse_unless_current(device)
    try:
        torch.accelerator.Graph()
    except (AttributeError, RuntimeError) as error:
        raise Refused(str(error)) from None

    torch_graphs.test_replay(accelerator, device)


def _refuse_unless_current(device):
    """Raise Refused if torch.accelerator is another device, or none."""
    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if current is None or current.type != device.type:
        raise Refused(f"torch.accelerator.current_accelerator() is {current}")
