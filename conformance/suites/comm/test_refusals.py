"""Cases for invalid collective calls: the rank that makes one gets an error, and the group stays usable."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_P2P, COMM_ROOTED
from conformance.plan.case import case

REFUSALS = (RuntimeError, ValueError, TypeError)


def refused(check, what, call):
    """Check that the call raises an error with a message; ``what`` describes the call in messages."""
    try:
        call()
    except REFUSALS as error:
        check.that(str(error).strip(), f"{what} raises an error without a message")
        return
    check.that(False, f"{what} does not raise an error")


def still_works(check, device, world_size):
    """Check that the next collective gives the right sum on all ranks."""
    total = torch.ones(3, device=device)
    dist.all_reduce(total)
    check.equal(total.cpu().tolist(), [float(world_size)] * 3, "the sum of the call after the invalid one")


@case("comm.refusal.shape", requires=[COMM],
      axes={"call": ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor")},
      world_size=2)  # fmt: skip
def test_shapes(check, device, call, world_size, group):
    """A collective raises an error for an output that does not fit its input."""
    part, odd = torch.ones(4, device=device), torch.ones(7, device=device)
    calls = {
        "all_gather": lambda: dist.all_gather([part], part),  # one output for two ranks
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(odd, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, [part]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, odd),
    }

    refused(check, f"{call} with an output that does not fit", calls[call])

    still_works(check, device, world_size)


@case("comm.refusal.dtype", requires=[COMM], axes={"call": ("all_gather", "reduce_scatter")}, world_size=2)
def test_dtypes(check, device, call, world_size, group):
    """A collective raises an error for inputs and outputs of different dtypes."""
    part, integers = torch.ones(4, device=device), torch.ones(4, device=device, dtype=torch.int32)

    if call == "all_gather":
        refused(check, "gathering float32 into int32", lambda: dist.all_gather([integers, integers.clone()], part))
    else:
        refused(check, "scattering int32 into float32", lambda: dist.reduce_scatter(part, [integers, integers.clone()]))

    still_works(check, device, world_size)


@case("comm.refusal.splits", requires=[COMM, COMM_ALL_TO_ALL], world_size=2)
def test_splits(check, device, world_size, group):
    """all_to_all_single raises an error for split sizes that do not add up to the rows."""
    given, taken = torch.ones(4, device=device), torch.zeros(4, device=device)

    refused(check, "all_to_all_single of 3 of 4 rows", lambda: dist.all_to_all_single(taken, given, [2, 2], [1, 2]))

    still_works(check, device, world_size)


@case("comm.refusal.root", requires=[COMM], axes={"root": ("2", "-1")}, world_size=2)
def test_roots(check, device, root, world_size, group):
    """A broadcast raises an error for a root that is not a rank."""
    refused(check, f"broadcast from {root} of 2", lambda: dist.broadcast(torch.ones(4, device=device), int(root)))

    still_works(check, device, world_size)


@case("comm.refusal.parts", requires=[COMM, COMM_ROOTED], world_size=2)
def test_parts(check, device, rank, world_size, group):
    """A scatter raises an error for a root without parts and for parts on another rank."""
    if rank == 0:
        refused(check, "scatter without parts", lambda: dist.scatter(torch.ones(4, device=device), None, 0))
    else:
        refused(check, "scatter with parts on a rank that is not the root",
                lambda: dist.scatter(torch.ones(4, device=device), [torch.ones(4, device=device)] * 2, 0))  # fmt: skip

    still_works(check, device, world_size)


@case("comm.refusal.itself", requires=[COMM, COMM_P2P], world_size=2)
def test_itself(check, device, rank, world_size, group):
    """A send raises an error for a message from a rank to itself."""
    refused(check, "a message from a rank to itself", lambda: dist.send(torch.ones(4, device=device), rank))

    still_works(check, device, world_size)


@case("comm.refusal.ranks", requires=[COMM], axes={"ranks": ("0,2", "0,0")}, world_size=2)
def test_groups(check, device, ranks, world_size, group):
    """new_group raises an error for ranks that do not exist and for repeated ranks."""
    members = [int(number) for number in ranks.split(",")]

    refused(check, f"a group of {members} in a world of 2", lambda: dist.new_group(members))

    still_works(check, device, world_size)


@contextlib.contextmanager
def detailed():
    """Set the level of TORCH_DISTRIBUTED_DEBUG=DETAIL: groups created inside compare the calls of their ranks."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        yield
    finally:
        dist.set_debug_level(before)


@case("comm.refusal.mismatch", requires=[COMM], axes={"what": ("call", "shape", "dtype")}, world_size=2)
def test_mismatch(check, device, what, rank, world_size, group):
    """A group created at debug level DETAIL raises an error on all ranks when their calls differ."""
    with detailed():
        checked = dist.new_group()
    small, large = torch.ones(4, device=device), torch.ones(5, device=device)
    calls = {
        "call": [lambda: dist.all_reduce(small, group=checked), lambda: dist.broadcast(small, 0, group=checked)],
        "shape": [lambda: dist.all_reduce(small, group=checked), lambda: dist.all_reduce(large, group=checked)],
        "dtype": [lambda: dist.all_reduce(small, group=checked), lambda: dist.all_reduce(small.int(), group=checked)],
    }

    refused(check, f"ranks that differ in {what}", calls[what][rank])
