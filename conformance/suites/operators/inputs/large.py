"""One large sample of an operator: more elements than one block or one launch of a kernel works on.

The database's samples have a hundred elements. One of them grows along a dimension, so that its results have about a
million. Its rows are drawn again from the sample's own rows, so that indices and domains stay valid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import leaves, mapped, tensors
from conformance.suites.operators.calls import repeated_writes
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a, op_class
from conformance.suites.operators.calls.execution import host_call, was_refused
from conformance.suites.operators.calls.factors import with_positive_diagonal
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.calls.work import LargeWork

from . import tiers

#: Numbers from 3000 on are no numbers of the database's samples, nor of the tiers.
_NUMBER = 3000
#: Dtypes that have large samples of as many elements as the table says.
LARGE = (torch.float32, torch.int64)
#: Numbers of samples with many batches or channels, behind those of all other large samples.
_BATCHED = 3500

#: Number of the sample of a dtype without other large ones.
_OF_EACH_DTYPE = 3600
#: Numbers of samples of equal elements, and the element in whose place NaN stands.
_WITH_TIES, _IS_NAN = 3700, 7
#: Elements of a sample with many batches, in large samples.
_MOST = 16
#: Large samples of other overloads, and operators that have a kernel for each number of dimensions.
_OTHERS = 2
_OF_ALL_DIMS = ("nn.functional.pad.", "nn.functional.interpolate.", "nn.functional.upsample_")
#: Dimensions that grow together: for each tensor of the sample the dimension, or None.
Growth = tuple[int | None, ...]

#: Rows of a reduced dimension that is not the last: no block divides it.
_INNER = 4099
#: Rows for which the growth is measured, and twice as many.
_FEW = 16


@dataclass(frozen=True)
class Plan:
    """How a sample grows: elements of its largest input and output per row of the growing dimensions."""

    sample: Call
    growth: Growth
    inputs: float
    outputs: float

    def length(self, target: int) -> int:
        """Return the odd number of rows that gives ``target`` elements, so that no block divides it."""
        return int(target / max(self.inputs, self.outputs)) | 1


def grown(
    info: Any,
    samples: list[Call],
    dtype: torch.dtype,
    amount: LargeWork,
    elements: int | None = None,
    *,
    trained: bool = False,
    forms: bool = False,
) -> list[Call]:
    """Return some large samples: one with a large output, one with the longest reduction, and one of another overload.

    They have about so many ``elements``, or in two dtypes as many as the ``amount`` says; fewer if they are
    ``trained`` or for ``forms``, and still fewer if a derivative needs the square of their memory. The list is empty if
    no sample of the operator can grow.
    """
    if elements is None and dtype not in LARGE:
        return []
    most = amount.iterative if op_class(info) is OpClass.ITERATIVE else amount.elements
    inner_rows = _INNER
    if trained or forms:
        most = min(most, amount.repeated)
    if trained and facts(info.name).squared:
        most, inner_rows = amount.squares, amount.squares // 4  # beside a batch
    target = elements or most
    plans = list(_plans(info, samples, amount.tried))
    if not plans:
        return []
    chosen = [max(plans, key=_share), max(plans, key=_reduction)]
    if _reduction(chosen[1]) < 2 * _reduction(chosen[0]):
        del chosen[1]
    chosen += _of_other_overload(info, samples, chosen[0].sample, amount.tried) if dtype is torch.float32 else []
    found = [
        replace(extended(info, plan.sample, plan.growth, _length(info, plan, target, amount)), number=_NUMBER + order)
        for order, plan in enumerate(chosen)
    ]
    inner = _of_inner_reduction(info, samples, amount.reduced) if dtype is torch.float32 and elements is None else None
    if inner is not None:
        found.append(replace(extended(info, inner.sample, inner.growth, inner_rows), number=_NUMBER + len(found)))
    return found


def _length(info: Any, plan: Plan, target: int, amount: LargeWork) -> int:
    """Return the rows of a plan. To find equal rows of a tensor takes twenty times as long as equal elements."""
    of_rows = facts(info.name).distinct and plan.sample.kwargs.get("dim") is not None
    return plan.length(min(target, amount.blocks) if of_rows else target)


def of_each_dtype(info: Any, samples: list[Call], dtype: torch.dtype, amount: LargeWork) -> Iterator[Call]:
    """Yield a sample of many blocks in a dtype that has none of many launches: each dtype has a kernel of its own."""
    if op_class(info) is OpClass.ITERATIVE or facts(info.name).distinct:
        return
    if getattr(info, "promotes_int_to_float", False) and not (dtype.is_floating_point or dtype.is_complex):
        return  # it computes in float32
    if vectors := tiers.edge_sizes(info, dtype, (amount.blocks,)):
        yield replace(vectors[0], number=_OF_EACH_DTYPE, source="many blocks")
        return
    plan = next(_plans(info, samples, amount.tried), None)
    if plan is not None:
        longer = extended(info, plan.sample, plan.growth, plan.length(amount.blocks))
        yield replace(longer, number=_OF_EACH_DTYPE, source="many blocks")


def _of_inner_reduction(info: Any, samples: list[Call], most: int) -> Plan | None:
    """Return a plan that grows a reduced dimension which is not the last one, of a sample with several results."""
    for sample in sorted(samples, key=_size, reverse=True)[:most]:
        if not fits(info, sample) or not isinstance(sample.input, torch.Tensor) or sample.input.dim() < 2:
            continue
        for growth in growths(sample):
            if growth[0] is None or growth[0] == sample.input.dim() - 1 or not _is_safe(info, growth):
                continue
            plan = plan_of(info, sample, growth)
            made = _elements(info, sample) if plan is not None and plan.outputs == 0 else None
            if plan is not None and made is not None and made[1] > 1:
                return plan
    return None


def with_ties(info: Any, dtype: torch.dtype) -> Iterator[Call]:
    """Yield long rows of few values for sorts that keep the order of equal elements: ``stable=True`` of torch.sort."""
    if not facts(info.name).stable or dtype is not torch.float32:
        return
    for order, (shape, descending) in enumerate(itertools.product(((4099,), (3, 1537)), (False, True))):
        values = (torch.arange(math.prod(shape)) * 7 % 11).reshape(shape).to(dtype)
        # NaN is the largest number of a sort.
        values[values == _IS_NAN] = torch.nan
        given = {"dim": -1, "stable": True, "descending": descending}
        yield Call(_WITH_TIES + order, values, (), given, source="long rows of equal elements")


def _of_other_overload(info: Any, samples: list[Call], first: Call, most: int) -> Iterator[Plan]:
    """Yield plans of samples that another kernel gets: with a tensor for a number, or the reverse, or of other dims."""
    seen = [first]
    # More flags ask for more results.
    for sample in sorted(samples, key=_flags if facts(info.name).distinct else _size, reverse=True):
        if len(seen) > _OTHERS or not all(_is_of_other_overload(info, each, sample) for each in seen):
            continue
        if plans := list(_plans(info, [sample], most)):
            seen.append(sample)
            yield max(plans, key=_share)


def _flags(sample: Call) -> int:
    """Return how many keywords of a call are True."""
    return sum(value is True for value in sample.kwargs.values())


def _is_of_other_overload(info: Any, first: Call, sample: Call) -> bool:
    """Return whether a sample calls another kernel than the first one: with other kinds of arguments or dimensions."""
    dims = {each.input.dim() if isinstance(each.input, torch.Tensor) else 0 for each in (first, sample)}
    if info.full_name.startswith(_OF_ALL_DIMS) and len(dims) > 1:
        return True
    if facts(info.name).distinct:
        return (first.kwargs.get("dim") is None) != (sample.kwargs.get("dim") is None)
    pairs = list(zip(leaves([first.args, first.kwargs]), leaves([sample.args, sample.kwargs]), strict=False))
    return any(
        {isinstance(leaf, torch.Tensor) for leaf in pair} == {True, False}
        for pair in pairs
        if pair[0] is not None and pair[1] is not None
    )


def _share(plan: Plan) -> float:
    """Return how many output elements a plan has for each input element, at most 1."""
    return min(plan.outputs / plan.inputs, 1)


def batched(info: Any, samples: list[Call], dtype: torch.dtype, amount: LargeWork) -> Iterator[Call]:
    """Yield a sample with many batches, and one with many channels; its other dimensions are the smallest.

    A launch takes fewer blocks in y and z than in x, and kernels put batches and channels there. Functions of single
    elements have no such dimensions.
    """
    if dtype is not torch.float32 or is_a(info, "UnaryUfuncInfo", "BinaryUfuncInfo"):
        return
    if facts(info.name).unchecked or op_class(info) is OpClass.ITERATIVE:
        return
    for dim in (0, 1):
        by_size = sorted((sample for sample in samples if fits(info, sample)), key=_size, reverse=True)
        found = (_batched(info, sample, dim, amount) for sample in by_size)
        if (sample := next((sample for sample in found if sample is not None), None)) is not None:
            yield replace(sample, number=_BATCHED + dim)


def _batched(info: Any, sample: Call, dim: int, amount: LargeWork) -> Call | None:
    """Return the sample with many rows along a leading dimension of its input, if that makes few elements."""
    # Vectors and matrices have no batch: a launch has their rows in x.
    if not sample.tensors or sample.tensors[0].dim() < 3 or not all(t.numel() for t in sample.tensors):
        return None
    candidates = [(growth[0], growth) for growth in growths(sample) if growth[0] is not None]
    for leading, growth in candidates:
        if leading > dim and _elements(info, smaller := extended(info, sample, growth, 1)) is not None:
            sample = smaller
    for leading, growth in candidates:
        plan = plan_of(info, sample, growth) if leading == dim else None
        if plan is not None and max(plan.inputs, plan.outputs) * amount.leading <= _MOST * amount.elements:
            return extended(info, sample, growth, amount.leading)
    return None


def fits(info: Any, sample: Call) -> bool:
    """Return whether a sample's tensors may be longer: PyTorch's CPU is right for them, and they may be shorter."""
    return not facts(info.name).stays_short and may_shrink(sample)


def may_shrink(sample: Call) -> bool:
    """Return whether a sample's tensors may have other sizes: none is made on the host or changed by a function."""
    fits = not sample.on_host and sample.process in (None, with_positive_diagonal)
    return fits and all(tensor.layout is torch.strided for tensor in sample.tensors)


def _reduction(plan: Plan) -> float:
    """Return how many input elements a plan has for each output element."""
    return plan.inputs / max(plan.outputs, 1.0)


def _plans(info: Any, samples: list[Call], most: int) -> Iterator[Plan]:
    """Yield the plans to enlarge a call of which the host computes a small one; at most ``most`` samples are tried."""
    # The largest first: generators begin with simple samples, which often have no dimension to grow.
    for sample in sorted(samples, key=_size, reverse=True)[:most]:
        if not fits(info, sample):
            continue
        for growth in growths(sample):
            if _is_safe(info, growth) and (plan := plan_of(info, sample, growth)) is not None:
                yield plan


def _is_safe(info: Any, growth: Growth) -> bool:
    """Return whether a kernel that does not check its arguments stays within its tensors when these dimensions grow."""
    if not facts(info.name).unchecked:
        return True
    return facts(info.name).batches and growth[0] == 0 and all(dim is None for dim in growth[1:])


def _size(sample: Call) -> int:
    """Return the number of elements of the largest tensor of a call."""
    return max((tensor.numel() for tensor in sample.tensors), default=0)


def growths(sample: Call, *, channels: bool = False) -> Iterator[Growth]:
    """Yield sets of dimensions that may grow together: those of equal size and place, and each one alone.

    Only the first tensor and indices lead, as the sizes of other arguments follow from the first one's. With
    ``channels``, a dimension grows with the vectors of its size too, such as a weight, a bias or a mean.
    """
    tried: set[Growth] = set()
    leading = [t for number, t in enumerate(sample.tensors) if number == 0 or t.dtype is torch.int64]
    for given in leading:
        for dim in range(given.dim() if given.numel() else 0):
            size, from_end = given.shape[dim], dim - given.dim()
            alike = tuple(dim if t.dim() == given.dim() and t.shape[dim] == size else None for t in sample.tensors)
            from_right = tuple(
                t.dim() + from_end if t.dim() >= -from_end and t.shape[from_end] == size else None
                for t in sample.tensors
            )
            with_vectors = tuple(
                dim if t is given else (0 if t.dim() == 1 and t.numel() == size else None) for t in sample.tensors
            )
            alone = tuple(dim if t is given else None for t in sample.tensors)
            for growth in (alike, from_right, *([with_vectors] if channels else ()), alone):
                if growth not in tried:
                    tried.add(growth)
                    yield growth


def plan_of(info: Any, sample: Call, growth: Growth) -> Plan | None:
    """Return how the operator grows along these dimensions; None if it does not, or faster than its inputs."""
    key, state = ("growth", info.op, growth), torch.get_rng_state()
    if key not in sample.kept:
        found = _measured(info, sample, growth)
        if not torch.equal(state, torch.get_rng_state()):
            # A call that draws random numbers is made each time: what is drawn later depends on it.
            return found and Plan(sample, growth, *found)
        sample.kept[key] = found
    found = sample.kept[key]
    return found and Plan(sample, growth, *found)


def _measured(info: Any, sample: Call, growth: Growth) -> tuple[float, float] | None:
    """Return the elements of input and output per row."""
    longer = [extended(info, sample, growth, _FEW)]
    few = _elements(info, longer[0])
    if was_refused(info.op, longer[0]):
        return None  # the host takes no other length either
    longer.append(extended(info, sample, growth, 2 * _FEW))
    many = _elements(info, longer[1])
    if few is None or many is None or any(repeated_writes.are_in(info, each) for each in longer):
        return None
    # A result that grows faster than its inputs would not fit into memory. Thousands of results say nothing more.
    if many[1] > 2.5 * few[1] or many[2] > few[2]:
        return None
    inputs, outputs = ((after - before) / _FEW for before, after in zip(few[:2], many[:2], strict=True))
    return (inputs, outputs) if inputs >= 1 else None


def _elements(info: Any, sample: Call) -> tuple[int, int, int] | None:
    """Return the elements of the largest input and output, and the number of outputs; None if the host refuses."""
    result = host_call(info.op, sample)
    # An argument may repeat the size of this dimension. Drawn numbers cannot be compared one by one.
    if not result.comparable:
        return None
    made = tensors(result.value)
    return _size(sample), max((leaf.numel() for leaf in made), default=0), len(made)


def _as_the_shape(value: Any, sample: Call, first: Any) -> Any:
    """Return a list of integers, such as ``normalized_shape``, as the last sizes of the first tensor if it was these.

    A weight of this shape tells that it was meant so.
    """
    is_list = type(value) in (tuple, list, torch.Size) and value and all(type(item) is int for item in value)
    if not is_list or not isinstance(first, torch.Tensor):
        return value
    old, new = tuple(sample.input.shape[-len(value) :]), tuple(first.shape[-len(value) :])
    is_shape = tuple(value) == old != new and any(tuple(tensor.shape) == old for tensor in sample.tensors[1:])
    return type(value)(new) if is_shape else value


def extended(info: Any, sample: Call, growth: Growth, length: int) -> Call:
    """Return the sample with ``length`` rows along the growing dimensions."""
    generator = torch.Generator().manual_seed(length)
    dims = {id(tensor): dim for tensor, dim in zip(sample.tensors, growth, strict=True)}
    distinct = facts(info.name).open_for_repeated or facts(info.name).distinct
    memo: dict[int, torch.Tensor] = {}

    def extend(leaf: Any) -> Any:
        dim = dims.get(id(leaf))
        if dim is None:
            return leaf
        if id(leaf) not in memo:
            rows = torch.randint(leaf.shape[dim], (length,), generator=generator)
            found = leaf.detach().index_select(dim, rows)
            if distinct and leaf is sample.input:
                # A tie would leave open which index is right.
                found = torch.randperm(found.numel(), generator=generator).reshape(found.shape).to(leaf.dtype)
            memo[id(leaf)] = found.requires_grad_() if leaf.requires_grad else found
        return memo[id(leaf)]

    first, args, kwargs = mapped(sample.arguments, extend)
    args = tuple(_as_the_shape(value, sample, first) for value in args)
    return Call(
        _NUMBER, first, args, kwargs, sample.process, sample.broadcasts_input, source="large", certain=sample.certain
    )
