"""Tensors to and from files: every byte arrives, on the device as well, or the call raises and touches nothing."""

from __future__ import annotations

import os

import torch

from conformance.accelerators.capabilities import Cell
from conformance.case import case
from conformance.kernels.implementation import choice_behind

from .loading import functions

HANDLE = Cell("kernels.aio_handle", "float32", "inference")
READ = Cell("kernels.aio_read", "float32", "inference")
BLOCK = 4096
#: single_submit and overlap_events of each mode.
MODES = {
    "batched-awaited": (False, False),
    "batched-overlapped": (False, True),
    "single-awaited": (True, False),
    "single-overlapped": (True, True),
}


def handle(accelerator, check, single=False, overlap=True, threads=1):
    """Four blocks in flight, so that a few blocks are several rounds."""
    make = functions(accelerator, "AsyncIOBuilder").aio_handle
    made = make(BLOCK, 4, single, overlap, threads)
    choice = choice_behind(make)
    check.metric("implementation", choice.implementation.value)
    check.metric("implementation_reason", choice.reason)
    return made


def noise(size, seed=1):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def content(tensor):
    """Its bytes, on the host."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


@case("ops.aio_handle.round_trip", axes={"queue": sorted(MODES)}, requires=[HANDLE], adaptive=True)
def test_round_trip(accelerator, check, tmp_path, queue):
    """Whole blocks are written as they are and read back, by one thread and by two, now and in the background."""
    file = str(tmp_path / "blocks")
    for threads in (1, 2):
        asked = handle(accelerator, check, *MODES[queue], threads)
        for blocks in (2, 4, 10):
            source = noise(blocks * BLOCK, blocks)

            check.equal(asked.sync_pwrite(source, file), 1, "operations that sync_pwrite completed")
            written = (tmp_path / "blocks").read_bytes()[: source.numel()]
            now, later = torch.zeros_like(source), torch.zeros_like(source)
            asked.sync_pread(now, file)
            asked.async_pread(later, file)
            check.equal(asked.wait(), 1, "operations that wait() completed")

            check.that(written == content(source), f"{blocks} blocks by {threads} threads: the file holds other bytes")
            check.equal(now, source, f"{blocks} blocks by {threads} threads, read now")
            check.equal(later, source, f"{blocks} blocks by {threads} threads, read in the background")


@case("ops.aio_handle.odd_sizes", axes={"size": ["1", "511", "4097", "20001"]}, requires=[HANDLE], adaptive=True)
def test_odd_sizes(accelerator, check, tmp_path, size):
    """Sizes that fill no block arrive, and nothing beside them is touched."""
    size, file = int(size), tmp_path / "odd"
    source, target = noise(size), torch.full((size + 16,), 7, dtype=torch.uint8)
    asked = handle(accelerator, check)

    asked.sync_pwrite(source, str(file))
    asked.sync_pread(target[8:-8], str(file))

    check.that(file.read_bytes() == content(source), f"{size} bytes: the file has {file.stat().st_size}, or others")
    check.equal(target[8:-8], source, f"{size} bytes read back")
    beside = [*target[:8].tolist(), *target[-8:].tolist()]
    check.equal(beside, [7] * 16, "what lies beside the buffer")


@case("ops.aio_handle.offsets", axes={"offset": ["100", "4096", "5001"]}, requires=[HANDLE], adaptive=True)
def test_offsets(accelerator, check, tmp_path, offset):
    """A write at an offset leaves the rest of the file, and a read from there gives what lies there."""
    start, file, old = int(offset), tmp_path / "offset", noise(8 * BLOCK, 3)
    file.write_bytes(content(old))
    source, target = noise(3 * BLOCK, 4), torch.zeros(3 * BLOCK, dtype=torch.uint8)
    asked = handle(accelerator, check)

    asked.sync_pread(target, str(file), start)
    asked.sync_pwrite(source, str(file), start)

    expected = old.clone()
    expected[start : start + source.numel()] = source
    check.equal(target, old[start : start + target.numel()], f"what was read from {start} on")
    check.that(file.read_bytes() == content(expected), f"a write at {start} left another file")


@case("ops.aio_handle.device_read", axes={"call": ["async", "sync"]}, requires=[HANDLE], adaptive=True)
def test_device_read(accelerator, device, check, tmp_path, call):
    """A read into a tensor on the device has arrived when the call says that it is complete, or it raises."""
    asked, file = handle(accelerator, check), tmp_path / "device"
    source = torch.randn(2, 5 * BLOCK // 8, generator=torch.Generator().manual_seed(5))
    file.write_bytes(content(source))
    target = torch.full_like(source, -1.0, device=device)

    if call == "async":
        asked.async_pread(target, str(file))
        asked.wait()
    else:
        asked.sync_pread(target, str(file))

    wrong = int((target.cpu() != source).sum())
    check.that(
        wrong == 0, f"the call succeeded, and {wrong} of {source.numel()} elements on {device} are not the file's"
    )


@case("ops.aio_handle.device_write", requires=[HANDLE], adaptive=True)
def test_device_write(accelerator, device, check, tmp_path):
    """A tensor on the device is written with its values, those of work queued before among them."""
    asked, file = handle(accelerator, check), tmp_path / "device"
    source = torch.randn(5 * BLOCK // 4, generator=torch.Generator().manual_seed(6))

    there = source.to(device).mul(2.0)
    asked.async_pwrite(there, str(file))
    asked.wait()

    check.that(file.read_bytes() == content(source * 2), f"the file does not hold the values of a tensor on {device}")


@case("ops.aio_handle.pending", requires=[HANDLE], adaptive=True)
def test_pending(accelerator, check, tmp_path):
    """wait() answers how many operations have completed, each has its own file, and nothing pending is an error."""
    asked, sources = handle(accelerator, check, threads=2), [noise(2 * BLOCK, seed) for seed in range(5)]
    files = [str(tmp_path / str(seed)) for seed in range(5)]

    for source, file in zip(sources, files, strict=True):
        asked.async_pwrite(source, file)
    written = asked.wait()
    targets = [torch.zeros_like(source) for source in sources]
    for target, file in zip(targets, files, strict=True):
        asked.async_pread(target, file)
    read = asked.wait()

    check.equal((written, read), (5, 5), "operations that wait() completed")
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check.equal(target, source, f"tensor {number}")
    check.that(raises(asked.wait), "wait() with nothing pending answers something")


def _missing(folder):
    return torch.ones(2 * BLOCK // 4), folder / "missing"


def _short(folder):
    (folder / "short").write_bytes(b"\0" * BLOCK)
    return torch.ones(2 * BLOCK // 4), folder / "short"


def _folder(folder):
    return torch.ones(BLOCK // 4), folder


REFUSED = {"missing": _missing, "short": _short, "folder": _folder}


@case("ops.aio_handle.refuses", axes={"file": sorted(REFUSED)}, requires=[HANDLE], adaptive=True)
def test_refuses(accelerator, check, tmp_path, file):
    """A file that cannot fill the buffer is an error, now and in the background, and the buffer keeps its values."""
    buffer, path = REFUSED[file](tmp_path)
    asked = handle(accelerator, check)

    check.that(raises(asked.sync_pread, buffer, str(path)), f"reading a {file} file raises nothing")
    check.that(
        raises(_in_background, asked, buffer, str(path)), f"reading a {file} file in the background raises nothing"
    )

    check.equal(buffer, torch.ones_like(buffer), "the buffer after reads that were refused")


@case("ops.aio_handle.strided", requires=[HANDLE], adaptive=True)
def test_strided(accelerator, check, tmp_path):
    """A tensor with gaps gets the values in its own places, or the call raises and touches nothing."""
    asked, file, source = handle(accelerator, check), tmp_path / "strided", torch.arange(BLOCK // 4.0)
    file.write_bytes(content(source))
    base = torch.full((BLOCK // 4, 2), -1.0)

    refused = raises(asked.sync_pread, base[:, 0], str(file))

    expected = torch.full_like(base, -1.0)
    if not refused:
        expected[:, 0] = source
    check.equal(base, expected, "a buffer with gaps, " + ("refused" if refused else "read into"))


@case("ops.aio_handle.locked", requires=[HANDLE], adaptive=True)
def test_locked(accelerator, check, tmp_path):
    """Locked buffers have the size and dtype asked for, are told from ordinary ones, and carry data."""
    asked, file = handle(accelerator, check), str(tmp_path / "locked")
    example, source = torch.zeros(1, dtype=torch.float16), torch.randn(3 * BLOCK).half()

    buffer = asked.new_cpu_locked_tensor(3 * BLOCK, example)
    buffer.copy_(source)
    asked.sync_pwrite(buffer, file)
    buffer.zero_()
    asked.sync_pread(buffer, file)

    check.equal((tuple(buffer.shape), buffer.dtype), ((3 * BLOCK,), torch.float16), "the locked buffer")
    check.equal(buffer, source, "what a locked buffer carried to the file and back")
    if hasattr(asked, "is_pinned"):
        check.equal([asked.is_pinned(one) for one in (buffer, source)], [True, False], "is_pinned of locked, ordinary")
    check.equal(asked.free_cpu_locked_tensor(source), False, "freeing an ordinary tensor")
    check.equal(asked.free_cpu_locked_tensor(buffer), True, "freeing the locked one")


@case("ops.aio_handle.descriptors", requires=[HANDLE], adaptive=True)
def test_descriptors(accelerator, check, tmp_path):
    """Thirty operations, some of them refused, leave as many open files as there were."""
    asked, file, buffer = handle(accelerator, check), str(tmp_path / "file"), noise(2 * BLOCK)
    asked.sync_pwrite(buffer, file)
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(10):
        asked.async_pwrite(buffer, file)
        asked.wait()
        asked.sync_pread(buffer, file)
        raises(asked.sync_pread, torch.ones(8 * BLOCK), file)

    more = len(os.listdir("/proc/self/fd")) - before
    check.that(more <= 0, f"{more} open files more after 30 operations")


@case("ops.aio_handle.settings", requires=[HANDLE], adaptive=True)
def test_settings(accelerator, check):
    """The getters tell the constructor's arguments, and its defaults are the documented ones."""
    kind = functions(accelerator, "AsyncIOBuilder").aio_handle
    names = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")

    asked = {name: getattr(kind(8192, 7, True, True, 3), f"get_{name}")() for name in names}
    usual = {name: getattr(kind(), f"get_{name}")() for name in names}

    check.equal(asked, dict(zip(names, (8192, 7, True, True, 3), strict=True)), "what was asked for")
    check.equal(usual, dict(zip(names, (1 << 20, 128, False, False, 1), strict=True)), "the defaults")


@case("ops.aio_read.round_trip", requires=[READ], adaptive=True)
def test_single_calls(accelerator, device, check, tmp_path):
    """aio_write and aio_read without a handle: what was written is read, into the device's tensors as well."""
    loaded, file, source = (
        functions(accelerator, "AsyncIOBuilder"),
        str(tmp_path / "single"),
        torch.randn(5 * BLOCK // 4),
    )
    target, there = torch.zeros_like(source), torch.zeros_like(source, device=device)

    check.equal(loaded.aio_write(source, file, BLOCK, 4, False, True, False), 0, "aio_write's answer")
    check.equal(loaded.aio_read(target, file, BLOCK, 4, False, True, False), 0, "aio_read's answer")
    loaded.aio_read(there, file, BLOCK, 4, True, False, False)

    check.that((tmp_path / "single").read_bytes() == content(source), "the file holds other bytes")
    check.equal(target, source, "what aio_read read")
    check.equal(there.cpu(), source, f"what aio_read read into a tensor on {device}")


def raises(call, *arguments):
    """Whether the call raises; which exception is the implementation's own business."""
    try:
        call(*arguments)
    except Exception:
        return True
    return False


def _in_background(asked, buffer, path):
    """A refusal may come at once or with wait()."""
    asked.async_pread(buffer, path)
    asked.wait()
