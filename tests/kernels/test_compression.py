"""Packed signs, and the compressed all-reduce: nothing is lost, all ranks agree, and few bytes are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from conformance.base.errors import SetupError, UsageError
from conformance.kernels.builders import find_builder
from conformance.kernels.compression import CompressedAllReduce, Feedback, packing
from conformance.kernels.implementation import Implementation
from conformance.kernels.kernel import Kernel
from conformance.kernels.specifications import specification
from conformance.suites.compression.emulation import compressed_mean
from tests.kernels.ranks import run_ranks

TRICKY = torch.tensor([0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), float("nan"), 3.0, -2.0])


@pytest.fixture(params=["builder", "portable"])
def kernels(request):
    if request.param == "portable":
        return packing
    loaded = find_builder("PackbitsBuilder")().load()
    assert loaded.packbits.choice("cpu").implementation is Implementation.NATIVE
    return loaded


@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 64, 1001])
def test_packing_is_numpys_and_unpacking_gives_the_signs_back(kernels, numel):
    numbers = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    if numel > 64:
        numbers[20:29] = TRICKY

    packed = kernels.packbits(numbers, numel, 0)

    assert packed.numpy().tobytes() == np.packbits(numbers.numpy() >= 0).tobytes()
    unpacked = kernels.unpackbits(packed, packed.numel(), 0)
    assert (unpacked.dtype, unpacked.shape) == (torch.float32, (8 * packed.numel(),))
    assert torch.equal(unpacked[:numel], packing.signs(numbers))
    assert (unpacked[numel:] == -1).all()


def test_zero_of_either_sign_is_plus_one_and_nan_minus_one(kernels):
    unpacked = kernels.unpackbits(kernels.packbits(TRICKY, 9), 2)

    assert unpacked[:9].tolist() == [1, 1, 1, -1, 1, -1, -1, 1, -1]
    assert packing.signs(TRICKY).tolist() == [1, 1, 1, -1, 1, -1, -1, 1, -1]


def test_strides_and_prefixes_do_not_matter(kernels):
    numbers = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))

    assert torch.equal(kernels.packbits(numbers.t(), 48), kernels.packbits(numbers.t().contiguous(), 48))
    assert torch.equal(kernels.packbits(numbers, 16), kernels.packbits(numbers[:2], 16))
    assert torch.equal(kernels.unpackbits(torch.arange(16, dtype=torch.uint8)[::2], 8)[8:16],
                       torch.tensor([-1.0] * 6 + [1.0, -1.0]))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tensor", "count", "sentence"),
    [
        ("packbits", torch.ones(8).double(), 8, "argument tensor: expected float32, got float64"),
        ("packbits", torch.ones(8), 9, "argument numel: expected a whole number up to the 8 elements"),
        ("packbits", torch.ones(8), -1, "argument numel: expected at least 0, got -1"),
        ("unpackbits", torch.ones(8).to(torch.int8), 8, "argument packed: expected uint8, got int8"),
        ("unpackbits", torch.ones(8).to(torch.uint8), 9, "argument n_bytes: expected a whole number up to the 8"),
        ("unpackbits", torch.ones(8).to(torch.uint8), 1.5, "argument n_bytes: expected a whole number"),
    ],
)
def test_packing_refuses_other_dtypes_and_counts(name, tensor, count, sentence):
    with pytest.raises(UsageError, match=sentence):
        getattr(find_builder("PackbitsBuilder")().load(), name)(tensor, count)


def test_without_a_compiler_the_portable_kernel_packs_and_says_why(monkeypatch):
    def missing() -> None:
        raise SetupError("there is no compiler")

    monkeypatch.setattr(packing, "library", missing)
    packing.fastest.cache_clear()
    choice = Kernel(specification("packbits")).choice("cpu", "float32")

    assert choice.implementation is Implementation.REFERENCE
    assert "there is no compiler" in choice.reason
    assert packing.fastest("cpu") == (packing.packbits, packing.unpackbits)
    packing.fastest.cache_clear()


def inputs(rank: int, call: int, numel: int) -> Tensor:
    numbers = torch.randn(numel, generator=torch.Generator().manual_seed(1000 * call + rank)) * (rank + 1)
    numbers[call % numel] = -0.0
    return numbers


def several_calls(rank: int, size: int, numel: int, calls: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """After each call, the result and this rank's feedback."""
    wire = CompressedAllReduce()
    buffer = torch.zeros(numel)
    feedback = wire.feedback(buffer)
    seen = []
    for call in range(calls):
        given = inputs(rank, call, numel)
        assert wire.all_reduce(given, feedback) is given
        seen.append((given.clone(), feedback.worker.clone(), feedback.server.clone()))
    return seen


@pytest.mark.parametrize(("size", "numel"), [(1, 37), (2, 64), (3, 1001)])
def test_compressed_plus_lost_is_what_went_in_and_every_element_is_the_emulations(size, numel):
    by_rank = run_ranks(several_calls, size, numel, 6)

    padded = by_rank[0][0][1].numel()
    assert (padded >= numel, padded % (8 * size), padded - numel < 8 * size) == (True, 0, True)
    workers = [torch.zeros(padded) for _ in range(size)]
    servers = torch.zeros(padded)
    for call in range(6):
        given = [torch.nn.functional.pad(inputs(rank, call, numel), (0, padded - numel)) for rank in range(size)]
        whole = sum(g.double() + w.double() for g, w in zip(given, workers, strict=True)) / size + servers.double()
        out, workers, servers = compressed_mean(given, workers, servers)

        results, new_workers, new_servers = zip(*(seen[call] for seen in by_rank), strict=True)
        assert all(torch.equal(result, results[0]) for result in results)
        torch.testing.assert_close(results[0], out[:numel], rtol=1e-6, atol=0)
        for ours, theirs in zip(new_workers, workers, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.cat(new_servers), servers, rtol=1e-5, atol=1e-6)
        # Conservation, of what the ranks hold and not of the emulation.
        lost = sum(worker.double() for worker in new_workers) / size + torch.cat(new_servers).double()
        torch.testing.assert_close(results[0].double() + lost[:numel], whole[:numel], rtol=0, atol=3e-6)
        assert len({chunk.abs().unique().numel() for chunk in results[0].split(padded // size)}) == 1


def repeated(rank: int, size: int, calls: tuple[int, ...]) -> list[float]:
    """The relative error of the running mean after so many calls on the same input."""
    given, wire = inputs(rank, 0, 600), CompressedAllReduce()
    mean = given.clone()
    dist.all_reduce(mean)
    mean /= size
    feedback, total, errors = wire.feedback(given), torch.zeros(600, dtype=torch.float64), []
    for call in range(1, max(calls) + 1):
        total += wire.all_reduce(given.clone(), feedback)
        if call in calls:
            errors.append(float((total / call - mean).norm() / mean.norm()))
    return errors


def test_the_mean_of_many_calls_on_one_input_comes_close_to_it():
    errors = run_ranks(repeated, 2, (1, 10, 100))[0]

    assert errors[0] > 0.3
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 4


def edges(rank: int, size: int) -> list[Any]:
    wire = CompressedAllReduce()
    feedback = Feedback(torch.zeros(0), torch.zeros(0))
    assert wire.all_reduce(torch.zeros(0, 5), feedback).shape == (0, 5)
    strided = inputs(rank, 0, 48).view(6, 8).t()
    dense = strided.contiguous()
    wire.all_reduce(strided, wire.feedback(strided))
    wire.all_reduce(dense, wire.feedback(dense))
    assert torch.equal(strided, dense)

    sentences = []
    good = wire.feedback(dense)
    other = wire.feedback(torch.zeros(500))
    half = Feedback(good.worker.half(), good.server)
    for buffer, given in (
        (dense, other),
        (dense.double(), good),
        (dense, half),
        (dense, Feedback(good.worker, other.server)),
    ):
        before = buffer.clone()
        with pytest.raises(UsageError) as raised:
            wire.all_reduce(buffer, given)
        assert torch.equal(buffer, before)
        assert not given.worker.any()
        sentences.append(str(raised.value))
    return sentences


def test_empty_and_strided_buffers_and_refusals_that_change_nothing():
    sentences = run_ranks(edges, 2)[1]

    facts = (
        "worker feedback is torch.float32 of shape (512,)",
        "the buffer is torch.float64",
        "torch.float16",
        "server",
    )
    assert [fact in sentence for fact, sentence in zip(facts, sentences, strict=True)] == [True] * 4


def on_the_wire(rank: int, size: int, numel: int) -> tuple[int, int]:
    """Bytes counted in the tensors that go into collectives, by this rank to others; and what it says itself."""
    sent = 0
    scatter, gather = dist.all_to_all_single, dist.all_gather

    def counted_scatter(out: Tensor, given: Tensor, **options: Any) -> Any:
        nonlocal sent
        sent += given.nbytes * (size - 1) // size
        return scatter(out, given, **options)

    def counted_gather(out: list[Tensor], given: Tensor, **options: Any) -> Any:
        nonlocal sent
        sent += given.nbytes * (size - 1)
        return gather(out, given, **options)

    dist.all_to_all_single, dist.all_gather = counted_scatter, counted_gather
    wire, buffer = CompressedAllReduce(), torch.ones(numel)
    wire.all_reduce(buffer, wire.feedback(buffer))
    return sent, wire.bytes_sent


def test_the_wire_carries_less_than_a_25th_of_float32():
    size, numel = 3, 24_000
    ring_of_float32 = 2 * (size - 1) / size * 4 * numel

    for counted, said in run_ranks(on_the_wire, size, numel):
        assert counted == said
        assert 0 < counted <= ring_of_float32 / 25


def test_without_a_group_it_says_so():
    with pytest.raises(UsageError, match="init_process_group"):
        CompressedAllReduce()
