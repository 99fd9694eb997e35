"""Devices: names, counts, selection, and consistent reports of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from conformance.accelerators.capabilities import DEVICE, DEVICE_INDEX, DEVICE_MULTIPLE
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import Level, case


def need_two(accelerator):
    """Skip the case on a machine with one device."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")


@case("accelerator.device.count", requires=[DEVICE], level=Level.CORE)
def test_count(accelerator):
    """device_count() returns the same number at every call, and it is at least one."""
    counts = [accelerator.device_count() for _ in range(3)]

    assert all(type(count) is int for count in counts), f"device_count() returned {counts[0]!r}; it must return an int"
    assert counts[0] >= 1, f"device_count() is {counts[0]}, but this case runs on a device"
    assert counts == [counts[0]] * 3, f"device_count() changed between calls: {counts}"


@case("accelerator.device.available", requires=[DEVICE], level=Level.CORE)
def test_available(accelerator):
    """is_available() is True for a device that cases run on."""
    assert accelerator.is_available() is True, f"is_available() returned {accelerator.is_available()!r}, not True"


@case("accelerator.device.name", requires=[DEVICE], level=Level.CORE)
def test_name(accelerator, device):
    """device_name() is a device type that torch knows, and tensors and the current device have that type."""
    name, current = accelerator.device_name(), accelerator.current_device_name()
    tensor = torch.zeros(3, device=name)

    assert type(name) is str, f"device_name() returned {name!r}; it must return a str"
    assert ":" not in name, f"device_name() returned {name!r}; without an argument it must not carry an index"
    assert tensor.device.type == name == device.type, f"a tensor made on {name!r} is on {tensor.device}"
    assert type(current) is str, f"current_device_name() returned {current!r}; it must return a str"
    assert torch.zeros(3, device=current).device.type == name, (
        f"current_device_name() is {current!r}, not of type {name!r}"
    )


@case("accelerator.device.current", requires=[DEVICE], level=Level.CORE)
def test_current(accelerator):
    """current_device() is an int below device_count(), and setting that device again does not change it."""
    first, second = accelerator.current_device(), accelerator.current_device()

    assert type(first) is int, f"current_device() returned {first!r}, a {type(first).__name__}; it must return an int"
    assert 0 <= first < accelerator.device_count(), (
        f"current_device() is {first}, but device_count() is {accelerator.device_count()}"
    )
    assert first == second, f"current_device() returned {first}, then {second}"

    accelerator.set_device(first)
    accelerator.set_device(first)
    third = accelerator.current_device()
    if third != first:
        accelerator.set_device(first)  # otherwise later cases run on the wrong device

    assert third == first, f"set_device({first}) twice turns current_device() from {first} into {third!r}"


@case("accelerator.device.current_under_launcher", requires=[DEVICE], level=Level.CORE)
def test_current_under_launcher(accelerator, monkeypatch):
    """A launcher's environment variables do not change the type of the answers."""
    # Vendor code that returns LOCAL_RANK without int() returns a string here.
    ranks = {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)

    current, count, name = (
        accelerator.current_device(),
        accelerator.device_count(),
        accelerator.current_device_name(),
    )

    assert type(current) is int, f"with LOCAL_RANK=1, current_device() returned {current!r}; it must return an int"
    assert type(count) is int, f"with LOCAL_SIZE=2, device_count() returned {count!r}; it must return an int"
    assert type(name) is str, f"with LOCAL_RANK=1, current_device_name() returned {name!r}; it must return a str"


@case("accelerator.device.unmoved_by_launcher", requires=[DEVICE], level=Level.CORE)
def test_unmoved_by_launcher(accelerator, monkeypatch):
    """Only set_device() changes the current device; LOCAL_RANK in the environment does not."""
    before = accelerator.current_device()

    monkeypatch.setenv("LOCAL_RANK", "1")

    after = accelerator.current_device()
    assert after == before, f"with LOCAL_RANK=1 the current device changed from {before!r} to {after!r}"


@case("accelerator.device.set", requires=[DEVICE], level=Level.CORE)
def test_set(accelerator):
    """set_device() makes any index current, current_device() reports it, and new tensors go there."""
    before = accelerator.current_device()
    try:
        for index in range(accelerator.device_count()):
            accelerator.set_device(index)
            now = accelerator.current_device()
            # A call without any effect is a stub; a wrong device after it is a wrong result.
            if now == before != index:
                stub(f"set_device({index}) has no effect: current_device() is {now} as before")
            assert now == index, f"after set_device({index}), current_device() returned {now!r}"
            tensor = torch.full((3,), 7.0, device=accelerator.device_name())
            # Device types with one device, such as the CPU, may leave out the index.
            assert tensor.device.index in (index, None), f"after set_device({index}), a tensor is on {tensor.device}"
            assert tensor.cpu().tolist() == [7.0] * 3
    finally:
        accelerator.set_device(before)
    assert accelerator.current_device() == before


@case("accelerator.device.out_of_range", requires=[DEVICE], level=Level.CORE, axes={"index": ["count", "far"]})
def test_out_of_range(accelerator, index):
    """Selecting a device that does not exist raises and keeps the current device."""
    before = accelerator.current_device()
    number = accelerator.device_count() + {"count": 0, "far": 1000}[index]

    # The type of the exception is the vendor's choice, and the state afterwards is checked in any case.
    raised = None
    try:
        accelerator.set_device(number)
    except Exception as error:
        raised = error

    after = accelerator.current_device()
    assert raised is not None, f"set_device({number}) did not raise, but device_count() is {accelerator.device_count()}"
    assert after == before, f"the failed set_device({number}) changed current_device() from {before} to {after}"
    assert torch.ones(3, device=accelerator.device_name()).cpu().sum().item() == 3, "the device is unusable afterwards"


@case("accelerator.device.torch_device", requires=[DEVICE], level=Level.CORE)
def test_torch_device(accelerator, device):
    """device() returns a torch.device of the device's type, and tensors can be created there."""
    answer = accelerator.device()

    assert isinstance(answer, torch.device), f"device() returned {answer!r}; it must return a torch.device"
    assert answer.type == device.type, f"device() is of type {answer.type!r}, tensors are on {device.type!r}"
    assert torch.full((3,), 5.0, device=answer).cpu().tolist() == [5.0] * 3


@case("accelerator.device.torch_device_index", requires=[DEVICE_INDEX])
def test_torch_device_index(accelerator):
    """device(i) carries the index i, and device() carries the current index or none."""
    for index in range(accelerator.device_count()):
        answer = accelerator.device(index)
        assert isinstance(answer, torch.device), f"device({index}) returned {answer!r}; it must return a torch.device"
        assert answer.index == index, f"device({index}) is {answer} with index {answer.index!r}"
        assert torch.full((3,), 5.0, device=answer).cpu().tolist() == [5.0] * 3, f"{answer} does not hold three fives"
    current = accelerator.device().index
    assert current in (accelerator.current_device(), None), f"device() has index {current!r}"


@case("accelerator.device.name_index", requires=[DEVICE_INDEX])
def test_name_index(accelerator):
    """device_name(i) is the device type followed by the index i."""
    # Index 3 as well: building a name needs no device.
    for index in (*range(accelerator.device_count()), 3):
        name = accelerator.device_name(index)
        assert name == f"{accelerator.device_name()}:{index}", f"device_name({index}) is {name!r}"
        assert torch.device(name).index == index


@case("accelerator.device.current_name_index", requires=[DEVICE_INDEX])
def test_current_name_index(accelerator):
    """current_device_name() carries the index of the current device."""
    before = accelerator.current_device()
    try:
        for index in range(accelerator.device_count()):
            accelerator.set_device(index)
            name, expected = accelerator.current_device_name(), f"{accelerator.device_name()}:{index}"
            assert name == expected, f"after set_device({index}), current_device_name() is {name!r}, not {expected!r}"
            assert torch.empty(1, device=name).device.index in (index, None)
    finally:
        accelerator.set_device(before)


@case("accelerator.device.tensor_index", requires=[DEVICE_MULTIPLE])
def test_tensor_index(accelerator):
    """A tensor is created on the device that it names, whichever device is current."""
    need_two(accelerator)
    before = accelerator.current_device()

    for index in range(accelerator.device_count()):
        tensor = torch.full((5,), float(index), device=accelerator.device_name(index))
        assert tensor.device.index == index, f"asked for device {index}, got {tensor.device}"
        assert tensor.cpu().tolist() == [float(index)] * 5
    assert accelerator.current_device() == before, "creating tensors on other devices changed the current device"


@case("accelerator.device.copies_between", requires=[DEVICE_MULTIPLE])
def test_copies_between(accelerator):
    """Copies from one device to another keep every value in both directions."""
    need_two(accelerator)
    first, second = accelerator.device_name(0), accelerator.device_name(1)
    numbers = torch.arange(4099, dtype=torch.float32)

    there = numbers.to(first).to(second)
    back = there.to(first)

    assert there.device.index == 1 and back.device.index == 0
    assert torch.equal(there.cpu(), numbers), "values changed from device 0 to device 1"
    assert torch.equal(back.cpu(), numbers), "values changed from device 1 to device 0"


@case("accelerator.device.mixed_devices_raise", requires=[DEVICE_MULTIPLE])
def test_mixed_devices_raise(accelerator):
    """An operation on tensors of two devices raises instead of reading the wrong memory."""
    need_two(accelerator)
    first, second = (torch.ones(65, device=accelerator.device_name(index)) for index in (0, 1))

    with pytest.raises((RuntimeError, ValueError)):
        first + second


@case("accelerator.device.works_on_each", requires=[DEVICE_MULTIPLE])
def test_works_on_each(accelerator):
    """Forward and backward run on every device, also while another device is current."""
    need_two(accelerator)
    for index in range(accelerator.device_count()):
        numbers = torch.arange(1.0, 8.0, device=accelerator.device_name(index), requires_grad=True)
        (numbers * numbers).sum().backward()
        assert numbers.grad.device.index == index
        assert numbers.grad.cpu().tolist() == [2.0 * number for number in range(1, 8)], (
            f"wrong gradient on device {index}"
        )
    for dtype in [each for each in accelerator.supported_dtypes() if each.is_floating_point and each.itemsize > 1]:
        for part, compute in PARTS.items():
            _check_part(accelerator, part, compute, dtype)


#: Parts of models, each with an image of small whole numbers: every sum is exact in 16 bits.
PARTS = {
    "a convolution": lambda image: functional.conv2d(image, image[:1].flip(1), padding=1),
    "a product of matrices": lambda image: image.flatten(0, 2) @ image[0, 0],
    "a linear layer": lambda image: functional.linear(image, image[0, 1], image[1, 0, 0]),
    "pooling": lambda image: functional.max_pool2d(image, 2),
    "a running sum": lambda image: image.cumsum(-1),
    "sorting": lambda image: image.sort(-1)[0],
    "an index": lambda image: image[:, [2, 0]],
}


def _check_part(accelerator, part, compute, dtype):
    """Check a part of models in one dtype on every device, if the first one has it."""
    image = (torch.arange(96) * 7 % 5 - 2).view(2, 3, 4, 4)
    expected = compute(image.double())
    for index in range(accelerator.device_count()):
        given = image.to(dtype).to(accelerator.device_name(index))
        try:
            found = compute(given)
        except (RuntimeError, TypeError):
            if index == 0:
                return  # other cases judge which operators a device has
            raise
        assert found.device.index == index
        assert torch.equal(found.cpu().double(), expected), f"{part} in {dtype} is wrong on device {index}"
