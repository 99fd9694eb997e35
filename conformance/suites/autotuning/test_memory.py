"""Cases about the memory that a tuner measures: it grows with the batch, follows a model, and has a truthful end."""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from conformance.accelerators.capabilities import DTYPE, MEMORY_OOM, MEMORY_PEAK, MEMORY_STATS, MEMORY_TOTAL
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.process.machine import slowdown
from conformance.suites.accelerator.test_memory import GRANULARITY, MIB, settle
from conformance.suites.shared_bodies import runs_out, still_computes

from .trials import (
    FEATURES,
    LIMITS,
    check_results,
    expected_gradient,
    fill_up_to,
    largest,
    largest_tensor,
    run_trial,
    samples,
)

#: Free memory in the search for the largest batch, and the elements of its samples, which have 4 MiB.
ROOM, LARGE = 256 * MIB, MIB

#: Seconds in which memory of a failed backward pass has to be free, on a machine that does nothing else.
RELEASE_SECONDS = 5.0


@case("autotuning.batch.largest", requires=[MEMORY_OOM, MEMORY_PEAK], deadline=300)
def test_largest_batch(accelerator, check, device):
    """The largest batch that does not run out of memory is the one that the peaks of small batches predict."""
    kept = fill_up_to(accelerator, device, ROOM)
    room, tried = largest_tensor(accelerator, device), {}

    def fits(batch):
        out = runs_out(lambda: tried.update({batch: run_trial(accelerator, device, batch, LARGE)}))
        settle(accelerator)
        return not out

    above = room // (4 * LARGE) + 1  # the inputs of so many samples alone are too large
    found = largest(fits, 0, above)
    small = {batch: run_trial(accelerator, device, batch, LARGE).peak for batch in (2, 4)}
    of_a_sample = (small[4] - small[2]) // 2
    del kept
    settle(accelerator)

    check.that(of_a_sample > 0, f"the peaks of 2 and 4 samples are {small}: a sample takes no memory")
    predicted = (room - small[2]) // of_a_sample + 2
    allowed = 1 + math.ceil(LIMITS["batch_share"] * predicted)
    check.that(abs(found - predicted) <= allowed,
               f"{found} samples fit into {room} bytes, and their peaks predict {predicted} ± {allowed}")  # fmt: skip
    peak = tried[found].peak if found in tried else 0
    check.that(0 < peak <= room + GRANULARITY, f"{found} samples have a peak of {peak} bytes; {room} bytes are free")
    check_results(check, tried[found], found, LARGE)
    check.metric("largest_batch", found)


@case("autotuning.batch.peak", requires=[MEMORY_PEAK, DTYPE], axes={"dtype": ("float32", "float16", "bfloat16")})
def test_peak_of_a_batch(accelerator, check, device, dtype):
    """The peak rises by the same bytes with each sample, and these are the bytes of the tensors alive at once."""
    kind = getattr(torch, dtype)
    run_trial(accelerator, device, 1, dtype=kind)  # one-time buffers of libraries do not count

    trials = {batch: run_trial(accelerator, device, batch, dtype=kind) for batch in (4, 8, 12)}

    sample = FEATURES * kind.itemsize
    first, second = (trials[large].peak - trials[large - 4].peak for large in (8, 12))
    # Each of the tensors is rounded up.
    rounding = LIMITS["most_live"] * GRANULARITY
    check.that(abs(first - second) <= rounding, f"four samples more need {first} bytes, then {second}")
    fewest, most = (4 * sample * LIMITS[name] for name in ("fewest_live", "most_live"))
    for rise in (first, second):
        check.that(fewest - rounding <= rise <= most + rounding,
                   f"four samples of {sample} bytes raise the peak by {rise}, not by {fewest} to {most}")  # fmt: skip
    for batch, trial in trials.items():
        check.that(trial.peak >= LIMITS["fewest_live"] * batch * sample,
                   f"the peak of {batch} samples of {sample} bytes is {trial.peak}")  # fmt: skip
    # 16-bit sums of up to 8 terms of at most 16 are exact.
    check.equal(trials[8].gradient, expected_gradient(8), "the gradient of 8 samples")


#: Elements of each of eight weights: 4 MiB in float32.
WEIGHT, WEIGHTS = MIB, 8
#: Optimizer, and bytes for each weight that stay after a step. 16-bit training keeps float32 copies.
OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.125, foreach=False), 4 + 4),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.125, momentum=0.5, foreach=False), 4 + 4 + 4),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.125, eps=1e-3, foreach=False), 4 + 4 + 8),
    "mixed-adam": (lambda p: torch.optim.Adam(p, lr=0.125, eps=1e-3, foreach=False), 2 + 2 + 4 + 8),
}


def gradients_of(step):
    """Return the gradients of all weights in a step, which are exact in 16 bits."""
    return [((torch.arange(WEIGHT) + 3 * index + step) % 17 - 8).float() / 4 for index in range(WEIGHTS)]


def take_steps(make, weights, device, narrow):
    """Take two steps on copies of the weights; return them with all that has to stay alive.

    ``narrow`` keeps weights and gradients in bfloat16, beside weights in full precision that the optimizer updates.
    """
    masters = [nn.Parameter(weight.to(device)) for weight in weights]
    copies = [master.detach().to(torch.bfloat16) for master in masters] if narrow else []
    optimizer, gradients = make(masters), []
    for step in range(2):
        kind = torch.bfloat16 if narrow else masters[0].dtype
        gradients = [gradient.to(device=device, dtype=kind) for gradient in gradients_of(step)]
        if not narrow:
            for master, gradient in zip(masters, gradients, strict=True):
                master.grad = gradient
            optimizer.step()
            continue
        for master, copy, gradient in zip(masters, copies, gradients, strict=True):
            # The gradient in full precision lives for the update of one tensor.
            master.grad = gradient.to(master.dtype)
            optimizer.step()
            master.grad = None
            copy.copy_(master.detach())
    return masters, (copies, gradients, optimizer)


@case(
    "autotuning.memory_model",
    requires=[MEMORY_PEAK, MEMORY_STATS],
    axes={"optimizer": {"sgd": (), "momentum": (), "adam": (), "mixed-adam": (DTYPE.on("bfloat16"),)}},
)
def test_memory_model(accelerator, check, device, optimizer):
    """Weights, gradients and states need the bytes of the model, and the peak is above it by few temporaries only."""
    make, each = OPTIMIZERS[optimizer]
    start = [torch.full((WEIGHT,), 1.0 + number) for number in range(WEIGHTS)]
    take_steps(make, start[:1] * WEIGHTS, device, optimizer == "mixed-adam")  # one-time buffers of libraries
    settle(accelerator)
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()

    masters, kept = take_steps(make, start, device, optimizer == "mixed-adam")
    accelerator.synchronize()
    stays, peak = accelerator.memory_allocated() - before, accelerator.max_memory_allocated() - before

    model, tensor = each * WEIGHT * WEIGHTS, 4 * WEIGHT
    rounding = 5 * WEIGHTS * 512  # blocks of caching allocators are multiples of 512 bytes
    check.that(model <= stays <= model + rounding + GRANULARITY,
               f"{each} bytes for each of {WEIGHT * WEIGHTS} weights are {model}; {stays} stay allocated")  # fmt: skip
    # The gradients of the second step come before those of the first are freed.
    most = model + rounding + WEIGHTS * tensor + LIMITS["optimizer_temporaries"] * tensor
    check.that(model <= peak <= most, f"the peak is {peak} bytes, not from {model} to {most}")
    exact, _ = take_steps(make, [weight.double() for weight in start], torch.device("cpu"), narrow=False)
    for number, (master, right) in enumerate(zip(masters, exact, strict=True)):
        near(check, f"weight {number} after two steps", master.detach(), right.detach(), Near.TRAJECTORY)
    check.metric("temporaries", round((peak - model) / tensor, 2))
    del kept


@case("autotuning.memory_limit", requires=[MEMORY_TOTAL, MEMORY_OOM])
def test_memory_limit(accelerator, check, device):
    """The largest tensor that fits is as large as available_memory() lets a tuner plan, and within total_memory()."""
    settle(accelerator)
    available, total = accelerator.available_memory(), accelerator.total_memory()

    found = largest_tensor(accelerator, device)

    least = LIMITS["usable_share"] * available
    check.that(found >= least, f"a tensor of {found} bytes is the largest; available_memory() is {available}")
    check.that(0 < found <= total, f"a tensor of {found} bytes fits into total_memory() of {total}")
    check.that(still_computes(device), "after the search, a tensor of 65 floats does not fit any more")


#: The phase of a trial in which it runs out of memory.
PHASES = ("inputs", "forward", "backward", "step")


class Greedy(torch.autograd.Function):
    """Identity that needs ``size`` bytes in its backward pass."""

    @staticmethod
    def forward(ctx, tensor, size):
        ctx.size = size
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        torch.empty(ctx.size, dtype=torch.uint8, device=gradient.device)
        return gradient, None


def runs_out_in(phase, device, size):
    """Train four samples, and ask for ``size`` bytes in one phase."""

    def ask(now):
        if now == phase:
            torch.empty(size, dtype=torch.uint8, device=device)

    inputs = samples(4).to(device)
    ask("inputs")
    trained = nn.Parameter(torch.ones(FEATURES, device=device))
    optimizer = torch.optim.Adam([trained])
    products = inputs * trained
    ask("forward")
    Greedy.apply(products.square().sum(1), size if phase == "backward" else 1).sum().backward()
    optimizer.register_step_post_hook(lambda *_: ask("step"))
    optimizer.step()


def left_over(accelerator, before):
    """Return the bytes that stay allocated beyond ``before``, after ``RELEASE_SECONDS`` or more on a busy machine.

    PyTorch's thread that ran the backward pass lets go of its tensors after the caller has got the exception.
    """
    deadline = time.monotonic() + RELEASE_SECONDS * slowdown()
    while True:
        settle(accelerator)
        left = accelerator.memory_allocated() - before
        if left <= 0 or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


@case("autotuning.search.out_of_memory", requires=[MEMORY_OOM, MEMORY_STATS, MEMORY_PEAK], axes={"phase": PHASES})
def test_search_goes_on(accelerator, check, device, phase):
    """After a trial that ran out of memory in one phase, its memory is free and the next trial is as before."""
    run_trial(accelerator, device, 4)
    runs_out(lambda: runs_out_in("none", device, 1))  # one-time buffers of optimizers do not count
    first = run_trial(accelerator, device, 4)
    settle(accelerator)
    before, size = accelerator.memory_allocated(), accelerator.total_memory() + 64 * MIB

    for attempt in range(2):
        out = runs_out(lambda: runs_out_in(phase, device, size))
        left = left_over(accelerator, before)

        check.that(out, f"a trial that asks for {size} bytes in its phase {phase!r} does not run out of memory")
        check.that(left <= 0, f"attempt {attempt} leaves {left} bytes allocated")
    again = run_trial(accelerator, device, 4)

    check_results(check, again, 4)
    difference = abs(again.peak - first.peak)
    check.that(difference <= GRANULARITY, f"the peak of the trial was {first.peak} bytes, and is {again.peak} now")
