"""Cases about memory do not depend on when the garbage of earlier cases is freed."""

from __future__ import annotations

import gc

import torch

from conformance.suites.profiling.test_profiling import test_memory_monotone as monotone


class Counting:
    """Accelerator that counts the live dense tensors of this process, and whose counter happens to collect garbage."""

    def __init__(self) -> None:
        self._questions = 0

    def synchronize(self) -> None:
        """Do nothing: the host is done when its calls return."""

    def empty_cache(self) -> None:
        """Do nothing: nothing is cached."""

    def memory_allocated(self) -> int:
        self._questions += 1
        if self._questions == 3:
            gc.collect()
        found = (each for each in gc.get_objects() if type(each) is torch.Tensor and each.layout is torch.strided)
        return sum(each.nbytes for each in found)


def test_garbage_of_an_earlier_case_does_not_lower_the_counter() -> None:
    gc.collect()
    gc.disable()
    try:
        cycle: list[object] = [torch.ones(16 << 20)]
        cycle.append(cycle)
        del cycle

        monotone(Counting(), torch.device("cpu"))
    finally:
        gc.enable()
