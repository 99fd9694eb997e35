"""Generators by index."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conformance.accelerators.randomness import DeviceGenerators, HostGenerator, NamedGenerator


def test_generators_are_found_in_the_module_or_its_random_once_initialised():
    started = []
    module = SimpleNamespace(default_generators=("g0", "g1"), init=lambda: started.append(1))
    nested = SimpleNamespace(random=SimpleNamespace(default_generators=("n0",)))

    assert DeviceGenerators().generator(module, 1) == "g1"
    assert DeviceGenerators().generator(nested, 0) == "n0"
    assert DeviceGenerators().functions(nested) is nested.random
    assert started == [1]


def test_the_host_has_torchs_own():
    assert HostGenerator().generator(None, 0) is torch.default_generator
    assert HostGenerator().functions(None) is torch.random


def test_a_generator_may_come_from_a_function():
    module = SimpleNamespace(only=lambda: "g")

    assert NamedGenerator("only").generator(module, 0) == "g"
    assert NamedGenerator("only").functions(module) is module


def test_functions_of_the_module_are_called_where_it_has_them():
    """A module need not show its generators."""
    calls = []

    def recorded(name, answer=None):
        return lambda *arguments: calls.append((name, *arguments)) or answer

    names = ("manual_seed", "manual_seed_all", "initial_seed", "get_rng_state", "set_rng_state")
    module = SimpleNamespace(__name__="torch.quiet", **{name: recorded(name, 5) for name in names})
    numbers = DeviceGenerators()

    numbers.seed(module, 1, 7)
    numbers.seed_all(module, 2, 8)
    numbers.set_state(module, 1, "state")

    assert (numbers.initial_seed(module, 1), numbers.state(module, 1)) == (5, 5)
    assert calls == [
        ("manual_seed", 7),
        ("manual_seed_all", 8),
        ("set_rng_state", "state", 1),
        ("initial_seed",),
        ("get_rng_state", 1),
    ]


def test_one_device_needs_no_function_for_all():
    seeds = []

    DeviceGenerators().seed_all(SimpleNamespace(__name__="torch.quiet", manual_seed=seeds.append), 1, 9)

    assert seeds == [9]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_seed_of_all_devices_is_the_seed_of_one(devices):
    """tinygrad's module has manual_seed_all() only."""
    seeds = []
    module = SimpleNamespace(__name__="torch.quiet", manual_seed_all=seeds.append, device_count=lambda: devices)

    if devices == 1:
        DeviceGenerators().seed(module, 0, 9)
        assert seeds == [9]
    else:
        with pytest.raises(NotImplementedError, match=r"^torch\.quiet has neither manual_seed\(\) nor default"):
            DeviceGenerators().seed(module, 0, 9)
        assert seeds == []


def test_the_accelerator_counts_devices_for_a_module_that_does_not():
    """dlprimitives' module has manual_seed_all() and no device_count()."""
    seeds = []
    module = SimpleNamespace(__name__="torch.quiet", manual_seed_all=seeds.append)

    DeviceGenerators().seed(module, 0, 9, lambda: 1)

    assert seeds == [9]
    with pytest.raises(NotImplementedError, match=r"^torch\.quiet has neither manual_seed\(\) nor default"):
        DeviceGenerators().seed(module, 0, 9, lambda: 2)


def test_without_function_and_generators_the_module_is_named():
    module, numbers = SimpleNamespace(__name__="torch.quiet"), DeviceGenerators()

    for function, call in {
        "manual_seed": lambda: numbers.seed(module, 0, 9),
        "initial_seed": lambda: numbers.initial_seed(module, 0),
        "get_rng_state": lambda: numbers.state(module, 0),
        "set_rng_state": lambda: numbers.set_state(module, 0, torch.zeros(1)),
    }.items():
        with pytest.raises(
            NotImplementedError, match=rf"^torch\.quiet has neither {function}\(\) nor default_generators$"
        ):
            call()
    with pytest.raises(NotImplementedError, match=r"^torch\.quiet has no default_generators$"):
        numbers.generator(module, 0)
