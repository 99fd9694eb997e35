"""Kernels behind an operator that no public function names: those of its backward, and helpers of its forward.

The host computes forward and backward under a dispatch mode, which shows the overloads that PyTorch calls with their
arguments. The device then gets the same calls, and some with other arguments that no public function gives: special
values, other numbers, shapes that do not fit. A device that has other kernels refuses the plain call and is left alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import plain
from conformance.numerics.trees import leaves, mapped
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, host_gradients, settled
from conformance.suites.operators.calls.facts import facts, kernel_facts
from conformance.suites.operators.calls.passes import Pass
from conformance.suites.operators.inputs import arrangements, model_sizes, special_inputs, tiny_inputs, variants
from conformance.suites.operators.inputs.arrangements import transposed
from conformance.suites.operators.inputs.comparing import check_supported
from conformance.suites.operators.inputs.elsewhere import CHANGE, do_elsewhere
from conformance.suites.operators.inputs.families import source
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Oracle
from conformance.suites.operators.judge.promises import promises_refusal

from . import wrong_calls
from .derivatives import finer

#: Numbers from 5000 on are no numbers of other samples.
NUMBER = 5000
#: A backward whose cotangents have more digits than bfloat16: a kernel that narrows them shows.
_FINER: Final = Pass(finer)
#: What makes two calls of one overload alike, of its arguments.
Kinds = Callable[[tuple[Any, ...]], tuple[Any, ...]]
#: Spreads real numbers before they are rounded to integers.
_SPREAD = 1000
#: The key under which PyTorch registers kernels whose checks are those of the meta function, on every device.
_STRUCTURED = "CompositeExplicitAutogradNonFunctional"


def check(cell: Cell, samples: list[Call]) -> None:
    """Compare the kernels behind some samples with the host's; in other dtypes than float32, in arrangements alone."""
    if cell.op_class is OpClass.ITERATIVE:
        return
    # A kernel of a backward is a composition, also where the forward is a function.
    loose = cell.of_class(OpClass.CONTRACTION)
    compare = check_call if cell.dtype is torch.float32 else _check_layouts
    for order, (function, sample) in enumerate(calls(cell, samples, _is_of_interest, _settings)):
        compare(loose, function, replace(sample, number=NUMBER + order, source=str(function)))


# --- kernels that are called by name ---

#: Largest factor in a product of eight bits. Two products of these fit in 16 bits: with larger ones, hosts whose
#: processor adds pairs there stop at their end.
_MOST = 60


def _eight_bit_products(dtype: torch.dtype) -> Iterator[Call]:
    """Yield matrices whose product in eight bits has 32 bits; those of a number of rows that CUDA takes come first."""
    for rows, terms, columns in ((17, 16, 16), (33, 40, 24), (3, 64, 8)):
        left, right = (
            model_sizes.whole(*shape, dtype=dtype, most=_MOST) for shape in ((rows, terms), (terms, columns))
        )
        for first, second in ((left, right), (left, transposed(right)), (transposed(left), right)):
            yield Call(0, first, (second,), source=f"{rows} x {terms} x {columns}")
    limits = torch.iinfo(dtype)
    for end, other in itertools.product((limits.min, limits.max), repeat=2):
        # 16 bits do not hold the sum of two such products.
        ends = torch.full((32, 40), end, dtype=dtype), torch.full((40, 32), other, dtype=dtype)
        yield Call(0, ends[0], (ends[1],), source=f"{end} times {other}")


def _activated(dtype: torch.dtype) -> Iterator[Call]:
    """Yield a bias and the factors of a product that is rectified, with one of the factors transposed in memory."""
    bias, left, right = (model_sizes.whole(*shape, dtype=dtype, most=_MOST) / 64 for shape in ((9,), (5, 33), (33, 9)))
    for first, second in ((left, right), (left, transposed(right)), (transposed(left), right)):
        yield Call(0, bias, (first, second), source="5 x 33 x 9")


def _with_noise(dtype: torch.dtype) -> Iterator[Call]:
    """Yield numbers and the tensor for their slopes, which are drawn from one number alone: the rectifier writes it."""
    numbers = model_sizes.whole(5, 8, dtype=dtype, most=_MOST) - _MOST / 2
    yield Call(0, numbers, (torch.zeros_like(numbers), 0.25, 0.25, True), source="slopes of one number")


def _lists(dtype: torch.dtype, *behind: Any) -> Iterator[Call]:
    """Yield a tensor with lists of indices that have nothing for whole dimensions, in front, between and behind.

    The last dimension is as long as the first one: a mask of either fits the other, too.
    """
    cube = model_sizes.whole(4, 3, 4, dtype=dtype)
    rows, columns = torch.tensor([True, False, False, True]), torch.tensor([3, -4])
    for indices in ([rows, None, None], [None, None, columns], [rows, None, columns], [columns % 4, None]):
        yield Call(
            0, cube, (indices, *behind), source=str(["all" if each is None else each.tolist() for each in indices])
        )


def _numbers(*shape: int, turn: float = 0.37) -> torch.Tensor:
    """Return numbers between -1 and 1 in no order."""
    return torch.sin(torch.arange(math.prod(shape)) * turn + turn).view(shape)


#: Width and heads of a small layer of attention, and PyTorch's number for a mask of keys.
_WIDE, _HEADS, _OF_KEYS = 8, 2, 1


def _of_attention() -> tuple[torch.Tensor, ...]:
    """Return weights and biases of an attention's inputs and of its result."""
    shapes = ((3 * _WIDE, _WIDE), (3 * _WIDE,), (_WIDE, _WIDE), (_WIDE,))
    return tuple(_numbers(*shape, turn=0.41 + 0.1 * order) / 2 for order, shape in enumerate(shapes))


def _attention(_: torch.dtype) -> Iterator[Call]:
    """Yield a sequence that attends to itself, as a whole layer of attention in one kernel, also with keys left out."""
    given = _numbers(2, 5, _WIDE)
    args = (given, given, _WIDE, _HEADS, *_of_attention())
    yield Call(0, given, args, source="two heads")
    left_out = torch.tensor([[False, True, False, False, True], [True, False, False, False, False]])
    yield Call(0, given, (*args, left_out, True, True, _OF_KEYS), source="two heads, keys left out")


def _layer(_: torch.dtype) -> Iterator[Call]:
    """Yield a layer of a transformer in one kernel: norms in front and behind, and both rectifiers."""
    shapes = ((_WIDE,), (_WIDE,), (_WIDE,), (_WIDE,), (12, _WIDE), (12,), (_WIDE, 12), (_WIDE,))
    rest = [_numbers(*shape, turn=0.23 + 0.05 * order) + (order in (0, 2)) for order, shape in enumerate(shapes)]
    for gelu, in_front in ((True, False), (False, True)):
        args = (_WIDE, _HEADS, *_of_attention(), gelu, in_front, 1e-5, *rest)
        yield Call(0, _numbers(2, 5, _WIDE), args, source=f"gelu {gelu}, norms in front {in_front}")


def _normalized_gradients(_: torch.dtype) -> Iterator[Call]:
    """Yield gradients of a batch normalization in training and in evaluation, with all that its forward has kept."""
    given, step = _numbers(4, 3, 5), _numbers(4, 3, 5, turn=0.7)
    weight, mean, spread = (_numbers(3, turn=turn) + 2 for turn in (0.9, 1.1, 1.3))
    kept = given.mean((0, 2)), (given.var((0, 2), correction=0) + 1e-5).rsqrt()
    for trained in (True, False):
        args = (given, weight, mean, spread, *kept, trained, 1e-5, [True] * 3, torch.empty(0, dtype=torch.uint8))
        yield Call(0, step, args, source=f"training {trained}")


def _gradients_of_segments(_: torch.dtype) -> Iterator[Call]:
    """Yield gradients of rows that are reduced in parts of 2, 3 and 1."""
    data, lengths = _numbers(6, 2), torch.tensor([2, 3, 1])
    parts = data[:2], data[2:5], data[5:]
    for name, reduce in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin)):
        found = torch.stack([reduce(part, 0) for part in parts])
        step = _numbers(3, 2, turn=0.8)
        yield Call(0, step, (found, data, name), {"lengths": lengths}, source=name)


def _places_of_a_number(dtype: torch.dtype) -> Iterator[Call]:
    """Yield sorted numbers, also by their order alone, with one number whose place is to be found, in each way."""
    given = torch.tensor([1, 3, 3, 7, 9]).to(dtype)
    order = torch.tensor([4, 0, 3, 1, 2])
    unsorted = torch.empty_like(given).index_copy(0, order, given)
    for right, narrow in itertools.product((False, True), repeat=2):
        options = {"right": right, "out_int32": narrow}
        yield Call(0, given, (3,), options, source=f"one number, {options}")
        yield Call(0, unsorted, (3,), {**options, "sorter": order}, source=f"one number by an order, {options}")


#: Terms of a sum of ones that stays at 256 in bfloat16, and at 2,048 in float16.
_TERMS: Final = 4099


def _gradients_of_one_word(dtype: torch.dtype) -> Iterator[Call]:
    """Yield gradients of ones for a table, of which one row was looked up by all."""
    places = torch.full((_TERMS,), 2)
    yield Call(0, torch.ones(_TERMS, 3, dtype=dtype), (places, 5, -1, False), source="one row")


class _Named(NamedTuple):
    """A kernel that is called by name: the operator to which it belongs, its calls, and the dtypes that have some."""

    operator: str
    function: Any
    calls: Callable[[torch.dtype], Iterator[Call]]
    dtypes: tuple[torch.dtype, ...]


#: Dtypes of elements of four, two and eight bytes.
_INDEXED = (torch.float32, torch.bfloat16, torch.int64)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_ATEN: Final = torch.ops.aten
#: Kernels that libraries and compilers call by name, or public functions with tensors that they make themselves.
_BY_NAME: Final = (
    _Named("__getitem__", _ATEN.index.Tensor, _lists, _INDEXED),
    _Named("index_put", _ATEN.index_put.default,
           lambda dtype: _lists(dtype, model_sizes.whole(1, dtype=dtype)[0] + 7), _INDEXED),
    _Named("mm", _ATEN._int_mm.default, _eight_bit_products, (torch.int8,)),
    _Named("addmm", _ATEN._addmm_activation.default, _activated, _FLOATS),
    _Named("nn.functional.rrelu", _ATEN.rrelu_with_noise.default, _with_noise, _FLOATS),
    _Named("nn.functional.multi_head_attention_forward", _ATEN._native_multi_head_attention.default, _attention,
           (torch.float32,)),
    _Named("nn.functional.multi_head_attention_forward", _ATEN._transformer_encoder_layer_fwd.default, _layer,
           (torch.float32,)),
    _Named("native_batch_norm", _ATEN.batch_norm_backward.default, _normalized_gradients, (torch.float32,)),
    _Named("_segment_reduce.lengths", _ATEN._segment_reduce_backward.default, _gradients_of_segments, (torch.float32,)),
    _Named("nn.functional.embedding", _ATEN.embedding_dense_backward.default, _gradients_of_one_word, _FLOATS),
    _Named("searchsorted", _ATEN.searchsorted.Scalar, _places_of_a_number, (torch.float32, torch.int64)),
)  # fmt: skip


@source(
    Mode.INFERENCE,
    lambda cell, made: _check_named(cell, *made),
    dtypes=(torch.int8, torch.int64, torch.float32, torch.bfloat16, torch.float16),
)
def by_name(cell: Cell) -> Iterator[tuple[Any, Call]]:
    """Yield kernels that are called by name, with arguments; a device that lacks one is left alone."""
    for kernel in _BY_NAME:
        if kernel.operator == cell.info.full_name and cell.dtype in kernel.dtypes:
            for order, given in enumerate(kernel.calls(cell.dtype)):
                said = f"{kernel.function}, {given.source}"
                yield kernel.function, replace(given, number=NUMBER + order, source=said)


# --- the calls --------------------------------------------------------------------------------------------------------


def calls(
    cell: Cell,
    samples: list[Call],
    is_of_interest: Callable[[Any], bool],
    kinds: Kinds,
) -> list[tuple[Any, Call]]:
    """Return calls of the overloads behind an operator, the largest of each kind of arguments.

    ``is_of_interest`` chooses the overloads, and ``kinds`` says what makes two calls of one overload alike.
    """
    found = _Calls(is_of_interest, kinds, cell.work.inference.elements)
    for sample in samples:
        if sample.process is not None or sample.elements > cell.work.inference.elements:
            continue
        try:
            _FINER.run(cell.info, _under(found, call), _under(found, host_gradients), sample.on(HOST), cell.seed)
        except Exception:  # the plain results show it
            continue
    return [(function, sample) for (function, _), sample in found.largest.items()]


def _under(mode: TorchDispatchMode, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function so that it runs under a dispatch mode."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return run


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Keeps copies of the arguments of each overload's largest call of each kind."""

    def __init__(self, is_of_interest: Callable[[Any], bool], kinds: Kinds, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_of_interest, self._kinds, self._most = is_of_interest, kinds, most
        self.largest: dict[tuple[Any, tuple[Any, ...]], Call] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call, and keep its arguments as they were before."""
        kwargs = kwargs or {}
        if args and self._is_of_interest(func):
            given = Call(0, args[0], tuple(args[1:]), kwargs)
            key = func, self._kinds(args)
            known = self.largest.get(key)
            if known is None or known.elements < given.elements <= self._most:
                self.largest[key] = given.with_arguments(mapped(given.arguments, _copied))
        return func(*args, **kwargs)


def _settings(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the flags and the optional arguments that are left out."""
    return tuple(argument if isinstance(argument, bool | None) else 0 for argument in arguments)


def _copied(leaf: Any) -> Any:
    """Return a copy of a tensor, without its graph; another value as it is."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@functools.cache
def _is_of_interest(function: Any) -> bool:
    """Return whether an overload computes new tensors by a rule, and no operator of the database has its name."""
    return name_of(function) not in _public_names() and not is_private(function) and computes_values(function)


def name_of(function: Any) -> str:
    """Return the name of an overload's kernel without its namespace."""
    name: str = function._schema.name
    return name.partition("::")[2]


@functools.cache
def computes_values(function: Any) -> bool:
    """Return whether an overload of aten computes new tensors by a rule that every device follows."""
    schema = function._schema
    if function.namespace != "aten" or function.is_view or schema.is_mutable:
        return False
    known = kernel_facts(name_of(function))
    if torch.Tag.nondeterministic_seeded in function.tags or known.memory or known.foreign:
        return False
    return not any(argument.name == "device" for argument in schema.arguments)


@functools.cache
def _public_names() -> frozenset[str]:
    """Return the names in PyTorch's database, also without their namespaces."""
    from torch.testing._internal.common_methods_invocations import op_db

    names = {name for info in op_db for name in (info.name, info.aten_name or "")}
    return frozenset(
        {*names, *(name.replace(".", "_") for name in names), *(name.rpartition(".")[2] for name in names)}
    )


# --- checks -----------------------------------------------------------------------------------------------------------


def check_call(cell: Cell, function: Any, sample: Call) -> None:
    """Compare calls of an overload with the arguments of a sample, arranged, special and wrong, with the host's."""
    is_unchecked = facts(cell.info.name).unchecked
    cell, into = cell.of_kernel(Kernel(cell.info, function)), with_out(function)
    expected = _check_plain(cell, function, sample, into)
    if expected is None:
        return
    if not kernel_facts(name_of(function)).finite:
        special_inputs.check_kernel(cell, sample)
    tiny_inputs.check(cell, [sample])
    _check_arrangements(cell, sample, into)
    for wrong in () if is_unchecked else _wrong(cell, function, sample, expected):
        # The meta function comes first: it has no memory that a wrong call could read.
        if promises_refusal(cell.info, wrong.call):
            wrong_calls.check_one(cell, wrong)
    # Gradients are small: factors below one hide most of them. A kernel that does not check its arguments reads no
    # further than in a tensor whose elements are wider.
    wrong_calls.check_more(cell, function, sample, into=into, spread=_SPREAD, only_wider=is_unchecked)


def _check_named(cell: Cell, function: Any, sample: Call) -> None:
    """Compare a kernel that is called by name with the host's, in float32 in all arrangements."""
    if cell.dtype is not torch.float32 or function._schema.is_mutable:
        _check_layouts(cell, function, sample)
        return
    # A kernel of a whole layer is a composition.
    loose, into = cell.of_class(OpClass.CONTRACTION).of_kernel(Kernel(cell.info, function)), with_out(function)
    if _check_plain(loose, function, sample, into) is not None:
        _check_arrangements(loose, sample, into)


def _check_layouts(cell: Cell, function: Any, sample: Call) -> None:
    """Compare calls of an overload in some arrangements with the host's."""
    cell, into = cell.of_kernel(Kernel(cell.info, function)), with_out(function)
    if _check_plain(cell, function, sample, into) is None:
        return
    if function._schema.is_mutable:
        _check_written(cell, sample)
        return
    for arranged in arrangements.for_kernels_of_each_dtype(sample):
        _check_arranged(cell, arranged, into)


def _check_written(cell: Cell, sample: Call) -> None:
    """Compare what an overload writes to its arguments, and its result, in every arrangement; a refusal is a note."""
    every = arrangements.of(cell.info, sample), arrangements.of_written(cell.info, sample)
    for arranged in itertools.chain(*every):
        try:
            variants.check_arranged(cell, [arranged])
        except RuntimeError:
            cell.check.metric("kernels", f"refused, {arranged.arrangement}: {cell.info.op}")


def _check_plain(cell: Cell, function: Any, sample: Call, into: Into | None) -> Any:
    """Compare the plain call of an overload and its sibling with ``out=``; return the host's result, or None."""
    if any(tensor.layout is not torch.strided for tensor in sample.tensors):
        return None
    device, host = cell.on(sample), sample.on(HOST)
    found, expected = settled(attempt(execution.execute, cell.info, device)), attempt(call, cell.info, host)
    if found.error is not None or expected.error is not None:
        cell.check.metric("kernels", f"not computed: {function}")
        return None
    pairs = (found.value, device), (expected.value, host)
    if is_private(function) and not _has_the_form(pairs[0][0], pairs[1][0]):
        cell.check.metric("kernels", f"another form: {function}")
        return None
    cell.judge.outcome(sample, *pairs, oracle_of(function, sample))
    if into is not None:
        check_into(cell, sample, into, expected.value)
    return expected.value


def is_private(function: Any) -> bool:
    """Return whether each device may have the arguments and results of this overload in a form of its own."""
    return kernel_facts(name_of(function)).private


def _has_the_form(actual: Any, expected: Any) -> bool:
    """Return whether the device gives what the host gives, so that its kernel has the host's form."""
    ours, theirs = leaves(actual), leaves(expected)
    pairs = [(a, w) for a, w in zip(ours, theirs, strict=False) if isinstance(a, torch.Tensor)]
    alike = all(isinstance(w, torch.Tensor) and (a.shape, a.dtype) == (w.shape, w.dtype) for a, w in pairs)
    return len(ours) == len(theirs) and alike and all(_is_close(plain(a), plain(w)) for a, w in pairs)


def check_into(cell: Cell, sample: Call, into: Into, expected: Any) -> None:
    """Compare what the overload's sibling with ``out=`` writes with the host's plain result."""
    if not isinstance(expected, torch.Tensor) or expected.layout is not torch.strided:
        return
    form = sample.into("out=", into, out=arrangements.poisoned(expected.shape, expected.dtype))
    on_host, device = form.on(HOST), cell.on(form)
    host = attempt(call, cell.info, on_host)
    if host.error is not None or not _is_close(on_host.extra["out"], expected):
        return  # a few kernels of PyTorch's CPU write something else, such as a loss before its mean
    found = settled(attempt(execution.execute, cell.info, device))
    if found.error is not None:
        cell.check.metric("kernels", f"not computed with out=: {cell.info.op}")
        return
    oracle, n = oracle_of(cell.info.op, sample), cell.judge.length(sample, expected)
    cell.judge.result(form, device.extra["out"], expected, oracle, n)
    cell.judge.inputs(form, device, on_host, n)


def _is_close(written: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether a kernel wrote the expected values, within 0.1 %."""
    return torch.allclose(written, expected, rtol=1e-3, atol=1e-3, equal_nan=True)


def _check_arrangements(cell: Cell, sample: Call, into: Into | None) -> None:
    """Compare results for inputs in other arrangements of memory, where the host's kernel takes these."""
    for arranged in arrangements.for_kernels(sample):
        _check_arranged(cell, arranged, into)

    def work() -> None:
        for arranged in arrangements.for_kernels_elsewhere(sample.named(change=CHANGE)):
            _check_arranged(cell, arranged, into)

    do_elsewhere(work)


def _check_arranged(cell: Cell, arranged: Call, into: Into | None) -> None:
    """Compare a kernel and its sibling with inputs in another arrangement; a refusal by the device is a note."""
    # A refusal is a note: PyTorch promises no arrangement for a kernel that no public function names.
    said, exact = f"refused, {arranged.arrangement}: {cell.info.op}", oracle_of(cell.info.op, arranged)
    is_sound = functools.partial(variants.is_sound, cell, arranged)
    expected = check_supported(cell, arranged, "kernels", said, exact, is_sound)
    if into is not None and expected is not None:
        check_into(cell, arranged, into, expected)


def oracle_of(function: Any, sample: Call) -> Oracle:
    """Return the function in float64. A kernel of a backward sums several terms, which may cancel."""
    return Oracle(lambda wide, _: leaves(call(function, wide)), sample, rounds_between=True)


class Kernel:
    """A kernel in the place of an operator's description, for checks that need its function alone."""

    name, full_name, aten_name, supports_out, inplace_variant = "", "", "", False, None

    def __init__(self, info: Any, function: Any) -> None:
        self._info, self.op = info, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)


@dataclass(frozen=True)
class Into:
    """A function with the keyword ``out``: an overload that writes its one result to the argument ``place``."""

    overload: Any
    place: str

    def __call__(self, *args: Any, out: torch.Tensor, **kwargs: Any) -> Any:
        """Call the overload."""
        return self.overload(*args, **{self.place: out}, **kwargs)


def with_out(function: Any) -> Into | None:
    """Return the overload's sibling that writes one result to an output."""
    given = [argument.name for argument in function._schema.arguments]
    packet = function.overloadpacket
    for name in packet.overloads():
        sibling = getattr(packet, name)
        added = [argument for argument in sibling._schema.arguments if argument.name not in given]
        if len(added) != 1 or not added[0].is_out or len(sibling._schema.arguments) != len(given) + 1:
            continue

        return Into(sibling, added[0].name)
    return None


def _wrong(cell: Cell, function: Any, sample: Call, expected: Any) -> Iterator[wrong_calls.Wrong]:
    """Yield wrong calls that no host answers by reading other memory: of kernels that check their arguments."""
    if _is_structured(function):
        yield from wrong_calls.changed(cell, function, sample)
    elif isinstance(expected, torch.Tensor) and {tensor.shape for tensor in sample.tensors} == {expected.shape}:
        # A function of single elements finds the common shape of its tensors first.
        yield from wrong_calls.shapes(cell, function, sample)


def fits_any_shape(function: Any, sample: Call) -> bool:
    """Return whether an overload takes the tensors of a sample in other sizes, or refuses them.

    Kernels of a backward do not check that the sizes of a gradient fit those of an input.
    """
    has_one_shape = len({tensor.shape for tensor in sample.tensors}) == 1
    return "backward" not in function._schema.name and (has_one_shape or _is_structured(function))


def _is_structured(function: Any) -> bool:
    """Return whether every device checks the arguments as the meta function does."""
    if kernel_facts(name_of(function)).checked:
        return True
    name = function._schema.name + (f".{function._overloadname}" if function._overloadname != "default" else "")
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, _STRUCTURED)
