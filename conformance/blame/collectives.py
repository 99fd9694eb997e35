"""Collectives as operators: what goes into one on each rank, and what has to come out.

A call of PyTorch's ``c10d`` or ``_c10d_functional`` becomes a Meeting: a value without process groups, which can be
sent to another process. All numbers are summed in float64 and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from conformance.suites.calls.kernels import base_name, bound

#: Namespaces of PyTorch's collectives, and of messages between two ranks.
COLLECTIVES = frozenset({"c10d", "_c10d_functional"})
#: By name: the arguments that are read, those that are written (empty: the result is new), and what is done.
_KINDS: dict[str, tuple[str, str, str]] = {
    "allreduce_": ("tensors", "tensors", "reduce"),
    "allreduce_coalesced_": ("tensors", "tensors", "reduce"),
    "reduce_": ("tensors", "tensors", "reduce_root"),
    "broadcast_": ("tensors", "tensors", "broadcast"),
    "allgather_": ("input_tensors", "output_tensors", "gather_list"),
    "_allgather_base_": ("input_tensor", "output_tensor", "gather"),
    "allgather_into_tensor_coalesced_": ("inputs", "outputs", "gather"),
    "reduce_scatter_": ("input_tensors", "output_tensors", "scatter_sum_list"),
    "_reduce_scatter_base_": ("input_tensor", "output_tensor", "scatter_sum"),
    "reduce_scatter_tensor_coalesced_": ("inputs", "outputs", "scatter_sum"),
    "alltoall_base_": ("input", "output", "exchange"),
    "alltoall_": ("input_tensors", "output_tensors", "exchange_list"),
    "all_reduce": ("input", "", "reduce"),
    "all_reduce_": ("input", "input", "reduce"),
    "all_reduce_coalesced": ("inputs", "", "reduce"),
    "all_gather_into_tensor": ("input", "", "gather"),
    "all_gather_into_tensor_out": ("input", "out", "gather"),
    "all_gather_into_tensor_coalesced": ("inputs", "", "gather"),
    "reduce_scatter_tensor": ("input", "", "scatter_sum"),
    "reduce_scatter_tensor_out": ("input", "out", "scatter_sum"),
    "reduce_scatter_tensor_coalesced": ("inputs", "", "scatter_sum"),
    "broadcast": ("input", "", "broadcast"),
    "all_to_all_single": ("input", "", "exchange"),
}


@dataclass(frozen=True)
class Meeting:
    """One collective on one rank: its kind, its group's name and ranks, and its parameters."""

    name: str
    kind: str
    group: str
    ranks: tuple[int, ...]
    operation: str = "sum"
    root: int = 0
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


def meeting(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Meeting | None:
    """Return the meeting that a call is; None for one that is not judged, such as a message to one rank."""
    name = base_name(func)
    if func.namespace not in COLLECTIVES or name not in _KINDS:
        return None
    names = bound(func, args, kwargs)
    group = _group(names)
    root = names.get("root_rank", names.get("src", 0))
    splits = (
        tuple(map(int, names.get("input_split_sizes") or ())),
        tuple(map(int, names.get("output_split_sizes") or ())),
    )
    from torch.distributed import get_process_group_ranks

    ranks = tuple(get_process_group_ranks(group))
    found = Meeting(name, _KINDS[name][2], str(group.group_name), ranks, _operation(names), int(root), splits)
    return found if is_known(found) else None


def _group(names: dict[str, Any]) -> Any:
    from torch.distributed import ProcessGroup, distributed_c10d

    if "process_group" in names:
        return ProcessGroup.unbox(names["process_group"])
    return distributed_c10d._resolve_process_group(names["group_name"])  # type: ignore[attr-defined]  # private


def _operation(names: dict[str, Any]) -> str:
    found = names.get("reduce_op", "sum")
    if isinstance(found, str):
        return found.lower()
    from torch.distributed import ReduceOp

    number = int(found.op())  # of a TorchScript object, which has the number of the operation
    return str(ReduceOp.RedOpType(number).name).lower()


def given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a collective reads."""
    return _flat(bound(func, args, kwargs)[_KINDS[base_name(func)][0]])


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """Return the tensors that a collective writes, or makes."""
    place = _KINDS[base_name(func)][1]
    return _flat(bound(func, args, kwargs)[place] if place else result)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value or () for tensor in _flat(item)] if isinstance(value, list | tuple) else []


def due(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    """Return what one rank has to get, in float64 where numbers are summed; None where it gets nothing.

    ``inputs`` are those of each rank of the group, in the group's order; ``rank`` is the place in that order.
    """
    return _DUE[own.kind](own, rank, inputs)


def _reduced(own: Meeting, tensors: list[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    if own.operation in ("sum", "avg", "product", "prod") and first.dtype is not torch.bool:
        rounds = first.is_floating_point() or first.is_complex()
        kind = torch.complex128 if first.is_complex() else torch.float64 if rounds else first.dtype
        wide = torch.stack([tensor.to(kind) for tensor in tensors])
        if own.operation in ("product", "prod"):
            return wide.prod(0)
        return wide.sum(0) if own.operation == "sum" else wide.mean(0)
    return _by_elements(own.operation, tensors)


def _by_elements(operation: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    steps = {
        "max": torch.maximum,
        "min": torch.minimum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
        "sum": torch.logical_or,
        "product": torch.logical_and,
    }
    found = tensors[0]
    for tensor in tensors[1:]:
        found = steps[operation](found, tensor)
    return found


def _reduce(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    del rank
    return [_reduced(own, list(tensors)) for tensors in zip(*inputs, strict=True)]


def _reduce_root(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    # What the other ranks have afterwards is not defined.
    return _reduce(own, rank, inputs) if rank == own.root else [None] * len(inputs[rank])


def _broadcast(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    del rank
    return list(inputs[own.root])


def _gather(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    del own, rank
    return [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in zip(*inputs, strict=True)]


def _gather_list(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    del own, rank
    return [tensors[0] for tensors in inputs]


def _scatter_sum(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    sums = [_reduced(own, list(tensors)).reshape(-1) for tensors in zip(*inputs, strict=True)]
    return [total.chunk(len(inputs))[rank] for total in sums]


def _scatter_sum_list(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    return [_reduced(own, [tensors[rank] for tensors in inputs])]


def _exchange(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    del own
    # Only even splits: of uneven ones each rank would have to know those of the others.
    return [torch.cat([tensors[0].chunk(len(inputs))[rank].reshape(-1) for tensors in inputs])]


def _exchange_list(own: Meeting, rank: int, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor | None]:
    del own
    return [tensors[rank] for tensors in inputs]


_DUE = {
    "reduce": _reduce,
    "reduce_root": _reduce_root,
    "broadcast": _broadcast,
    "gather": _gather,
    "gather_list": _gather_list,
    "scatter_sum": _scatter_sum,
    "scatter_sum_list": _scatter_sum_list,
    "exchange": _exchange,
    "exchange_list": _exchange_list,
}


def is_known(own: Meeting) -> bool:
    """Return whether ``due`` can say what has to come out."""
    if own.operation.startswith("premul"):
        return False
    return own.kind != "exchange" or not any(own.splits[0]) or len(set(own.splits[0] + own.splits[1])) == 1
