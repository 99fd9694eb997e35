"""Settings of torch that a backend needs for the precision that it claims."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from conformance.accelerators.backends import builtin


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    knobs = SimpleNamespace(precise=False)
    monkeypatch.setattr(torch.backends, "acme", knobs, raising=False)
    return knobs


def test_loading_makes_the_settings(knobs: SimpleNamespace) -> None:
    replace(builtin("cpu"), settings={"torch.backends.acme.precise": True}).load()

    assert knobs.precise is True


def test_a_setting_that_this_torch_does_not_have_is_left_out(knobs: SimpleNamespace) -> None:
    replace(builtin("cpu"), settings={"torch.backends.acme.unknown": True}).load()

    assert vars(knobs) == {"precise": False}


def test_cuda_switches_off_what_it_does_not_claim() -> None:
    """The names exist in this torch, and convolutions in TF32 are what the first one switches off."""
    settings = builtin("cuda").settings
    assert settings["torch.backends.cudnn.allow_tf32"] is False
    for path in settings:
        owner, _, name = path.rpartition(".")
        module = torch
        for part in owner.split(".")[1:]:
            module = getattr(module, part)
        assert hasattr(module, name), path
