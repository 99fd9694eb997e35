"""Which accelerator is chosen: computed from who answers, and who impersonates whom."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import pytest
import torch

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.detection import choose, detect, is_usable
from conformance.base.errors import SetupError

ALL = [builtin(name) for name in builtin_names()]


def among(*usable):
    return lambda accelerator: accelerator.name in usable


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """A function that installs a vendor's package, which puts its module into torch when it is imported."""

    def install(name, available, source=""):
        module = SimpleNamespace(is_available=lambda: available, device_count=lambda: int(available))
        monkeypatch.setattr(torch, name, module, raising=False)
        folder = tmp_path / f"torch_{name}"
        folder.mkdir()
        (folder / "__init__.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    for name in [module for module in sys.modules if module.startswith("torch_")]:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def working_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_here_the_cpu_is_found():
    assert detect() == "cpu"


@pytest.mark.parametrize("order", list(itertools.permutations(["supa", "cuda", "cpu"])))
def test_an_impersonator_comes_first_in_any_order(order):
    candidates = [builtin(name) for name in order]

    assert choose(candidates, among("supa", "cuda", "cpu")) == "supa"


def test_the_host_comes_last():
    assert choose(ALL, among("cpu", "xpu")) == "xpu"


def test_an_unusable_impersonator_hides_nobody():
    assert choose(ALL, among("cuda", "cpu")) == "cuda"


def test_of_independent_devices_the_one_torch_would_take_is_chosen():
    assert choose(ALL, among("xpu", "cuda", "cpu"), lambda: "xpu") == "xpu"
    assert choose(ALL, among("xpu", "cuda", "cpu"), lambda: None) == "cuda"


def test_nothing_usable_is_a_sentence():
    with pytest.raises(SetupError, match="no accelerator is usable"):
        choose(ALL, among())


def test_the_vendors_own_module_is_asked(vendor, working_cuda):
    vendor("supa", available=True)

    assert detect() == "supa"


def test_an_installed_package_without_a_card_does_not_win(vendor, working_cuda):
    vendor("npu", available=False)

    assert not is_usable(builtin("npu"))
    assert detect() == "cuda"


def test_a_broken_package_is_passed_over(vendor, working_cuda):
    vendor("supa", available=True, source="raise OSError('driver')")

    assert detect() == "cuda"


def test_who_answers_through_cuda_needs_a_node_of_its_driver(vendor, working_cuda):
    vendor("xmlir", available=True)

    assert not is_usable(builtin("klxpu"))
    assert detect() == "cuda"
