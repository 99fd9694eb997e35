"""Incomplete subjects stay subjects."""

from __future__ import annotations

import pytest

from conformance.accelerators.interface import MissingMember
from conformance.accelerators.proxy import AcceleratorProxy, has_member, members_of
from conformance.accelerators.registry import resolve
from conformance.base.errors import SetupError, UsageError

HERE = "tests.accelerators.subjects"


def test_a_missing_member_is_named_when_it_is_asked_for():
    live = resolve(f"{HERE}:Duck").load()

    with pytest.raises(MissingMember) as raised:
        live.synchronize()

    assert raised.value.member == "synchronize"
    assert isinstance(raised.value, AttributeError)
    assert not hasattr(live, "synchronize")


def test_an_abstract_member_counts_as_missing():
    live = resolve(f"{HERE}:Abstract").load()

    assert live.device_name() == "cpu"
    with pytest.raises(MissingMember):
        live.synchronize()


def test_other_attributes_pass_through_and_fail_as_usual():
    live = resolve(f"{HERE}:Duck").load()

    assert "rng" in live.capabilities
    with pytest.raises(AttributeError) as raised:
        live.no_such_thing()
    assert not isinstance(raised.value, MissingMember)


def test_a_member_made_by_getattr_is_there():
    class Forwarding:
        def __getattr__(self, name):
            if name == "device_name":
                return lambda index=None: "cpu"
            raise AttributeError(name)

    assert has_member(Forwarding(), "device_name")
    assert members_of(Forwarding()) == {"device_name"}
    assert AcceleratorProxy(Forwarding(), "x").device_name() == "cpu"


def test_a_property_that_raises_is_not_missing():
    class Broken:
        @property
        def Stream(self):
            raise RuntimeError("no driver")

    with pytest.raises(RuntimeError, match="no driver"):
        AcceleratorProxy(Broken(), "x").Stream  # noqa: B018 - reading it is the test


def test_a_constructor_that_raises_is_a_setup_error_in_one_line():
    with pytest.raises(SetupError, match=r"building Explodes\(\) fails: RuntimeError: no driver\n  check") as raised:
        resolve(f"{HERE}:Explodes").load()

    assert "second line" not in str(raised.value)


def test_without_a_device_name_it_is_no_accelerator():
    with pytest.raises(UsageError, match=r"Nameless has no device_name\(\) \(and 1 of 77 members\)"):
        resolve(f"{HERE}:Nameless").load()
