"""Asynchronous I/O: the bytes arrive whatever the size, the offset and the device, or a sentence says why not."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.base.errors import UsageError
from conformance.kernels import async_io
from conformance.kernels.async_io import engines, files
from conformance.kernels.async_io.operation import Transfer
from conformance.kernels.async_io.settings import HandleSettings
from conformance.kernels.builders import find_builder
from conformance.kernels.implementation import Implementation
from conformance.kernels.kernel import Kernel
from conformance.kernels.native import shared_object
from conformance.kernels.specifications import specification
from tests.docs.pages import DOCS, blocks, text

#: Bytes and where they begin: nothing, within a block, whole blocks, across edges, and several rounds of the queue.
RANGES = ((0, 5), (1, 0), (511, 4095), (4096, 4096), (4097, 4096), (8193, 1), (60_001, 0), (60_001, 5000))
#: single_submit, overlap_events, intra_op_parallelism
MODES = ((False, False, 1), (False, True, 3), (True, False, 2), (True, True, 1))


class OneByOne(engines.NativeEngine):
    """The compiled engine as it is where the operating system forbids io_setup."""

    def __init__(self, settings: HandleSettings) -> None:
        super().__init__(settings, queues=False)


@pytest.fixture(params=["queued", "one by one", "buffered", "portable"])
def kind(request, monkeypatch):
    if request.param == "portable":
        return async_io.PortableHandle
    native = async_io.native_handle()
    if request.param == "one by one":
        monkeypatch.setattr(native, "_engine", OneByOne)
    if request.param == "buffered":  # as on a file system without direct I/O
        monkeypatch.setattr(files, "_direct", lambda path, flags: -1)
    return native


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tensor.bin"


@pytest.fixture
def other_device():
    """A device that is not the host's and to which bytes have to be copied."""
    resolve("sim").load()
    return torch.device("sim", 0)


def noise(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed + size))


def open_files() -> set[str]:
    """The descriptors that are open: another test's handle may be collected meanwhile, so ask for no new ones."""
    return set(os.listdir("/proc/self/fd"))


def running() -> set[threading.Thread]:
    """The threads that run: one that another test left may end meanwhile, so ask for no new ones."""
    return set(threading.enumerate())


@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_is_read_back_at_every_size_and_offset(kind, file, mode):
    handle = kind(8192, 3, *mode)

    for size, offset in RANGES:
        file.write_bytes(b"\xee" * 70_000)
        source, target = noise(size), torch.zeros(size + 2, dtype=torch.uint8)

        assert handle.sync_pwrite(source, file, offset) == 1
        assert handle.sync_pread(target[1:-1], str(file), offset) == 1

        expected = bytearray(b"\xee" * 70_000)
        expected[offset : offset + size] = source.numpy().tobytes()
        assert file.read_bytes() == bytes(expected), f"{size} bytes at {offset}"
        assert target.numpy().tobytes() == b"\0" + source.numpy().tobytes() + b"\0", f"{size} bytes at {offset}"


def test_operations_in_the_background_are_counted(kind, file):
    handle = kind(4096, 2, False, True, 2)
    sources = [noise(10_000, seed) for seed in range(5)]
    targets = [torch.zeros_like(source) for source in sources]

    assert [handle.async_pwrite(source, file, 10_000 * n) for n, source in enumerate(sources)] == [0] * 5
    assert handle.wait() == 5
    assert [handle.async_pread(target, file, 10_000 * n) for n, target in enumerate(targets)] == [0] * 5
    assert handle.sync_pwrite(noise(7), file.with_name("other")) == 1
    assert handle.wait() == 5

    assert all(torch.equal(source, target) for source, target in zip(sources, targets, strict=True))
    with pytest.raises(UsageError, match="wait: nothing is pending"):
        handle.wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dtypes_and_shapes_are_bytes(kind, file, dtype):
    handle, source = kind(), torch.arange(60).view(3, 4, 5).to(dtype)
    target = torch.zeros_like(source, requires_grad=dtype.is_floating_point)

    handle.pwrite(source, file, True, False)
    handle.pread(target, file, True, True)
    handle.wait()

    assert torch.equal(target.detach(), source)
    assert handle.sync_pwrite(torch.tensor(3.5), file) == 1
    assert torch.frombuffer(bytearray(file.read_bytes()[:4]), dtype=torch.float32).item() == 3.5


def test_a_device_tensor_is_written_as_it_was_and_read_before_wait_returns(kind, file, other_device):
    handle, source = kind(block_size=8192), torch.randn(3, 1001)
    there, back = source.to(other_device), torch.zeros(3, 1001, device=other_device)

    handle.async_pwrite(there, file)
    there.zero_()
    assert handle.wait() == 1
    handle.async_pread(back, file)
    assert handle.wait() == 1
    assert torch.equal(back.cpu(), source)

    handle.sync_pread(back[1:2], file, 4 * 1001 * 2)
    assert torch.equal(back.cpu(), source[[0, 2, 2]])


def test_a_file_is_taken_by_its_number_and_left_open(kind, file):
    handle, source, target = kind(), noise(5000), torch.zeros(5000, dtype=torch.uint8)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    read_only = os.open(file, os.O_RDONLY)

    handle.async_pwrite(source, descriptor, 3)
    handle.wait()
    handle.sync_pread(target, read_only, 3)

    assert torch.equal(source, target)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0
    with pytest.raises(UsageError, match="filename: expected a file opened for writing"):
        handle.sync_pwrite(source, read_only)
    os.close(descriptor)
    os.close(read_only)
    with pytest.raises(UsageError, match="filename: expected an open file's number"):
        handle.sync_pread(target, read_only)


NUMBERS = torch.zeros(4)
#: By name, the buffer, what to make of the file's path, the offset, and the error.
BAD = {
    "a list": ([1.0], str, 0, "buffer: expected a tensor, got list"),
    "strides": (torch.zeros(4, 6).t(), str, 0, "buffer: expected a contiguous tensor"),
    "meta": (torch.zeros(4, device="meta"), str, 0, "buffer: expected a strided tensor with memory"),
    "sparse": (torch.eye(3).to_sparse(), str, 0, "buffer: expected a strided tensor"),
    "conjugate": (torch.zeros(2, dtype=torch.cfloat).conj(), str, 0, "buffer: expected a tensor with its own values"),
    "negative offset": (NUMBERS, str, -1, "file_offset: expected a number of bytes from 0 on, got -1"),
    "fractional offset": (NUMBERS, str, 0.5, "file_offset: .* got 0.5"),
    "no name": (NUMBERS, lambda file: None, 0, "filename: expected a path or an open file's number, got None"),
    "a folder": (NUMBERS, lambda file: file.parent, 0, "filename: expected a (regular )?file"),
    "no folder": (NUMBERS, lambda file: file / "x", 0, "filename: expected a file that opens for .* No such file"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments_are_named_and_nothing_is_touched(kind, tmp_path, bad):
    handle, before = kind(), open_files()
    buffer, path, offset, message = BAD[bad]

    for name in ("sync_pread", "sync_pwrite", "async_pread", "async_pwrite"):
        with pytest.raises(UsageError, match=message):
            getattr(handle, name)(buffer, path(tmp_path / "missing"), offset)

    assert os.listdir(tmp_path) == []
    assert open_files() <= before
    with pytest.raises(UsageError, match="nothing is pending"):
        handle.wait()


def test_a_missing_and_a_short_file_are_refused_and_the_buffer_stays(kind, file):
    handle, buffer = kind(), torch.ones(100)
    with pytest.raises(UsageError, match=r"filename: expected a file that opens for reading, .*No such file"):
        handle.async_pread(buffer, file)
    file.write_bytes(bytes(500))

    for offset in (101, 400, 600):
        with pytest.raises(
            UsageError, match=rf"filename: expected a file of at least {400 + offset} bytes .* with 500"
        ):
            handle.async_pread(buffer, file, offset)

    assert bool((buffer == 1).all())
    assert handle.sync_pread(buffer, file, 100) == 1


@pytest.mark.parametrize(
    ("bytes_", "offset", "cuts"), [(100_000, 100, [36764, 69532]), (5000, 0, [4096]), (1, 4095, [])]
)
def test_threads_share_a_range_where_blocks_begin(bytes_, offset, cuts):
    memory = torch.zeros(bytes_, dtype=torch.uint8)
    transfer = Transfer(False, memory, memory, "x", offset, False)

    parts = transfer.parts(3)

    edges = [0, *cuts, bytes_]
    assert parts == list(itertools.pairwise(edges))
    assert all((offset + cut) % 4096 == 0 for cut in cuts)


def test_a_file_that_shrinks_meanwhile_is_an_error_of_wait(kind, file, monkeypatch):
    file.write_bytes(bytes(500))
    handle = kind()
    monkeypatch.setattr(Transfer, "parts", lambda self, number: [(0, self.memory.numel() + 1)])

    handle.async_pread(torch.zeros(400, dtype=torch.uint8)[:399], file, 101)

    with pytest.raises(OSError, match=r"reading 399 bytes of .* from 101 on: the file ends after 399 of them"):
        handle.wait()


def test_one_failure_of_many_is_told_after_all_have_ended(kind, file):
    handle, good = kind(), noise(5000)

    handle.async_pwrite(good, file)
    handle.async_pwrite(noise(4096), "/dev/full")

    with pytest.raises(OSError, match=r"1 of 2 operations failed; the first: .*No space left") as caught:
        handle.wait()
    assert caught.value.errno == errno.ENOSPC
    assert file.read_bytes() == good.numpy().tobytes()


def test_validation_reads_the_file_again(kind, file, monkeypatch):
    handle, source = kind(), noise(5000)
    monkeypatch.setattr(kind._engine, "move", lambda self, writes, direct, plain, address, bytes_, offset: bytes_)

    handle.sync_pwrite(source, file)  # the engine lies
    file.write_bytes(bytes(5000))

    with pytest.raises(OSError, match=r"writing 5000 bytes to .* left other bytes within 0"):
        handle.write(source, file, True)
    with pytest.raises(OSError, match=r"reading 5000 bytes of .* left other bytes"):
        handle.read(source, file, True)


def test_no_descriptor_is_left_behind(kind, file):
    handle = kind(4096, 2, False, False, 2)
    before = open_files()

    for _ in range(20):
        handle.async_pwrite(noise(10_000), file)
        handle.async_pwrite(noise(0), file)
        handle.wait()
        handle.sync_pread(torch.zeros(10_000, dtype=torch.uint8), file)

    assert open_files() <= before


def test_a_handle_that_goes_away_waits_and_says_so(kind, file):
    handle, source = [kind(4096, 1)], noise(1 << 20)
    handle[0].async_pwrite(source, file)

    with pytest.warns(ResourceWarning, match="1 operations pending; they were completed first"):
        handle.clear()

    assert file.read_bytes() == source.numpy().tobytes()


def test_a_closed_handle_refuses_everything(kind, file):
    handle = kind()
    handle.async_pwrite(noise(10), file)

    handle.close()
    handle.close()

    assert file.stat().st_size == 10
    for call in (handle.wait, lambda: handle.sync_pwrite(noise(10), file)):
        with pytest.raises(UsageError, match="this handle is closed"):
            call()


def test_a_forked_process_is_told_to_make_its_own_handle(kind, file):
    handle = kind()
    handle.sync_pwrite(noise(10), file)
    handle._process = 1  # as it looks in a child

    with pytest.raises(UsageError, match="this handle belongs to process 1"):
        handle.sync_pwrite(noise(10), file)

    handle._process = os.getpid()


def test_threads_that_have_ended_leave_nothing_running(kind, file):
    before = running()
    handle = kind(intra_op_parallelism=3)

    handle.async_pwrite(noise(100_000), file)
    handle.wait()
    assert running() - before
    handle.close()

    assert running() <= before


#: A collection of garbage may delete a handle anywhere: here in a thread that starts, and holds the list of threads.
DELETES = """
import sys, threading, torch
from conformance.kernels import async_io
handle = async_io.PortableHandle(intra_op_parallelism=2)
handle.async_pwrite(torch.zeros(10_000), sys.argv[1])
handle.wait()
with threading._shutdown_locks_lock:
    del handle
print("deleted")
"""


@pytest.mark.skipif(not hasattr(threading, "_shutdown_locks_lock"), reason="this Python keeps no such list")
def test_a_handle_can_be_deleted_while_a_thread_starts(file):
    command = [sys.executable, "-c", DELETES, str(file)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "deleted\n"


def test_the_interpreter_goes_on_meanwhile(kind, file):
    memory = torch.zeros(16 << 20, dtype=torch.uint8)
    handle, ticks, seen = kind(), [0], []
    handle.sync_pwrite(memory, file)
    descriptor = os.open(file, os.O_RDONLY)

    def move() -> None:
        before = ticks[0]
        handle._made[0].move(False, -1, descriptor, memory.data_ptr(), memory.numel(), 0)
        seen.append(ticks[0] - before)

    # Long enough for ``move`` to end before it has to hand over the lock, if the call itself does not.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.05)
    # On a busy machine this thread may get no processor during a read, so one read with progress is enough.
    while len(seen) < 100 and max(seen, default=0) < 1000:
        thread = threading.Thread(target=move)
        thread.start()
        while thread.is_alive():
            ticks[0] += 1
    sys.setswitchinterval(usual)

    os.close(descriptor)
    assert max(seen) >= 1000, f"{max(seen)} steps of this thread during a read of 16 MiB"


WRONG_SETTINGS = [
    {"block_size": 0},
    {"queue_depth": 0},
    {"queue_depth": 1 << 20},
    {"intra_op_parallelism": 1.5},
    {"single_submit": 1},
    {"overlap_events": None},
]


@pytest.mark.parametrize("argument", WRONG_SETTINGS)
def test_settings_are_checked(kind, argument):
    with pytest.raises(UsageError, match=f"{next(iter(argument))}: expected"):
        kind(**argument)


def test_settings_are_told(kind):
    handle = kind(4096, 7, True, True, 3)

    assert handle.get_block_size() == 4096
    assert handle.get_queue_depth() == 7
    assert handle.get_single_submit() is True
    assert handle.get_overlap_events() is True
    assert handle.get_intra_op_parallelism() == 3
    assert handle.get_alignment() == 512 * 3
    assert [kind().get_block_size(), kind().get_queue_depth()] == [1 << 20, 128]


def test_single_calls_make_a_handle_of_their_own(file):
    loaded, source, target = find_builder("AsyncIOBuilder")().load(), noise(5000), torch.zeros(5000, dtype=torch.uint8)
    files_before, threads_before = open_files(), running()

    assert loaded.aio_write(source, file, 4096, 4, False, True, True) == 0
    assert loaded.aio_read(target, file, 4096, 4, True, False, True) == 0

    assert torch.equal(source, target)
    assert open_files() <= files_before
    assert running() <= threads_before


def test_the_builder_gives_the_compiled_one_and_says_so():
    loaded = find_builder("AsyncIOBuilder", "cpu")().load()

    assert loaded.aio_handle.choice("cpu").implementation is Implementation.NATIVE
    assert loaded.aio_read.choice("sim", "float16").implementation is Implementation.NATIVE
    assert isinstance(loaded.aio_handle(4096, 2), async_io.NativeHandle)
    assert loaded.aio_handle(queue_depth=3).get_queue_depth() == 3


def test_without_a_compiler_the_builder_gives_the_portable_one_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("conformance.kernels.async_io.handle.library", engines.library.__wrapped__)
    monkeypatch.setattr(engines, "shared_object", shared_object.__wrapped__)

    choice = Kernel(specification("aio_handle")).choice("cpu")

    assert choice.implementation is Implementation.REFERENCE
    assert "no-such-compiler, which is not installed" in choice.reason


def test_it_says_whether_the_kernel_queues(monkeypatch):
    assert async_io.describe().startswith("compiled, ")
    monkeypatch.setattr(engines.NativeEngine, "why_not_queued", errno.EPERM)
    assert "the operating system refuses asynchronous I/O (EPERM)" in async_io.describe()


def test_the_example_of_the_page_works():
    page = text(DOCS / "kernels.md")
    (block,) = [block for block in blocks(page, "python") if "AsyncIOBuilder" in block.body]

    exec(compile(block.body, "docs/kernels.md", "exec"), {})
