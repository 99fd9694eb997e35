"""The cases about memory pass on an allocator that counts correctly; tests/defects holds those that count wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from conformance.accelerators.claims import declaration_of
from tests.defects.catalogue.stand_ins import allocators
from tests.defects.counting_device import CountingDevice
from tests.defects.mutant import StandIn
from tests.defects.stand_ins import COUNTING, HOST, planned, run_body
from tests.layers import longer

#: Not run here: two cases need two devices, and one counts host tensors like device tensors, which do not fit.
ELSEWHERE = {
    "accelerator.memory.per_device",
    "accelerator.memory.peak_per_device",
    "accelerator.memory.holds_values[33554433]",
}
PREFIXES = ("accelerator.memory.", "profiling.memory.", "profiling.oom.", "capabilities.memory.", "ulysses_alst.peak")


def about_memory() -> list[str]:
    return [name for name in planned() if name.startswith(PREFIXES) and ".pinned" not in name and name not in ELSEWHERE]


@pytest.mark.parametrize("case_id", longer(about_memory(), step=6))
def test_an_allocator_that_counts_is_right(case_id):
    run_body(case_id, COUNTING)


def test_every_case_of_the_catalogue_is_seen_green():
    assert {mutant.fault.caught_by for mutant in allocators.MUTANTS} <= set(about_memory())


def not_offered(*arguments: Any, **named: Any) -> int:
    raise NotImplementedError("the allocator has no such counter")


def test_counters_that_are_not_claimed_are_not_asked_for():
    class WithoutTotalAndPeaks(CountingDevice):
        total_memory = max_memory_allocated = max_memory_reserved = not_offered

    run_body(
        "accelerator.memory.order",
        StandIn("live bytes alone", WithoutTotalAndPeaks, declared=lambda: declaration_of({"memory.stats"})),
    )


class Without(TorchFunctionMode):
    """A device without one operator."""

    def __init__(self, name: str, error: Exception) -> None:
        self._name, self._error = name, error
        super().__init__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == self._name:
            raise self._error
        return function(*args, **(kwargs or {}))


def test_a_missing_operator_is_no_fault_of_empty_cache():
    missing = Without("conv1d", NotImplementedError("no convolution"))
    run_body(
        "accelerator.memory.empty_cache_keeps_values",
        StandIn("a device without convolutions", HOST.make, context=lambda: missing),
    )


def test_the_precision_of_float64_is_judged_on_the_host():
    class ReadsOnly(torch.Tensor):
        """Elements of the device, for which there is arithmetic and no abs()."""

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "") == "abs":
                raise NotImplementedError("no abs() in float64")
            result = super().__torch_function__(function, types, args, kwargs)
            return result.as_subclass(torch.Tensor) if getattr(function, "__name__", "") == "cpu" else result

    class Made(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return result.as_subclass(ReadsOnly) if function is torch.full else result

    run_body("accelerator.dtype.float64_flag", StandIn("a device without abs()", HOST.make, context=Made))
