"""Every collective in every way: synchronous, asynchronous and in a group of some ranks, in every dtype."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import (
    COMM,
    COMM_ALL_TO_ALL,
    COMM_AVERAGE,
    COMM_BITWISE,
    COMM_DTYPE,
    COMM_ROOTED,
    DTYPE,
)
from conformance.plan.case import case

from .payloads import DTYPES, FILLING, MOVED, OPS, check_reduced, payloads

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
    ops: list[str]
    drawn: Callable[[str], torch.Tensor]

    def of_each_op(self) -> Iterator[tuple[str, _Call]]:
        """Yield each operation that the device claims, with the call that has inputs for it."""
        for op in self.ops:
            yield op, replace(self, inputs=self.drawn(op))

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
        return torch.full_like(self.inputs[0, :1].expand(rows, -1), FILLING, device=self.device).contiguous()

    def run(self, function: Any, *args: Any, **more: Any) -> None:
        """Run a collective, and wait for it if it is asynchronous."""
        work = function(*args, **more, **self.options)
        if work is not None:
            work.wait()


def _all_reduce(all_ops: _Call) -> None:
    for op, call in all_ops.of_each_op():
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


def _reduce_scatter(all_ops: _Call) -> None:
    for op, call in all_ops.of_each_op():
        listed, whole = call.empty(1)[0], call.empty(1)[0]
        call.run(dist.reduce_scatter, listed, list(call.given()), OPS[op])
        call.run(dist.reduce_scatter_tensor, whole, call.given().view(-1), OPS[op])
        for result in (listed, whole):
            check_reduced(call.check, result, call.inputs[:, call.me], op)


def _reduce(all_ops: _Call) -> None:
    for op, call in all_ops.of_each_op():
        for place, root in enumerate(call.members):
            buffer = call.mine()
            call.run(dist.reduce, buffer, root, OPS[op])
            rows = call.given()
            call.run(dist.reduce, rows[call.me], root, OPS[op])
            if place == call.me:
                check_reduced(call.check, buffer, call.inputs[:, 0], op)
                expected = torch.stack([call.inputs[each, each] for each in range(call.size)])
                check_reduced(call.check, rows[place], expected, op)
            others = [each for each in range(call.size) if each != call.me]
            call.check.equal(rows[others].cpu(), call.inputs[call.me, others], f"what lies beside a reduce to {root}")


def _gather(call: _Call) -> None:
    for place, root in enumerate(call.members):
        parts = list(call.empty(call.size)) if place == call.me else None
        call.run(dist.gather, call.mine(), parts, root)
        if parts:
            call.check.equal(torch.stack(parts).cpu(), call.inputs[:, 0], f"gather to {root}")
        rows = call.empty(call.size)
        rows[call.me] = call.mine()
        call.run(dist.gather, rows[call.me], list(rows) if place == call.me else None, root)
        if place == call.me:
            call.check.equal(rows.cpu(), call.inputs[:, 0], f"gather to {root} in place")


def _scatter(call: _Call) -> None:
    for place, root in enumerate(call.members):
        buffer = call.empty(1)[0]
        call.run(dist.scatter, buffer, list(call.given()) if place == call.me else None, root)
        call.check.equal(buffer.cpu(), call.inputs[place, call.me], f"scatter from {root}")
        rows = call.given()
        call.run(dist.scatter, rows[call.me], list(rows) if place == call.me else None, root)
        expected = call.inputs[call.me].clone()
        expected[call.me] = call.inputs[place, call.me]
        call.check.equal(rows.cpu(), expected, f"scatter from {root} in place")


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
def test_ways(case, check, device, declaration, kind, way, dtype, rank, world_size, group):
    """Collectives give the host's values for any root and operation, also asynchronously and in groups of two ranks."""
    groups = [({"async_op": way == "asynchronous"}, list(range(world_size)))]
    if way == "group":
        # Every rank makes each group, whether it belongs to it or not.
        groups = [
            ({"group": _made(ranks), "async_op": first}, ranks) for first, ranks in ((False, [1, 2]), (True, [2, 0]))
        ]
    wanted = getattr(torch, dtype)
    for options, members in groups:
        if rank not in members:
            continue
        for length in LENGTHS:

            def drawn(op, members=members, length=length):
                rows = payloads(case, len(members), length * len(members), wanted, op)
                return rows.view(len(members), len(members), length)

            me = members.index(rank)
            call = _Call(check, device, members, me, drawn(MOVED), options, _ops(declaration, wanted), drawn)
            for collective in KINDS[kind][1]:
                collective(call)
    check.that(True, "took part")


def _made(ranks: list[int]) -> Any:
    """Return a group of these ranks; sort them if the installed torch cannot keep their order."""
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        return dist.new_group(ranks, sort_ranks=False)
    ranks.sort()
    return dist.new_group(ranks)


def _ops(declaration: Any, dtype: torch.dtype) -> list[str]:
    """Return the operations that the device claims for a dtype."""
    averages = ["avg"] if dtype.is_floating_point and declaration.supports(COMM_AVERAGE.cell) else []
    bits = [] if dtype.is_floating_point or not declaration.supports(COMM_BITWISE.cell) else ["band", "bor", "bxor"]
    return ["sum", "product", "min", "max", *averages, *bits]
