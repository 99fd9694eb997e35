"""Other settings of an operator call: numbers that low precision cannot hold, and defaults that no sample changes.

PyTorch's database gives most arguments that are no tensors their default, or a number of few bits. A kernel that
ignores such an argument, takes its neighbour, or rounds it, is right for these.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import leaves, mapped
from conformance.suites.operators.calls import execution, repeated_writes
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_elementwise, is_factorisation
from conformance.suites.operators.calls.execution import attempt, host_call
from conformance.suites.operators.calls.facts import argument_facts, facts
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import of_forward

from . import arrangements
from .families import Stage, source
from .kinds import representative, unlike
from .variants import check_forms

#: Numbers from 4000 on are no numbers of the database's samples, tiers or large samples.
_NUMBER = 4000
#: Factors of eleven bits or more: the product of a number of bfloat16 and a factor is no number of bfloat16. They are
#: of_kinds, so that two arguments differ.
_FACTORS = tuple(1 + bits / 1024 for bits in (3, 5, 11, 13, 19, 21))
#: Factors of a number for each dimension: so of_kinds that results of few elements show which dimension has which.
_APART = (1.0, 1.53, 0.71)
#: Integers that neither 8 bits nor the steps of bfloat16 hold.
_INTEGERS = (257, 259, 517, 521)
#: Numbers that print alike with six decimals.
_TINY = (2.0**-23, 2.0**-22)
#: Multiplies coordinates that are at most about 1 within an image. Such samples have numbers of their own.
_FAR, _BEYOND, _AT_BORDERS, _DIMS_OF_IMAGES = 7.3, 500, 550, 4
#: Wider dtypes, for arguments that name the dtype of the result.
_WIDER = {torch.float32: torch.float64, torch.int32: torch.int64}
#: Dtypes that show a number rounded to 8 bits.
_OF_NUMBERS = (torch.float32, torch.float64, torch.complex64, torch.int64)
#: Calls of a sample with numbers and lists at their edges.
_EDGES = 8
#: What stands for None, by the type of the argument in the schema. A transform of one number is no transform, and few
#: tensors have a dimension 3.
_NUMBER_OR_NONE = "Optional[float]"
_FOR_NONE = {_NUMBER_OR_NONE: (0.7,), "Optional[number]": (1.3,), "Optional[int]": (3, 1)}


def compare(cell: Cell, other: Call) -> None:
    """Compare a call with the host's; that the device does not support it is a note."""
    usual, device = host_call(cell.info.op, other), cell.on(other)
    if usual.error is not None:
        raise usual.error
    found = attempt(execution.execute, cell.info, device)
    if isinstance(found.error, NotImplementedError):
        cell.check.metric("settings", f"not supported: {other.source}")
    elif found.error is not None:
        raise found.error
    else:
        cell.judge.outcome(other, (found.value, device), (usual.value, usual.given), of_forward(cell.info, other))
        cell.kept("settings", list[Call]).append(other)


@source(Mode.INFERENCE, compare, dtypes=_OF_NUMBERS)
def other_numbers(cell: Cell) -> Iterator[Call]:
    """Yield samples with other numbers: all of them, tiny ones, one for each dimension, coordinates far away."""
    for sample in unlike(cell, cell.samples):
        given = sample
        if not places_of_numbers(cell.info, sample) and (numbers := in_numbers(cell, sample)) is not None:
            given = numbers
            yield _named(numbers, "numbers in the places of tensors")
        yield from with_numbers(cell, given)
        yield from with_tiny_numbers(cell, given)
    yield from beyond(cell.info, cell.samples)
    for sample in unlike(cell, cell.samples, most=len(cell.samples), by_dims=True):
        yield from with_tuples(cell, sample)


@source(Mode.INFERENCE, compare, once=True, fixed=True)
def other_defaults(cell: Cell) -> Iterator[Call]:
    """Yield some samples with other values for their defaults, lists and sizes, which may reach other kernels."""
    of_kinds = unlike(cell, cell.samples)
    for sample in {id(sample): sample for sample in (representative(cell.fixed, plain=True), *of_kinds)}.values():
        yield from with_defaults(cell, sample)
        yield from with_dtype(cell, sample)
        yield from with_unequal_sizes(cell, sample)
        yield from with_edges(cell, sample)
    yield from with_fewer(cell, of_kinds)
    for sample in of_kinds:
        yield from with_empty_lists(cell, sample)
        yield from with_rows(cell, sample)
    for sample in cell.fixed:
        yield from with_images(cell, sample)
        yield from with_present_index(cell, sample)


@source(Mode.INFERENCE, compare, dtypes=(torch.float16, torch.bfloat16), fixed=True)
def images_in_16_bits(cell: Cell) -> list[Call]:
    """Return one sample with an image in channels_last: each dtype may have a kernel of its own for that format."""
    if cell.is_first_dtype:
        return []
    return list(itertools.islice((image for sample in cell.fixed for image in with_images(cell, sample)), 1))


@source(Mode.INFERENCE, check_forms, stage=Stage.FORMS, once=True)
def forms_of_settings(cell: Cell) -> list[Call]:
    """Return the calls with other settings that the device supports: their other forms may be other kernels."""
    return cell.kept("settings", list[Call])


# Among integers some are equal, which is where the side of a search and the order of a sort matter.
@source(Mode.INFERENCE, compare, dtypes=(torch.float32, torch.int64), fixed=True)
def other_words(cell: Cell) -> Iterator[Call]:
    """Yield a sample with other words."""
    yield from with_words(cell, representative(cell.fixed, plain=True))


# --- numbers ----------------------------------------------------------------------------------------------------------


def with_numbers(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with all numbers changed, or with each one where the host refuses that."""
    places = places_of_numbers(cell.info, sample)
    if not places:
        return
    together = with_numbers_at(
        sample, {place: _odd(plain_leaves(sample)[place], order, cell.dtype) for order, place in enumerate(places)}
    )
    if computes(cell, together):
        yield _named(together, "other numbers")
        return
    for order, place in enumerate(places):
        alone = with_numbers_at(sample, {place: _odd(plain_leaves(sample)[place], order, cell.dtype)})
        yield from _tried(cell, alone, f"another number {place}")


def in_numbers(cell: Cell, sample: Call) -> Call | None:
    """Return the sample with a number for each tensor behind the first: that may be another kernel.

    None where a tensor has another dtype, or where no schema takes numbers.
    """
    behind = [tensor for tensor in sample.tensors if tensor is not sample.input]
    if not behind or not all(tensor.numel() and tensor.dtype is cell.dtype for tensor in behind):
        return None
    arguments = itertools.chain.from_iterable(schema.arguments for schema in _schemas(cell.info))
    if not any("number" in str(argument.type.annotation_str) for argument in arguments):
        return None

    def leaf(value: Any) -> Any:
        return value.detach().flatten()[0].item() if isinstance(value, torch.Tensor) else value

    args, kwargs = mapped([sample.args, sample.kwargs], leaf)
    other = replace(sample, args=args, kwargs=kwargs)
    return other if computes(cell, other) else None


def with_tiny_numbers(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with two numbers near zero in turn: with six decimals, as a cached kernel's key has, both are 0.

    Functions that divide by such a number, or take its power, have no bound for their roundings then.
    """
    if not is_elementwise(cell.info) or not cell.dtype.is_floating_point:
        return
    places = places_of_numbers(cell.info, sample)
    for tiny in _TINY:
        for place in places:
            alone = with_numbers_at(sample, {place: tiny})
            yield from _tried(cell, alone, f"the number {tiny:.1e} at {place}")


def places_of_numbers(info: Any, sample: Call) -> list[int]:
    """Return the places of the numbers that may be any number, among the leaves of the arguments behind the first."""
    places = [place for place, leaf in enumerate(plain_leaves(sample)) if _is_number(leaf)]
    return [place for place in places if _takes_any_number(info, sample, place)]


def _named(sample: Call, name: str) -> Call:
    """Return the call with a number of this family, and the name of its setting."""
    return replace(sample, number=_NUMBER + sample.number, source=name)


def _tried(cell: Cell, sample: Call, name: str) -> Iterator[Call]:
    """Yield a sample by this name if the host computes it."""
    if computes(cell, sample):
        yield _named(sample, name)


def with_tuples(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield an image's sample with a number for each dimension in the place of one for all, such as a scale."""
    dims = sample.input.dim() - 2 if isinstance(sample.input, torch.Tensor) else 0
    if dims not in (1, 2, 3):
        return
    for place, value in enumerate(plain_leaves(sample)):
        if not _is_number(value) or value <= 0:
            continue
        unlike = [value * factor for factor in _APART] if type(value) is float else [value, value + 1, value + 2]
        # Of two dimensions, each may be the one whose number a kernel takes for both.
        for name, numbers in (("", unlike[:dims]), (" in reverse", unlike[dims - 1 :: -1])):
            several = with_numbers_at(sample, {place: tuple(numbers)})
            yield from _tried(cell, several, f"number {place} for each dimension{name}")


def _is_number(leaf: Any) -> bool:
    """Return whether a value is an int or a float of a size below a million, and not NaN."""
    return type(leaf) in (int, float) and leaf == leaf and abs(leaf) < 1e6


def _takes_any_number(info: Any, sample: Call, place: int) -> bool:
    """Return whether an argument is a number by its schema: a dimension or a size is an integer, and takes no float."""
    value = plain_leaves(sample)[place]
    if type(value) is float:
        return True
    refusal = host_call(info.op, with_numbers_at(sample, {place: value + 0.5})).error
    # Integer tensors take no such number, but they take others. A TypeError says most often that this is no number.
    return refusal is None or (isinstance(refusal, RuntimeError) and "floating" in str(refusal))


def _odd(value: float, order: int, dtype: torch.dtype) -> float:
    """Return a number near the value that bfloat16 does not hold."""
    if type(value) is int and dtype is torch.int64:
        return _INTEGERS[order % len(_INTEGERS)]
    return (value or 1.0) * _FACTORS[order % len(_FACTORS)]


def plain_leaves(sample: Call) -> list[Any]:
    """Return the leaves of the arguments behind the first one."""
    return leaves([sample.args, sample.kwargs])


def with_numbers_at(sample: Call, values: dict[int, Any]) -> Call:
    """Return the call with other values in these places among the leaves behind the first argument."""
    seen = iter(range(10_000))

    def change(leaf: Any) -> Any:
        place = next(seen)
        return values.get(place, leaf)

    args, kwargs = mapped([sample.args, sample.kwargs], change)
    return replace(sample, args=args, kwargs=kwargs)


def beyond(info: Any, samples: list[Call]) -> Iterator[Call]:
    """Yield the samples with coordinates several images away, for operators that take such coordinates."""
    if not facts(info.name).far_coordinates:
        return
    for sample in samples:
        yield _at(sample, sample.tensors[1].detach() * _FAR, _BEYOND + sample.number, "far beyond the image")
    planes = [sample for sample in samples if sample.tensors[0].dim() == _DIMS_OF_IMAGES]
    for sample in planes[:1]:
        known = sample.tensors[1].detach()
        # Two of three lie on a border: there gradients end, or do not.
        borders = torch.where(torch.arange(known.numel()).view(known.shape) % 3 > 0, known.sign(), known)
        ways = itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True))
        for turn, (mode, padding, aligned) in enumerate(ways):
            # A corner that is no pixel's centre lies between two of them, where nearest is open.
            if mode != "nearest" or aligned:
                found = _at(sample, borders.clone(), _AT_BORDERS + turn, f"at borders, {mode}, {padding}, {aligned}")
                named = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
                yield replace(found, args=found.args[:1], kwargs=named)


def _at(sample: Call, places: torch.Tensor, number: int, said: str) -> Call:
    """Return the sample with other coordinates."""
    found = sample.with_tensor(sample.tensors[1], places.requires_grad_(sample.tensors[1].requires_grad))
    return replace(found, number=_NUMBER + number, source=f"coordinates {said}")


# --- defaults ---------------------------------------------------------------------------------------------------------


def with_defaults(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with each default in turn set to something else that the host computes."""
    for name, default, kind in _defaults(cell.info, sample):
        for value in others(default, kind):
            other = sample.with_argument(name, value)
            if computes(cell, other):
                yield _named(other, f"{name}={value}")
                break


def with_fewer(cell: Cell, samples: list[Call]) -> Iterator[Call]:
    """Yield calls with one argument fewer, where no sample leaves it out: they may be calls of another overload.

    A sort that is not asked to be stable is one.
    """
    known = {_signature(sample) for sample in cell.samples}
    for sample in samples:
        for name, fewer in _fewer(sample):
            if _signature(fewer) not in known and computes(cell, fewer):
                known.add(_signature(fewer))
                named = _named(fewer, f"without {name}")
                yield named
                if facts(cell.info.name).by_memory:
                    yield from arrangements.of(cell.info, named, ("with a storage offset",))


def _signature(sample: Call) -> tuple[int, frozenset[str]]:
    """Return how many arguments stand behind the first one without a name, and the names of the others."""
    return len(sample.args), frozenset(sample.kwargs)


def _fewer(sample: Call) -> Iterator[tuple[str, Call]]:
    """Yield the sample without its last argument, and without each that has a name, and what is left out."""
    if sample.args:
        yield f"argument {len(sample.args)}", replace(sample, args=sample.args[:-1])
    for name, value in sample.kwargs.items():
        if value is not None and not argument_facts(name).kept:
            others = {key: other for key, other in sample.kwargs.items() if key != name}
            yield name, replace(sample, kwargs=others)


def with_dtype(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with a wider ``dtype=``, in which the operator has to compute, of those that are declared."""
    given = sample.input.dtype if isinstance(sample.input, torch.Tensor) else None
    wider = None if given is None else _WIDER.get(given)
    if wider is None or not cell.check.declares(wider):
        return
    if "dtype" not in defaulted(cell.info):
        return
    other = replace(sample, kwargs={**sample.kwargs, "dtype": wider})
    yield from _tried(cell, other, f"dtype={wider}")


def with_edges(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with lists and numbers at their edges, those that the host computes.

    These are each list of integers from the end, in reverse, and with its first entry twice; each number equal to the
    one before it (an empty range), and negative, also where it has a default; each integer as large as a dimension (all
    elements are chosen), one, and zero.
    """
    if facts(cell.info.name).resizes:
        return
    found: list[tuple[Call, str]] = []
    for place, listed in sample.lists:
        changed = {"in reverse": listed[::-1], "with an entry twice": (listed[0], *listed)}
        if not facts(cell.info.name).unsigned:
            changed["from the end"] = tuple(~entry for entry in listed)
        found += [(sample.with_argument(place, other), f"list {place} {name}") for name, other in changed.items()]
    for name, _, kind in _defaults(cell.info, sample):
        if kind == _NUMBER_OR_NONE and cell.op_class is not OpClass.ITERATIVE:
            other = sample.with_argument(name, -_FOR_NONE[kind][0])
            # PyTorch's CPU itself gives NaN for causal attention with a negative scale.
            if host_call(cell.info.op, other).finite:
                found.append((other, f"a negative {name}"))
    found += [(with_numbers_at(sample, values), name) for values, name in _edges(cell, sample)]
    for other, name in itertools.islice(((other, name) for other, name in found if computes(cell, other)), _EDGES):
        yield _named(other, name)


def with_empty_lists(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with each list of integers empty: no dimensions are all of them for some operators."""
    for place, _ in sample.lists if not facts(cell.info.name).resizes else ():
        yield from _tried(cell, sample.with_argument(place, ()), f"list {place} empty")


def _edges(cell: Cell, sample: Call) -> Iterator[tuple[dict[int, Any], str]]:
    """Yield numbers at edges, by their places among the leaves, and the name of each."""
    known = {place: leaf for place, leaf in enumerate(plain_leaves(sample)) if _is_number(leaf)}
    # Of a tolerance below zero, what is left above it depends on roundings.
    for first, second in itertools.pairwise(known) if cell.op_class is not OpClass.ITERATIVE else ():
        if type(known[first]) is type(known[second]):
            yield {second: known[first]}, f"equal numbers at {first} and {second}"
    for place, number in known.items() if cell.op_class is not OpClass.ITERATIVE else ():
        # A dimension is counted from the end then, and a shift goes the other way.
        if type(number) is float or not (_has_codes(cell.info) or facts(cell.info.name).unsigned):
            yield {place: -number if type(number) is float else ~number}, f"the negative number at {place}"
    sizes = dict.fromkeys((1, *(sample.input.shape if isinstance(sample.input, torch.Tensor) else ()), 0))
    # An integer that stands for a word has no check where the word is read.
    for place in known if not _has_codes(cell.info) else ():
        for size in sizes if type(known[place]) is int else ():
            if size != known[place]:
                yield {place: size}, f"{size} at {place}"


def _has_codes(info: Any) -> bool:
    """Return whether an argument of the operator is an integer that stands for a word, such as a reduction."""
    return any(argument_facts(argument.name).coded for schema in _schemas(info) for argument in schema.arguments)


def with_unequal_sizes(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with one dimension of one tensor longer, which the documentation lets differ from another one.

    Sizes that are most often equal, such as those of keys and values, may be taken for each other.
    """
    for number, dim in facts(cell.info.name).unequal:
        if number < len(sample.tensors):
            tensor = sample.tensors[number].detach()
            rows = torch.arange(tensor.shape[dim] + 2) % tensor.shape[dim]
            longer = tensor.index_select(dim, rows).requires_grad_(sample.tensors[number].requires_grad)
            other = sample.with_tensor(sample.tensors[number], longer)
            yield from _tried(cell, other, f"dimension {dim} of input {number} longer")


def with_words(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with each word of a table in turn, for the arguments that take words and are not given."""
    # A flag of the same name is none: ``reduce`` of a loss is true or false.
    taken = ((name, type(default) is str or "str" in kind) for name, default, kind in _defaults(cell.info, sample))
    names = dict.fromkeys(name for name, is_word in taken if is_word)
    for name in names:
        for word in argument_facts(name).words:
            other = sample.with_argument(name, word)
            yield from _tried(cell, other, f"{name}={word!r}")


def with_rows(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with the first row, or one element, of each tensor in turn, where it broadcasts to the result.

    The element is a tensor of no dimensions, which kernels take for a number.
    """
    if facts(cell.info.name).unchecked or facts(cell.info.name).resizes:
        return
    shape = _shape(cell, sample) if len(sample.tensors) > 1 else None
    for number, tensor in enumerate(sample.tensors if shape else ()):
        if tensor.layout is torch.strided and tensor.dim() and tensor.shape == shape and shape[0] > 1:
            row = tensor.detach()[:1].clone()
            for name, part in (("row", row), ("element", row.flatten()[0].clone())):
                other = sample.with_tensor(tensor, part)
                if _shape(cell, other) == shape:
                    yield _named(other, f"one {name} of input {number}")


def with_present_index(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with one of its own indices for each argument of that kind, such as the one a loss ignores."""
    known = next((int(t.flatten()[0]) for t in sample.tensors if t.dtype is torch.int64 and t.numel()), None)
    names = dict.fromkeys([*sample.kwargs, *(name for name, _, _ in _defaults(cell.info, sample))])
    for name in names if known is not None else ():
        if name.endswith(("_index", "_idx")):
            other = sample.with_argument(name, known)
            yield from _tried(cell, other, f"{name}={known}")


def with_images(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with an image of channels_last memory in the place of an input of three dimensions.

    Its channels repeat values, so that a matrix of them would be singular.
    """
    x = sample.input
    if is_elementwise(cell.info) or is_factorisation(cell.info):
        return
    if not isinstance(x, torch.Tensor) or x.dim() != 3 or not x.is_floating_point():
        return
    if facts(cell.info.name).unchecked or x.layout is not torch.strided:
        return
    image = torch.stack([x.detach(), x.detach().flip(-1), x.detach().flip(1)], -1).to(memory_format=torch.channels_last)
    image.requires_grad_(x.requires_grad)
    other = sample.with_tensor(x, image)
    yield from _tried(cell, other, "an image in channels_last")


def defaulted(info: Any) -> list[str]:
    """Return the names of the arguments behind the first one that have a default, each once."""
    return list(dict.fromkeys(name for name, _, _ in (*_of_signature(info, 1), *_of_schemas(info, 1))))


def _defaults(info: Any, sample: Call) -> Iterator[tuple[str, Any, str]]:
    """Yield name, default and type of the arguments that a sample does not give."""
    given, seen = 1 + len(sample.args), set(sample.kwargs)
    for name, default, kind in (*_of_signature(info, given), *_of_schemas(info, given)):
        if name not in seen and not argument_facts(name).kept:
            seen.add(name)
            yield name, default, kind


def _of_signature(info: Any, given: int) -> Iterator[tuple[str, Any, str]]:
    """Yield name, default and an empty type of the arguments after the given ones, from the signature in Python."""
    function = info.op
    if "<lambda>" in getattr(function, "__qualname__", ""):
        # The database calls some functions of torch.nn with their arguments in another order; their names stay.
        function = getattr(torch.nn.functional, info.name.removeprefix("nn.functional."), None)
    if not isinstance(function, types.FunctionType):
        return
    for place, parameter in enumerate(inspect.signature(function).parameters.values()):
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if place >= given and is_named and parameter.default is not parameter.empty:
            yield parameter.name, parameter.default, ""


def _of_schemas(info: Any, given: int) -> Iterator[tuple[str, Any, str]]:
    """Yield name, default and type of the arguments after the given ones, from the schemas of the dispatcher."""
    for schema in _schemas(info):
        for place, argument in enumerate(schema.arguments):
            if place >= given and argument.has_default_value():
                yield argument.name, argument.default_value, str(argument.type.annotation_str)


def _schemas(info: Any) -> Any:
    """Return the schemas of the operator's overloads."""
    name = info.aten_name or info.name
    bare = name.removeprefix("nn.functional.")
    if isinstance(getattr(torch.nn.functional, bare, None), types.BuiltinFunctionType):  # it has no signature
        name = bare
    return torch._C._jit_get_schemas_for_operator(f"aten::{name}")


def others(default: Any, kind: str) -> Iterator[Any]:
    """Yield other values for an argument with this default; ``kind`` is its type in the schema."""
    if type(default) is bool:
        yield not default
    elif type(default) is int:
        yield from ((1 + _FACTORS[0], default + 1) if kind == "number" else (default + 1, default - 1))
    elif type(default) is float:
        yield (default or 1.0) * 1.5 * _FACTORS[1]
        yield 0.7 * _FACTORS[1]
    elif default is None and kind in _FOR_NONE:
        yield from _FOR_NONE[kind]


def _shape(cell: Cell, sample: Call) -> torch.Size | None:
    """Return the shape of the host's result; None if it is no tensor, or if the host does not compute the call."""
    result = _result(cell, sample)
    return result[0].shape if result is not None and isinstance(result[0], torch.Tensor) else None


def computes(cell: Cell, sample: Call) -> bool:
    """Return whether the host computes the call, and draws no random numbers for it."""
    return _result(cell, sample) is not None


def _result(cell: Cell, sample: Call) -> tuple[Any] | None:
    """Return the host's result, as the one element of a tuple; None if it refuses, draws, or makes many elements.

    Where two values are written to one place, either may stay, so such a call has no result either.
    """
    state = torch.get_rng_state()
    found = host_call(cell.info.op, sample)
    if found.error is not None:  # the argument does not exist, or has no such value
        return None
    if repeated_writes.are_in(cell.info, sample):
        return None
    if found.draws:
        torch.set_rng_state(state)
        return None
    made = sum(leaf.numel() for leaf in leaves(found.value) if isinstance(leaf, torch.Tensor))
    return (found.value,) if made <= cell.work.inference.elements else None
