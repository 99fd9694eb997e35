"""get_accelerator and set_accelerator, as DeepSpeed's users know them."""

from __future__ import annotations

import pytest

from conformance.accelerators import get_accelerator, selection, set_accelerator


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(selection, "_chosen", [])
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


def test_the_same_object_comes_at_every_call():
    assert get_accelerator() is get_accelerator()
    assert get_accelerator().device_name() == "cpu"


def test_the_variable_beats_detection(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "tests.accelerators.subjects:Duck")

    assert "rng" in get_accelerator().capabilities


def test_an_unknown_name_is_a_value_error_that_lists_the_names(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "supu")

    with pytest.raises(ValueError, match=r"(?s)DS_ACCELERATOR=supu: .*registered: cpu, cuda.*did you mean 'supa'"):
        get_accelerator()


def test_a_missing_package_is_a_value_error_that_names_it(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "npu")

    with pytest.raises(ValueError, match="torch_npu, which is not installed"):
        get_accelerator()


def test_a_failure_is_not_remembered(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "npu")
    with pytest.raises(ValueError, match="torch_npu"):
        get_accelerator()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")

    assert get_accelerator().device_name() == "cpu"


def test_an_accelerator_can_be_set():
    class Mine:
        def device_name(self, device_index=None):
            return "mine"

    mine = Mine()
    set_accelerator(mine)

    assert get_accelerator() is mine


@pytest.mark.parametrize("thing", [None, 3, "cpu", object()])
def test_what_is_no_accelerator_cannot_be_set(thing):
    with pytest.raises(TypeError, match="is not an accelerator"):
        set_accelerator(thing)
