"""What makes no sense is refused on the rank that asks for it, and the group is as good as before."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_P2P, COMM_ROOTED
from conformance.case import case

REFUSALS = (RuntimeError, ValueError, TypeError)


def refused(check, what, call):
    """Whether the call ends in an exception; what else it does is told."""
    try:
        call()
    except REFUSALS as error:
        check.that(str(error).strip(), f"{what} is refused without a word")
        return
    check.that(False, f"{what} is accepted")


def still_works(check, device, world_size):
    """The next call is in step with the other ranks."""
    total = torch.ones(3, device=device)
    dist.all_reduce(total)
    check.equal(total.tolist(), [float(world_size)] * 3, "the call behind the refused one")


@case("comm.refusal.shape", requires=[COMM],
      axes={"call": ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor")},
      world_size=2)  # fmt: skip
def test_shapes(check, device, call, world_size, group):
    """An output that does not fit its input."""
    part, odd = torch.ones(4, device=device), torch.ones(7, device=device)
    calls = {
        "all_gather": lambda: dist.all_gather([part], part),  # a list of one for two ranks
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(odd, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, [part]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, odd),
    }

    refused(check, f"{call} with an output that does not fit", calls[call])

    still_works(check, device, world_size)


@case("comm.refusal.dtype", requires=[COMM], axes={"call": ("all_gather", "reduce_scatter")}, world_size=2)
def test_dtypes(check, device, call, world_size, group):
    """Inputs and outputs of different dtypes."""
    part, other = torch.ones(4, device=device), torch.ones(4, device=device, dtype=torch.int32)

    if call == "all_gather":
        refused(check, "gathering float32 into int32", lambda: dist.all_gather([other, other.clone()], part))
    else:
        refused(check, "scattering int32 into float32", lambda: dist.reduce_scatter(part, [other, other.clone()]))

    still_works(check, device, world_size)


@case("comm.refusal.splits", requires=[COMM, COMM_ALL_TO_ALL], world_size=2)
def test_splits(check, device, world_size, group):
    """Split sizes that do not add up."""
    given, taken = torch.ones(4, device=device), torch.zeros(4, device=device)

    refused(check, "all_to_all_single of 3 of 4 rows", lambda: dist.all_to_all_single(taken, given, [2, 2], [1, 2]))

    still_works(check, device, world_size)


@case("comm.refusal.root", requires=[COMM], axes={"root": ("2", "-1")}, world_size=2)
def test_roots(check, device, root, world_size, group):
    """A root that is no rank."""
    refused(check, f"broadcast from {root} of 2", lambda: dist.broadcast(torch.ones(4, device=device), int(root)))

    still_works(check, device, world_size)


@case("comm.refusal.parts", requires=[COMM, COMM_ROOTED], world_size=2)
def test_parts(check, device, rank, world_size, group):
    """A root that has nothing to scatter."""
    if rank == 0:
        refused(check, "scatter without parts", lambda: dist.scatter(torch.ones(4, device=device), None, 0))
    else:
        refused(check, "parts from who is no root",
                lambda: dist.scatter(torch.ones(4, device=device), [torch.ones(4, device=device)] * 2, 0))  # fmt: skip

    still_works(check, device, world_size)


@case("comm.refusal.itself", requires=[COMM, COMM_P2P], world_size=2)
def test_itself(check, device, rank, world_size, group):
    """A message to oneself."""
    refused(check, "a message to oneself", lambda: dist.send(torch.ones(4, device=device), rank))

    still_works(check, device, world_size)


@case("comm.refusal.ranks", requires=[COMM], axes={"ranks": ("0,2", "0,0")}, world_size=2)
def test_groups(check, device, ranks, world_size, group):
    """A group of ranks that there are not, or of one rank twice."""
    members = [int(number) for number in ranks.split(",")]

    refused(check, f"a group of {members} in a world of 2", lambda: dist.new_group(members))

    still_works(check, device, world_size)


@contextlib.contextmanager
def detailed():
    """As TORCH_DISTRIBUTED_DEBUG=DETAIL: groups that are made meanwhile compare what their ranks call."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        yield
    finally:
        dist.set_debug_level(before)


@case("comm.refusal.mismatch", requires=[COMM], axes={"what": ("call", "shape", "dtype")}, world_size=2)
def test_mismatch(check, device, what, rank, world_size, group):
    """In a group made at the debug level DETAIL ranks that call different things are told so, all of them."""
    with detailed():
        told = dist.new_group()
    small, large = torch.ones(4, device=device), torch.ones(5, device=device)
    calls = {
        "call": [lambda: dist.all_reduce(small, group=told), lambda: dist.broadcast(small, 0, group=told)],
        "shape": [lambda: dist.all_reduce(small, group=told), lambda: dist.all_reduce(large, group=told)],
        "dtype": [lambda: dist.all_reduce(small, group=told), lambda: dist.all_reduce(small.int(), group=told)],
    }

    refused(check, f"ranks that differ in {what}", calls[what][rank])
