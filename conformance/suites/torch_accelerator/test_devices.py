"""Availability, number and choice of devices by ``torch.accelerator``."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DEVICE_MULTIPLE, DEVICE_VISIBILITY, TORCH_ACCELERATOR
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import case
from conformance.suites.accelerator.processes import run_python, spec_of

from .members import check_refuses_others, indices, member, names_of, selected, used_device


@case("torch_accelerator.current_accelerator", requires=[TORCH_ACCELERATOR])
def test_current_accelerator(device):
    """current_accelerator() returns this device without an index, also if asked for a usable one."""
    current = member("current_accelerator")

    for answer in (current(), current(False), current(True), current(check_available=True)):
        assert isinstance(answer, torch.device), (
            f"current_accelerator() returned {answer!r}; it must return a torch.device"
        )
        assert answer.type == device.type, (
            f"current_accelerator() is {answer}, and the device under test is {device.type}"
        )
        assert answer.index is None, f"current_accelerator() is {answer}; PyTorch promises a device without an index"
    there = torch.ones(3, device=current())
    assert (there.device.type, float(there.sum())) == (device.type, 3.0), f"ones on current_accelerator() are {there}"


@case("torch_accelerator.is_available", requires=[TORCH_ACCELERATOR])
def test_is_available(accelerator, device):
    """is_available() is True while the device computes, as the vendor's module says."""
    computes = torch.ones(3, device=device).sum().item() == 3.0

    answer = member("is_available")()

    assert type(answer) is bool, f"is_available() returned {answer!r}; it must return a bool"
    assert answer == computes == accelerator.is_available(), (
        f"is_available() is {answer}, the vendor's is {accelerator.is_available()}, and the device computes: {computes}"
    )


@case("torch_accelerator.device_count", requires=[TORCH_ACCELERATOR])
def test_device_count(accelerator, device):
    """device_count() is the number of devices that hold tensors: the last one works, and the next one is refused."""
    count = member("device_count")()

    assert type(count) is int, f"device_count() returned {count!r}; it must return an int"
    assert count == accelerator.device_count(), f"device_count() is {count}, the vendor's {accelerator.device_count()}"
    for index in range(count):
        there = torch.full((3,), float(index + 1), device=f"{device.type}:{index}")
        assert there.device.index == index and there.cpu().tolist() == [index + 1.0] * 3, f"{there} on device {index}"
    try:
        beyond = torch.ones(3, device=f"{device.type}:{count}").sum().item()
    except Exception:  # backends raise their own classes
        return
    raise AssertionError(f"device_count() is {count}, and device {count} computes {beyond}")


CURRENT = ("current_device_index", "current_device_idx")
SELECT = ("set_device_index", "set_device_idx")


@case("torch_accelerator.current", requires=[TORCH_ACCELERATOR], axes={"name": CURRENT})
def test_current(accelerator, device, name):
    """The function returns the index of the device where PyTorch puts new tensors."""
    current = member(name)
    for index in indices(accelerator):
        with selected(accelerator, device, index):
            answer = current()
            assert type(answer) is int, f"{name}() returned {answer!r}; it must return an int"
            assert answer == index == used_device(device), f"{name}() is {answer} while device {index} is current"
    assert current() == used_device(device), f"{name}() is {current()}, and new tensors go to {used_device(device)}"


@case("torch_accelerator.select", requires=[TORCH_ACCELERATOR, DEVICE_MULTIPLE], axes={"name": SELECT})
def test_select(accelerator, device, name):
    """The function makes the given device current, by number, torch.device and string."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    select, before = member(name), used_device(device)
    try:
        for way in names_of(device, 0):
            for index in (1 - before, before, 1 - before):
                start = used_device(device)
                answer = select(names_of(device, index)[way])
                assert answer is None, f"{name}() returned {answer!r}; it must return None"
                found = used_device(device)
                if found == start != index:
                    stub(f"{name}({index}), with the device as {way}, has no effect: device {found} stays current")
                assert found == index, f"{name}({index}), with the device as {way}, makes device {found} current"
        select(-1)
        assert used_device(device) == index, (
            f"{name}(-1) makes device {used_device(device)} current; it changes nothing"
        )
    finally:
        accelerator.set_device(before)


@case("torch_accelerator.select_refuses", requires=[TORCH_ACCELERATOR], axes={"name": SELECT})
def test_select_refuses(accelerator, device, name):
    """The function refuses a device that does not exist and one of another type, and the current device stays."""
    select, before = member(name), used_device(device)
    try:
        check_refuses_others(name, select)
        try:
            select(accelerator.device_count())
        except Exception:  # backends raise their own classes
            pass
        else:
            raise AssertionError(f"{name}() accepts {accelerator.device_count()}, the number of devices")
        assert used_device(device) == before, f"a refused {name}() makes device {used_device(device)} current"
        select(before)
        assert used_device(device) == before, f"{name}({before}) makes device {used_device(device)} current"
        after = (torch.ones(3, device=device.type) + 1).cpu().tolist()
        assert after == [2.0] * 3, f"after refusals the device computes 1 + 1 = {after}"
    finally:
        accelerator.set_device(before)


@case("torch_accelerator.device_index", requires=[TORCH_ACCELERATOR, DEVICE_MULTIPLE])
def test_device_index(accelerator, device):
    """device_index() makes a device current inside the context alone, also nested, repeated and after an exception."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    context = member("device_index")
    for home in (0, 1):
        with selected(accelerator, device, home):
            there = context(1 - home)
            for _ in range(2):  # an object is used again
                with there:
                    if used_device(device) == home:
                        stub(f"device_index({1 - home}) has no effect: device {home} stays current")
                    with context(home), context(None):
                        assert used_device(device) == home, f"a nested device_index({home}) has no effect"
                    assert used_device(device) == 1 - home, (
                        f"device {used_device(device)} is current after a nested one"
                    )
                assert used_device(device) == home, f"device_index() leaves device {used_device(device)}, not {home}"


@case("torch_accelerator.device_index_raises", requires=[TORCH_ACCELERATOR])
def test_device_index_raises(accelerator, device):
    """device_index() lets an exception through, and the device before it is current again."""
    context, home, caught = member("device_index"), used_device(device), None
    for index in (*indices(accelerator)[::-1], None):
        try:
            with context(index):
                inside = used_device(device)
                raise KeyError("on purpose")
        except KeyError as error:
            caught = error
        assert caught is not None, f"device_index({index}) swallowed an exception"
        caught, due = None, home if index is None else index
        assert inside == due, f"inside device_index({index}) device {inside} is current"
        found = used_device(device)
        if found != home:
            accelerator.set_device(home)
        assert found == home, f"after an exception in device_index({index}) device {found} is current, not {home}"


#: What a process without visible devices says. Loading the accelerator may be refused there.
HIDDEN = """
from conformance.accelerators.registry import resolve
answer("loaded", lambda: resolve(spec).load().device_count())
import torch
answer("type", lambda: str(torch.accelerator.current_accelerator()))
answer("available", lambda: torch.accelerator.is_available())
answer("count", lambda: torch.accelerator.device_count())
answer("usable", lambda: str(torch.accelerator.current_accelerator(True)))
"""


@case("torch_accelerator.hidden", requires=[TORCH_ACCELERATOR, DEVICE_VISIBILITY], deadline=120)
def test_hidden(accelerator, device, pytestconfig):
    """In a process that sees no device, is_available() is False, and no accelerator is usable."""
    variables = dict.fromkeys(accelerator.visible_devices_envs(), "")

    answers = run_python(HIDDEN, spec_of(pytestconfig), **variables)

    if answers["type"] != device.type or answers["loaded"] in range(1, 1 << 16):
        environment_lacks(
            f"with empty {', '.join(variables)} a process sees {answers['type']}, {answers['loaded']} devices"
        )
    assert answers["available"] is False, f"is_available() is {answers['available']} in a process without devices"
    assert answers["count"] == 0, f"device_count() is {answers['count']} in a process without devices"
    assert answers["usable"] == "None", (
        f"current_accelerator(True) is {answers['usable']} in a process without devices, and not None"
    )
