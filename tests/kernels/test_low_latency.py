"""All-reduce over shared memory: equal to the portable one bit for bit, and an error where ranks differ or go."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from conformance.base.errors import SetupError, UsageError
from conformance.kernels.low_latency import LowLatencyAllReduce, Transport
from conformance.kernels.low_latency import segment as shared
from conformance.kernels.low_latency.all_reduce import DTYPES, OPERATIONS
from conformance.kernels.low_latency.reference import in_order
from conformance.kernels.low_latency.segment import Tuning
from tests.kernels.ranks import run_ranks
from tests.waiting import wait_for

#: 1 KiB chunks: 8 of them go around the ring of four slots twice.
SMALL = Tuning(chunk=1024, whole=1024)
COUNTS = (0, 1, 3, 63, 64, 65, 255, 257, 512, 513, 2047, 8195)


def samples(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(97 * count + rank)
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        return torch.randint(low, high, (count,), generator=generator, dtype=dtype)
    numbers = torch.randn(count, generator=generator, dtype=torch.float64)
    numbers *= 10.0 ** torch.randint(-8, 5, (count,), generator=generator)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 65520.0, 3.4e38, 6e-8])
    if count > 200:
        numbers[torch.randperm(count, generator=generator)[:7]] = special.double()
    return numbers.to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def equals_reference(rank: int, size: int, counts: tuple[int, ...]) -> dict[str, bytes]:
    """Every dtype, operation and count against the host's own arithmetic; the results' bits, for the other ranks."""
    results = {}
    with LowLatencyAllReduce(tuning=SMALL) as communicator:
        assert communicator.transport is Transport.SHARED_MEMORY, communicator.why
        for dtype in DTYPES:
            for operation in OPERATIONS:
                if operation == dist.ReduceOp.AVG and not dtype.is_floating_point:
                    continue
                for count in counts:
                    parts = [samples(dtype, count, other) for other in range(size)]
                    given = parts[rank].clone()
                    assert communicator.all_reduce(given, operation) is given
                    expected = in_order(parts, operation)
                    assert torch.equal(given.isnan(), expected.isnan()), (dtype, operation, count)
                    assert torch.equal(given.nan_to_num(), expected.nan_to_num()), (dtype, operation, count)
                    results[f"{dtype} {operation} {count}"] = bits(given)
    return results


@pytest.mark.parametrize(("size", "counts"), [(2, COUNTS), (3, COUNTS), (8, (0, 65, 8195))])
def test_every_dtype_operation_and_size_has_the_references_numbers_and_the_same_bits_on_all_ranks(size, counts):
    first, *others = run_ranks(equals_reference, size, counts)

    assert len(first) == (4 * 4 + 5 * 3) * len(counts)
    assert all(other == first for other in others)


def large_and_strided(rank: int, size: int) -> None:
    with LowLatencyAllReduce() as communicator:
        large = torch.full(((33 << 20) // 4 + 5,), rank + 1.0)
        large[-1] = -1.0
        communicator.all_reduce(large)
        assert (large[:-1] == 3.0).all()
        assert large[-1] == -2.0

        # Strides of its own on each rank; what counts is the position.
        numbers = torch.arange(35.0).view(5, 7) * (rank + 1)
        views = (numbers.clone(), numbers.t().contiguous().t())
        around = torch.zeros(5, 14)
        around[:, ::2] = numbers
        for given in (views[rank], around[:, ::2], numbers.clone().requires_grad_()):
            communicator.all_reduce(given)
            assert torch.equal(given, torch.arange(35.0).view(5, 7) * 3)
        assert (around[:, 1::2] == 0).all()
        scalar = torch.tensor(rank + 1, dtype=torch.int64)
        assert communicator.all_reduce(scalar, dist.ReduceOp.MAX).item() == 2


def test_more_than_32_mebibytes_and_any_strides():
    run_ranks(large_and_strided, 2)


def many_calls(rank: int, size: int) -> int:
    """Sizes change from call to call, so that slots of small and large calls meet; ranks are late in turn."""
    generator = torch.Generator().manual_seed(5)
    with LowLatencyAllReduce(tuning=SMALL) as communicator:
        for call in range(600):
            count = int(torch.randint(0, 1500, (), generator=generator))
            given = torch.full((count,), float(call * (rank + 1)))
            if call % 97 == rank:
                time.sleep(0.002)
            communicator.all_reduce(given)
            assert (given == call * size * (size + 1) // 2).all(), call
    return len([line for line in Path("/proc/self/maps").read_text().splitlines() if "low_latency_all" in line])


def test_calls_of_all_sizes_follow_each_other_and_the_memory_is_given_back():
    before = set(os.listdir("/dev/shm"))

    assert run_ranks(many_calls, 3) == [0, 0, 0]
    assert set(os.listdir("/dev/shm")) <= before


def subgroups(rank: int, size: int) -> None:
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    with LowLatencyAllReduce(pairs[rank % 2]) as mine, LowLatencyAllReduce() as all_of_them:
        given, whole = torch.tensor([10.0**rank]), torch.tensor([10.0**rank])
        mine.all_reduce(given)
        all_of_them.all_reduce(whole)
        assert given.item() == (101.0 if rank % 2 == 0 else 1010.0)
        assert whole.item() == 1111.0
    with pytest.raises(UsageError, match="not a rank of the group"):
        LowLatencyAllReduce(pairs[1 - rank % 2])


def test_a_subgroup_reduces_its_own_ranks():
    run_ranks(subgroups, 4)


def portable(rank: int, size: int) -> tuple[str, str, bytes]:
    with LowLatencyAllReduce(portable="asked for" if rank == 1 else "") as communicator:
        given = samples(torch.bfloat16, 199, rank)
        communicator.all_reduce(given)
        communicator.all_reduce(torch.zeros(0))
        return communicator.transport.value, communicator.why, bits(given)


def compiled(rank: int, size: int) -> tuple[str, str, bytes]:
    with LowLatencyAllReduce() as communicator:
        given = samples(torch.bfloat16, 199, rank)
        communicator.all_reduce(given)
        return communicator.transport.value, communicator.why, bits(given)


def test_one_rank_without_shared_memory_takes_all_ranks_to_torch_distributed():
    through_gloo = run_ranks(portable, 2)
    through_memory = run_ranks(compiled, 2)

    assert [answer[:2] for answer in through_gloo] == [("torch.distributed", "rank 1: asked for")] * 2
    assert through_memory[0][0] == "shared memory"
    assert "2 ranks share" in through_memory[0][1]
    assert {answer[2] for answer in through_gloo} == {answer[2] for answer in through_memory}


def failing(rank: int, size: int, how: str) -> tuple[str, str, float]:
    communicator = LowLatencyAllReduce(timeout=0.5 if how == "late" else 30.0)
    communicator.all_reduce(torch.ones(5))
    if rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "closed":
            communicator.close()
        if how == "late":
            time.sleep(1.5)
    given = torch.ones(6 if how == "mismatch" and rank == 1 else 5)
    with pytest.raises((UsageError, TimeoutError, ConnectionError)) as raised:
        communicator.all_reduce(given)
    assert (given == 1).all()
    with pytest.raises(UsageError, match="can no longer be used"):
        communicator.all_reduce(given)
    return type(raised.value).__name__, str(raised.value)


@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [
        ("killed", "ConnectionError", "rank 1 (process"),
        ("closed", "ConnectionError", "has closed it or failed"),
        ("late", "TimeoutError", "did not make the call within 0.5 s"),
        ("mismatch", "UsageError", "rank 1 calls it for 6 × float32 with SUM"),
    ],
)
def test_a_rank_that_goes_or_differs_is_one_sentence_soon(how, kind, sentence):
    name, text = run_ranks(failing, 2, how, dying=(1,) if how == "killed" else ())[0]

    # Another rank that had waited for its limit would have got a TimeoutError.
    assert (name, sentence in text) == (kind, True), text


def signalled(rank: int, size: int, folder: Path, to_main: bool) -> int:
    """A signal that a handler takes care of leaves the call going; one that raises ends it.

    The system gives a signal to any thread. Python runs the handler in the main thread, which then waits undisturbed.
    """
    handled, ended = folder / "handled", folder / "ended"
    communicator, given = LowLatencyAllReduce(), torch.ones(5)
    if rank == 1:
        wait_until_made(handled)
        assert (communicator.all_reduce(given) == 2).all()
        wait_until_made(ended)
        with pytest.raises(ConnectionError, match="rank 0"):
            communicator.all_reduce(given)
        return 1
    signal.signal(signal.SIGUSR1, lambda *_: handled.touch())
    _signal_soon(to_main=to_main)
    assert (communicator.all_reduce(given) == 2).all()
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    _signal_soon(to_main=to_main)
    with pytest.raises(KeyboardInterrupt):
        communicator.all_reduce(given)
    ended.touch()
    return 1


def _signal_soon(*, to_main: bool) -> None:
    def send() -> None:
        thread = threading.main_thread() if to_main else threading.current_thread()
        signal.pthread_kill(thread.ident, signal.SIGUSR1)

    threading.Timer(0.2, send).start()


@pytest.mark.parametrize("to_main", [True, False])
def test_signals_are_handled_while_it_waits(to_main, tmp_path):
    assert run_ranks(signalled, 2, tmp_path, to_main) == [1, 1]


def refusals(rank: int, size: int) -> list[str]:
    wrong: list[tuple[Any, Any]] = [
        (torch.ones(2, dtype=torch.complex64), dist.ReduceOp.SUM),
        (torch.ones(2), dist.ReduceOp.PRODUCT),
        (torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
        (torch.ones(2, 1).expand(2, 3), dist.ReduceOp.SUM),
        (torch.ones(2, device="meta"), dist.ReduceOp.SUM),
        (torch.ones(2).to_sparse(), dist.ReduceOp.SUM),
    ]
    sentences = []
    with LowLatencyAllReduce() as communicator:
        for tensor, operation in wrong:
            with pytest.raises(UsageError) as raised:
                communicator.all_reduce(tensor, operation)
            sentences.append(str(raised.value))
        assert communicator.all_reduce(torch.ones(1)).item() == size  # still of use
    with pytest.raises(UsageError, match="above 0"):
        LowLatencyAllReduce(timeout=0)
    return sentences


@pytest.mark.parametrize("size", [1, 2])
def test_what_it_cannot_do_is_refused_before_anything_happens(size):
    sentences = run_ranks(refusals, size)[0]

    facts = (
        "does not support torch.complex64",
        "operation PRODUCT",
        "does not support AVG of torch.int32",
        "several times",
        "meta",
        "sparse",
    )
    assert [fact in sentence for fact, sentence in zip(facts, sentences, strict=True)] == [True] * 6


def test_without_a_group_it_says_so():
    with pytest.raises(UsageError, match="init_process_group"):
        LowLatencyAllReduce()


def test_without_a_compiler_the_reason_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    shared.shared_object.cache_clear()

    assert "install the package g++" in shared._obstacle(2)
    with pytest.raises(SetupError, match=r"torch\.distributed does the work without it"):
        shared.library()


def test_the_library_is_plain_and_small():
    library = shared.library()

    assert isinstance(library, ctypes.CDLL)
    assert Path(library._name).stat().st_size < 200_000
    assert "1000 ranks" in shared._obstacle(1000)


def wait_until_made(path: Path) -> None:
    """The other rank is in its call until this one joins it: a time to sleep would be a guess."""
    wait_for(f"the other rank makes {path.name}", path.exists)
