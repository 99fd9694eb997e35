"""Cases for asynchronous file I/O: every byte arrives, on the device too, or the call raises and changes nothing."""

from __future__ import annotations

import os

import torch

from conformance.accelerators.capabilities import Cell
from conformance.plan.case import case

from .loading import functions, report_kernel

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


def make_handle(accelerator, check, single=False, overlap=True, threads=1):
    """Return an I/O handle with a queue of four blocks, so that a few blocks take several rounds."""
    make = functions(accelerator, "AsyncIOBuilder").aio_handle
    made = make(BLOCK, 4, single, overlap, threads)
    report_kernel(check, make)
    return made


def noise(size, seed=1):
    """Return ``size`` random bytes on the host."""
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def content(tensor):
    """Return the bytes of a tensor."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


@case("ops.aio_handle.round_trip", axes={"queue": sorted(MODES)}, requires=[HANDLE], adaptive=True)
def test_round_trip(accelerator, check, tmp_path, queue):
    """Whole blocks are written and read back unchanged, with one and two threads, synchronously and asynchronously."""
    file = str(tmp_path / "blocks")
    for threads in (1, 2):
        handle = make_handle(accelerator, check, *MODES[queue], threads)
        for blocks in (2, 4, 10):
            source = noise(blocks * BLOCK, blocks)

            check.equal(handle.sync_pwrite(source, file), 1, "operations that sync_pwrite completed")
            # The file may be longer: the first thread count has already written ten blocks.
            written = (tmp_path / "blocks").read_bytes()[: source.numel()]
            now, later = torch.zeros_like(source), torch.zeros_like(source)
            handle.sync_pread(now, file)
            handle.async_pread(later, file)
            check.equal(handle.wait(), 1, "operations that wait() completed")

            check.that(
                written == content(source), f"{blocks} blocks by {threads} threads: the file holds different bytes"
            )
            check.equal(now, source, f"{blocks} blocks by {threads} threads, read synchronously")
            check.equal(later, source, f"{blocks} blocks by {threads} threads, read asynchronously")


@case("ops.aio_handle.odd_sizes", axes={"size": ["1", "511", "4097", "20001"]}, requires=[HANDLE], adaptive=True)
def test_odd_sizes(accelerator, check, tmp_path, size):
    """Transfers that do not fill a block arrive completely and change no byte beside the buffer."""
    size, file = int(size), tmp_path / "odd"
    source, target = noise(size), torch.full((size + 16,), 7, dtype=torch.uint8)
    handle = make_handle(accelerator, check)

    handle.sync_pwrite(source, str(file))
    handle.sync_pread(target[8:-8], str(file))

    check.that(
        file.read_bytes() == content(source),
        f"{size} bytes: the file has {file.stat().st_size} bytes or wrong content",
    )
    check.equal(target[8:-8], source, f"{size} bytes read back")
    beside = [*target[:8].tolist(), *target[-8:].tolist()]
    check.equal(beside, [7] * 16, "the bytes beside the buffer")


@case("ops.aio_handle.offsets", axes={"offset": ["100", "4096", "5001"]}, requires=[HANDLE], adaptive=True)
def test_offsets(accelerator, check, tmp_path, offset):
    """A write at a file offset leaves the rest of the file unchanged, and a read at an offset gets the bytes there."""
    start, file, old = int(offset), tmp_path / "offset", noise(8 * BLOCK, 3)
    file.write_bytes(content(old))
    source, target = noise(3 * BLOCK, 4), torch.zeros(3 * BLOCK, dtype=torch.uint8)
    handle = make_handle(accelerator, check)

    handle.sync_pread(target, str(file), start)
    handle.sync_pwrite(source, str(file), start)

    expected = old.clone()
    expected[start : start + source.numel()] = source
    check.equal(target, old[start : start + target.numel()], f"the bytes read at offset {start}")
    check.that(file.read_bytes() == content(expected), f"a write at offset {start} left a wrong file")


@case("ops.aio_handle.device_read", axes={"call": ["async", "sync"]}, requires=[HANDLE], adaptive=True)
def test_device_read(accelerator, device, check, tmp_path, call):
    """A read into a tensor on the device has arrived when the call completes, or the call raises."""
    handle, file = make_handle(accelerator, check), tmp_path / "device"
    source = torch.randn(2, 5 * BLOCK // 8, generator=torch.Generator().manual_seed(5))
    file.write_bytes(content(source))
    target = torch.full_like(source, -1.0, device=device)

    if call == "async":
        handle.async_pread(target, str(file))
        handle.wait()
    else:
        handle.sync_pread(target, str(file))

    wrong = int((target.cpu() != source).sum())
    check.that(
        wrong == 0, f"the call succeeded, but {wrong} of {source.numel()} elements on {device} differ from the file"
    )


@case("ops.aio_handle.device_write", requires=[HANDLE], adaptive=True)
def test_device_write(accelerator, device, check, tmp_path):
    """A write of a tensor on the device includes the results of work that was queued before."""
    handle, file = make_handle(accelerator, check), tmp_path / "device"
    source = torch.randn(5 * BLOCK // 4, generator=torch.Generator().manual_seed(6))

    there = source.to(device).mul(2.0)
    handle.async_pwrite(there, str(file))
    handle.wait()

    check.that(file.read_bytes() == content(source * 2), f"the file does not hold the values of a tensor on {device}")


@case("ops.aio_handle.pending", requires=[HANDLE], adaptive=True)
def test_pending(accelerator, check, tmp_path):
    """Pending operations each use their own file, and wait() returns their number or raises if there is none."""
    handle, sources = make_handle(accelerator, check, threads=2), [noise(2 * BLOCK, seed) for seed in range(5)]
    files = [str(tmp_path / str(seed)) for seed in range(5)]

    for source, file in zip(sources, files, strict=True):
        handle.async_pwrite(source, file)
    written = handle.wait()
    targets = [torch.zeros_like(source) for source in sources]
    for target, file in zip(targets, files, strict=True):
        handle.async_pread(target, file)
    read = handle.wait()

    check.equal((written, read), (5, 5), "operations that wait() completed")
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check.equal(target, source, f"tensor {number}")
    check.that(raises(handle.wait), "wait() with nothing pending does not raise")


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
    """A synchronous or asynchronous read from a file that cannot fill the buffer raises and changes nothing."""
    buffer, path = REFUSED[file](tmp_path)
    handle = make_handle(accelerator, check)

    check.that(raises(handle.sync_pread, buffer, str(path)), f"a synchronous read of a {file} file does not raise")
    check.that(
        raises(_in_background, handle, buffer, str(path)), f"an asynchronous read of a {file} file does not raise"
    )

    check.equal(buffer, torch.ones_like(buffer), "the buffer after refused reads")


@case("ops.aio_handle.strided", requires=[HANDLE], adaptive=True)
def test_strided(accelerator, check, tmp_path):
    """A read into a tensor with gaps fills exactly its elements, or the call raises and changes nothing."""
    handle, file, source = make_handle(accelerator, check), tmp_path / "strided", torch.arange(BLOCK // 4.0)
    file.write_bytes(content(source))
    base = torch.full((BLOCK // 4, 2), -1.0)

    refused = raises(handle.sync_pread, base[:, 0], str(file))

    expected = torch.full_like(base, -1.0)
    if not refused:
        expected[:, 0] = source
    check.equal(base, expected, "a buffer with gaps, " + ("refused" if refused else "read into"))


@case("ops.aio_handle.locked", requires=[HANDLE], adaptive=True)
def test_locked(accelerator, check, tmp_path):
    """Locked buffers have the requested size and dtype, are distinguished from ordinary tensors, and carry data."""
    handle, file = make_handle(accelerator, check), str(tmp_path / "locked")
    example, source = torch.zeros(1, dtype=torch.float16), torch.randn(3 * BLOCK).half()

    buffer = handle.new_cpu_locked_tensor(3 * BLOCK, example)
    buffer.copy_(source)
    handle.sync_pwrite(buffer, file)
    buffer.zero_()
    handle.sync_pread(buffer, file)

    check.equal((tuple(buffer.shape), buffer.dtype), ((3 * BLOCK,), torch.float16), "the locked buffer")
    check.equal(buffer, source, "the values after writing and reading with a locked buffer")
    if hasattr(handle, "is_pinned"):
        check.equal(
            [handle.is_pinned(tensor) for tensor in (buffer, source)],
            [True, False],
            "is_pinned of the locked and the ordinary tensor",
        )
    check.equal(handle.free_cpu_locked_tensor(source), False, "freeing an ordinary tensor")
    check.equal(handle.free_cpu_locked_tensor(buffer), True, "freeing the locked tensor")


@case("ops.aio_handle.descriptors", requires=[HANDLE], adaptive=True)
def test_descriptors(accelerator, check, tmp_path):
    """Thirty operations, some of them refused, leave no additional file open."""
    handle, file, buffer = make_handle(accelerator, check), str(tmp_path / "file"), noise(2 * BLOCK)
    handle.sync_pwrite(buffer, file)
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(10):
        handle.async_pwrite(buffer, file)
        handle.wait()
        handle.sync_pread(buffer, file)
        raises(handle.sync_pread, torch.ones(8 * BLOCK), file)

    more = len(os.listdir("/proc/self/fd")) - before
    check.that(more <= 0, f"{more} more files are open after 30 operations")
    check.that((tmp_path / "file").read_bytes() == content(noise(2 * BLOCK)), "the file holds different bytes")


@case("ops.aio_handle.settings", requires=[HANDLE], adaptive=True)
def test_settings(accelerator, check):
    """The getters of a handle return the constructor's arguments or the documented defaults."""
    kind = functions(accelerator, "AsyncIOBuilder").aio_handle
    names = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")

    given = {name: getattr(kind(8192, 7, True, True, 3), f"get_{name}")() for name in names}
    defaults = {name: getattr(kind(), f"get_{name}")() for name in names}
    report_kernel(check, kind)

    check.equal(given, dict(zip(names, (8192, 7, True, True, 3), strict=True)), "the given settings")
    check.equal(defaults, dict(zip(names, (1 << 20, 128, False, False, 1), strict=True)), "the defaults")


@case("ops.aio_read.round_trip", requires=[READ], adaptive=True)
def test_single_calls(accelerator, device, check, tmp_path):
    """aio_write and aio_read transfer a tensor without a handle, also into a tensor on the device."""
    loaded, file, source = (
        functions(accelerator, "AsyncIOBuilder"),
        str(tmp_path / "single"),
        torch.randn(5 * BLOCK // 4),
    )
    target, there = torch.zeros_like(source), torch.zeros_like(source, device=device)

    check.equal(loaded.aio_write(source, file, BLOCK, 4, False, True, False), 0, "the result of aio_write")
    check.equal(loaded.aio_read(target, file, BLOCK, 4, False, True, False), 0, "the result of aio_read")
    loaded.aio_read(there, file, BLOCK, 4, True, False, False)
    report_kernel(check, loaded.aio_read)

    check.that((tmp_path / "single").read_bytes() == content(source), "the file holds different bytes")
    check.equal(target, source, "the values that aio_read read")
    check.equal(there.cpu(), source, f"the values that aio_read read into a tensor on {device}")


def raises(call, *arguments):
    """Return whether the call raises; implementations are free in the type of the exception."""
    try:
        call(*arguments)
    except Exception:
        return True
    return False


def _in_background(handle, buffer, path):
    """Read asynchronously and wait; an error may come from either call."""
    handle.async_pread(buffer, path)
    handle.wait()
