"""Probes of numerical precision and of the software that supports the device."""

from __future__ import annotations

import warnings

import torch

from conformance.accelerators.capabilities import (
    ACCUMULATE_WIDE,
    AUTOCAST,
    COMM,
    COMPILE,
    DENORMALS,
    DETERMINISTIC,
    DLPACK,
    LAZY_CALL,
    MATMUL_FULL,
    OP_BUILDERS,
    PROFILER,
    RANGES,
    TENSOR_TYPES,
    TRITON,
)
from conformance.judging.finding import Refused, environment_lacks
from conformance.plan.case import case
from conformance.suites.accelerator import test_autocast as casting
from conformance.suites.accelerator import test_builders, test_dlpack, test_generators, test_precision, test_ranges
from conformance.suites.accelerator import test_tensor_types as types
from conformance.suites.shared_bodies import WatchedBackend, differing

from .refusals import refuse_if_false, refuse_if_none


@case(
    "capabilities.precision.accumulate-wide",
    requires=[ACCUMULATE_WIDE],
    adaptive=True,
    axes={"dtype": test_precision.SIXTEEN_BITS},
)
def test_accumulate_wide(device, dtype):
    """4096 ones add up to 4096 in a sum and in a matrix product."""
    for function in ("sum", "matmul"):
        total = test_precision.SUMS[function](
            torch.ones(test_precision.ONES, dtype=getattr(torch, dtype), device=device)
        )
        if total.item() != test_precision.ONES:
            # A narrow accumulator is a property and no bug: its result is the result of the narrow dtype.
            raise Refused(f"{function} of {test_precision.ONES} ones in {dtype} is {total.item()}")


@case("capabilities.precision.matmul-full", requires=[MATMUL_FULL], adaptive=True)
def test_matmul_full(device):
    """A float32 product with the identity keeps all bits."""
    source = torch.full((64, 64), 1.0 + 2.0**-20)

    found = (source.to(device) @ torch.eye(64).to(device)).cpu()

    if not torch.equal(found, source):
        # The tolerance is above bfloat16's rounding: a larger difference is a wrong result, not low precision.
        assert torch.allclose(found, source, rtol=2e-2), f"a product with the identity gives {found[0, 0].item()}"
        raise Refused(f"1 + 2^-20 becomes {found[0, 0].item()!r} in a product with the identity")


@case("capabilities.precision.denormals", requires=[DENORMALS], adaptive=True)
def test_denormals(device):
    """Half of the smallest normal number is not flushed to zero."""
    tiny = torch.full((65,), torch.finfo(torch.float32).smallest_normal, device=device)

    halves = (tiny * 0.5).cpu()

    if bool((halves.cpu() == 0).all()):
        raise Refused("subnormal results are flushed to zero")
    assert bool((halves.cpu() == torch.finfo(torch.float32).smallest_normal / 2).all()), (
        f"tiny / 2 is {halves[0].item()}"
    )


@case("capabilities.precision.deterministic", requires=[DETERMINISTIC], adaptive=True)
def test_deterministic(device):
    """Products, sums, normalisation and their gradients have the same bits three times in a row."""
    # Scattered sums are not part of this claim: they repeat only in torch's deterministic mode, which
    # accelerator.determinism.repeats tests.
    source, weight = torch.randn(129, 257, device=device), torch.randn(257, 65, device=device)

    def run():
        left, right = source.clone().requires_grad_(), weight.clone().requires_grad_()
        hidden = torch.softmax(torch.layer_norm(left @ right, (65,)), dim=-1)
        total = hidden.sum(dim=0)
        (total * total).sum().backward()
        return torch.cat([left.grad.flatten(), right.grad.flatten(), total.detach().flatten()])

    first = run()

    for _ in range(2):
        wrong = differing(first, run())
        if wrong:
            raise Refused(f"{wrong} of {first.numel()} values differ between two runs")


@case("capabilities.autocast", requires=[AUTOCAST], adaptive=True)
def test_autocast(accelerator, device):
    """A product of float32 matrices uses a 16-bit dtype inside autocast and float32 outside."""
    matrix = torch.ones(9, 9, device=device)
    sixteen_bits = (torch.bfloat16, torch.float16)
    listed = [dtype for dtype in sixteen_bits if dtype in accelerator.supported_dtypes()]
    # A device without a declaration lists no dtype. Then it shows what it has.
    used = listed or [dtype for dtype in sixteen_bits if _multiplies(device, dtype)]
    if not used:
        raise Refused("no 16-bit dtype is supported")

    for dtype in used:
        casting.products_agree(torch.autocast(device.type, dtype=dtype), device, str(dtype).removeprefix("torch."))
    assert (matrix @ matrix).dtype is torch.float32, "autocast goes on after its context"


def _multiplies(device, dtype):
    """Return whether the device multiplies matrices of the dtype at all."""
    try:
        matrix = torch.ones(9, 9, device=device).to(dtype)
        return (matrix @ matrix).dtype is dtype
    except Exception:  # a refusal is the answer
        return False


@case("capabilities.ranges", requires=[RANGES], adaptive=True)
def test_profiler_ranges(accelerator, device):
    """Ranges nest and do not change results."""
    test_ranges.test_nest(accelerator, device)
    test_ranges.test_pop_without_push(accelerator, device)


@case("capabilities.lazy-call", requires=[LAZY_CALL], adaptive=True)
def test_lazy_call(accelerator, device):
    """lazy_call() runs its callback once."""
    test_generators.test_lazy_call_runs(accelerator, device)


@case("capabilities.tensor-types", requires=[TENSOR_TYPES], adaptive=True)
def test_tensor_types(accelerator, device):
    """The constructors for float32 and int64 build tensors of these dtypes on the device."""
    for dtype in ("float32", "int64"):
        refuse_if_none(getattr(accelerator, types.CONSTRUCTORS[dtype]), types.CONSTRUCTORS[dtype])
        types.test_from_list(accelerator, device, dtype)


@case("capabilities.op-builders", requires=[OP_BUILDERS], adaptive=True)
def test_op_builders(accelerator):
    """Builders are found by name, and an unknown name has no usable builder."""
    test_builders.test_unknown_name(accelerator)
    test_builders.test_reachable(accelerator)


@case("capabilities.compile", requires=[COMPILE], adaptive=True, deadline=300)
def test_compile(accelerator, device):
    """A compiled function and its backward pass give the same values as without compilation."""
    backend = accelerator.get_compile_backend()
    refuse_if_none(backend, "get_compile_backend()")

    def function(x):
        return (x * 3 + 1).relu().sum()

    sources = [torch.arange(-8.0, 9.0, device=device).requires_grad_() for _ in range(2)]
    watched = WatchedBackend(backend)
    with warnings.catch_warnings():
        # Compilers and torch's own modules emit warnings that say nothing about the accelerator.
        warnings.simplefilter("ignore")
        results = [
            run(source)
            for run, source in zip((function, torch.compile(function, backend=watched)), sources, strict=True)
        ]
    for result in results:
        result.backward()

    watched.check()
    # 3 x + 1 for 0 to 8.
    assert results[0].item() == 117, f"uncompiled {results[0].item()}, not 117"
    assert results[0].item() == results[1].item(), f"compiled {results[1].item()}, uncompiled {results[0].item()}"
    wrong = differing(sources[0].grad, sources[1].grad)
    assert wrong == 0, f"{wrong} of 17 gradients differ between compiled and uncompiled"


@case("capabilities.comm", requires=[COMM], adaptive=True)
def test_comm(accelerator, device):
    """The declared backend creates a process group of one rank and reduces over it."""
    import torch.distributed as dist

    backend = accelerator.communication_backend_name()
    refuse_if_none(backend, "communication_backend_name()")
    if dist.is_initialized():
        environment_lacks("this process already belongs to a process group, and the case creates one")

    # A HashStore lives in this process, so no network is needed.
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.arange(65.0, device=device)
        dist.all_reduce(tensor)
        world = dist.get_world_size()
        found = tensor.cpu().tolist()
    finally:
        dist.destroy_process_group()

    assert world == 1 and found == [float(number) for number in range(65)], (
        "a reduction over one rank changed values, or get_world_size() is not 1"
    )


@case("capabilities.triton", requires=[TRITON], adaptive=True, deadline=300)
def test_triton(accelerator, device):
    """A Triton kernel compiles, runs, and masks its last block."""
    refuse_if_false(accelerator.is_triton_supported(), "is_triton_supported()")
    # Imported here, because the package triton may be missing.
    from .triton_kernel import add_one

    source = torch.arange(1000.0, device=device)  # no multiple of the block of 128, so the last block is masked

    result = add_one(source)
    accelerator.synchronize()

    assert result.cpu().tolist() == [number + 1.0 for number in range(1000)], "the kernel's results are wrong"


@case("capabilities.dlpack", requires=[DLPACK], adaptive=True)
def test_exchange(check, device):
    """torch.from_dlpack shares the memory of a transposed view."""
    test_dlpack.check_exchange(check, device, test_dlpack.LAYOUTS["transposed"])


@case("capabilities.profiler", requires=[PROFILER], adaptive=True)
def test_profiler(accelerator, device):
    """The profiler records an operation and, unless the device is the host, its time on the device."""
    from conformance.suites.profiling.test_profiling import device_microseconds, record

    left = torch.ones(257, 257, device=device)

    products = []
    events = record(accelerator, lambda: products.append(torch.mm(left, left)))

    assert bool((products[-1] == 257).all()), f"a product of ones is {products[-1][0, 0].item()}, not 257"
    assert "aten::mm" in events, f"torch.profiler recorded {sorted(events)}, but no aten::mm"
    if device.type != "cpu" and not device_microseconds(events):
        raise Refused("torch.profiler records calls, but no time on the device")
