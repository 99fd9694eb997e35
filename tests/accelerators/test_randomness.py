"""Generators by index."""

from __future__ import annotations

from types import SimpleNamespace

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
