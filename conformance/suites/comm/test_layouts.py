"""Cases for layouts: a collective reads and writes the elements of a view, or refuses the view with an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_P2P, COMM_ROOTED
from conformance.plan.case import case

from .layouts import DENSE, EXPANDED, GAPS, PLAIN, Layout, Memory
from .test_refusals import REFUSALS

#: Shape of what one rank gives to one other rank: four dimensions, so that there is an order of channels.
SHAPE = (2, 2, 3, 2)
#: A tensor without dimensions has one element, which may be inside a larger memory.
SCALAR = ()


@dataclass
class _Call:
    """A collective on two ranks, with its tensors in their layouts."""

    rank: int
    size: int
    shape: tuple[int, ...]
    memory: Memory

    def sent(self, source: int, target: int = 0) -> torch.Tensor:
        """Return on the host what a rank gives to another rank."""
        count = torch.Size(self.shape).numel()
        return self.memory.values((torch.arange(float(count)) + 100 * target).view(self.shape) + 1000.0 * source)

    def all_sent(self, source: int) -> list[torch.Tensor]:
        """Return on the host what a rank gives to each rank."""
        return [self.sent(source, target) for target in range(self.size)]

    def outputs(self) -> list[torch.Tensor]:
        """Return an output for each rank."""
        return [self.memory.take(self.shape) for _ in range(self.size)]

    def together(self) -> tuple[int, ...]:
        """Return the shape of the parts of all ranks in one tensor."""
        return (self.size * self.shape[0], *self.shape[1:])

    def total(self, target: int = 0) -> torch.Tensor:
        """Return the sum of what all ranks give to a rank."""
        return torch.stack([self.sent(source, target) for source in range(self.size)]).sum(0)


#: The results of a call on this rank with the expected ones.
Results = list[tuple[torch.Tensor, torch.Tensor]]
Run = Callable[[_Call], Results]


def _all_reduce(call: _Call) -> Results:
    tensor = call.memory.change(call.sent(call.rank))
    dist.all_reduce(tensor)
    return [(tensor, call.total())]


def _all_reduce_list(call: _Call) -> Results:
    tensors = [call.memory.change(part) for part in call.all_sent(call.rank)]
    dist.all_reduce_coalesced(tensors)
    return [(tensor, call.total(target)) for target, tensor in enumerate(tensors)]


def _broadcast(call: _Call) -> Results:
    tensor = call.memory.change(call.sent(call.rank))
    dist.broadcast(tensor, call.size - 1)
    return [(tensor, call.sent(call.size - 1))]


def _reduce(call: _Call) -> Results:
    tensor = call.memory.change(call.sent(call.rank))
    dist.reduce(tensor, 0)
    return [(tensor, call.total())] if call.rank == 0 else []


def _all_gather(call: _Call) -> Results:
    parts = call.outputs()
    dist.all_gather(parts, call.memory.give(call.sent(call.rank)))
    return [(part, call.sent(source)) for source, part in enumerate(parts)]


def _all_gather_into_tensor(call: _Call) -> Results:
    whole = call.memory.take(call.together())
    dist.all_gather_into_tensor(whole, call.memory.give(call.sent(call.rank)))
    return [(whole, torch.cat([call.sent(source) for source in range(call.size)]))]


def _all_gather_objects(call: _Call) -> Results:
    found: list[Any] = [None] * call.size
    dist.all_gather_object(found, call.memory.give(call.sent(call.rank)))
    return [(part, call.sent(source)) for source, part in enumerate(found)]


def _gather(call: _Call) -> Results:
    parts = call.outputs() if call.rank == 0 else None
    dist.gather(call.memory.give(call.sent(call.rank)), parts, 0)
    return [(part, call.sent(source)) for source, part in enumerate(parts or ())]


def _scatter(call: _Call) -> Results:
    output = call.memory.take(call.shape)
    dist.scatter(output, [call.memory.give(part) for part in call.all_sent(0)] if call.rank == 0 else None, 0)
    return [(output, call.sent(0, call.rank))]


def _reduce_scatter(call: _Call) -> Results:
    output = call.memory.take(call.shape)
    dist.reduce_scatter(output, [call.memory.give(part) for part in call.all_sent(call.rank)])
    return [(output, call.total(call.rank))]


def _reduce_scatter_tensor(call: _Call) -> Results:
    output = call.memory.take(call.shape)
    dist.reduce_scatter_tensor(output, call.memory.give(torch.cat(call.all_sent(call.rank))))
    return [(output, call.total(call.rank))]


def _all_to_all(call: _Call) -> Results:
    parts = call.outputs()
    dist.all_to_all(parts, [call.memory.give(part) for part in call.all_sent(call.rank)])
    return [(part, call.sent(source, call.rank)) for source, part in enumerate(parts)]


def _all_to_all_single(call: _Call) -> Results:
    whole = call.memory.take(call.together())
    dist.all_to_all_single(whole, call.memory.give(torch.cat(call.all_sent(call.rank))))
    return [(whole, torch.cat([call.sent(source, call.rank) for source in range(call.size)]))]


def _send(call: _Call) -> Results:
    if call.rank == 0:
        dist.send(call.memory.give(call.sent(0)), 1)
        return []
    output = call.memory.take(call.shape)
    dist.recv(output, 0)
    return [(output, call.sent(0))]


def _isend(call: _Call) -> Results:
    if call.rank == 1:
        dist.isend(call.memory.give(call.sent(1)), 0).wait()
        return []
    output = call.memory.take(call.shape)
    dist.irecv(output, 1).wait()
    return [(output, call.sent(1))]


def _batch(call: _Call) -> Results:
    other, output = 1 - call.rank, call.memory.take(call.shape)
    calls = [dist.P2POp(dist.isend, call.memory.give(call.sent(call.rank)), other),
             dist.P2POp(dist.irecv, output, other)]  # fmt: skip
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return [(output, call.sent(other))]


#: Calls by name: their requirements beside a process group, and their functions.
CALLS: dict[str, tuple[tuple[Any, ...], Run]] = {
    "all_reduce": ((), _all_reduce),
    "all_reduce_coalesced": ((), _all_reduce_list),
    "broadcast": ((), _broadcast),
    "reduce": ((COMM_ROOTED,), _reduce),
    "all_gather": ((), _all_gather),
    "all_gather_into_tensor": ((), _all_gather_into_tensor),
    "all_gather_object": ((), _all_gather_objects),
    "gather": ((COMM_ROOTED,), _gather),
    "scatter": ((COMM_ROOTED,), _scatter),
    "reduce_scatter": ((), _reduce_scatter),
    "reduce_scatter_tensor": ((), _reduce_scatter_tensor),
    "all_to_all": ((COMM_ALL_TO_ALL,), _all_to_all),
    "all_to_all_single": ((COMM_ALL_TO_ALL,), _all_to_all_single),
    "send": ((COMM_P2P,), _send),
    "isend": ((COMM_P2P,), _isend),
    "batch": ((COMM_P2P,), _batch),
}
#: Calls that change one tensor, which is their input and their output.
CHANGING = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast", "reduce"})
#: Calls with one sender and one receiver. PyTorch warns that users have to give both of them the same layout.
MESSAGES = frozenset({"send", "isend", "batch"})
#: Calls that take the parts of all ranks in one tensor, so that it has more than no dimensions.
TOGETHER = frozenset({"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"})


def _pairs(memory: str, call: str) -> Iterator[tuple[Layout, Layout]]:
    """Yield the layouts of inputs and outputs."""
    if memory != "mixed":
        yield from ((layout, layout) for layout in (GAPS if memory == "gaps" else DENSE))
    if memory == "dense" or call in CHANGING | MESSAGES:
        return
    for layout in GAPS if memory == "gaps" else DENSE[:2]:
        yield layout, PLAIN
        yield PLAIN, layout
    if memory == "mixed":
        yield EXPANDED, PLAIN


def _axis(memory: str) -> dict[str, tuple[Any, ...]]:
    """Return the calls that have pairs of layouts, with their requirements."""
    return {call: needs for call, (needs, _) in CALLS.items() if any(_pairs(memory, call))}


def _check_layouts(check: Any, device: Any, memory: str, call: str, rank: int, size: int) -> None:
    refused = set()
    for shape in (SHAPE,) if call in TOGETHER or memory == "mixed" else (SHAPE, SCALAR):
        pairs = _pairs(memory, call) if shape else [(GAPS[0], GAPS[0])] if memory == "gaps" else []
        for given, taken in pairs:
            what = f"{call} from {given.name} to {taken.name}"
            layouts = Memory(torch.device(device), given, taken)
            try:
                _check_one(check, CALLS[call][1], _Call(rank, size, shape, layouts), what)
            except REFUSALS as error:
                check.that(str(error).strip(), f"{what} raises an error without a message")
                refused.add(f"{given.name} to {taken.name}")
                layouts.check(check, f"{what}, which was refused,")
                # Another rank may not have refused: this call is the other half of its call.
                layouts = Memory(torch.device(device), PLAIN, PLAIN)
                _check_one(check, CALLS[call][1], _Call(rank, size, shape, layouts), f"{call} of contiguous tensors")
    check.metric("refused", ", ".join(sorted(refused)))
    check.that(True, "took part")  # a rank that only sends has nothing to compare


def _check_one(check: Any, run: Run, call: _Call, what: str) -> None:
    results = run(call)
    for result, exact in results:
        check.equal(result.cpu(), exact.contiguous(), f"the result of {what}")
    call.memory.check(check, what)


@case("comm.layout.gaps", requires=[COMM], axes={"call": _axis("gaps")}, world_size=2)
def test_gaps(check, device, call, rank, world_size, group):
    """A collective reads and writes the elements of a tensor with gaps, and nothing between them, or refuses it."""
    _check_layouts(check, device, "gaps", call, rank, world_size)


@case("comm.layout.dense", requires=[COMM], axes={"call": _axis("dense")}, world_size=2)
def test_dense(check, device, call, rank, world_size, group):
    """A collective gives the right values for tensors in another order of memory, or at an offset, or refuses them."""
    _check_layouts(check, device, "dense", call, rank, world_size)


@case("comm.layout.mixed", requires=[COMM], axes={"call": _axis("mixed")}, world_size=2)
def test_mixed(check, device, call, rank, world_size, group):
    """A collective whose input and output have different layouts gives every element its place, or refuses them."""
    _check_layouts(check, device, "mixed", call, rank, world_size)
