"""The report records the environment variables that change results, and what the plugin itself has set."""

from __future__ import annotations

import pytest

from conformance.plugin import _KERNEL_CACHES
from conformance.runner.facts import loaded_plugins, software_facts

RECORDED = {
    "OMP_NUM_THREADS": "2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(_KERNEL_CACHES, "64"),
}
LEFT_OUT = {
    "CUDA_VISIBLE_DEVICES": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/home/ada/cache",
    "CUDA_CACHE_PATH": "/home/ada/cuda",
    "DS_ACCESS_TOKEN": "secret",
    "HOME": "/home/ada",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def test_variables_that_change_results_are_recorded_and_private_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    for name, value in {**RECORDED, **LEFT_OUT}.items():
        monkeypatch.setenv(name, value)

    variables = software_facts(pytestconfig)["variables"]

    assert {name: variables.get(name) for name in RECORDED} == RECORDED
    assert not LEFT_OUT.keys() & variables.keys()


def test_a_class_that_is_a_plugin_is_known_by_its_module(pytestconfig: pytest.Config) -> None:
    """pytest before 9 registers one of its own, and the gate rejects code that belongs to no installed package."""
    plugin = type("Plugin", (), {"__module__": "_pytest.legacypath"})
    pytestconfig.pluginmanager.register(plugin, "a class")
    try:
        assert "builtins" not in loaded_plugins(pytestconfig)
    finally:
        pytestconfig.pluginmanager.unregister(plugin)
