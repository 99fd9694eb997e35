"""The cases about memory pass on an allocator that counts correctly; tests/defects holds those that count wrongly."""

from __future__ import annotations

import pytest

from tests.defects.catalogue.stand_ins import allocators
from tests.defects.stand_ins import COUNTING, planned, run_body
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
