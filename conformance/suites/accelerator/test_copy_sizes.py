"""Copies of every dtype at sizes around vectors, blocks and pages: every element is written, and none beside them."""

from __future__ import annotations

import itertools

import torch

from conformance.accelerators.capabilities import COPY, DEVICE_MULTIPLE, DTYPE, DTYPES
from conformance.plan.case import case

from .patterns import bytes_of, random_bits

#: One element, and sizes next to the vector, warp, block and page sizes that kernels and copy engines work on.
SIZES = ("1", "7", "63", "65", "513", "65537")
#: Elements before and after the copied ones. An odd number, so that the copy starts at an unaligned address.
MARGIN = 3


def guarded(source, device):
    """Return a device buffer of ones, and a view of ``source``'s size in its middle."""
    buffer = torch.ones(source.numel() + 2 * MARGIN).to(source.dtype).to(device)
    return buffer, buffer[MARGIN:-MARGIN]


def faults(buffer, source):
    """Count the elements that differ from ``source``, and the margin elements that are no longer one."""
    found, one_bytes = bytes_of(buffer.cpu()).view(buffer.numel(), -1), bytes_of(torch.ones(1).to(source.dtype))
    changed = (found[MARGIN:-MARGIN] != bytes_of(source).view(source.numel(), -1)).any(dim=1)
    overwritten = torch.cat([found[:MARGIN], found[-MARGIN:]]) != one_bytes

    return {"changed": int(changed.sum()), "overwritten beside": int(overwritten.any(dim=1).sum())}


def repeated(source):
    """Yield names and views of a vector that repeat it: as rows, as columns, and its last element alone."""
    yield "a row", source.expand(REPETITIONS, -1)
    yield "a column", source[:, None].expand(-1, REPETITIONS)
    yield "one number", source[-1].expand(REPETITIONS, REPETITIONS)


#: Rows, or columns, that a repeated vector fills, and elements of the longest one.
REPETITIONS, MOST_REPEATED = 5, 513
#: Each returns memory of ones for rows and columns, and a part of it in which these are.
PARTS = {
    "rows behind others": lambda ones, rows, columns: (m := ones(rows + 1, columns), m[1:]),
    "rows and columns behind others": lambda ones, rows, columns: (m := ones(rows + 3, columns + 5), m[3:, 5:]),
    "every second column": lambda ones, rows, columns: (m := ones(rows, 2 * columns + 1), m[:, 1::2]),
    "transposed": lambda ones, rows, columns: (m := ones(columns + 3, rows), m[3:].t()),
}
NONE = {"changed": 0, "overwritten beside": 0}


def filled(written, numbers):
    """Return the memory of a view to which numbers are written."""
    memory, view = written
    view.copy_(numbers)
    return memory


def check_parts(check, source, place, way):
    """Check that a repeated vector fills a part of memory, and that the memory beside the part stays as it was."""

    def ones(on):
        return lambda *shape: torch.ones(shape).to(source.dtype).to(on)

    for (name, given), (_, wanted) in zip(repeated(source), repeated(source.cpu()), strict=True):
        for part, written in PARTS.items():
            memory = filled(written(ones(place), *given.shape), given)
            expected = filled(written(ones("cpu"), *given.shape), wanted.contiguous())
            wrong = int((bytes_of(check.bits(memory.cpu())) != bytes_of(expected)).sum())
            assert wrong == 0, (
                f"{way}, {name} of {len(source)} into {part}: {wrong} bytes of the target's memory differ"
            )


@case("accelerator.dtype.copy_sizes", requires=[DTYPE, COPY], axes={"dtype": DTYPES, "size": SIZES})
def test_copy_sizes(check, device, dtype, size):
    """A copy from the host, on the device, or to the host writes its elements and no others."""
    source = random_bits(getattr(torch, dtype), int(size))
    ways, previous = (("host to device", device), ("device to device", device), ("device to host", "cpu")), source

    for way, target_device in ways:
        buffer, target = guarded(source, target_device)
        target.copy_(previous)
        found, previous = faults(check.bits(buffer), source), target
        assert found == NONE, f"{way}, {size} elements of {dtype}: {found}"
        if len(source) <= MOST_REPEATED:
            check_parts(check, source.to("cpu" if way == "host to device" else device), target_device, way)


#: Routes of a copy, as the places of its source and its target: the host, or the index of a device.
ROUTES = {"to_device": ("cpu", 0), "to_host": (0, "cpu"), "on_device": (0, 0), "to_peer": (0, -1), "from_peer": (-1, 0)}
PEERS = {"to_peer", "from_peer"}
#: Some rows that fit into a page, and some that are more than a mebibyte of one-byte elements.
SHAPES = ((33, 65), (1031, 1033))
#: Each returns memory of ones, and a view of the shape in it.
LAYOUTS = {
    "contiguous": lambda ones, rows, columns: (m := ones(rows, columns), m),
    "transposed": lambda ones, rows, columns: (m := ones(columns, rows), m.t()),
    "strided": lambda ones, rows, columns: (m := ones(rows, 2 * columns), m[:, ::2]),
    "offset": lambda ones, rows, columns: (m := ones(rows + 3, columns + 5), m[3:, 5:]),
}


#: Values at the limits of narrower numbers, fractions on both sides of a half, and the same values below zero.
EDGES = (0.25, 0.5, 0.75, 1, 1.5, 2.5, 2.75, 100.5, 127, 128, 200, 255, 255.5, 2**11 + 1, 2**15, 2**16 - 32, 2**16,
         2**24 - 1, 2**24 + 1, 2**31 - 256, 2**31 - 128, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 256, 2**32 - 1, 2**32,
         2**32 + 512, 2**40, 2**40 + 1, 2**53 - 1, 2**53 + 1, 2**62, 2**62 + 1)  # fmt: skip


def holds(dtype, number):
    """Return whether ``number`` has an exact value in ``dtype``."""
    if dtype.is_floating_point:
        return float(number) == number and torch.tensor(float(number), dtype=torch.float64).to(dtype).item() == number
    return number == int(number) and torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def converted(given, taken):
    """Return the edge values that ``given`` holds, and their values in ``taken``, where the conversion is defined.

    A conversion to integers drops the fraction, and one to floating point is taken if it rounds nothing.
    """
    numbers = [number for number in (0, *EDGES, *(-edge for edge in EDGES)) if holds(given, number)]
    results = [number if taken.is_floating_point else int(number) for number in numbers]
    # Nothing is promised for numbers below an unsigned zero.
    signed = taken.is_signed
    pairs = [(n, r) for n, r in zip(numbers, results, strict=True) if holds(taken, r) and (n >= 0 or signed)]
    return torch.tensor([n for n, _ in pairs], dtype=given), torch.tensor([r for _, r in pairs], dtype=taken)


def views():
    """Yield names and views of four dimensions: every order of them, repeated ones, steps, windows, and fewer ones."""
    for order in itertools.permutations(range(4)):
        yield f"permuted {order}", lambda images, order=order: images.permute(order)
    for dims in itertools.product((False, True), repeat=4):
        start = tuple(slice(1, 2) if repeated else slice(None) for repeated in dims)
        yield f"expanded {dims}", lambda images, start=start: images[start].expand(images.shape)
    for dim in range(4):
        second = (slice(None),) * dim + (slice(1, None, 2),)
        yield f"every second of dimension {dim}", lambda images, second=second: images[second]
        yield f"windows of dimension {dim}", lambda images, dim=dim: images.unfold(dim, 2, 1)
        yield f"without dimension {dim}", lambda images, dim=dim: images.select(dim, 1)
    yield "a diagonal", lambda images: images.diagonal(0, 1, 3)
    yield "one element, expanded", lambda images: images[1, 1, 1, 1].expand(7)


def check_views(check, ends, kind):
    """Check copies of each view from one end to the other."""
    host = (torch.arange(2 * 3 * 4 * 5) % 113).view(2, 3, 4, 5).to(kind)
    images = host.to(ends[0])
    for name, view in views():
        wanted = view(host)
        try:
            source = view(images)
        except NotImplementedError:  # of such a view other cases tell, and this one of the others
            check.metric("not supported", name)
            continue
        target = torch.ones(wanted.shape, dtype=kind).to(ends[1])
        for way, found in {"copy_()": target.copy_(source), "to()": source.to(ends[1])}.items():
            check.equal(found.cpu(), wanted, f"what {way} makes of a view: {name}")


@case(
    "accelerator.dtype.copy_routes",
    requires=[DTYPE, COPY],
    axes={
        "dtype": ("float32", "bfloat16", "float16", "int64", "uint8"),
        "route": {name: [DEVICE_MULTIPLE] if name in PEERS else [] for name in ROUTES},
    },
)
def test_copy_routes(accelerator, check, device, dtype, route):
    """A copy between any two layouts, also to another dtype, writes its elements alone, and nothing in its source.

    Numbers that both dtypes of a copy hold keep their value, and a copy to integers drops fractions.
    """
    ends = [
        torch.device("cpu" if end == "cpu" else accelerator.device_name(end % accelerator.device_count()))
        for end in ROUTES[route]
    ]

    def ones(place, kind):
        return lambda *shape: torch.ones(shape, dtype=kind).to(place)

    for rows, columns in SHAPES:
        # Whole numbers that every dtype here holds.
        numbers = (torch.arange(rows * columns) % 113).view(rows, columns)
        expected = {taken: filled(written(ones("cpu", getattr(torch, dtype)), rows, columns), numbers)
                    for taken, written in LAYOUTS.items()}  # fmt: skip
        for given, read in LAYOUTS.items():
            for kind in {torch.float32, getattr(torch, dtype)}:
                _, source = read(ones(ends[0], kind), rows, columns)
                source.copy_(numbers)
                for taken, written in LAYOUTS.items():
                    memory, target = written(ones(ends[1], getattr(torch, dtype)), rows, columns)

                    target.copy_(source, non_blocking=(given != taken))
                    for index in range(accelerator.device_count()):
                        accelerator.synchronize(index)

                    wrong = int((check.bits(memory.cpu()) != expected[taken]).sum())
                    what = f"{rows} x {columns}, {given} {kind} into {taken} {dtype}"
                    assert wrong == 0, f"{what}: {wrong} elements of the target's memory differ"
                check.equal(source.cpu(), numbers.to(kind), f"{given} {kind}, after it was copied from")

    kind = getattr(torch, dtype)
    check_views(check, ends, kind)
    others = [other for other in accelerator.supported_dtypes() if other.is_floating_point and other.itemsize > 1]
    for other in dict.fromkeys((torch.float32, *others)):
        for given, taken in ((other, kind), (kind, other)):
            values, expected = (tensor.repeat(33) for tensor in converted(given, taken))
            source, target = values.to(ends[0]), torch.ones(len(values), dtype=taken).to(ends[1])
            target.copy_(source)
            for name, found in {"copy_()": target, "to()": source.to(ends[1], taken)}.items():
                differ = (check.bits(found.cpu()) != expected).nonzero().flatten().tolist()
                wrong = [(values[at].item(), found[at].item()) for at in differ[:3]]
                assert not wrong, f"{name} from {given} to {taken}: numbers and what arrived {wrong}"
