"""Memory: tensors hold their values, and the reported byte counts are true."""

from __future__ import annotations

import gc
import time

import torch

from conformance.accelerators.capabilities import (
    COPY,
    DEVICE_MULTIPLE,
    MEMORY,
    MEMORY_PEAK,
    MEMORY_STATS,
    MEMORY_TOTAL,
)
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import Level, case

MIB = 1 << 20
#: Most bytes that an allocator may add to one tensor when it rounds its size up.
GRANULARITY = 2 * MIB
#: Bytes: one, and one more than sizes that allocators round to (512 B, 64 KiB, 1 MiB, 32 MiB).
SIZES = ("1", "513", "65537", "1048577", "33554433")


def settle(accelerator):
    """Free everything that earlier cases left behind, cached blocks included.

    A case that compares two readings calls this first: garbage that is freed between them changes the second one.
    """
    gc.collect()
    accelerator.synchronize()
    accelerator.empty_cache()


def peak_of(accelerator, work):
    """Return the largest number of bytes by which the work raises allocated memory."""
    settle(accelerator)
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()
    work()
    accelerator.synchronize()
    return accelerator.max_memory_allocated() - before


def fill(device, size, value=1):
    return torch.full((size,), value, dtype=torch.uint8, device=device)


@case("accelerator.memory.holds_values", requires=[MEMORY], level=Level.CORE, axes={"size": ["0", *SIZES]})
def test_holds_values(accelerator, device, size):
    """A tensor of any size holds the written values from its first to its last element."""
    count = int(size)
    # 251 is prime, so a byte that is moved by any power of two differs from the byte it replaces.
    expected = torch.arange(1, 252, dtype=torch.uint8).repeat(count // 251 + 1)[:count]

    tensor = expected.to(device, copy=True)
    accelerator.synchronize()

    assert tensor.shape == (count,) and tensor.device.type == device.type
    assert torch.equal(tensor.cpu(), expected), f"{int((tensor.cpu() != expected).sum())} of {count} bytes changed"
    after = torch.full((3,), 7, dtype=torch.uint8).to(device).cpu().tolist()
    assert after == [7] * 3, f"after a tensor of {count} bytes, another one holds {after}, not three sevens"


@case("accelerator.memory.no_overlap", requires=[MEMORY], level=Level.CORE)
def test_no_overlap(accelerator, device):
    """Live tensors of many odd sizes do not share a byte."""
    sizes = [1 + 37 * step for step in range(100)]

    tensors = [fill(device, size, step) for step, size in enumerate(sizes)]

    wrong = [step for step, tensor in enumerate(tensors) if not bool((tensor.cpu() == step).all())]
    alone = [step for step in wrong[:1] if not bool((fill(device, sizes[step], step).cpu() == step).all())]
    assert not alone, f"full() of {sizes[alone[0]]} bytes with the value {alone[0]} gives other bytes"
    assert not wrong, f"tensors {wrong[:8]} were overwritten by other tensors"


@case("accelerator.memory.zero_filled", requires=[MEMORY], level=Level.CORE)
def test_zero_filled(accelerator, device):
    """zeros() returns zeros also in memory that was used before."""
    for size in (513, 65537):
        used = fill(device, size, 255)
        assert bool((used.cpu() == 255).all()), f"a tensor of {size} bytes does not hold the written values"
        del used
        fresh = torch.zeros(size, dtype=torch.uint8, device=device)
        assert not (bytes_ := fresh.cpu()).any(), f"{int((bytes_ != 0).sum())} of {size} bytes of zeros() are not zero"


@case("accelerator.memory.freed", requires=[MEMORY], level=Level.CORE)
def test_freed(accelerator, device):
    """Memory is freed with its tensor, so 32 tensors of 32 MiB in turn leave less than 512 MiB allocated."""
    fill(device, 32 * MIB)
    settle(accelerator)
    before = accelerator.memory_allocated()

    for step in range(32):
        tensor = fill(device, 32 * MIB, step)
        assert int(tensor.cpu()[-1]) == step
        del tensor
    settle(accelerator)

    grown = accelerator.memory_allocated() - before
    # A leak leaves the whole GiB. Half of it is far above what rounding can leave.
    assert grown < 512 * MIB, f"after 32 freed tensors of 32 MiB, {grown / MIB:.0f} MiB more are allocated"


@case("accelerator.memory.empty_cache_keeps_values", requires=[MEMORY], level=Level.CORE)
def test_empty_cache_keeps_values(accelerator, device):
    """empty_cache() does not change the values of live tensors."""
    kept = [fill(device, size, step) for step, size in enumerate((1, 513, 65537, MIB))]
    del kept[1]

    accelerator.empty_cache()
    fresh = [fill(device, size, 99) for size in (1, 513, 65537, MIB)]

    for step, tensor in zip((0, 2, 3), kept, strict=True):
        assert bool((tensor.cpu() == step).all()), f"empty_cache() changed the values of tensor {step}"
    for step in range(4):  # work that nobody has waited for
        written = fill(device, 65537, step)
        written[:513] = fill(device, 513, step + 7)
        accelerator.empty_cache()
        values = written.cpu()
        assert bool((values[:513] == step + 7).all()), "empty_cache() changed what was written before it"
        assert bool((values[513:] == step).all()), "empty_cache() changed the values of queued work"
    assert all(bool((tensor.cpu() == 99).all()) for tensor in fresh)
    numbers, places = torch.arange(35.0).view(7, 5), torch.tensor([6, 0, 3])
    for name, work in QUEUED.items():
        try:
            computed = torch.equal(work(numbers.to(device), places.to(device)).cpu(), work(numbers, places))
        except RuntimeError:
            continue
        if not computed:  # the cells of the operator judge that, and a refusal
            continue
        result = work(numbers.to(device), places.to(device))
        accelerator.empty_cache()
        assert torch.equal(result.cpu(), work(numbers, places)), f"empty_cache() changed a queued result of {name}"


#: Work of unlike kernels on a matrix of small whole numbers and places of its rows. The results are exact.
QUEUED = {
    "index_add": lambda x, i: torch.zeros_like(x).index_add_(0, i, x[:3]),
    "index_put": lambda x, i: torch.zeros_like(x).index_put_((i,), x[:3]),
    "index_select": lambda x, i: x.index_select(0, i),
    "scatter": lambda x, i: torch.zeros_like(x).scatter_(0, i[:, None].expand(3, 5), x[:3]),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(3, 5)),
    "matmul": lambda x, i: x @ x.t(),
    "addmm": lambda x, i: torch.addmm(x[0], x, x[:5]),
    "conv1d": lambda x, i: torch.nn.functional.conv1d(x[None], x[None, :, :3]),
    "sum": lambda x, i: x.sum(0),
    "cumsum": lambda x, i: x.cumsum(0),
    "sort": lambda x, i: x.sort(0, descending=True).values,
    "topk": lambda x, i: x.topk(2).values,
    "argmax": lambda x, i: x.argmax(1),
    "cat": lambda x, i: torch.cat([x, x]),
    "where": lambda x, i: torch.where(x > 9, x, -x),
    "masked_select": lambda x, i: x.masked_select(x > 9),
    "nonzero": lambda x, i: (x % 2).nonzero(),
    "transposed copy": lambda x, i: x.t().contiguous(),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "max_pool1d": lambda x, i: torch.nn.functional.max_pool1d(x[None], 2),
    "add": lambda x, i: x + x.flip(0),
    "cast": lambda x, i: x.to(torch.int32) + 1,
}


NUMBERS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
    "total_memory",
    "available_memory",
)


@case("accelerator.memory.numbers", requires=[MEMORY], level=Level.CORE, axes={"member": NUMBERS})
def test_numbers(accelerator, member):
    """Each byte count is a non-negative int, with an index by position or by name, with None, and without."""
    ask, current = getattr(accelerator, member), accelerator.current_device()

    for answer in (ask(), ask(current), ask(device_index=current), ask(None)):
        assert type(answer) is int, f"{member}() returned {answer!r}; it must return an int"
        assert answer >= 0, f"{member}() returned {answer}; a number of bytes cannot be negative"


@case("accelerator.memory.resets", requires=[MEMORY], level=Level.CORE)
def test_resets(accelerator, device):
    """The three resets and empty_cache() accept their arguments and do not change live tensors."""
    kept, current = fill(device, 65537, 3), accelerator.current_device()

    for member in ("reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats"):
        getattr(accelerator, member)()
        getattr(accelerator, member)(device_index=current)
    accelerator.empty_cache()

    assert bool((kept.cpu() == 3).all()), "resetting a counter changed a live tensor"


@case("accelerator.memory.order", requires=[MEMORY_STATS])
def test_order(accelerator, declaration, device):
    """Allocated memory is at most reserved memory and the total, and no peak is below its value, as far as claimed."""
    settle(accelerator)
    kept = fill(device, 16 * MIB)

    allocated, reserved = accelerator.memory_allocated(), accelerator.memory_reserved()

    assert kept.numel() <= allocated <= reserved, (allocated, reserved)
    if declaration.supports(MEMORY_TOTAL.cell):
        assert reserved <= accelerator.total_memory(), f"{reserved} bytes of {accelerator.total_memory()} are reserved"
    if declaration.supports(MEMORY_PEAK.cell):
        assert accelerator.max_memory_allocated() >= allocated, "the peak of allocated memory is below its value"
        assert accelerator.max_memory_reserved() >= reserved, "the peak of reserved memory is below its value"


@case("accelerator.memory.allocated_follows", requires=[MEMORY_STATS], axes={"size": SIZES})
def test_allocated_follows(accelerator, device, size):
    """A tensor of N bytes raises memory_allocated() by N to N + 2 MiB, and freeing it takes that back."""
    settle(accelerator)
    before = accelerator.memory_allocated()

    tensor = torch.empty(int(size), dtype=torch.uint8, device=device)
    raised = accelerator.memory_allocated() - before
    del tensor
    left = accelerator.memory_allocated() - before

    assert int(size) <= raised <= int(size) + GRANULARITY, (
        f"a tensor of {size} bytes raised memory_allocated() by {raised}"
    )
    assert left == 0, f"{left} bytes are still counted after the tensor is freed"


@case("accelerator.memory.views_count_once", requires=[MEMORY_STATS])
def test_views_count_once(accelerator, device):
    """Views of a storage add nothing to memory_allocated(), and a view alone keeps its storage counted."""
    settle(accelerator)
    before = accelerator.memory_allocated()
    tensor = torch.empty(4 * MIB, dtype=torch.uint8, device=device)
    counted = accelerator.memory_allocated() - before
    assert counted >= 4 * MIB, f"a tensor of 4 MiB raised memory_allocated() by {counted} bytes"

    view = tensor.view(torch.float32)[5:]
    assert accelerator.memory_allocated() - before == counted, (
        "a view raised memory_allocated(), but it shares the memory of its tensor"
    )
    del tensor

    assert accelerator.memory_allocated() - before == counted, "memory that a view still uses is no longer counted"
    del view
    assert accelerator.memory_allocated() == before


@case("accelerator.memory.copies", requires=[MEMORY_STATS, COPY], axes={"non_blocking": ["yes", "no"]})
def test_copies(accelerator, device, non_blocking):
    """Copies in every direction, of contiguous and of strided tensors, leave no memory behind."""
    host, target = torch.ones(1024, 1024), torch.zeros(1024, 1024, device=device)
    other, waits = target.clone(), non_blocking == "no"
    pairs = {
        "from the host": (host, target),
        "to the host": (target, host),
        "on the device": (target, other),
        "from the host, transposed": (host.t(), target),
        "to the host, transposed": (target.t(), host),
        "on the device, transposed": (target.t(), other),
    }

    for name, (source, destination) in pairs.items():
        destination.copy_(source, non_blocking=not waits)  # the first one may make a buffer that is kept
        settle(accelerator)
        before = accelerator.memory_allocated()
        for _ in range(8):
            destination.copy_(source, non_blocking=not waits)
        settle(accelerator)
        left = accelerator.memory_allocated() - before
        assert left == 0, f"8 copies {name} left {left} bytes allocated"


@case("accelerator.memory.cached_is_reserved", requires=[MEMORY_STATS])
def test_cached_is_reserved(accelerator, device):
    """memory_cached() and its peak return the same numbers as memory_reserved() and its peak."""
    kept = fill(device, 5 * MIB)

    # The cached names are PyTorch's older names of the reserved ones.
    assert accelerator.memory_cached() == accelerator.memory_reserved(), kept.shape
    assert accelerator.memory_cached() >= kept.numel(), (
        f"{accelerator.memory_cached()} bytes with {kept.numel()} in use"
    )
    assert accelerator.max_memory_cached() == accelerator.max_memory_reserved()


@case("accelerator.memory.stats", requires=[MEMORY_STATS])
def test_stats(accelerator, device):
    """memory_stats() is a dict whose current and peak values equal those of the accelerator's members."""
    settle(accelerator)
    kept = fill(device, 5 * MIB)

    stats = accelerator.memory_stats()

    if not stats:
        stub(f"memory_stats() is empty, but memory_allocated() is {accelerator.memory_allocated()} bytes")
    assert isinstance(stats, dict), f"memory_stats() returned a {type(stats).__name__}; it must return a dict"
    # The keys are those of torch.cuda.memory_stats().
    current, peak = stats["allocated_bytes.all.current"], stats["allocated_bytes.all.peak"]
    assert current == accelerator.memory_allocated() >= kept.numel(), (current, accelerator.memory_allocated())
    assert peak == accelerator.max_memory_allocated(), (peak, accelerator.max_memory_allocated())
    active = stats.get("active_bytes.all.current", current)
    assert active >= current, f"{active} bytes are active while {current} are allocated"


@case("accelerator.memory.empty_cache_gives_back", requires=[MEMORY_STATS])
def test_empty_cache_gives_back(accelerator, device):
    """empty_cache() does not raise reserved memory and does not change allocated memory."""
    settle(accelerator)
    kept, freed = fill(device, 3 * MIB), fill(device, 64 * MIB)
    # The freed memory is now cached, so empty_cache() has something to give back.
    del freed
    accelerator.synchronize()
    reserved, allocated = accelerator.memory_reserved(), accelerator.memory_allocated()

    accelerator.empty_cache()

    assert accelerator.memory_reserved() <= reserved, "empty_cache() raised reserved memory"
    assert accelerator.memory_reserved() >= accelerator.memory_allocated() == allocated, (
        "empty_cache() changed memory_allocated(), or reserved memory is less than allocated memory"
    )
    assert bool((kept.cpu() == 1).all())


@case("accelerator.memory.total", requires=[MEMORY_TOTAL])
def test_total(accelerator):
    """Total memory is positive and constant, and available memory is at most the total."""
    total, available = accelerator.total_memory(), accelerator.available_memory()

    assert total == accelerator.total_memory() > 0, (
        f"total_memory() returned {total}, then {accelerator.total_memory()}"
    )
    # A smaller number is a total in KiB or MiB.
    assert total > 16 * MIB, f"total_memory() is {total}; the unit must be bytes"
    assert 0 < available <= total, f"available_memory() is {available} of {total}"


@case("accelerator.memory.available_drops", requires=[MEMORY_TOTAL])
def test_available_drops(accelerator, device):
    """Available memory drops while tensors are alive."""
    # Eight such tensors take at most half of the available memory.
    size = min(64 * MIB, accelerator.available_memory() // 16)
    # A host keeps freed pages in lists that it does not count as free, and other processes allocate and free at the
    # same time. So up to eight tensors are added until the number has dropped by half of one, in up to three rounds.
    if not size:
        stub("available_memory() is 0, although the device works")
    drops = []
    for _ in range(3):
        settle(accelerator)
        before, alive = accelerator.available_memory(), []
        for _ in range(8):
            alive.append(fill(device, size))
            accelerator.synchronize()
            drops.append(before - accelerator.available_memory())
            if drops[-1] >= size // 2:
                return
        del alive
        time.sleep(0.2)
    raise AssertionError(f"with one to eight live tensors of {size} bytes, available_memory() dropped by {drops} bytes")


@case("accelerator.memory.per_device", requires=[MEMORY_STATS, DEVICE_MULTIPLE])
def test_per_device(accelerator):
    """Each device counts its own tensors and no others."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    settle(accelerator)
    before = [accelerator.memory_allocated(index) for index in (0, 1)]

    kept = fill(accelerator.device_name(1), 8 * MIB)

    raised = [accelerator.memory_allocated(index) - start for index, start in enumerate(before)]
    assert raised[0] == 0, f"a tensor on device 1 raised memory_allocated(0) by {raised[0]} bytes"
    assert raised[1] >= kept.numel(), f"a tensor of 8 MiB on device 1 raised memory_allocated(1) by {raised[1]} bytes"
