"""Cases on ranks that use features of pytest, for test_ordinary.py."""

import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import DTYPE
from conformance.plan.case import case


@pytest.fixture
def recipe():
    return {"numbers": [1, 2, 3]}


@pytest.fixture
def lock():
    return threading.Lock()


@case("ordinary.given", axes={"dtype": ["float32", "int64"], "how": ["a"]}, requires=[DTYPE], world_size=(1, 2))
def test_given(accelerator, declaration, device, case, check, dtype, how, rank, world_size, group, recipe, tmp_path):
    """All fixtures of a rank have values."""
    check.equal(how, "a", "axis")
    check.equal(recipe, {"numbers": [1, 2, 3]}, "a fixture's value")
    check.that(isinstance(tmp_path, Path) and tmp_path.is_dir(), "a folder of the pytest process")
    check.equal(case.id, f"ordinary.given[{dtype}-a-{world_size}]", "id")
    check.equal((dist.get_rank(group), dist.get_world_size(group)), (rank, world_size), "position in the group")
    check.equal(str(torch.empty(0, device=device).device), str(device), "device")
    check.that(accelerator.is_available() and declaration.cells, "the accelerator and what it declares")
    check.metric("from_rank", rank)


class TestMethods:
    @case("ordinary.method", world_size=2)
    def test_method(self, rank, group):
        """A method can be a case."""
        dist.barrier()


@case("ordinary.unsendable", world_size=2)
def test_unsendable(lock, rank):
    """A lock cannot be sent to a rank."""


@case("ordinary.alone")
def test_alone(rank):
    """The fixture rank has no value in a case without ranks."""


@case("ordinary.numbers", world_size=2)
def test_numbers(rank, tmp_path):
    """A rank writes the random numbers that it draws."""
    Path(tmp_path.parent.parent / f"draw.{rank}").write_text(str(torch.rand(3).tolist()))


@case("ordinary.shared", axes={"turn": [str(n) for n in range(3)]}, world_size=2)
def test_shared(turn, check):
    """Warm ranks are used again: the process ids are the same."""
    import os

    check.metric("pid", os.getpid())
