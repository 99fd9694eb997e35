"""Defects that a tuner or a monitor shows: counters of memory, times, random numbers, and values that are read."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.catalogue.collectives import _last_rank_gives_nothing, before
from tests.defects.catalogue.collectives import broken as on_ranks
from tests.defects.catalogue.parallel import method
from tests.defects.faults import Around, Fault, Where, scaled
from tests.defects.mutant import Mutant
from tests.defects.spoiling import Call, accelerator, constant, on_device, replaced, spoiled

MIB = 1 << 20
TRIALS, LOGS = "trials that change others", "monitors that show something else"
TUNER = "DeepSpeed autotuning: experiments by measured memory"
MONITOR = "DeepSpeed monitor: values of events"
#: What accelerators' own cases say about the same counters.
COUNTERS = ("accelerator.memory.*", "capabilities.memory.*")

_HELD: list[Any] = []


def tuned(name: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, TRIALS, TUNER, Where.ALLOCATOR, caught_by, **fault), touch)


def logged(name: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, LOGS, MONITOR, Where.OPERATOR, caught_by, **fault), touch)


def _keeps_when_out(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What runs out of memory leaves a block behind."""
    try:
        return call(*args, **kwargs)
    except torch.OutOfMemoryError:
        _HELD.append(call([3 * MIB], **kwargs))
        raise


def _runs_out_at_six(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Products run out of memory from 24 MiB on, for a workspace that no counter shows."""
    if on_device(args[0]) and args[0].dim() == 2 and args[0].shape[1] == MIB and args[0].shape[0] > 6:
        raise torch.OutOfMemoryError("no memory for a workspace")
    return call(*args, **kwargs)


def _keeps_a_second(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """States of an optimizer are made twice, and both stay."""
    if on_device(args[0]) and args[0].numel() == MIB:
        _HELD.append(call(*args, **kwargs))
    return call(*args, **kwargs)


def _keeps_all_sums(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A norm that was logged is never freed."""
    result = call(*args, **kwargs)
    if on_device(result):
        _HELD.append(result)
    return result


def _peaks_stick(old: Any) -> Any:
    """A peak of 10 to 60 MiB above the current value survives a reset."""

    def reset(self: Any, device_index: int | None = None) -> None:
        above = self.max_memory_allocated(device_index) - self.memory_allocated(device_index)
        if not 10 * MIB < above < 60 * MIB:
            old(self, device_index)

    return reset


def _what_stays(old: Any) -> Any:
    """A peak that does not follow what is allocated for a moment."""
    del old
    return lambda self, device_index=None: self.memory_allocated(device_index)


def _of_the_first(old: Any) -> Any:
    return lambda self, device_index=None: old(self, 0)


def _draws(old: Any) -> Any:
    """Asking for memory makes a random tensor."""

    def peak(self: Any, device_index: int | None = None) -> Any:
        torch.rand(1, device=self.current_device_name())
        return old(self, device_index)

    return peak


def _holds_copies(old: Any) -> Any:
    """A rank keeps a copy of its states."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = old(self, *args, **kwargs)
        states = [state.values() for state in self.optim.state.values()]
        _HELD.extend(value.clone() for values in states for value in values if torch.is_tensor(value))
        return loss

    return step


class _Flips:
    """Noise of 513 elements is another one when it is drawn again."""

    def __init__(self) -> None:
        self._drawn = 0

    def randn(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.numel() == 513:
            self._drawn += 1
            if self._drawn > 1:
                result.copy_(result.flip(0).clone())
        return result


def _drops_what_is_added(call: Any, args: list[Any]) -> Any:
    """A gradient of 2^18 elements keeps its first part."""
    first = args[0].clone() if isinstance(args[0], torch.Tensor) and args[0].numel() == 1 << 18 else None
    results = call(args)
    if first is not None:
        results[0].copy_(first)
    return results


def _not_at_the_end(call: Any, args: list[Any]) -> Any:
    """The last vector of 8 elements is never looked at."""
    results = call(args)
    if results[0].numel() == 4099:
        results[0].view(-1)[-8:] = False
    return results


def _three_are_lost(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Three numbers that are copied to page-locked memory do not arrive."""
    target, source = args[:2]
    if target.device.type == "cpu" and on_device(source) and target.numel() == 3 and target.is_pinned():
        return target
    return call(*args, **kwargs)


def _without_its_sign(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Minus zero is read as zero."""
    value = call(*args, **kwargs)
    return 0.0 if isinstance(value, float) and value == 0 and on_device(args[0]) else value


def _stops_at_four(old: Any) -> Any:
    """A counter of 23 bits."""
    return lambda self, device_index=None: min(int(old(self, device_index)), 6 * MIB)


_LATE_PRODUCT: Around = scaled(1.01)
MUTANTS = (
    tuned("running out of memory leaves a block behind", "autotuning.search.out_of_memory[step]", *COUNTERS,
          context=spoiled(empty=_keeps_when_out)),
    tuned("products run out of memory early", "autotuning.batch.largest", context=spoiled(mul=_runs_out_at_six)),
    tuned("the peak shows nothing that is short-lived", "autotuning.batch.peak[float32]", *COUNTERS,
          context=accelerator(max_memory_allocated=_what_stays)),
    tuned("states of an optimizer take memory twice", "autotuning.memory_model[adam]",
          context=spoiled(zeros_like=_keeps_a_second)),
    tuned("available memory is twice the device's", "autotuning.memory_limit", *COUNTERS,
          "accelerator.interface.*", context=accelerator(available_memory=constant(8 << 30))),
    tuned("peaks of 10 to 60 MiB survive a reset", "autotuning.order[descending]", *COUNTERS, "monitor.memory.*",
          "accelerator.effect.reset_max_memory_cached",
          context=accelerator(reset_peak_memory_stats=_peaks_stick)),
    tuned("noise is drawn another time", "autotuning.order.random_numbers",
          context=spoiled(randn=_Flips().randn)),
    tuned("the second micro-batch is lost", "autotuning.accumulation[4]",
          operators={"aten::add": _drops_what_is_added}),
    tuned("peaks are those of the first device", "autotuning.parallel", *COUNTERS,
          context=accelerator(max_memory_allocated=_of_the_first)),
    on_ranks("each rank holds all states", TRIALS, "DeepSpeed ZeRO: states that are not cut",
             "autotuning.memory_model.sharded",
             method("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer",
                    step=_holds_copies)),
    logged("logged losses are 1 % too large", "monitor.scalars[float32]", operators={"aten::mse_loss": _LATE_PRODUCT}),
    logged("infinities at the end are not counted", "monitor.nonfinite[float32]",
           operators={"aten::isposinf": _not_at_the_end}),
    logged("three numbers for a log are lost", "monitor.read[pinned]", context=spoiled(copy_=_three_are_lost)),
    logged("asking for memory draws a number", "monitor.random", "accelerator.rng.*", *COUNTERS,
           context=accelerator(max_memory_allocated=_draws)),
    logged("norms that are logged stay", "monitor.memory.steady",
           context=spoiled(linalg_vector_norm=_keeps_all_sums)),
    logged("peaks of a step are those of the step before", "monitor.memory.peak_of_a_step", *COUNTERS,
           "autotuning.*", "accelerator.effect.reset_max_memory_cached",
           context=accelerator(reset_peak_memory_stats=_peaks_stick)),
    logged("every interval takes 5 ms", "monitor.throughput.events", "accelerator.event.*", "capabilities.event.*",
           "capabilities.*", "profiling.*", switches={"event_elapsed_constant": 5.0}),
    logged("minus zero is logged as zero", "monitor.csv[float32]", "accelerator.dtype.item*",
           context=spoiled(_local_scalar_dense=_without_its_sign)),
    on_ranks("the last rank's loss is not in the mean", LOGS, MONITOR, "monitor.ranks.mean[2]",
             replaced(torch.distributed, all_reduce=before(_last_rank_gives_nothing))),
    on_ranks("memory is counted up to 6 MiB", LOGS, MONITOR, "monitor.ranks.memory",
             accelerator(memory_allocated=_stops_at_four)),
)  # fmt: skip
