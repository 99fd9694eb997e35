"""Arrangements of the same values in memory: gaps, an offset, transposed, expanded, lazily conjugated.

A kernel that reads memory without regard to strides, storage offset or lazy bits gives wrong values for some of them.
Memory that belongs to no element is filled with NaN or the largest integer, so that a read of it shows.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.covering import covering
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import BESIDE, HOST, Call
from conformance.suites.operators.calls.classes import is_a, op_class
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.facts import facts

#: Elements before the first one of an offset tensor: odd, so that no vector load is aligned by chance.
_OFFSET = 3
#: Dimensions of a matrix.
_MATRIX = 2
#: Arrangements in which a kernel of each dtype is compared.
_OF_EACH_DTYPE = ("non-contiguous", "expanded", "the first one non-contiguous, the others expanded")
#: What arranges one tensor in another way.
Change = Callable[[torch.Tensor], torch.Tensor]
#: Key under which an arrangement keeps the sample of which it is one. Weak, as that sample keeps its arrangements.
_OF = "of"


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a host tensor filled with NaN, or with the largest integer, so that a read of old contents shows."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(shape, float("nan"), dtype=dtype)
    return torch.full(shape, True if dtype is torch.bool else torch.iinfo(dtype).max, dtype=dtype)


def with_gaps(leaf: torch.Tensor) -> torch.Tensor:
    """Return a view of every second element of the last dimension of a larger tensor."""
    if leaf.dim() == 0 or leaf.numel() < 2:
        return leaf
    wide = poisoned((*leaf.shape[:-1], leaf.shape[-1] * 2), leaf.dtype)
    return _filled(wide[..., 1::2], leaf)


def window(leaf: torch.Tensor) -> torch.Tensor:
    """Return the first columns of longer rows: each row is dense, as those of a part of a projection are."""
    if leaf.dim() < 2 or leaf.numel() < 2:
        return leaf
    wide = poisoned((*leaf.shape[:-1], leaf.shape[-1] + _OFFSET), leaf.dtype)
    return _filled(wide[..., : leaf.shape[-1]], leaf)


def one_of_two(leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose dimensions of size 1 are each one row of two: their strides say nothing of the others'."""
    if 1 not in leaf.shape or not leaf.numel():
        return leaf
    wide = poisoned([2 if size == 1 else size for size in leaf.shape], leaf.dtype)
    first = wide[tuple(slice(0, size) for size in leaf.shape)]
    # Of one row alone, the first one may lie as if it were the whole memory.
    second = wide[tuple(slice(1, 2) if size == 1 else slice(None) for size in leaf.shape)]
    return _filled(second if first.is_contiguous() else first, leaf)


def with_offset(leaf: torch.Tensor) -> torch.Tensor:
    """Return a contiguous view that begins inside a larger vector."""
    memory = poisoned((leaf.numel() + 2 * _OFFSET,), leaf.dtype)
    return _filled(memory[_OFFSET : _OFFSET + leaf.numel()].view(leaf.shape), leaf)


def transposed(leaf: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor whose first dimension varies fastest; images have their channels last."""
    if leaf.dim() < 2 or leaf.numel() < 2:
        return leaf
    if leaf.dim() in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return leaf.detach().clone(memory_format=formats[leaf.dim()])
    order = tuple(reversed(range(leaf.dim())))
    return leaf.detach().permute(order).clone(memory_format=torch.contiguous_format).permute(order)


def last_with_gaps(leaf: torch.Tensor) -> torch.Tensor:
    """Return an image that is every second column of one with its channels last; other tensors stay as they are."""
    if leaf.dim() not in (4, 5) or leaf.numel() < 2:
        return leaf
    return _filled(transposed(poisoned((*leaf.shape[:-1], leaf.shape[-1] * 2), leaf.dtype))[..., 1::2], leaf)


def last_with_offset(leaf: torch.Tensor) -> torch.Tensor:
    """Return an image with its channels last that begins inside a larger vector; other tensors stay as they are."""
    if leaf.dim() not in (4, 5) or leaf.numel() < 2:
        return leaf
    return with_offset(leaf.movedim(1, -1)).movedim(-1, 1)


def expanded_first(leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first entry stands for all entries of the first dimension, with stride 0."""
    return _expanded(leaf, 0)


def expanded_last(leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first entry stands for all entries of the last dimension, with stride 0."""
    return _expanded(leaf, -1)


def lazily_negated(leaf: torch.Tensor) -> torch.Tensor:
    """Return a view with PyTorch's lazy bit: conjugation of a complex tensor, negation of a real floating one."""
    if leaf.is_complex():
        return leaf.detach().conj().resolve_conj().conj()
    if leaf.is_floating_point():
        return torch._neg_view(-leaf.detach())
    return leaf


def adjoint(leaf: torch.Tensor) -> torch.Tensor:
    """Return a lazily conjugated view of a complex tensor whose first dimension varies fastest, as ``x.mH`` is."""
    if not leaf.is_complex() or leaf.dim() < 2:
        return leaf
    return transposed(leaf.detach().conj().resolve_conj()).conj()


def _expanded(leaf: torch.Tensor, dim: int) -> torch.Tensor:
    """Repeat the first entry, with memory for all entries behind it: a kernel that reads too far reads NaN."""
    if leaf.dim() == 0 or leaf.shape[dim] < 2 or not leaf.numel():
        return leaf
    narrow = leaf.detach().narrow(dim, 0, 1)
    memory = poisoned((leaf.numel(),), leaf.dtype)
    return _filled(memory[: narrow.numel()].view(narrow.shape), narrow).expand(leaf.shape)


def _filled(view: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Copy the values into the view and return it."""
    view.copy_(values.detach())
    return view


#: Name of the arrangement of dimensions of size 1.
ONE_OF_TWO = "one of two rows in dimensions of size 1"
#: Arrangements by the name that messages show, in the order of the checks.
ARRANGEMENTS: dict[str, Change] = {
    "non-contiguous": with_gaps,
    "with a storage offset": with_offset,
    "columns of longer rows": window,
    ONE_OF_TWO: one_of_two,
    "transposed in memory": transposed,
    "channels last with gaps": last_with_gaps,
    "channels last with an offset": last_with_offset,
    "with a lazy bit": lazily_negated,
    "transposed, with a lazy bit": adjoint,
}
#: Arrangements that repeat values. Ties and singular matrices then appear, which some operators leave open.
REPETITIONS: dict[str, Change] = {
    "expanded along the first dimension": expanded_first,
    "expanded along the last dimension": expanded_last,
}


#: Arrangements for the ``out=`` and the in-place form. These forms copy lazy bits first.
OF_FORMS = ("non-contiguous", "with a storage offset", *REPETITIONS)
#: Arrangements of an input that the in-place form writes: each element has a place of its own.
OF_INPUTS = ("non-contiguous", "with a storage offset", "columns of longer rows", ONE_OF_TWO, "transposed in memory")


def of(info: Any, sample: Call, names: Collection[str] = (), *, operands_only: bool = False) -> Iterator[Call]:
    """Yield the sample in every arrangement that differs from its own, or in some by name.

    Only values are repeated, not indices: writing twice to one place has no defined order. Matrices are repeated as a
    whole for a solver: equal rows would be singular. With ``operands_only``, the first tensor stays as it is.
    """
    fixed = sample.input if operands_only else None
    written = sample.found_out(("written", info.op), lambda: _written(info, sample))

    def arranged(name: str, change: Change, takes: Callable[[torch.Tensor], bool]) -> Call | None:
        # Several checks ask for the same arrangements of all tensors. One that names its change has labels of its own.
        part = "operands" if operands_only else ""
        make = functools.partial(_arranged, sample, name, change, takes, part)
        return make() if operands_only else sample.found_out(("arranged", info.op, name, sample.change), make)

    def may_change(leaf: torch.Tensor, change: Change) -> bool:
        # What a call writes has no lazy bit: PyTorch makes none on it.
        return leaf is not fixed and not (change in (lazily_negated, adjoint) and any(leaf is each for each in written))

    for name, change in ARRANGEMENTS.items():
        takes = functools.partial(may_change, change=change)
        if (not names or name in names) and (found := arranged(name, change, takes)):
            found.kept[_OF] = weakref.ref(sample)  # the values are the same, to the bit
            yield found
    if facts(info.name).open_for_repeated:
        return
    solves = op_class(info) is OpClass.ITERATIVE
    for name, change in REPETITIONS.items():
        of_batch = solves and change is expanded_first

        def repeats(leaf: torch.Tensor, of_batch: bool = of_batch) -> bool:
            if leaf is fixed or any(leaf is each for each in written):
                return False
            may_repeat = _of_products if solves else _is_value
            return may_repeat(info, sample, leaf) or (of_batch and _is_batch(leaf))

        if (not names or name in names) and (found := arranged(name, change, repeats)):
            yield found


def of_written(info: Any, sample: Call) -> Iterator[Call]:
    """Yield the sample with what it writes beside its first tensor in other arrangements, the others as they are."""
    written = sample.found_out(("written", info.op), lambda: _written(info, sample))
    beside = [tensor for tensor in written if tensor is not sample.input]
    for name in OF_INPUTS if beside else ():
        takes = functools.partial(_is_among, beside)
        if (found := _arranged(sample, name, ARRANGEMENTS[name], takes, "what it writes")) is not None:
            yield found


def _is_among(tensors: Sequence[torch.Tensor], leaf: torch.Tensor) -> bool:
    """Return whether a tensor is one of these."""
    return any(leaf is each for each in tensors)


def mixed(info: Any, sample: Call) -> Iterator[Call]:
    """Yield the sample with some of its tensors expanded, and all others with gaps and an offset.

    Each two tensors are so in all four ways, if ``of`` has the calls in which all are the same.
    """
    for expanded in covering(len(places := repeatable(info, sample)))[1:]:
        if len(expanded) < len(sample.tensors):
            found = in_layout(sample, [places[chosen] for chosen in sorted(expanded)])
            if found is not None:
                yield found


def repeatable(info: Any, sample: Call) -> list[int]:
    """Return the places among the sample's tensors of those that may be expanded."""
    if facts(info.name).open_for_repeated:
        return []
    written = sample.found_out(("written", info.op), lambda: _written(info, sample))
    solves = op_class(info) is OpClass.ITERATIVE

    def may_repeat(tensor: torch.Tensor) -> bool:
        is_batch = solves and _is_batch(tensor) and tensor.shape[0] > 1
        known = is_batch or (_of_products if solves else _is_value)(info, sample, tensor)
        return known and any(size > 1 for size in tensor.shape) and not any(tensor is each for each in written)

    return [place for place, tensor in enumerate(sample.tensors) if may_repeat(tensor)]


def in_layout(sample: Call, expanded: Sequence[int]) -> Call | None:
    """Return the sample with its tensors at some places expanded, the others with gaps; None if none changes."""
    chosen = [sample.tensors[place] for place in expanded]
    places = " and ".join(map(str, expanded))
    name = f"input {places} expanded, the others with gaps" if chosen else "non-contiguous"
    return _arranged_each(sample, name, lambda leaf: of_several if _is_among(chosen, leaf) else with_gaps)


def _is_batch(leaf: torch.Tensor) -> bool:
    """Return whether a solver's tensor is a batch of matrices, of which each one may be the first."""
    return leaf.dim() > _MATRIX and (leaf.is_floating_point() or leaf.is_complex())


def each(info: Any, sample: Call, choose: Callable[[Sequence[str]], str]) -> Call | None:
    """Return the sample with each tensor in an arrangement that ``choose`` takes for it; None if none is arranged."""
    written = sample.found_out(("written", info.op), lambda: _written(info, sample))
    may_repeat = not facts(info.name).open_for_repeated and op_class(info) is not OpClass.ITERATIVE
    chosen: dict[int, str] = {}
    for tensor in sample.tensors:
        is_written = any(tensor is each for each in written)
        repeated = may_repeat and not is_written and _is_value(info, sample, tensor)
        chosen.setdefault(id(tensor), choose(["", *OF_INPUTS, *(REPETITIONS if repeated else ())]))
    changes = {**ARRANGEMENTS, **REPETITIONS}
    name = BESIDE.join(name or "as usual" for name in chosen.values())
    return _arranged_each(sample, name, lambda leaf: changes.get(chosen[id(leaf)]))


def of_several(leaf: torch.Tensor) -> torch.Tensor:
    """Return the tensor expanded along its first dimension of several entries."""
    dim = next((dim for dim, size in enumerate(leaf.shape) if size > 1), 0)
    return _expanded(leaf, dim)


def _written(info: Any, sample: Call) -> list[torch.Tensor]:
    """Return the tensors that the plain call writes, or may write, such as the running means of batch_norm.

    The elements of such a tensor may not share a place in memory, on any device.
    """
    marked = _marked(info, sample)
    host, state = sample.on(HOST), torch.get_rng_state()
    try:
        with torch.no_grad():
            call(info.op, host)
    except Exception:  # the host refuses the plain call: nothing is arranged
        return []
    finally:
        torch.set_rng_state(state)
    pairs = zip(sample.tensors, host.tensors, strict=True)
    dense_pairs = [(old, new) for old, new in pairs if old.layout is torch.strided and not old.is_quantized]
    changed = [old for old, new in dense_pairs if not same_bits(plain(old), plain(new))]
    return changed + [each for each in marked if all(each is not old for old in changed)]


def _marked(info: Any, sample: Call) -> list[torch.Tensor]:
    """Return the tensors whose arguments a schema of the operator marks as written, as in ``Tensor(a!)``."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{getattr(info, 'aten_name', None) or info.name}")
    marked = {
        part
        for schema in schemas
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out
        for part in (place, argument.name)
    }
    given = [*enumerate((sample.input, *sample.args)), *sample.kwargs.items()]
    return [value for name, value in given if name in marked and isinstance(value, torch.Tensor)]


def _is_value(info: Any, sample: Call, leaf: torch.Tensor) -> bool:
    """Return whether a tensor holds values or a mask, or indices that may repeat."""
    if leaf is sample.input or leaf.is_floating_point() or leaf.is_complex() or leaf.dtype is torch.bool:
        return True
    known = facts(info.name)
    if leaf.dtype is torch.int64 and (known.equal_indices or (known.accumulates and _accumulates(sample))):
        return True
    return is_a(info, "BinaryUfuncInfo") or name_of(info, sample, leaf) in _OF_VALUES


#: Names of arguments that hold values, also where these are integers.
_OF_VALUES = frozenset(("source", "src", "value", "values", "weight", "weights", "other", "tensor1", "tensor2"))


def _accumulates(sample: Call) -> bool:
    """Return whether a call adds up what it writes to one place; the flag is the third argument, or named."""
    return bool(sample.kwargs.get("accumulate", sample.args[2] if len(sample.args) > 2 else False))


def name_of(info: Any, sample: Call, leaf: torch.Tensor) -> str:
    """Return the name of the argument that a tensor is, by the schema of the operator; "" if it is not known."""
    named = next((name for name, value in sample.kwargs.items() if value is leaf), "")
    place = next((place for place, value in enumerate(sample.args) if value is leaf), None)
    if named or place is None:
        return named
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{info.aten_name or info.name}")
    names = {schema.arguments[place + 1].name for schema in schemas if len(schema.arguments) > place + 1}
    return names.pop() if len(names) == 1 else ""


def _of_products(info: Any, sample: Call, leaf: torch.Tensor) -> bool:
    """Return whether a solver only computes with a tensor: a matrix whose rows are equal would be singular."""
    places = facts(info.name).in_products
    return any(place in places and tensor is leaf for place, tensor in enumerate(sample.tensors))


def for_kernels(sample: Call) -> Iterator[Call]:
    """Yield arrangements for kernels that check no argument: what they read or write stays in a tensor's memory.

    Beside an index lies another one, because such a kernel writes where they point.
    """
    for name, change in {"with a storage offset": with_offset, "transposed in memory": transposed}.items():
        if (found := _arranged(sample, name, change, lambda leaf: True)) is not None:
            yield found


def for_kernels_elsewhere(sample: Call) -> Iterator[Call]:
    """Yield further arrangements for kernels that check no argument: gaps, and expanded tensors beside gaps."""
    values = [tensor for tensor in sample.tensors if tensor.is_floating_point() and tensor.dim()]
    names = {frozenset[int](): "non-contiguous"}
    if values:
        names[frozenset((0,))] = "expanded"
    if len(values) > 1:
        names[frozenset(range(1, len(values)))] = "the first one non-contiguous, the others expanded"
    for places in covering(len(values)):
        names.setdefault(places, f"value {' and '.join(map(str, sorted(places)))} expanded, the others with gaps")
    for places, name in names.items():
        expanded = [values[place] for place in places]

        def change_of(leaf: torch.Tensor, expanded: list[torch.Tensor] = expanded) -> Change:
            return of_several if _is_among(expanded, leaf) else _with_safe_gaps

        if (found := _arranged_each(sample, name, change_of)) is not None:
            yield found


def for_kernels_of_each_dtype(sample: Call) -> Iterator[Call]:
    """Yield the arrangements in which a kernel of each dtype is compared: gaps, and expanded values beside gaps."""
    of_threads = {found.arrangement: found for found in for_kernels_elsewhere(sample)}
    yield from (of_threads[name] for name in _OF_EACH_DTYPE if name in of_threads)


def _with_safe_gaps(leaf: torch.Tensor) -> torch.Tensor:
    """Return the tensor with gaps; between indices lie the same ones in reverse order."""
    if leaf.is_floating_point() or leaf.is_complex() or leaf.dim() == 0 or leaf.numel() < 2:
        return with_gaps(leaf)
    return torch.stack((leaf.flip(-1), leaf), -1).flatten(-2)[..., 1::2]


def dense_of(sample: Call) -> Call:
    """Return what ``dense`` returns, made once for a sample; the sample itself if all its tensors are dense."""
    sample = usual_of(sample)
    return sample if is_dense(sample) else sample.found_out("dense", lambda: dense(sample))


def usual_of(sample: Call) -> Call:
    """Return the sample from which this arrangement of its values was made, or the sample itself."""
    of_usual = sample.kept.get(_OF)
    usual = of_usual and of_usual()
    return sample if usual is None else usual_of(usual)


def is_dense(sample: Call) -> bool:
    """Return whether a copy of the sample and one of its dense form have the same arrangement in memory."""
    distinct = {id(tensor) for tensor in sample.tensors}
    return len(distinct) == len(sample.tensors) and all(map(_fills_its_memory, sample.tensors))


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Return whether a dense tensor has no arrangement, and memory for its own elements alone."""
    if tensor.layout is not torch.strided:
        return True  # dense() leaves it as it is
    plain = not _is_arranged(tensor) and not tensor.is_quantized
    return plain and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def dense(sample: Call) -> Call:
    """Return the sample with the same values, each tensor contiguous in memory of its own."""
    return replace(sample.with_arguments(mapped(sample.arguments, _dense)), arrangement="", part="")


def _dense(leaf: Any) -> Any:
    """Return a contiguous copy of a dense tensor without lazy bits; another value as it is."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return leaf
    copy = leaf.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return copy.requires_grad_() if leaf.requires_grad else copy


def _arranged(
    sample: Call,
    name: str,
    change: Change,
    takes: Callable[[torch.Tensor], bool],
    part: str = "",
) -> Call | None:
    """Return the sample with the strided tensors that ``takes`` names in another arrangement; None if none changes."""
    return _arranged_each(sample, name, lambda leaf: change if takes(leaf) else None, part)


def _arranged_each(
    sample: Call, name: str, change_of: Callable[[torch.Tensor], Change | None], part: str = ""
) -> Call | None:
    """Return the sample with each strided tensor changed by what ``change_of`` gives for it; None if none changes."""
    changed = []
    memo: dict[int, torch.Tensor] = {}  # a tensor that is passed twice stays one tensor

    def arrange(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_quantized:
            return leaf
        if (change := change_of(leaf)) is None:
            return leaf
        if id(leaf) not in memo:
            found = change(leaf.detach().resolve_conj().resolve_neg())
            changed.append(_is_arranged(found))
            memo[id(leaf)] = found.requires_grad_() if leaf.requires_grad else found
        return memo[id(leaf)]

    arguments = mapped(sample.arguments, arrange)
    return replace(sample.with_arguments(arguments), arrangement=name, part=part) if any(changed) else None


def _is_arranged(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has gaps, another order, an offset or a lazy bit."""
    return not tensor.is_contiguous() or tensor.storage_offset() > 0 or tensor.is_conj() or tensor.is_neg()
