"""Cases for views on the device: bytes, aliases, storages."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, DTYPES, MEMORY
from conformance.plan.case import Level, case
from conformance.suites.accelerator.patterns import bytes_of, random_bits
from conformance.suites.operator_claims import skip_if_denied


def dtype_of(name):
    """Return the torch dtype of that name."""
    return getattr(torch, name)


@case("utils.views.bytes", requires=[DTYPE], axes={"dtype": DTYPES})
def test_bytes(check, device, dtype):
    """A byte view has the tensor's address and bytes."""
    source = random_bits(dtype_of(dtype), 65)
    tensor = source.to(device, copy=True)

    view = tensor.view(torch.uint8)

    assert view.data_ptr() == tensor.data_ptr(), "a byte view has another address than its tensor"
    assert view.shape == (65 * tensor.element_size(),), f"65 elements of {dtype} are {view.shape[0]} bytes"
    assert torch.equal(check.bits(view.cpu()), bytes_of(source)), "a byte view shows wrong bytes"


@case("utils.views.bytes_write", requires=[DTYPE], axes={"dtype": DTYPES})
def test_bytes_write(check, device, dtype):
    """A write through a byte view, as used by flat optimizer buffers, changes the tensor."""
    source = random_bits(dtype_of(dtype), 33)
    tensor = torch.zeros(33, dtype=dtype_of(dtype), device=device)

    tensor.view(torch.uint8).copy_(bytes_of(source))

    assert torch.equal(bytes_of(check.bits(tensor.cpu())), bytes_of(source)), (
        "bytes written through a byte view are not in the tensor"
    )


@case("utils.views.bytes_back", requires=[DTYPE], axes={"dtype": DTYPES})
def test_bytes_back(check, device, dtype):
    """A byte buffer viewed as a dtype at an offset has that dtype's values."""
    source = random_bits(dtype_of(dtype), 32)
    size = source.element_size()
    buffer = torch.zeros(64 * size, dtype=torch.uint8, device=device)
    buffer[16 * size : 48 * size] = bytes_of(source).to(device)

    view = buffer[16 * size : 48 * size].view(dtype_of(dtype))

    assert view.data_ptr() == buffer.data_ptr() + 16 * size, "the view does not start at its offset"
    assert torch.equal(bytes_of(check.bits(view.cpu())), bytes_of(source)), "bytes viewed as a dtype have wrong values"
    assert int(buffer[: 16 * size].sum()) == 0 and int(buffer[48 * size :].sum()) == 0, "bytes around the view changed"


@case("utils.views.alias", requires=[MEMORY], level=Level.CORE)
def test_alias(device):
    """Writes to slices, transposes, reshapes and narrowed tensors change their base."""
    base = torch.zeros(6, 8, device=device)

    base[2].fill_(1)
    base.t()[5].add_(10)
    base.view(-1)[0] = 100
    base.narrow(0, 4, 2).mul_(3)
    base[:, ::4].sub_(1)

    expected = torch.zeros(6, 8)
    expected[2] = 1
    expected[:, 5] += 10
    expected[0, 0] = 100
    expected[4:6] *= 3
    expected[:, ::4] -= 1
    assert torch.equal(base.cpu(), expected), f"views did not write where they point: {base.cpu().tolist()}"


@case("utils.views.flat_buffer", requires=[MEMORY], level=Level.CORE)
def test_flat_buffer(device):
    """Parameters that are views of one flat buffer see writes to the buffer, and the buffer sees theirs."""
    flat = torch.zeros(3 * 5 + 7, device=device)
    weight = torch.nn.Parameter(torch.ones(3, 5, device=device))
    bias = torch.nn.Parameter(torch.ones(7, device=device))

    weight.data, bias.data = flat[:15].view(3, 5), flat[15:]
    flat.copy_(torch.arange(22.0))
    weight.data[2, 4] = -1.0
    (weight.sum() + bias.sum()).backward()

    assert bias.cpu().tolist() == [float(n) for n in range(15, 22)], f"the bias is {bias.cpu().tolist()}"
    assert flat[14].item() == -1.0, "a write to a parameter did not change its buffer"
    assert bool((weight.grad.cpu() == 1).all()) and weight.grad.device.type == device.type


@case("utils.views.storage", requires=[MEMORY], level=Level.CORE)
def test_storage(device):
    """Views share the storage of their base, and clones have a storage of their own size."""
    base = torch.arange(12288.0, device=device).view(4096, 3)
    start = base.storage_offset()

    view, clone = base[10:20, 1], base[10:20, 1].clone()

    # An allocator may round up.
    assert base.untyped_storage().nbytes() >= 49152, f"the storage has {base.untyped_storage().nbytes()} of 49152 bytes"
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), "a view has a storage of its own"
    assert view.storage_offset() == start + 31 and view.stride() == (3,), (
        f"the view has offset {view.storage_offset()} and strides {view.stride()}, expected {start + 31} and (3,)"
    )
    size = clone.untyped_storage().nbytes()
    assert 40 <= size < 49152, f"a clone of ten floats has {size} bytes"
    assert clone.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    column = [float(3 * row + 1) for row in range(10, 20)]
    assert (view.cpu().tolist(), clone.cpu().tolist()) == (column, column), (
        f"view and clone hold {view.cpu().tolist()}, {clone.cpu().tolist()}"
    )


@case("utils.views.storage_resize", requires=[MEMORY], level=Level.CORE)
def test_storage_resize(device):
    """A tensor stays usable when its storage is resized to 0 and back, as sharded training does."""
    tensor = torch.ones(4099, device=device)
    storage = tensor.untyped_storage()

    storage.resize_(0)
    released = storage.nbytes()
    storage.resize_(4099 * 4)
    tensor.copy_(torch.arange(4099.0))

    assert released == 0, f"a storage resized to 0 has {released} bytes"
    assert tensor.sum().item() == torch.arange(4099.0).sum().item(), (
        "a tensor has wrong values after its storage was resized"
    )


@case("utils.views.storage_grow", requires=[MEMORY], level=Level.CORE)
def test_storage_grow(device):
    """A storage that is enlarged or shrunk keeps the bytes that fit, and a tensor that is resized its elements."""
    tensor = torch.arange(4099.0, device=device)
    storage = tensor.untyped_storage()

    storage.resize_(2 * 4099 * 4)
    grown = tensor.cpu().tolist()
    storage.resize_(513 * 4)

    assert grown == torch.arange(4099.0).tolist(), "enlarging a storage changed its values"
    assert tensor[:513].tolist() == torch.arange(513.0).tolist(), "shrinking a storage changed the remaining values"
    for count in (5, 4099):  # torch.Tensor.resize_: existing elements are preserved
        for resize in (
            lambda x, shape: x.resize_(shape),
            lambda x, shape: x.resize_as_(torch.empty(shape, device=x.device)),
        ):
            made = torch.arange(count, device=device)
            resize(made, (3, count))
            assert made[0].cpu().tolist() == list(range(count)), f"enlarging a tensor of {count} elements changed them"
            resize(made, (2,))
            resize(made, (count,))
            assert made.cpu().tolist() == list(range(count)), f"shrinking a tensor of {count} elements changed them"


WRITES = {
    "add_": lambda x: x.add_(1.0),
    "clamp_": lambda x: x.clamp_(0.0, 1.0),
    "copy_": lambda x: x.copy_(torch.ones(x.shape)),
    "div_": lambda x: x.div_(3.0),
    "exp_out": lambda x: torch.exp(torch.zeros(x.shape).to(x.device), out=x),
    "fill_": lambda x: x.fill_(2.0),
    "masked_fill_": lambda x: x.masked_fill_(torch.ones(x.shape, dtype=torch.bool).to(x.device), 5.0),
    "mul_": lambda x: x.mul_(3.0),
    "relu_": torch.relu_,
    "sigmoid_out": lambda x: torch.sigmoid(torch.zeros(x.shape).to(x.device), out=x),
    "sub_": lambda x: x.sub_(x),
    "sum_out": lambda x: torch.sum(torch.ones(3, x.numel()).to(x.device), dim=0, out=x),
    "zero_": lambda x: x.zero_(),
}


#: The operators of writes: ``copy_``, ``fill_`` and ``zero_`` are of the core, the others have a claim of their own.
_OPERATORS = {
    "add_": "add",
    "clamp_": "clamp",
    "div_": "div.no_rounding_mode",
    "exp_out": "exp",
    "masked_fill_": "masked_fill",
    "mul_": "mul",
    "relu_": "nn.functional.relu",
    "sigmoid_out": "sigmoid",
    "sub_": "sub",
    "sum_out": "sum",
}


@case("utils.views.bounds", requires=[MEMORY], level=Level.CORE, axes={"write": sorted(WRITES)})
def test_bounds(declaration, device, write):
    """A write into a slice of a flat buffer changes every element inside it and none outside."""
    if write in _OPERATORS:
        skip_if_denied(declaration, _OPERATORS[write])
    for size in (1, 7, 63, 64, 65, 513):  # around the widths of vector instructions and tiles
        # Three guard elements stand on each side; no write leaves -7.0 inside.
        buffer = torch.full((size + 6,), -7.0, device=device)
        WRITES[write](buffer[3 : 3 + size])
        host = buffer.cpu()
        outside = torch.cat([host[:3], host[3 + size :]])
        assert bool((outside == -7.0).all()), (
            f"{write} of {size} elements changed elements outside: {outside.cpu().tolist()}"
        )
        missed = int((host[3 : 3 + size] == -7.0).sum())
        assert missed == 0, f"{write} did not write {missed} of {size} elements"


@case("utils.views.as_strided", requires=[MEMORY], level=Level.CORE)
def test_as_strided(device):
    """Tensors with arbitrary strides over a storage, also overlapping ones, read the right elements."""
    base = torch.arange(100.0, device=device)

    windows, steps = base.as_strided((10, 5), (3, 1), 2), base.as_strided((4, 4), (20, 6), 1)

    assert windows.cpu().tolist() == [[2.0 + 3 * i + j for j in range(5)] for i in range(10)]
    assert steps.cpu().tolist() == [[1.0 + 20 * i + 6 * j for j in range(4)] for i in range(4)]


@case("utils.views.set_data", requires=[MEMORY], level=Level.CORE)
def test_set(device):
    """Tensor.set_ makes a tensor a view of another tensor's storage."""
    source, tensor = torch.arange(12.0, device=device), torch.empty(0, device=device)

    tensor.set_(source.untyped_storage(), 2, (2, 3), (4, 1))

    assert tensor.cpu().tolist() == [[2.0, 3.0, 4.0], [6.0, 7.0, 8.0]], (
        f"after set_ the tensor is {tensor.cpu().tolist()}"
    )
    assert tensor.data_ptr() == source.data_ptr() + 8
