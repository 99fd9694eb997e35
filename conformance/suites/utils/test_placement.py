"""Cases for creating, moving, saving and loading tensors and modules."""

from __future__ import annotations

import copy
import inspect
import io
import itertools

import torch

from conformance.accelerators.capabilities import (
    CHECKPOINT,
    COPY,
    DEVICE,
    DEVICE_MULTIPLE,
    DTYPE,
    DTYPES,
    FLOATING_DTYPES,
    MEMORY,
    RANGES,
)
from conformance.plan.case import Level, case

FLOATS = [name for name in DTYPES if name in FLOATING_DTYPES]
SAVED = ("float32", "float16", "bfloat16", "int64", "bool")
FORMS = ("host", "device", "function")


def net(**where):
    """Return a module with parameters, a buffer, and a shared weight."""
    module = torch.nn.Sequential(torch.nn.Linear(7, 5, **where), torch.nn.BatchNorm1d(5, **where))
    module.register_parameter("shared", module[0].weight)
    return module


def places(module):
    """Return the device types of the module's parameters and buffers."""
    return {t.device.type for t in (*module.parameters(), *module.buffers())}


@case("utils.placement.context", requires=[DEVICE], level=Level.CORE)
def test_context(device):
    """Tensors and modules are created on the device inside a torch.device context, and on the host outside it."""
    with device:
        inside, module = torch.arange(5.0), net()
        host = torch.zeros(3, device="cpu")
    outside = torch.zeros(3)

    assert inside.device.type == device.type and inside.cpu().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert places(module) == {device.type}, f"a module created inside the context is on {places(module)}"
    assert host.device.type == outside.device.type == "cpu", (
        f"host tensors are on {host.device} and {outside.device}: the context has an effect beyond its bounds"
    )


@case("utils.placement.default_device", requires=[DEVICE], level=Level.CORE)
def test_default_device(device):
    """torch.set_default_device puts new tensors on the device until the default is reset."""
    torch.set_default_device(device)
    try:
        inside = torch.full((3,), 2.0)
    finally:
        torch.set_default_device(None)

    assert inside.device.type == device.type and inside.cpu().tolist() == [2.0] * 3
    assert torch.zeros(1).device.type == "cpu", "the default device is still set after it was reset"


@case("utils.placement.default_dtype", requires=[DTYPE], axes={"dtype": FLOATS})
def test_default_dtype(device, dtype):
    """Modules created on the device have the default dtype and compute in it."""
    wanted, before = getattr(torch, dtype), torch.get_default_dtype()
    torch.set_default_dtype(wanted)
    try:
        with device:
            module, source = torch.nn.Linear(7, 5), torch.ones(3, 7)
        result = module(source)
    finally:
        torch.set_default_dtype(before)

    assert {p.dtype for p in module.parameters()} == {wanted}, "parameters ignore the default dtype"
    assert result.dtype is wanted and result.device.type == device.type, f"{result.dtype} on {result.device}"
    assert bool(result.cpu().any()), "the module gives zeros alone"


@case("utils.placement.meta", requires=[DEVICE], level=Level.CORE)
def test_meta(device):
    """A module created on meta gets memory on the device from to_empty and values from a state dict."""
    torch.manual_seed(0)
    source = net()
    with torch.device("meta"):
        module = net()
    shapes = {name: tuple(t.shape) for name, t in module.state_dict().items()}

    module = module.to_empty(device=device)
    module.load_state_dict(source.state_dict())

    assert shapes == {name: tuple(t.shape) for name, t in source.state_dict().items()}
    assert places(module) == {device.type}, f"to_empty left parts on {places(module)}"
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor.cpu(), source.state_dict()[name]), f"{name} has wrong values"


@case("utils.placement.assign", requires=[DEVICE], level=Level.CORE)
def test_assign(device):
    """A module on meta adopts the tensors of a state dict on the device without a copy."""
    exact = torch.nn.Linear(7, 5).state_dict()
    state = {name: t.to(device, copy=True) for name, t in exact.items()}
    with torch.device("meta"):
        module = torch.nn.Linear(7, 5)

    module.load_state_dict(state, assign=True)

    for name, tensor in module.state_dict().items():
        assert tensor.data_ptr() == state[name].data_ptr(), f"{name} was copied"
        assert torch.equal(tensor.cpu(), exact[name]), f"{name} has other values on the device"
    assert module(torch.zeros(2, 7, device=device)).shape == (2, 5)


@case("utils.placement.module_roundtrip", requires=[COPY], level=Level.CORE)
def test_module_roundtrip(device):
    """A module moved to the device and back keeps every bit, its buffers and its shared weights."""
    module = net()
    before = {name: t.clone() for name, t in module.state_dict().items()}

    module.to(device)
    moved_to = places(module)
    # Parameters of a type that no host tensor can become are new ones, each for itself.
    keeps = torch._has_compatible_shallow_copy_type(torch.zeros(1), torch.zeros(1, device=device))
    shared = module.shared is module[0].weight or not keeps
    module.to("cpu")

    assert moved_to == {device.type} and shared, f"the module is on {moved_to}, shared weight kept: {shared}"
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), f"{name} changed while it was moved"


@case("utils.placement.to_same_device", requires=[COPY], level=Level.CORE)
def test_to_same_device(device):
    """Tensor.to() returns the tensor itself if nothing changes, and a copy with copy=True."""
    tensor = torch.arange(65.0, device=device)

    same, copy = tensor.to(tensor.device), tensor.to(tensor.device, copy=True)
    copy.fill_(-1)

    assert same is tensor, "to() copied although nothing changes"
    assert tensor.cpu().tolist() == [float(n) for n in range(65)], "copy=True returned an alias"


@case("utils.placement.non_blocking", requires=[COPY], level=Level.CORE, axes={"direction": ["to-device", "to-host"]})
def test_non_blocking(accelerator, device, direction):
    """A non-blocking copy from or to pageable host memory is complete after synchronize()."""
    source, host = torch.arange(1 << 18, dtype=torch.float32), torch.full((1 << 18,), -1.0)

    if direction == "to-device":
        result = source.to(device, copy=True, non_blocking=True)
    else:
        result = host.copy_(source.to(device, copy=True), non_blocking=True)
    accelerator.synchronize()

    wrong = int((result.cpu() != torch.arange(1 << 18, dtype=torch.float32)).sum())
    assert wrong == 0, f"{wrong} of {1 << 18} elements are wrong after synchronize()"


@case(
    "utils.checkpoint.map_location",
    requires=[CHECKPOINT],
    level=Level.CORE,
    axes={"form": ["host", "device", "function"]},
)
def test_map_location(device, form):
    """A checkpoint of device tensors loads to the host and to the device with each form of map_location."""
    module, buffer = net(), io.BytesIO()
    exact = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.save(module.to(device).state_dict(), buffer)
    buffer.seek(0)
    location = {"host": "cpu", "device": device, "function": lambda storage, saved_on: storage}[form]

    loaded = torch.load(buffer, map_location=location, weights_only=True)

    wanted = device.type if form == "device" else "cpu"
    for name, tensor in module.state_dict().items():
        assert loaded[name].device.type == wanted, f"{name} was loaded to {loaded[name].device}, not to {wanted}"
        same = loaded[name].dtype is tensor.dtype and torch.equal(loaded[name].cpu(), exact[name])
        assert same, f"{name} changed"


@case("utils.checkpoint.current_device", requires=[CHECKPOINT, DEVICE_MULTIPLE])
def test_current_device(accelerator, device):
    """A checkpoint loads to the device of map_location, or to the one it was saved on, whichever device is current.

    A device without an index in map_location is the current device.
    """
    before, count = accelerator.current_device(), accelerator.device_count()
    for index in range(count):
        for location in (device.type, f"{device.type}:{index}", f"{device.type}:{(index + 1) % count}"):
            buffer = io.BytesIO()
            torch.save(torch.arange(65.0), buffer)
            buffer.seek(0)
            try:
                accelerator.set_device(index)
                loaded = torch.load(buffer, map_location=location, weights_only=True)
            finally:
                accelerator.set_device(before)
            named = torch.device(location).index
            wanted = index if named is None else named
            assert loaded.device.index == wanted, f"device {index} is current, {location!r} gives {loaded.device}"
            assert loaded.cpu().tolist() == [float(n) for n in range(65)], f"values on {loaded.device} changed"

    for saved, current, at_load in itertools.product(range(min(count, 3)), repeat=3):
        buffer, source = io.BytesIO(), torch.arange(65.0).to(accelerator.device_name(saved))
        try:
            accelerator.set_device(current)
            torch.save([source, {"part": source[3:]}], buffer)
            buffer.seek(0)
            accelerator.set_device(at_load)
            whole, rest = torch.load(buffer, weights_only=True)
        finally:
            accelerator.set_device(before)
        found = [tensor.device.index for tensor in (whole, rest["part"])]
        how = f"saved on device {saved} while {current} is current, and loaded while {at_load} is"
        assert found == [saved] * 2, f"a checkpoint {how} gives tensors on {found}"
        assert whole.cpu().tolist() == [float(n) for n in range(65)], f"values changed: {how}"


@case("utils.checkpoint.without_map_location", requires=[CHECKPOINT], level=Level.CORE)
def test_without_map_location(device):
    """A checkpoint without map_location loads to the device on which it was saved."""
    buffer = io.BytesIO()
    torch.save(torch.arange(65.0, device=device), buffer)
    buffer.seek(0)

    loaded = torch.load(buffer, weights_only=True)

    assert loaded.device.type == device.type, f"saved on {device.type}, loaded on {loaded.device}"
    assert loaded.cpu().tolist() == [float(n) for n in range(65)]


@case(
    "utils.checkpoint.dtypes",
    requires=[CHECKPOINT, DTYPE],
    axes={"dtype": SAVED},
)
def test_checkpoint_dtypes(device, dtype):
    """A checkpoint keeps dtypes, shapes, strides, shared storage, and every element of an odd number of bytes."""
    exact, buffer = (torch.arange(24) % 2).to(getattr(torch, dtype)).view(4, 6), io.BytesIO()
    base = exact.to(device)
    torch.save({"base": base, "view": base.t()[1:]}, buffer)
    buffer.seek(0)

    loaded = torch.load(buffer, map_location=device, weights_only=True)

    assert loaded["base"].dtype is base.dtype and torch.equal(loaded["base"].cpu(), exact), "values changed"
    assert loaded["view"].stride() == base.t().stride(), f"strides are {loaded['view'].stride()}"
    assert loaded["view"].untyped_storage().data_ptr() == loaded["base"].untyped_storage().data_ptr(), (
        "the base and its view no longer share storage"
    )

    # Sizes in bytes that are no multiple of the words in which a device may copy.
    sizes = (1, 3, 65, 4099, (1 << 20) + 3)
    lengths = {f"{size} elements": (torch.arange(size, 0, -1) % 113).to(base.dtype) for size in sizes}
    for start, location in ((device, None), (device, device), ("cpu", device), (device, "cpu")):
        buffer = io.BytesIO()
        torch.save({name: values.to(start) for name, values in lengths.items()}, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location, weights_only=True)
        for name, values in lengths.items():
            differing = int((loaded[name].cpu() != values).sum())
            assert differing == 0, f"{differing} of {name} changed, saved on {start}, loaded to {location}"


@case("utils.checkpoint.view_is_small", requires=[CHECKPOINT], level=Level.CORE)
def test_view_is_small(device):
    """A saved clone of a slice contains only its own bytes, not those of the whole tensor."""
    base, buffer = torch.ones(1 << 18, device=device), io.BytesIO()

    torch.save(base[:16].clone(), buffer)

    assert buffer.tell() < 1 << 14, f"16 floats take {buffer.tell()} bytes in a checkpoint, limit {1 << 14}"
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True).cpu().tolist()
    assert loaded == [1.0] * 16, f"the clone of 16 ones is loaded as {loaded}"


@case("utils.checkpoint.optimizer", requires=[CHECKPOINT], level=Level.CORE)
def test_checkpoint_optimizer(device):
    """An optimizer with a loaded state takes the same next step, bit for bit."""

    def step(weight, optimizer):
        weight.grad = torch.arange(1.0, 66.0, device=device)
        optimizer.step()

    first = torch.ones(65, device=device, requires_grad=True)
    optimizer, buffer = torch.optim.AdamW([first], lr=0.1), io.BytesIO()
    step(first, optimizer)
    torch.save((first.detach(), optimizer.state_dict()), buffer)
    buffer.seek(0)

    weight, state = torch.load(buffer, map_location=device, weights_only=True)
    second = weight.requires_grad_()
    resumed = torch.optim.AdamW([second], lr=0.1)
    resumed.load_state_dict(state)
    step(first, optimizer)
    step(second, resumed)

    assert torch.equal(first.detach().cpu(), second.detach().cpu()), "the resumed optimizer took a different step"


@case("utils.ranges.decorated", requires=[RANGES])
def test_ranges_decorated(accelerator, device):
    """Nested profiler ranges do not change the results of the work inside them."""

    def within(depth):
        accelerator.range_push(f"depth {depth}")
        result = torch.full((3,), 1.0, device=device) if depth == 0 else within(depth - 1) * 2
        accelerator.range_pop()
        return result

    found = within(6)

    assert found.cpu().tolist() == [64.0] * 3, f"six doublings inside ranges give {found.cpu().tolist()}"


def _check_sharing(device) -> None:
    """Check that views which share memory share it in their deep copy, on the host and on the device.

    PyTorch names device types of which its own deep copy clones each tensor alone, and does so without a storage.
    """
    code = getattr(inspect.unwrap(torch.Tensor.__deepcopy__), "__code__", None)
    alone = any(isinstance(const, tuple) and device.type in const for const in getattr(code, "co_consts", ()))
    if not torch._C._has_storage(torch.zeros(1, device=device)):
        alone = True
    names = ("the base", "a part", "a transposed view", "the base in a list", "a strided view")
    for place in ["cpu"] if alone else ["cpu", device]:
        base, expected = torch.arange(24.0, device=place), torch.arange(24.0)
        copied = copy.deepcopy([base, base[2:4], base.view(4, 6).t(), [base, base[::5]]])
        found = [*copied[:3], *copied[3]]
        for _ in range(2):
            wanted = [expected, expected[2:4], expected.view(4, 6).t(), expected, expected[::5]]
            for name, tensor, right in zip(names, found, wanted, strict=True):
                assert tensor.device == base.device, f"copy.deepcopy() moved {name} to {tensor.device}"
                assert torch.equal(tensor.cpu(), right), f"in a deep copy, {name} does not share memory with the base"
            found[0].mul_(-3.0)
            expected = expected * -3.0
        assert base.cpu().tolist() == [float(n) for n in range(24)], "a deep copy shares memory with its original"


def _check_copies(device) -> None:
    """Check that Python's own copies of tensors and modules are on the device of their originals."""
    base = torch.arange(24.0, device=device).view(4, 6)
    kinds = {
        "a tensor": base,
        "a view": base.t()[1:4],
        "a parameter": torch.nn.Parameter(base + 1),
        "one element": base[2, 3],
    }
    kinds["a parameter"].grad = base.clone()
    ways = {"copy.copy()": copy.copy, "copy.deepcopy()": copy.deepcopy}
    for (name, tensor), (way, run) in itertools.product(kinds.items(), ways.items()):
        found = run(tensor)
        said = f"{way} of {name}"
        assert found.device == tensor.device, f"{said} is on {found.device}, and not on {tensor.device}"
        assert type(found) is type(tensor), f"{said} is a {type(found).__name__}"
        assert torch.equal(found.cpu(), tensor.cpu()), f"{said} has other values"
        if found.grad is not None:
            assert found.grad.device == tensor.device, f"{said} has a gradient on {found.grad.device}"
    alike = {"clone()": base.clone(), "zeros_like()": torch.zeros_like(base), "new_ones()": base.new_ones(3)}
    for name, found in alike.items():
        assert found.device == base.device, f"{name} of a tensor on {base.device} is on {found.device}"
    module = torch.nn.Linear(2, 3, device=device)
    assert copy.copy(module).weight is module.weight, "copy.copy() of a module has parameters of its own"
    found = {parameter.device for parameter in copy.deepcopy(module).parameters()}
    assert found == {base.device}, f"copy.deepcopy() of a module on {base.device} is on {found}"


@case("utils.placement.deep_copy", requires=[MEMORY], level=Level.CORE)
def test_deep_copy(accelerator, declaration, device):
    """A deep copy is on the device, is independent of its original, and its parts share memory as the original's do.

    A copy that is not deep is on the device, too. So are copies on another device than the current one.
    """
    module = net(device=device)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin[0].weight.fill_(9.0)

    assert places(twin) == {device.type}
    assert bool((twin[0].weight.cpu() == 9).all()), "a deep copy does not hold the written values"
    assert not bool((module[0].weight.cpu() == 9).any()), "a deep copy shares memory with its original"
    assert twin.shared is twin[0].weight, "a deep copy lost the shared weight"

    state = module.state_dict()
    with torch.no_grad():
        module[0].weight.fill_(5.0)
    for name in ("0.weight", "shared"):
        assert bool((state[name].cpu() == 5).all()), (
            f"{name} of state_dict() does not share the memory of the module's weight"
        )
    _check_sharing(device)
    _check_copies(device)
    if not declaration.supports(DEVICE_MULTIPLE.cell) or accelerator.device_count() < 2:
        return
    before = accelerator.current_device()
    try:
        for now, place in ((0, 1), (1, 0)):
            accelerator.set_device(now)
            _check_sharing(torch.device(accelerator.device_name(place)))
            _check_copies(torch.device(accelerator.device_name(place)))
    finally:
        accelerator.set_device(before)
