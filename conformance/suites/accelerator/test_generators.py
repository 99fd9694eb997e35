"""Generators of the device, forks of its stream, callbacks that restore it, and dropout that is computed again."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from conformance.accelerators.capabilities import LAZY_CALL, RNG, RNG_GENERATOR, RNG_STATE
from conformance.case import Level, case
from conformance.finding import stub

from .draws import differing


@case("accelerator.generator.default", requires=[RNG_GENERATOR])
def test_default(accelerator, device):
    """default_generator(i) is a torch.Generator of device i, and its state is get_rng_state(i)."""
    for index in range(accelerator.device_count()):
        generator = accelerator.default_generator(index)
        assert isinstance(generator, torch.Generator), f"default_generator({index}) answers {generator!r}"
        assert generator.device.type == device.type, f"the generator of device {index} is on {generator.device}"
        assert generator.device.index in (index, None), f"the generator of device {index} is on {generator.device}"
        same = torch.equal(generator.get_state(), accelerator.get_rng_state(index))
        assert same, f"default_generator({index}).get_state() is not get_rng_state({index})"


@case("accelerator.generator.default_is_live", requires=[RNG_GENERATOR])
def test_default_is_live(accelerator, device):
    """Seeding and restoring the default generator object changes what is drawn."""
    generator = accelerator.default_generator(accelerator.current_device())

    generator.manual_seed(21)
    state, first = generator.get_state(), torch.randn(65, device=device)
    generator.set_state(state)
    second = torch.randn(65, device=device)
    accelerator.manual_seed(21)
    third = torch.randn(65, device=device)

    assert differing(first, second) == 0, "default_generator().set_state() does not restore the device's stream"
    assert differing(first, third) == 0, "default_generator().manual_seed() is not manual_seed()"


@case("accelerator.generator.own", requires=[RNG_GENERATOR])
def test_own(accelerator, device):
    """A generator of one's own repeats with its seed, and neither moves nor follows the default stream."""
    mine = torch.Generator(device=device)
    accelerator.manual_seed(31)
    before = accelerator.get_rng_state()

    mine.manual_seed(5)
    first = torch.randn(129, device=device, generator=mine)
    accelerator.manual_seed(31)
    mine.manual_seed(5)
    second = torch.randn(129, device=device, generator=mine)

    assert differing(first, second) == 0, "a generator with the same seed gives other numbers"
    assert torch.equal(accelerator.get_rng_state(), before), "drawing from a generator moved the default stream"


@case("accelerator.generator.independent", requires=[RNG_GENERATOR])
def test_independent(accelerator, device):
    """Two generators do not disturb each other."""
    alone = torch.Generator(device=device).manual_seed(5)
    expected = [torch.rand(33, device=device, generator=alone) for _ in range(3)]

    first, second = torch.Generator(device=device).manual_seed(5), torch.Generator(device=device).manual_seed(6)
    for step in range(3):
        drawn = torch.rand(33, device=device, generator=first)
        other = torch.rand(33, device=device, generator=second)
        assert differing(drawn, expected[step]) == 0, f"draw {step} is disturbed by another generator"
        assert differing(drawn, other) > 10, f"draw {step} of two differently seeded generators is the same"


@case("accelerator.generator.state", requires=[RNG_GENERATOR])
def test_state(accelerator, device):
    """A generator's state restores it, and restores another generator."""
    mine, other = torch.Generator(device=device).manual_seed(7), torch.Generator(device=device)
    torch.randn(7, device=device, generator=mine)

    state = mine.get_state()
    expected = torch.randn(65, device=device, generator=mine)
    mine.set_state(state)
    other.set_state(state)

    assert differing(torch.randn(65, device=device, generator=mine), expected) == 0, "set_state does not restore"
    assert differing(torch.randn(65, device=device, generator=other), expected) == 0, "the state is not portable"
    assert mine.initial_seed() == 7, f"initial_seed() is {mine.initial_seed()}, not 7"


@case("accelerator.generator.device", requires=[RNG_GENERATOR])
def test_device(accelerator, device):
    """A generator knows its device."""
    for index in range(accelerator.device_count()):
        generator = torch.Generator(device=accelerator.device_name(index))
        assert generator.device.type == device.type, f"asked for {device.type}:{index}, got {generator.device}"
        assert generator.device.index in (index, None), f"asked for index {index}, got {generator.device}"


@case("accelerator.rng.host_stream", requires=[RNG], level=Level.CORE)
def test_host_stream(accelerator, device):
    """Seeding the device leaves the host's stream alone, unless the device is the host: then they are one."""
    one = device.type == "cpu"
    torch.manual_seed(50)
    expected = torch.randn(65)

    torch.manual_seed(50)
    accelerator.manual_seed(51)
    torch.randn(9, device=device)
    drawn = torch.randn(65)

    assert (differing(drawn, expected) == 0) is not one, "device and host do not keep their streams as they should"


@case("accelerator.rng.torch_seed_reaches_device", requires=[RNG], level=Level.CORE)
def test_torch_seed_reaches_device(accelerator, device):
    """torch.manual_seed seeds the device as well: training scripts rely on it."""
    torch.manual_seed(60)
    first = torch.randn(65, device=device)
    torch.manual_seed(60)
    second = torch.randn(65, device=device)

    assert differing(first, second) == 0, "torch.manual_seed does not reach this device's generator"


@case("accelerator.rng.fork", requires=[RNG_STATE])
def test_fork(accelerator, device):
    """What is drawn or seeded inside torch.random.fork_rng leaves the stream outside as it was."""
    host = device.type == "cpu"
    devices = [] if host else list(range(accelerator.device_count()))
    accelerator.manual_seed(70)
    state, expected = accelerator.get_rng_state(), torch.randn(65, device=device)

    accelerator.set_rng_state(state)
    with torch.random.fork_rng(devices, **({} if host else {"device_type": device.type})):
        accelerator.manual_seed(71)
        inside = torch.randn(65, device=device)

    assert differing(inside, expected) > 50, "seeding inside the fork has no effect"
    assert differing(torch.randn(65, device=device), expected) == 0, "the fork did not give the stream back"


@case("accelerator.rng.random_module", requires=[RNG], level=Level.CORE)
def test_random_module(accelerator):
    """random() is the module of the device's random functions."""
    module = accelerator.random()

    missing = [name for name in ("manual_seed", "get_rng_state", "set_rng_state") if not hasattr(module, name)]
    assert module is not None, "random() answers None"
    assert not missing, f"random() is {module!r}, without {', '.join(missing)}"


@case("accelerator.rng.recomputed_dropout", requires=[RNG_STATE])
def test_recomputed_dropout(accelerator, device):
    """Activation checkpointing draws the same dropout mask when it computes a block again."""
    source = torch.ones(4099, device=device, requires_grad=True)

    result = checkpoint(lambda x: torch.nn.functional.dropout(x, 0.5), source, use_reentrant=False)
    torch.randn(13, device=device)
    result.sum().backward()

    wrong = differing(source.grad, result.detach())
    assert wrong == 0, f"{wrong} of 4099 gradients belong to another dropout mask than the result"


@case("accelerator.lazy_call.runs", requires=[LAZY_CALL])
def test_lazy_call_runs(accelerator, device):
    """A callback is run exactly once: the device is initialised, so there is nothing to wait for."""
    calls = []
    torch.zeros(1, device=device)

    accelerator.lazy_call(lambda: calls.append("first"))
    accelerator.lazy_call(callback=lambda: calls.append("second"))
    accelerator.synchronize()

    if not calls:
        stub("lazy_call() takes a callback and never runs it")
    assert calls == ["first", "second"], f"lazy_call ran {calls}, not each callback once and in order"


@case("accelerator.lazy_call.restores_rng", requires=[LAZY_CALL, RNG_GENERATOR])
def test_lazy_call_restores_rng(accelerator, device):
    """A generator state restored through lazy_call takes effect, as activation checkpointing needs it."""
    index = accelerator.current_device()
    state = accelerator.get_rng_state(index)
    expected = torch.randn(65, device=device)

    accelerator.lazy_call(lambda: accelerator.default_generator(index).set_state(state))

    assert differing(torch.randn(65, device=device), expected) == 0, "lazy_call dropped the callback: RNG not restored"
