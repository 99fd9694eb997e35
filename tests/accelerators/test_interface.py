"""The interface is DeepSpeed's, and documented."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

from conformance.accelerators.backends import builtin
from conformance.accelerators.interface import MEMBERS, Accelerator
from conformance.accelerators.proxy import members_of


def test_every_member_is_documented():
    assert [member.name for member in MEMBERS if not member.doc] == []


def test_the_table_lists_all_members_once():
    names = [member.name for member in MEMBERS]

    assert len(names) == len(set(names)) == 77


def test_our_accelerators_have_every_member_with_the_interfaces_arguments():
    accelerator = builtin("cpu")

    assert members_of(accelerator) == {member.name for member in MEMBERS}
    for member in MEMBERS:
        if member.signature is not None:
            ours = inspect.signature(getattr(type(accelerator), member.name))
            assert list(ours.parameters) == list(member.signature.parameters), member.name


def test_an_accelerator_with_open_members_cannot_be_built():
    with pytest.raises(TypeError, match="abstract"):
        type("Incomplete", (Accelerator,), {})()


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed: pip install deepspeed")
def test_names_and_arguments_are_deepspeeds():
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    theirs = {name for name in vars(DeepSpeedAccelerator) if not name.startswith("_")}
    assert theirs <= {member.name for member in MEMBERS}
    for member in MEMBERS:
        if member.signature is not None and member.name in theirs:
            signature = inspect.signature(getattr(DeepSpeedAccelerator, member.name))
            assert list(member.signature.parameters) == list(signature.parameters), member.name
