"""Every collective in every way: synchronous, asynchronous and in a group of some ranks, in every dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, COMM_ROOTED, DTYPE
from conformance.case import case

from .payloads import DTYPES, OPS, check_reduced, payloads

#: Elements of a part: a few, and more than a small buffer, with a remainder.
LENGTHS = (7, (1 << 14) + 5)
WAYS = ("synchronous", "asynchronous", "group")


@dataclass
class _Call:
    """The members of a group, their inputs, and this rank's place among them."""

    check: Any
    device: torch.device
    members: list[int]
    me: int
    inputs: torch.Tensor
    options: dict[str, Any]

    @property
    def size(self) -> int:
        return len(self.members)

    def given(self) -> torch.Tensor:
        """Return this rank's parts on the device, one row for each member."""
        return self.inputs[self.me].to(self.device, copy=True)

    def mine(self) -> torch.Tensor:
        """Return this rank's first part on the device."""
        return self.inputs[self.me, 0].to(self.device, copy=True)

    def empty(self, rows: int) -> torch.Tensor:
        """Return memory for parts, filled with a number that no payload has."""
        return torch.full_like(self.inputs[0, :1].expand(rows, -1), 77, device=self.device).contiguous()

    def run(self, function: Any, *args: Any, **more: Any) -> None:
        """Run a collective, and wait for it if it is asynchronous."""
        work = function(*args, **more, **self.options)
        if work is not None:
            work.wait()


def _all_reduce(call: _Call) -> None:
    for op in ("sum", "max"):
        buffer = call.mine()
        call.run(dist.all_reduce, buffer, OPS[op])
        check_reduced(call.check, buffer, call.inputs[:, 0], op)


def _broadcast(call: _Call) -> None:
    for place, root in enumerate(call.members):
        buffer = call.mine()
        call.run(dist.broadcast, buffer, root)
        call.check.equal(buffer.cpu(), call.inputs[place, 0], f"broadcast from {root}")


def _all_gather(call: _Call) -> None:
    parts, whole = list(call.empty(call.size)), call.empty(call.size)
    call.run(dist.all_gather, parts, call.mine())
    call.run(dist.all_gather_into_tensor, whole.view(-1), call.mine())
    call.check.equal(torch.stack(parts).cpu(), call.inputs[:, 0], "all_gather")
    call.check.equal(whole.cpu(), call.inputs[:, 0], "all_gather_into_tensor")


def _reduce_scatter(call: _Call) -> None:
    for op in ("sum", "max"):
        listed, whole = call.empty(1)[0], call.empty(1)[0]
        call.run(dist.reduce_scatter, listed, list(call.given()), OPS[op])
        call.run(dist.reduce_scatter_tensor, whole, call.given().view(-1), OPS[op])
        for result in (listed, whole):
            check_reduced(call.check, result, call.inputs[:, call.me], op)


def _reduce(call: _Call) -> None:
    for place, root in enumerate(call.members):
        for op in ("sum", "max"):
            buffer = call.mine()
            call.run(dist.reduce, buffer, root, OPS[op])
            if place == call.me:
                check_reduced(call.check, buffer, call.inputs[:, 0], op)


def _gather(call: _Call) -> None:
    for place, root in enumerate(call.members):
        parts = list(call.empty(call.size)) if place == call.me else None
        call.run(dist.gather, call.mine(), parts, root)
        if parts:
            call.check.equal(torch.stack(parts).cpu(), call.inputs[:, 0], f"gather to {root}")


def _scatter(call: _Call) -> None:
    for place, root in enumerate(call.members):
        buffer = call.empty(1)[0]
        call.run(dist.scatter, buffer, list(call.given()) if place == call.me else None, root)
        call.check.equal(buffer.cpu(), call.inputs[place, call.me], f"scatter from {root}")


def _all_to_all(call: _Call) -> None:
    parts, whole = list(call.empty(call.size)), call.empty(call.size)
    call.run(dist.all_to_all_single, whole.view(-1), call.given().view(-1))
    call.run(dist.all_to_all, parts, list(call.given()))
    call.check.equal(whole.cpu(), call.inputs[:, call.me], "all_to_all_single")
    call.check.equal(torch.stack(parts).cpu(), call.inputs[:, call.me], "all_to_all")


KINDS = {
    "symmetric": ([], (_all_reduce, _broadcast, _all_gather, _reduce_scatter)),
    "rooted": ([COMM_ROOTED], (_reduce, _gather, _scatter)),
    "all_to_all": ([COMM_ALL_TO_ALL], (_all_to_all,)),
}


@case(
    "comm.ways",
    requires=[COMM, DTYPE, COMM_DTYPE],
    axes={"kind": {kind: needed for kind, (needed, _) in KINDS.items()}, "way": WAYS, "dtype": DTYPES},
    world_size=3,
)
def test_ways(case, check, device, kind, way, dtype, rank, world_size, group):
    """Collectives give the host's values for any root, also asynchronously and in a group of the last two ranks."""
    members = [1, 2] if way == "group" else list(range(world_size))
    # Every rank makes the group, whether it belongs to it or not.
    options = {"group": dist.new_group(members)} if way == "group" else {"async_op": way == "asynchronous"}
    if rank in members:
        for length in LENGTHS:
            rows = payloads(case, len(members), length * len(members), getattr(torch, dtype))
            inputs = rows.view(len(members), len(members), length)
            call = _Call(check, device, members, members.index(rank), inputs, options)
            for collective in KINDS[kind][1]:
                collective(call)
    check.that(True, "took part")
