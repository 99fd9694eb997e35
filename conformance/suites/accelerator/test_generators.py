"""Generators of the device, forks of its random stream, callbacks that restore it, and recomputed dropout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from conformance.accelerators.capabilities import LAZY_CALL, RNG, RNG_GENERATOR, RNG_STATE
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import Level, case
from conformance.suites.operator_claims import claims
from conformance.suites.shared_bodies import differing, of_draws


@case("accelerator.generator.default", requires=[RNG_GENERATOR])
def test_default(accelerator, device):
    """default_generator(i) returns a torch.Generator of device i whose state is get_rng_state(i)."""
    for index in range(accelerator.device_count()):
        generator = accelerator.default_generator(index)
        assert isinstance(generator, torch.Generator), (
            f"default_generator({index}) returned {generator!r}; it must return a torch.Generator"
        )
        assert generator.device.type == device.type, f"the generator of device {index} is on {generator.device}"
        assert generator.device.index in (index, None), f"the generator of device {index} is on {generator.device}"
        same = torch.equal(generator.get_state(), accelerator.get_rng_state(index))
        assert same, f"default_generator({index}).get_state() differs from get_rng_state({index})"


@case("accelerator.generator.default_is_live", requires=[RNG_GENERATOR])
def test_default_is_live(accelerator, device):
    """Seeding or restoring the object of default_generator() changes the numbers drawn on the device."""
    generator = accelerator.default_generator(accelerator.current_device())

    generator.manual_seed(21)
    state, first = generator.get_state(), torch.randn(65, device=device)
    generator.set_state(state)
    second = torch.randn(65, device=device)
    accelerator.manual_seed(21)
    third = torch.randn(65, device=device)

    assert differing(first, second) == 0, "default_generator().set_state() does not restore the device's stream"
    assert differing(first, third) == 0, "default_generator().manual_seed() gives other numbers than manual_seed()"


#: Functions that take a generator, of a device: (operator that it has to claim, if one, and the draw).
_DRAWS: dict[str, tuple[str, Callable[[torch.device, torch.Generator], torch.Tensor]]] = {
    "rand": ("", lambda d, g: torch.rand(129, device=d, generator=g)),
    "randn": ("", lambda d, g: torch.randn(129, device=d, generator=g)),
    "randint": ("randint", lambda d, g: torch.randint(1 << 20, (129,), device=d, generator=g)),
    "randperm": ("randint", lambda d, g: torch.randperm(129, device=d, generator=g)),
    "normal": ("normal", lambda d, g: torch.normal(torch.zeros(129, device=d), 1.0, generator=g)),
    "bernoulli": ("bernoulli", lambda d, g: torch.bernoulli(torch.full((129,), 0.5, device=d), generator=g)),
    "multinomial": ("multinomial", lambda d, g: torch.ones(129, device=d).multinomial(64, generator=g)),
    "multinomial with replacement": (
        "multinomial",
        lambda d, g: torch.ones(129, device=d).multinomial(64, True, generator=g),
    ),
    "poisson": ("poisson", lambda d, g: torch.poisson(torch.full((129,), 40.0, device=d), generator=g)),
    "binomial": (
        "binomial",
        lambda d, g: torch.binomial(*(torch.full((129,), n, device=d) for n in (99.0, 0.5)), generator=g),
    ),
    "exponential_": ("exponential", lambda d, g: torch.zeros(129, device=d).exponential_(generator=g)),
    "geometric_": ("geometric", lambda d, g: torch.zeros(129, device=d).geometric_(0.02, generator=g)),
    "cauchy_": ("cauchy", lambda d, g: torch.zeros(129, device=d).cauchy_(generator=g)),
    "log_normal_": ("log_normal", lambda d, g: torch.zeros(129, device=d).log_normal_(generator=g)),
    "bernoulli_": ("bernoulli", lambda d, g: torch.zeros(129, device=d).bernoulli_(0.5, generator=g)),
}


@case("accelerator.generator.own", requires=[RNG_GENERATOR])
def test_own(accelerator, declaration, device):
    """A separate generator repeats with its seed and does not advance the default generator, whatever it fills."""
    check_own(accelerator, device)
    generator, before = torch.Generator(device=device), accelerator.get_rng_state()
    for name, (operator, draw) in _DRAWS.items():
        if operator and not claims(declaration, operator):
            continue
        drawn, again, other = (draw(device, generator.manual_seed(seed)) for seed in (5, 5, 6))
        assert differing(drawn, again) == 0, f"{name} ignores the seed of its generator"
        assert differing(drawn, other) > 0, f"{name} gives the same with another seed of its generator"
        assert torch.equal(accelerator.get_rng_state(), before), (
            f"{name} with a separate generator advanced the default generator"
        )


def check_own(accelerator, device) -> None:
    """Check the numbers of a separate generator, and that it leaves the default generator alone."""
    generator = torch.Generator(device=device)
    accelerator.manual_seed(31)
    before = accelerator.get_rng_state()

    generator.manual_seed(5)
    first = torch.randn(129, device=device, generator=generator)
    accelerator.manual_seed(31)
    generator.manual_seed(5)
    second = torch.randn(129, device=device, generator=generator)

    assert differing(first, second) == 0, "a generator with the same seed gives other numbers"
    assert torch.equal(accelerator.get_rng_state(), before), (
        "drawing from a separate generator advanced the default generator"
    )
    for name in ("normal_", "uniform_", "random_"):
        memory = torch.zeros(2, 129, 2, device=device)
        for row in memory.unbind():
            getattr(row[:, 1], name)(generator=generator.manual_seed(5))
        assert memory[0, :, 1].cpu().any(), f"{name} into memory with gaps draws nothing"
        assert differing(memory[0], memory[1]) == 0, f"{name} into memory with gaps ignores the generator's seed"
        assert torch.equal(accelerator.get_rng_state(), before), (
            f"{name} into memory with gaps, with a separate generator, advanced the default generator"
        )


@case("accelerator.generator.independent", requires=[RNG_GENERATOR])
def test_independent(accelerator, device):
    """Two generators do not influence each other."""
    alone = torch.Generator(device=device).manual_seed(5)
    expected = [torch.rand(33, device=device, generator=alone) for _ in range(3)]

    first, second = torch.Generator(device=device).manual_seed(5), torch.Generator(device=device).manual_seed(6)
    for step in range(3):
        drawn = torch.rand(33, device=device, generator=first)
        drawn_second = torch.rand(33, device=device, generator=second)
        assert differing(drawn, expected[step]) == 0, f"draw {step} was changed by another generator"
        assert differing(drawn, drawn_second) > 10, f"draw {step} of two differently seeded generators is the same"


@case("accelerator.generator.state", requires=[RNG_GENERATOR])
def test_state(accelerator, device):
    """A generator's state restores that generator and any other generator of the device."""
    generator, second = torch.Generator(device=device).manual_seed(7), torch.Generator(device=device)
    torch.randn(7, device=device, generator=generator)

    state = generator.get_state()
    expected = torch.randn(65, device=device, generator=generator)
    generator.set_state(state)
    second.set_state(state)

    assert differing(torch.randn(65, device=device, generator=generator), expected) == 0, (
        "set_state() does not restore the generator"
    )
    assert differing(torch.randn(65, device=device, generator=second), expected) == 0, (
        "set_state() does not restore a second generator"
    )
    assert generator.initial_seed() == 7, f"initial_seed() is {generator.initial_seed()}, not 7"


@case("accelerator.generator.device", requires=[RNG_GENERATOR])
def test_device(accelerator, device):
    """A generator reports the device that it was created for."""
    for index in range(accelerator.device_count()):
        generator = torch.Generator(device=accelerator.device_name(index))
        assert generator.device.type == device.type, f"asked for {device.type}:{index}, got {generator.device}"
        assert generator.device.index in (index, None), f"asked for index {index}, got {generator.device}"


def _draws_as_the_host(accelerator) -> bool:
    with contextlib.suppress(Exception):  # other cases judge a generator that is missing
        return accelerator.default_generator(0) is torch.default_generator
    return False


@case("accelerator.rng.host_stream", requires=[RNG], level=Level.CORE)
def test_host_stream(accelerator, device):
    """Seeding the device does not change the host's generator, unless the device is the host."""
    device_is_host = device.type == "cpu"
    if not device_is_host and _draws_as_the_host(accelerator):
        environment_lacks("the device draws from the host's generator, as it declares")
    torch.manual_seed(50)
    expected = torch.randn(65)

    torch.manual_seed(50)
    accelerator.manual_seed(51)
    drawn = torch.randn(65)

    assert (differing(drawn, expected) == 0) is not device_is_host, (
        "seeding the device changed the host's generator"
        if not device_is_host
        else "the device is the host, but seeding it did not change the host's generator"
    )
    torch.manual_seed(50)
    assert bool(torch.randn(9, device=device).cpu().any()), "the device drew nine zeros"
    same = differing(torch.randn(65), expected) == 0
    assert same is not device_is_host, (
        "a draw on the device changed the host's generator"
        if not device_is_host
        else "the device is the host, but a draw on it did not change the host's generator"
    )


@case("accelerator.rng.torch_seed_reaches_device", requires=[RNG], level=Level.CORE)
def test_torch_seed_reaches_device(accelerator, device):
    """torch.manual_seed() seeds the device as well."""
    # Training scripts rely on it.
    torch.manual_seed(60)
    first = torch.randn(65, device=device)
    torch.manual_seed(60)
    second = torch.randn(65, device=device)

    said = (
        "torch.manual_seed does not reach this device's generator: PyTorch calls manual_seed_all() of the device's "
        "module, if _is_in_bad_fork() of it returns False"
    )
    assert differing(first, second) == 0, of_draws(torch.manual_seed, device, said)


@case("accelerator.rng.fork", requires=[RNG_STATE])
def test_fork(accelerator, device):
    """Numbers drawn or seeded inside torch.random.fork_rng() do not change the random stream outside."""
    host = device.type == "cpu"
    if not hasattr(torch, device.type) and not host:
        environment_lacks(f"PyTorch has no module torch.{device.type}, by which fork_rng() finds generators")
    # fork_rng() always saves the host's generator; ``devices`` lists only those of the device type.
    devices = [] if host else list(range(accelerator.device_count()))
    accelerator.manual_seed(70)
    state, expected = accelerator.get_rng_state(), torch.randn(65, device=device)
    following = torch.randn(65, device=device)

    accelerator.set_rng_state(state)
    with torch.random.fork_rng(devices, **({} if host else {"device_type": device.type})):
        accelerator.manual_seed(71)
        inside = torch.randn(65, device=device)

    assert differing(inside, expected) > 50, "seeding inside the fork has no effect"
    for wanted in (expected, following):
        found = differing(torch.randn(65, device=device), wanted)
        assert found == 0, "after the fork the random stream was not restored"


@case("accelerator.rng.random_module", requires=[RNG], level=Level.CORE)
def test_random_module(accelerator):
    """random() returns the module of the device's random functions."""
    module = accelerator.random()

    missing = [name for name in ("manual_seed", "get_rng_state", "set_rng_state") if not hasattr(module, name)]
    assert module is not None, "random() returned None"
    assert not missing, f"random() returned {module!r}, which lacks {', '.join(missing)}"


@case("accelerator.rng.recomputed_dropout", requires=[RNG_STATE])
def test_recomputed_dropout(accelerator, device):
    """Activation checkpointing draws the same dropout mask when it recomputes a block."""
    source = torch.ones(4099, device=device, requires_grad=True)

    result = checkpoint(lambda x: torch.nn.functional.dropout(x, 0.5), source, use_reentrant=False)
    # Advance the generator, so that only a restored state repeats the mask.
    torch.randn(13, device=device)
    result.sum().backward()

    # The input is all ones, so the result and the gradient are both the scaled mask.
    wrong = differing(source.grad, result.detach())
    assert wrong == 0, (
        f"{wrong} of 4099 gradients belong to another dropout mask than the result: torch.utils.checkpoint keeps the "
        "state of the device only if _initialized of its module is True, and puts it back with set_rng_state()"
    )


@case("accelerator.lazy_call.runs", requires=[LAZY_CALL])
def test_lazy_call_runs(accelerator, device):
    """lazy_call() runs each callback exactly once, because the device is already initialised."""
    calls = []
    torch.zeros(1, device=device)

    accelerator.lazy_call(lambda: calls.append("first"))
    accelerator.lazy_call(callback=lambda: calls.append("second"))
    accelerator.synchronize()

    if not calls:
        stub("lazy_call() accepts a callback and does not run it")
    assert calls == ["first", "second"], f"lazy_call() ran {calls}; it must run each callback once and in order"


@case("accelerator.lazy_call.restores_rng", requires=[LAZY_CALL, RNG_GENERATOR])
def test_lazy_call_restores_rng(accelerator, device):
    """A generator state that is restored through lazy_call() takes effect."""
    index = accelerator.current_device()
    state = accelerator.get_rng_state(index)
    expected = torch.randn(65, device=device)

    # DeepSpeed's activation checkpointing restores states in this way.
    accelerator.lazy_call(lambda: accelerator.default_generator(index).set_state(state))

    assert differing(torch.randn(65, device=device), expected) == 0, (
        "lazy_call() did not run the callback: the generator is not restored"
    )
