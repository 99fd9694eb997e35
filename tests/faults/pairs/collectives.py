"""Family K: collectives that lose a part, an operation or a root, for one dtype, group, layout, length or mode.

The faults act in the processes of ranks, around the functions of ``torch.distributed``. One run of pytest judges many
faults: each case has one fault, which is armed while the case runs.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.fault import Fault

#: Environment variable with the file of faults by case, and the file's neighbour to which hits are written.
VARIABLE = "CONFORMANCE_COLLECTIVE_FAULTS"
#: By function: the parameters that are written, the one that is read, and the one that names the root.
FUNCTIONS: Mapping[str, tuple[str, str, str]] = {
    "all_reduce": ("tensor", "tensor", ""),
    "broadcast": ("tensor", "tensor", "src"),
    "all_gather": ("tensor_list", "tensor", ""),
    "all_gather_into_tensor": ("output_tensor", "input_tensor", ""),
    "reduce": ("tensor", "tensor", "dst"),
    "reduce_scatter": ("output", "input_list", ""),
    "reduce_scatter_tensor": ("output", "input", ""),
    "gather": ("gather_list", "tensor", "dst"),
    "scatter": ("tensor", "scatter_list", "src"),
    "all_to_all": ("output_tensor_list", "input_tensor_list", ""),
    "all_to_all_single": ("output", "input", ""),
}
EFFECTS = ("operation ignored", "root ignored", "a part missing", "last element kept", "stale", "narrow", "neighbour")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
CONDITIONS = (
    "always",
    *DTYPES,
    "2 ranks",
    "3 ranks",
    "4 ranks",
    "a subgroup",
    "asynchronous",
    "root 1",
    "long",
    "short",
)
#: Elements above which a call is long.
_LONG = 1 << 12


def population() -> list[Fault]:
    """Return every fault that has a meaning."""
    return [
        Fault("K", effect, function, condition)
        for function, effect, condition in itertools.product(FUNCTIONS, EFFECTS, CONDITIONS)
        if _has_meaning(function, effect, condition)
    ]


def _has_meaning(function: str, effect: str, condition: str) -> bool:
    reduces, root = "reduce" in function, FUNCTIONS[function][2]
    if (effect == "operation ignored" and not reduces) or (effect == "root ignored" and not root):
        return False
    if effect == "narrow" and condition in ("float16", "bfloat16", "int8", "uint8"):
        return False
    return condition != "root 1" or bool(root)


def bound(function: str, original: Callable[..., Any], args: Any, kwargs: Any) -> inspect.BoundArguments:
    """Return a call's arguments by name, with defaults."""
    found = _signature(original).bind(*args, **kwargs)
    found.apply_defaults()
    return found


@functools.cache
def _signature(original: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(original)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value or [])


def meets(fault: Fault, call: inspect.BoundArguments) -> bool:
    """Return whether a call is one that the fault breaks."""
    written, read, root = FUNCTIONS[fault.target]
    given = call.arguments
    tensors = _tensors(given[written]) + _tensors(given[read])
    if not tensors:
        return False
    size = dist.get_world_size(given.get("group"))
    condition, tensor = fault.place, tensors[0]
    if condition in DTYPES:
        return tensor.dtype is getattr(torch, condition)
    if condition.endswith(" ranks"):
        return size == int(condition[0])
    if condition == "root 1":
        return given.get(root) == 1
    return {
        "always": True,
        "a subgroup": size < dist.get_world_size(),
        "asynchronous": bool(given.get("async_op")),
        "long": tensor.numel() > _LONG,
        "short": tensor.numel() <= _LONG,
    }[condition]


def spoiled(fault: Fault, original: Callable[..., Any], call: inspect.BoundArguments) -> Any:
    """Make the broken call."""
    written, read, root = FUNCTIONS[fault.target]
    given = call.arguments
    if fault.kind == "operation ignored":
        given["op"] = dist.ReduceOp.MAX if given["op"] == dist.ReduceOp.SUM else dist.ReduceOp.SUM
    elif fault.kind == "root ignored":
        given[root] = dist.get_process_group_ranks(given.get("group") or dist.group.WORLD)[0]
        lists = {"gather": "gather_list", "scatter": "scatter_list"}
        # Who is taken for the root has no list of its own.
        if name := lists.get(fault.target):
            spare = [torch.zeros_like(given["tensor"]) for _ in range(dist.get_world_size(given.get("group")))]
            given[name] = (given[name] or spare) if dist.get_rank() == given[root] else None
    elif fault.kind == "a part missing" and dist.get_rank(given.get("group")) == 0:
        for tensor in _tensors(given[read]):
            if written != read:
                given[read] = _zeros(given[read])
                break
            tensor.zero_()
    before = [tensor.clone() for tensor in _tensors(given[written])]
    work = original(*call.args, **call.kwargs)
    if fault.kind in ("last element kept", "stale", "narrow", "neighbour"):
        if work is not None:
            work.wait()
        with torch.no_grad():
            _spoil(fault.kind, _tensors(given[written]), before)
    return work


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return [torch.zeros_like(tensor) for tensor in value]


def _spoil(effect: str, tensors: list[torch.Tensor], before: list[torch.Tensor]) -> None:
    if effect == "neighbour" and len(tensors) > 1:
        values = [tensor.clone() for tensor in tensors]
        for tensor, value in zip(tensors, values[1:] + values[:1], strict=True):
            tensor.copy_(value)
        return
    for tensor, old in zip(tensors, before, strict=True):
        if effect == "stale":
            tensor.copy_(old)
        elif effect == "last element kept":
            tensor.copy_(torch.cat([tensor.flatten()[:-1], old.flatten()[-1:]]).view(tensor.shape))
        elif effect == "narrow":
            tensor.copy_(tensor.to(torch.bfloat16 if tensor.is_floating_point() else torch.float16).to(tensor.dtype))
        elif tensor.numel() > 1:
            tensor.copy_(tensor.flatten().roll(1).view(tensor.shape))


# --- in the processes of ranks ----------------------------------------------------------------------------------------


class Armed:
    """The fault of the case that runs, in this process."""

    fault: Fault | None = None
    case = ""
    hit: Callable[[str], None] = staticmethod(lambda case: None)


def install() -> None:
    """Put the faults around the functions of ``torch.distributed``, for the rest of this process."""
    for name in FUNCTIONS:
        original = getattr(dist, name)
        if not hasattr(original, "conformance_faults"):
            setattr(dist, name, _around(name, original))


def _around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    from tests.faults.reported import collectives as reported  # imports this module

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        fault = Armed.fault
        if fault is None or fault.target != name:
            return original(*args, **kwargs)
        is_met, make = (reported.meets, reported.spoiled) if fault.place == "reported" else (meets, spoiled)
        if not is_met(fault, call := bound(name, original, args, kwargs)):
            return original(*args, **kwargs)
        Armed.hit(Armed.case)
        return make(fault, original, call)

    function.conformance_faults = True  # type: ignore[attr-defined]
    return function


def follow_cases() -> None:
    """Arm each case's fault, from the file that the environment names, when a rank looks the case up."""
    file = Path(os.environ[VARIABLE])
    faults = {case: Fault(**fields) for case, fields in json.loads(file.read_text(encoding="utf-8")).items()}
    install()
    from conformance.ranks import body

    original = body.case_named

    def case_named(function: Callable[..., Any], case_id: str) -> Any:
        Armed.fault, Armed.case = faults.get(case_id), case_id
        return original(function, case_id)

    def hit(case: str) -> None:
        with file.with_suffix(".hits").open("a", encoding="utf-8") as stream:
            stream.write(case + "\n")

    Armed.hit = staticmethod(hit)  # type: ignore[method-assign]
    body.case_named = case_named


# --- direct calls -----------------------------------------------------------------------------------------------------


def direct(fault: Fault, device: torch.device, groups: Mapping[int, Any]) -> list[torch.Tensor]:
    """Make calls that meet a fault's condition, and return what this rank got."""
    rank, world = dist.get_rank(), dist.get_world_size()
    condition = fault.place
    size = int(condition[0]) if condition.endswith(" ranks") else 2 if condition == "a subgroup" else world
    if rank >= size:
        return []
    dtype = getattr(torch, condition) if condition in DTYPES else torch.float32
    found = []
    for root, op, length in itertools.product((0, 1), (dist.ReduceOp.SUM, dist.ReduceOp.MIN), (13, _LONG + 13)):
        options: dict[str, Any] = {"group": groups[size], "async_op": condition == "asynchronous"}
        if "reduce" in fault.target:
            options["op"] = op
        if FUNCTIONS[fault.target][2]:
            options[FUNCTIONS[fault.target][2]] = root
        outputs, arguments = _arguments(fault.target, rank, size, root, length, dtype, device)
        work = getattr(dist, fault.target)(**arguments, **options)
        if work is not None:
            work.wait()
        found += [output.cpu() for output in outputs]
    return found


def _arguments(
    function: str, rank: int, size: int, root: int, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    def made(elements: int = length) -> torch.Tensor:
        values = torch.arange(elements, dtype=torch.float64) % 7 + 1 + rank * 3 + 1 / 3
        return values.to(dtype).to(device)

    def empty(elements: int = length) -> torch.Tensor:
        return torch.full((elements,), 99, dtype=dtype, device=device)

    written, read, _ = FUNCTIONS[function]
    several = {"tensor_list", "gather_list", "input_list", "scatter_list", "output_tensor_list", "input_tensor_list"}
    longer = {
        "all_gather_into_tensor": (size, 1),
        "reduce_scatter_tensor": (1, size),
        "all_to_all_single": (size, size),
    }
    factors = longer.get(function, (1, 1))
    if written == read:
        tensor = made()
        return [tensor], {written: tensor}
    out: Any = [empty() for _ in range(size)] if written in several else empty(length * factors[0])
    source: Any = [made() for _ in range(size)] if read in several else made(length * factors[1])
    if (function == "gather" and rank != root) or (function == "scatter" and rank != root):
        out, source = (None, source) if function == "gather" else (out, None)
    return _tensors(out), {written: out, read: source}


def candidates(fault: Fault, cases: Mapping[str, int]) -> Iterator[str]:
    """Yield the cases that can meet a fault's condition, by id, from the cases' numbers of ranks."""
    order = [*_SUBJECTS[fault.target], "ways"]
    named = sorted((case for case in cases if _subject(case) in order), key=lambda case: order.index(_subject(case)))
    kind = {"reduce": "rooted", "gather": "rooted", "scatter": "rooted"}.get(
        fault.target, "all_to_all" if fault.target.startswith("all_to_all") else "symmetric"
    )
    calls = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"}
    own = next((call for call in calls if fault.target.startswith(call)), "")
    condition = fault.place
    for case in named:
        axes = case.partition("[")[2].rstrip("]").split("-")
        dtype = next((axis for axis in axes if axis in DTYPES), "float32")
        if condition in DTYPES and dtype != condition:
            continue
        # A case of several collectives names the one that it calls.
        if _subject(case) == "ways" and kind not in axes:
            continue
        if calls & set(axes) and _subject(case) != "ways" and own not in axes:
            continue
        if condition.endswith(" ranks") and cases[case] != int(condition[0]) and "group" not in case:
            continue
        if condition == "long" and "256k3" not in axes and "huge" not in case and "ways" not in case:
            continue
        if condition == "a subgroup" and "group" not in case:
            continue
        if condition == "asynchronous" and "async" not in case:
            continue
        yield case


def _subject(case: str) -> str:
    return case.removeprefix("comm.").partition("[")[0]


_SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("all_reduce", "all_reduce.bits", "all_reduce.layout", "all_reduce.huge", "async", "async.groups",
                   "async.mixed", "group.disjoint", "group.overlap", "group.order", "sizes"),
    "broadcast": ("broadcast", "broadcast.huge", "async", "async.mixed", "group.order", "group.disjoint", "sizes"),
    "all_gather": ("all_gather", "async", "group.order", "sizes"),
    "all_gather_into_tensor": ("all_gather.into_tensor", "all_gather.layout", "async", "async.mixed", "group.order"),
    "reduce": ("reduce", "async", "group.order", "sizes"),
    "reduce_scatter": ("reduce_scatter.list", "async", "group.order", "sizes"),
    "reduce_scatter_tensor": ("reduce_scatter", "reduce_scatter.in_place", "reduce_scatter.shards", "async",
                              "async.mixed", "group.order"),
    "gather": ("gather", "async", "group.order", "sizes"),
    "scatter": ("scatter", "async", "group.order", "sizes"),
    "all_to_all": ("all_to_all.list", "async", "group.order", "sizes"),
    "all_to_all_single": ("all_to_all", "all_to_all.uneven", "async", "group.order", "sizes"),
}  # fmt: skip
