"""Reported bugs of collectives: they act around ``torch.distributed`` in the processes of ranks.

Each of the cases of a bug has it while it runs. Some runs of pytest judge all bugs.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from conformance.plan.selection import matches
from tests.defects import bench
from tests.faults.fault import Fault
from tests.faults.pairs import collectives as generated
from tests.faults.pairs import runs

if TYPE_CHECKING:
    from .results import Bug

#: Runs of pytest; in each, a bug has one case that no other bug has.
_ROUNDS = 6
#: Bytes of a rank's result from which a call is long.
_LONG = 1 << 22
#: Bytes of what a rank gives from which it is sent directly.
_SHORTEST = 1 << 13
#: Bytes of a rank's tensor from which several machines add up in another way.
_KIBIBYTES_192 = 192 << 10
#: Bytes of a message from which another protocol sends it, and those of a message that one protocol sends wrongly.
_KIBIBYTES_32, _MEBIBYTE = 32 << 10, 1 << 20
#: Bytes of a message up to which a sum is sent in one piece.
_KIBIBYTES_2 = 2 << 10
#: Bytes that are reduced together.
_LINE = 128
#: Ranks that exchange their parts directly.
_PAIR = 2
#: Elements of the first segment of what the root sends.
_SEGMENT = 256
#: The largest number of float16, and the dimensions of a batch of images.
_LARGEST_HALF, _IMAGES = 65504, 4
_CALLS: Counter[str] = Counter()
#: Separates the conditions of a bug in a fault's detail.
_AND = " and "


def fault_of(bug: Bug) -> Fault:
    """Return a bug as a fault of family K, which the processes of ranks arm by case."""
    return Fault("K", bug.effect, bug.operator[0].removeprefix("dist."), "reported", _AND.join(bug.when))


def judged(bugs: Sequence[Bug]) -> list[tuple[bool, str, int]]:
    """Return for each bug whether a case has met its condition, the case that has found it, and how many cases ran."""
    waiting = {bug: _cases(bug) for bug in bugs}
    ends: dict[Bug, list[Any]] = {bug: [False, "", 0] for bug in bugs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tests").symlink_to(runs.ROOT / "tests")
        for number in range(_ROUNDS):
            taken: dict[str, Bug] = {}
            for bug in bugs:
                case = next((case for case in waiting[bug] if case not in taken), None)
                if case is not None and not ends[bug][1]:
                    taken[case] = bug
                    waiting[bug].remove(case)
            if taken:
                _run(number, taken, ends, folder)
    return [(live, by, ran) for live, by, ran in ends.values()]


def _cases(bug: Bug) -> list[str]:
    """Return the cases of a bug, in their order but for those of a dtype that it needs: these come first."""
    every = {case: entry for case, entry in bench.plan("comm").items() if entry.case.world_size}
    found = dict.fromkeys(case for pattern in bug.cases for case in every if matches(pattern, case))
    return sorted(found, key=lambda case: dict(every[case].case.axes).get("dtype") not in bug.when)


def _run(number: int, taken: dict[str, Bug], ends: dict[Bug, list[Any]], folder: Path) -> None:
    faults = {case: fault_of(bug) for case, bug in taken.items()}
    verdicts, hit = runs.in_a_run(faults, folder, f"round{number}", timeout=600)
    for case, (outcome, _) in verdicts.items():
        end = ends[taken[case]]
        end[2] += 1
        end[0] = end[0] or case in hit
        if case in hit and outcome == "fail":
            end[1] = end[1] or case


# --- in the processes of ranks ----------------------------------------------------------------------------------------


def meets(fault: Fault, call: Any) -> bool:
    """Return whether a call is one that a reported bug breaks."""
    tensors = _given(fault, call)
    return all(_meets(word, tensors, call) for word in filter(None, fault.detail.split(_AND)))


def _given(fault: Fault, call: Any) -> list[torch.Tensor]:
    written, read, _ = generated.FUNCTIONS[fault.target]
    found = [call.arguments[name] for name in dict.fromkeys((written, read))]
    return [tensor for value in found for tensor in ([value] if isinstance(value, torch.Tensor) else value or [])]


def _meets(word: str, tensors: list[torch.Tensor], call: Any) -> bool:
    operation, group = call.arguments.get("op"), call.arguments.get("group")
    bitwise = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
    if word == "gaps":
        return any(_has_gaps(tensor) for tensor in tensors)
    if word == "permuted":
        return any(not tensor.is_contiguous() and not _has_gaps(tensor) for tensor in tensors)
    if word in HELD:
        return HELD[word](tensors)
    if word in HELD_OF_CALLS:
        return HELD_OF_CALLS[word](call)
    return {
        "not dense": lambda: any(not tensor.is_contiguous() for tensor in tensors),
        "empty": lambda: any(not tensor.numel() for tensor in tensors),
        "other dtypes": lambda: len({tensor.dtype for tensor in tensors}) > 1,
        "offset": lambda: tensors[-1].storage_offset() > 0,
        "bitwise": lambda: any(operation == each for each in bitwise),
        "maximum": lambda: operation == dist.ReduceOp.MAX,
        "average": lambda: operation == dist.ReduceOp.AVG,
        "negative": lambda: any(bool((tensor < 0).any()) for tensor in tensors if not tensor.is_complex()),
        "not the root": lambda: dist.get_rank() != call.arguments.get("src"),
        "on rank 0": lambda: dist.get_rank() == 0,
        "of several bytes": lambda: tensors[0].element_size() > 1,
        "one rank": lambda: dist.get_world_size(group) == 1,
        "product": lambda: operation == dist.ReduceOp.PRODUCT,
        "minimum": lambda: operation == dist.ReduceOp.MIN,
        "minimum or maximum": lambda: operation in (dist.ReduceOp.MIN, dist.ReduceOp.MAX),
        "in place": lambda: len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors),
        "long": lambda: tensors[0].numel() * tensors[0].element_size() >= _LONG,
        "each second call": _every_second,
        "channels_last": lambda: any(_is_channels_last(tensor) for tensor in tensors),
        "several dimensions": lambda: any(tensor.dim() > 1 for tensor in tensors),
        "bool": lambda: tensors[0].dtype is torch.bool,
        "no multiple of 32": lambda: tensors[-1].dim() > 0 and tensors[-1].shape[-1] % 32 != 0,
        "bfloat16": lambda: tensors[0].dtype is torch.bfloat16,
        "float16": lambda: tensors[0].dtype is torch.float16,
        "above 65504": lambda: any(bool((tensor.abs() > _LARGEST_HALF).any()) for tensor in tensors),
        "four dimensions behind several": lambda: tensors[-1].dim() == _IMAGES and len(tensors[-1]) != 1,
        "more than 2 ranks": lambda: dist.get_world_size(group) > _PAIR,
        "more than 1 rank": lambda: dist.get_world_size(group) > 1,
        "root not 0": lambda: (call.arguments.get("dst") or 0) != 0,
        "root 1": lambda: call.arguments.get("src") == 1,
        "another root": lambda: bool(call.arguments.get("src") or call.arguments.get("group_src")),
        "in the background": lambda: bool(call.arguments.get("async_op")),
        "above 2 KiB": lambda: tensors[0].numel() * tensors[0].element_size() > _KIBIBYTES_2,
        "changed in place": lambda: tensors[0]._version > 0,
        "rows in as many parts as ranks": lambda: tensors[-1].shape[-1:].numel() % dist.get_world_size(group) == 0,
        "memory behind": lambda: _has_memory_behind(tensors[0]),
        "a part of nothing": lambda: (
            0 in [*(call.arguments.get("input_split_sizes") or []), *(call.arguments.get("output_split_sizes") or [])]
        ),
        "no multiple of 128 bytes": lambda: tensors[0].numel() * tensors[0].element_size() % _LINE != 0,
        "more than 256": lambda: tensors[0].numel() > _SEGMENT,
        "later call": _is_later,
        "after another rank": lambda: _is_after_another_rank(tensors),
        "sum": lambda: operation == dist.ReduceOp.SUM,
        "from 192 KiB": lambda: tensors[0].numel() * tensors[0].element_size() >= _KIBIBYTES_192,
        "from 32 KiB": lambda: tensors[0].numel() * tensors[0].element_size() >= _KIBIBYTES_32,
        "of 1 MiB": lambda: tensors[0].numel() * tensors[0].element_size() == _MEBIBYTE,
        "from 8 KiB": lambda: tensors[-1].numel() * tensors[-1].element_size() >= _SHORTEST,
    }[word]()


def _has_memory_behind(tensor: torch.Tensor) -> bool:
    end = tensor.storage_offset() + tensor.numel()
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() > end * tensor.element_size()


def _is_later() -> bool:
    _CALLS["later"] += 1
    return _CALLS["later"] > 1


def _is_after_another_rank(tensors: list[torch.Tensor]) -> bool:
    """Return whether the first call had tensors of another number of dimensions."""
    return _CALLS.setdefault("rank", tensors[-1].dim()) != tensors[-1].dim()


def _every_second() -> bool:
    _CALLS["all"] += 1
    return _CALLS["all"] % 2 == 0


def _is_channels_last(t: torch.Tensor) -> bool:
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def _has_gaps(tensor: torch.Tensor) -> bool:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > 0 and span > tensor.numel()


def spoiled(fault: Fault, original: Any, call: Any) -> Any:
    """Make the broken call."""
    written, read, _ = generated.FUNCTIONS[fault.target]
    given = call.arguments
    if fault.kind == "dense":
        return _as_dense(original, call, (written, read))
    if fault.kind == "read dense":
        return _as_dense(original, call, (read,))
    if fault.kind == "error":
        raise RuntimeError(f"{fault.target} is not supported with these arguments")
    if fault.kind == "sum":
        given["op"] = dist.ReduceOp.SUM
        return original(*call.args, **call.kwargs)
    if fault.kind == "nan of rank 0 dropped":
        return _without_first_nan(original, call, given[written])
    if fault.kind in _OF_PARTS:
        return _OF_PARTS[fault.kind](original, call, written)
    if fault.kind == "first two swapped":
        return _swapped(original, call, written)
    before = given[written].clone()
    if fault.kind == "unsigned":
        return _as_unsigned(original, call, written)
    work = original(*call.args, **call.kwargs)
    if work is not None:
        work.wait()
    EDITS[fault.kind](given[written], before, given.get("group"))
    return work


def _parts_rolled(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    flat = target.flatten()
    target.copy_(flat.roll(flat.numel() // dist.get_world_size(group)).view(target.shape))


def _last_eight_zero(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    flat = target.flatten()
    target.copy_(torch.cat([flat[:-8], torch.zeros_like(flat[-8:])]).view(target.shape))


def _others_kept(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write the part of this rank alone."""
    size, mine = target.numel() // dist.get_world_size(group), dist.get_rank(group)
    flat = before.flatten()
    flat[mine * size : (mine + 1) * size] = target.flatten()[mine * size : (mine + 1) * size]
    target.copy_(flat.view(target.shape))


def _second_half_doubled(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    if dist.get_rank(group) == 0:
        flat = target.flatten()
        flat[len(flat) // 2 :] *= 2
        target.copy_(flat.view(target.shape))


def _by_elements(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Divide the sum by the tensor's elements in place of the ranks."""
    target.copy_(target * (dist.get_world_size(group) / max(target.numel(), 1)))


def _padding_zero(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write a zero at the end of each rank's part."""
    flat = target.flatten()
    part = max(flat.numel() // dist.get_world_size(group), 1)
    flat[part - 1 :: part] = 0
    target.copy_(flat.view(target.shape))


def _kept_beyond(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write the first segment alone."""
    target.copy_(torch.cat([target.flatten()[:_SEGMENT], before.flatten()[_SEGMENT:]]).view(target.shape))


def _count_taken_for_bytes(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write as many bytes of each rank's part as it has numbers."""
    size = dist.get_world_size(group)
    if target.numel() % size:
        return
    parts, kept = target.flatten().view(size, -1), before.flatten().view(size, -1)
    written = parts.shape[1] // target.element_size()
    target.copy_(torch.cat([parts[:, :written], kept[:, written:]], 1).view(target.shape))


def _first_part_twice(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write the first rank's part over the second one's."""
    flat = target.flatten()
    part = flat.numel() // dist.get_world_size(group)
    target.copy_(torch.cat([flat[:part], flat[:part], flat[2 * part :]]).view(target.shape))


def _rest_kept(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write nothing behind the last whole line."""
    whole = target.numel() - target.numel() % (_LINE // target.element_size())
    target.copy_(torch.cat([target.flatten()[:whole], before.flatten()[whole:]]).view(target.shape))


def _own_second_half_first(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Add each rank's own numbers of the second half up in the first one."""
    flat, own, half = target.flatten(), before.flatten(), target.numel() // 2
    flat[:half] += own[half : 2 * half] - own[:half]
    target.copy_(flat.view(target.shape))


#: Effects on what a function wrote, from that, from what stood there, and from the group.
EDITS: dict[str, Callable[[torch.Tensor, torch.Tensor, Any], object]] = {
    "nothing": lambda target, before, group: target.copy_(before),
    "parts rolled": _parts_rolled,
    "last eight zero": _last_eight_zero,
    "doubled": lambda target, before, group: target.copy_(target + target),
    "others kept": _others_kept,
    "second half doubled on rank 0": _second_half_doubled,
    "divided by elements": _by_elements,
    "ends zero": _padding_zero,
    "zero": lambda target, before, group: target.zero_(),
    "kept beyond 256": _kept_beyond,
    "count taken for bytes": _count_taken_for_bytes,
    "first part twice": _first_part_twice,
    "rest of 128 bytes kept": _rest_kept,
    "own second half in the first": _own_second_half_first,
}


def _without_first_nan(original: Any, call: Any, target: torch.Tensor) -> Any:
    """Reduce as if the first rank had no NaN."""
    given = call.arguments
    if dist.get_rank(given.get("group")) == 0 and target.is_floating_point():
        spare = float("inf") if given["op"] == dist.ReduceOp.MIN else -float("inf")
        target.masked_fill_(target.isnan(), spare)
    return original(*call.args, **call.kwargs)


def _from_the_start(original: Any, call: Any, written: str) -> Any:
    """Send what stands at the start of the tensor's memory."""
    given = call.arguments["tensor"]
    call.arguments["tensor"] = given.as_strided(given.shape, given.stride(), 0)
    return original(*call.args, **call.kwargs)


def _second_half_on_all(original: Any, call: Any, written: str) -> Any:
    """Leave the second half of what is reduced on the other ranks, too."""
    target, group = call.arguments[written], call.arguments.get("group")
    every = target.clone()
    dist.all_reduce(every, op=call.arguments["op"], group=group)
    root, group_root = call.arguments.get("dst"), call.arguments.get("group_dst")
    work = _waited(original, call)
    here = dist.get_rank() == root if group_root is None else dist.get_rank(group) == group_root
    if not here and target.numel() > 1:
        half = target.numel() // 2
        target.copy_(torch.cat([target.flatten()[:half], every.flatten()[half:]]).view(target.shape))
    return work


def _sum_on_all(original: Any, call: Any, written: str) -> Any:
    """Leave what is reduced on the other ranks, too."""
    target, group = call.arguments[written], call.arguments.get("group")
    every = target.clone()
    dist.all_reduce(every, op=call.arguments["op"], group=group)
    work = _waited(original, call)
    target.copy_(every)
    return work


def _swapped(original: Any, call: Any, written: str) -> Any:
    """Exchange what the first two ranks gave."""
    work = original(*call.args, **call.kwargs)
    if work is not None:
        work.wait()
    target = call.arguments[written]
    if target is not None and len(target) > 1:
        first = target[0].clone()
        target[0].copy_(target[1])
        target[1].copy_(first)
    return work


def _later_half_lost(original: Any, call: Any, written: str) -> Any:
    """Leave the parts of the later half of the ranks zero at the root."""
    work = _waited(original, call)
    parts = call.arguments[written] or []
    for part in parts[-(len(parts) // 2) :]:
        part.zero_()
    return work


def _own_part_from_the_start(original: Any, call: Any, written: str) -> Any:
    """Take the root's own part from the start of the memory that it shares with the result."""
    parts, tensor = call.arguments[written], call.arguments["tensor"]
    kept = tensor.as_strided(tensor.shape, tensor.stride(), 0).clone()
    work = _waited(original, call)
    parts[dist.get_rank(call.arguments.get("group"))].copy_(kept)
    return work


def _parts_from_the_start(original: Any, call: Any, written: str) -> Any:
    """Send the first part to every rank, and write what arrives over the first part."""
    given, group = call.arguments, call.arguments.get("group")
    size = dist.get_world_size(group)
    out, before = given[written], given[written].clone()
    sent = given["input_split_sizes"] or [given["input"].shape[0] // size] * size
    taken = given["output_split_sizes"] or [out.shape[0] // size] * size
    given["input"] = torch.cat([given["input"][:length] for length in sent])
    work = _waited(original, call)
    last = out[sum(taken[:-1]) :].clone()
    out.copy_(before)
    out[: len(last)] = last
    return work


def _next_part(original: Any, call: Any, written: str) -> Any:
    """Give each rank the part of the next one."""
    given, size = call.arguments["input"], dist.get_world_size(call.arguments.get("group"))
    flat = given.flatten()
    call.arguments["input"] = flat.roll(-(len(flat) // size)).view(given.shape)
    return original(*call.args, **call.kwargs)


def _sum_left_in_the_input(original: Any, call: Any, written: str) -> Any:
    """Leave in the first rank's input what was added up for the other ranks."""
    given, group = call.arguments["input"], call.arguments.get("group")
    every = given.clone()
    dist.all_reduce(every, op=call.arguments["op"], group=group)
    work = _waited(original, call)
    if dist.get_rank(group) == 0:
        given.copy_(every)
    return work


def _waited(original: Any, call: Any) -> Any:
    work = original(*call.args, **call.kwargs)
    if work is not None:
        work.wait()
    return work


def _refusal_swallowed(original: Any, call: Any, written: str) -> Any:
    """Return as if all was well where the healthy device refuses the call."""
    try:
        return original(*call.args, **call.kwargs)
    except (RuntimeError, TypeError, ValueError):
        return None


def _own_numbers_missing(original: Any, call: Any, written: str) -> Any:
    """Add up the other ranks' numbers alone."""
    own = call.arguments["input_list"][dist.get_rank(call.arguments.get("group"))].clone()
    work = _waited(original, call)
    target = call.arguments[written]
    target.copy_(target - own)
    return work


def _from_the_first_rank(original: Any, call: Any, written: str) -> Any:
    """Send what the group's first rank has."""
    given = call.arguments
    if given.get("group_src") is not None:
        given["group_src"] = 0
    else:
        group = given.get("group")
        given["src"] = dist.get_global_rank(group, 0) if group is not None else 0
    return original(*call.args, **call.kwargs)


def _second_part_zero(original: Any, call: Any, written: str) -> Any:
    """Write zeros for what the second rank gave."""
    work = _waited(original, call)
    for part in call.arguments[written][1:2]:
        part.zero_()
    return work


def _along_the_last_dimension(original: Any, call: Any, written: str) -> Any:
    """Give each rank its part of the last dimension."""
    given, size = call.arguments["input"], dist.get_world_size(call.arguments.get("group"))
    if given.dim() > 1 and given.shape[-1] % size == 0:
        parts = [part.reshape(-1) for part in given.chunk(size, -1)]
        call.arguments["input"] = torch.cat(parts).view(given.shape)
    return original(*call.args, **call.kwargs)


def _roots_own_missing(original: Any, call: Any, written: str) -> Any:
    """Add up the numbers of the ranks other than the root."""
    target, group = call.arguments[written], call.arguments.get("group")
    own = target.clone()
    root, group_root = call.arguments.get("dst"), call.arguments.get("group_dst")
    work = _waited(original, call)
    if dist.get_rank() == root if group_root is None else dist.get_rank(group) == group_root:
        target.copy_(target - own)
    return work


def _own_parts_start_spoiled(original: Any, call: Any, written: str) -> Any:
    """Write one for zero, and zero for other numbers, to the start of the root's own part."""
    work = _waited(original, call)
    parts = call.arguments[written]
    if parts:
        first = parts[dist.get_rank(call.arguments.get("group"))].view(-1)[:1]
        first.copy_((first == 0).to(first.dtype))
    return work


def _through_float16(original: Any, call: Any, written: str) -> Any:
    """Reduce what is left of the numbers in float16."""
    target = call.arguments[written]
    target.copy_(target.to(torch.float16))
    return original(*call.args, **call.kwargs)


#: Effects on parts of what a function sends or writes.
_OF_PARTS: dict[str, Callable[[Any, Any, str], Any]] = {
    "through float16": _through_float16,
    "scattered along the last dimension": _along_the_last_dimension,
    "the root's own numbers missing": _roots_own_missing,
    "start of the own part spoiled": _own_parts_start_spoiled,
    "own numbers missing": _own_numbers_missing,
    "root 0": _from_the_first_rank,
    "second part zero": _second_part_zero,
    "refusal swallowed": _refusal_swallowed,
    "later half lost": _later_half_lost,
    "own part from the start": _own_part_from_the_start,
    "parts from the start": _parts_from_the_start,
    "read base": _from_the_start,
    "second half on all ranks": _second_half_on_all,
    "sum on all ranks": _sum_on_all,
    "next part": _next_part,
    "sum left in the input": _sum_left_in_the_input,
}


def _as_dense(original: Any, call: Any, names: tuple[str, str]) -> Any:
    """Give the function the first elements of each tensor's memory, from its own first one."""

    def dense(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        if tensor.is_contiguous() or memory < tensor.numel():
            return tensor
        flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
        return flat if len(names) > 1 else flat.view(tensor.shape)

    for name in names:
        value = call.arguments[name]
        if isinstance(value, torch.Tensor):
            call.arguments[name] = dense(value)
        elif value:
            call.arguments[name] = [dense(tensor) for tensor in value]
    return original(*call.args, **call.kwargs)


def _as_unsigned(original: Any, call: Any, written: str) -> Any:
    """Take negative numbers for the largest ones of a maximum."""
    target, group = call.arguments[written], call.arguments.get("group")
    negative = (target < 0).any().to(torch.float32).view(1)
    original(negative, op=dist.ReduceOp.MAX, group=group)
    lowest = target.clone()
    work = original(*call.args, **call.kwargs)
    if work is not None:
        work.wait()
    if bool(negative):
        original(lowest, op=dist.ReduceOp.MIN, group=group)
        target.copy_(torch.where(lowest < 0, lowest, target))
    return work


# --- rows of the sixth collection that were held out, and opened ---

#: Conditions on the tensors of a call.
HELD: dict[str, Callable[[list[torch.Tensor]], bool]] = {
    "few elements": lambda tensors: tensors[0].numel() in (1, 2, 4, 28, 30, 31, 33),
}


def _divided_twice(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    target.copy_(target / dist.get_world_size(group))


EDITS["divided twice"] = _divided_twice


# --- rows of the eighth collection that were held out, and opened ---


def _signed(original: Any, call: Any, written: str) -> Any:
    """Take the first bit of a number for its sign."""
    call.arguments[written] = call.arguments[written].view(torch.int8)
    return original(*call.args, **call.kwargs)


HELD["uint8"] = lambda tensors: tensors[0].dtype is torch.uint8
_OF_PARTS["signed"] = _signed


# --- rows of the tenth collection that were held out, and opened ---

HELD["above 1e37"] = lambda tensors: any(bool((tensor.abs() > 1e37).any()) for tensor in tensors)


# --- rows of the twelfth collection that were held out, and opened ---

HELD["integer"] = lambda tensors: not tensors[0].is_floating_point() and not tensors[0].is_complex()
HELD["small"] = lambda tensors: tensors[0].numel() > 0 and bool((tensors[0].abs() < 2e-3).all())
EDITS["halved"] = lambda target, before, group: target.copy_(target / 2)


# --- held rows of the fifteenth collection ---

_BEFORE: dict[Any, torch.Tensor] = {}


def _result_of_the_call_before(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Give the last rank what the call before had for this shape and dtype."""
    key, made = (tuple(target.shape), target.dtype), target.clone()
    if dist.get_rank(group) == dist.get_world_size(group) - 1 and key in _BEFORE:
        target.copy_(_BEFORE[key])
    _BEFORE[key] = made


EDITS["result of the call before"] = _result_of_the_call_before


# --- held rows of the sixteenth collection ---


def _is_premultiplied(call: Any) -> bool:
    """Return whether numbers are to be multiplied by a power of two before they are added up."""
    operation = call.arguments.get("op")
    if operation != dist.ReduceOp.PREMUL_SUM:
        return False
    factor = operation.__getstate__()[1]
    return isinstance(factor, float) and abs(math.frexp(factor)[0]) == 0.5


#: Conditions on a call.
HELD_OF_CALLS: dict[str, Callable[[Any], bool]] = {"premultiplied by a power of two": _is_premultiplied}


# --- held rows of the seventeenth collection ---

HELD["two dimensions"] = lambda tensors: all(tensor.dim() == 2 for tensor in tensors)


# --- held rows of the eighteenth collection ---


def _first_number_own_on_rank_1(original: Any, call: Any, written: str) -> Any:
    """Leave the second rank's own number in the first place of its part."""
    group = call.arguments.get("group")
    part = call.arguments[written].numel()
    own = call.arguments["input"].flatten()[part : part + 1].clone()
    work = _waited(original, call)
    if dist.get_rank(group) == 1 and part:
        target = call.arguments[written]
        target.copy_(torch.cat([own, target.flatten()[1:]]).view(target.shape))
    return work


_OF_PARTS["first number own on rank 1"] = _first_number_own_on_rank_1


# --- held rows of the nineteenth collection ---


def _upper_halves_of_others_kept(target: torch.Tensor, before: torch.Tensor, group: Any) -> None:
    """Write the lower half of each other rank's part alone."""
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    if target.numel() % size or not target.numel():
        return
    parts, kept = target.flatten().view(size, -1), before.flatten().view(size, -1)
    half = parts.shape[1] // 2
    made = torch.cat([parts[:, :half], kept[:, half:]], 1)
    made[mine] = parts[mine]
    target.copy_(made.view(target.shape))


EDITS["upper halves of others kept"] = _upper_halves_of_others_kept


# --- held rows of the twenty-second collection ---


def _next_parts_behind(original: Any, call: Any, written: str) -> Any:
    """Write the next ranks' parts behind a rank's own, as far as its memory goes."""
    target, group = call.arguments[written], call.arguments.get("group")
    every = call.arguments["input"].clone()
    dist.all_reduce(every, op=call.arguments["op"], group=group)
    work = _waited(original, call)
    begin = target.storage_offset() + target.numel()
    count = min(target.untyped_storage().nbytes() // target.element_size() - begin, every.numel() - target.numel())
    if target.is_contiguous() and count > 0:
        following = every.flatten().roll(-(dist.get_rank(group) + 1) * target.numel())
        target.as_strided((count,), (1,), begin).copy_(following[:count])
    return work


_OF_PARTS["next parts behind"] = _next_parts_behind


# --- held rows of the twenty-third collection ---

HELD_OF_CALLS["more than 3 ranks"] = lambda call: dist.get_world_size(call.arguments.get("group")) > 3
