"""One large sample of an operator: more elements than one block or one launch of a kernel works on.

The database's samples have a hundred elements. One of them grows along a dimension, so that its results have about a
million. Its rows are drawn again from the sample's own rows, so that indices and domains stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import leaves, mapped, tensors

from .classes import op_class
from .execution import HOST, OperatorSample, call
from .sampling import limits

#: Numbers from 3000 on are no numbers of the database's samples, nor of the tiers.
_NUMBER = 3000

#: Dimensions that grow together: for each tensor of the sample the dimension, or None.
Growth = tuple[int | None, ...]

#: Rows for which the growth is measured, and twice as many.
_FEW = 16


@dataclass(frozen=True)
class Plan:
    """How a sample grows: elements of its largest input and output per row of the growing dimensions."""

    sample: OperatorSample
    growth: Growth
    inputs: float
    outputs: float

    def length(self, target: int) -> int:
        """Return the odd number of rows that gives ``target`` elements, so that no block divides it."""
        return int(target / max(self.inputs, self.outputs)) | 1


def grown(info, samples: list[OperatorSample], dtype: torch.dtype) -> list[OperatorSample]:
    """Return up to two large samples: one with a large output, one with the longest reduction.

    The list is empty if no sample of the operator can grow, or if the table leaves the dtype out.
    """
    if str(dtype).removeprefix("torch.") not in limits().large.dtypes or info.name in limits().large.unchecked:
        return []
    target = limits().large.iterative if op_class(info) is OpClass.ITERATIVE else limits().large.elements
    plans = list(_plans(info, samples))
    if not plans:
        return []
    chosen = [max(plans, key=lambda plan: min(plan.outputs / plan.inputs, 1)), max(plans, key=_reduction)]
    if _reduction(chosen[1]) < 2 * _reduction(chosen[0]):
        del chosen[1]
    return [
        replace(_extended(info, plan.sample, plan.growth, plan.length(target)), number=_NUMBER + order)
        for order, plan in enumerate(chosen)
    ]


def _reduction(plan: Plan) -> float:
    return plan.inputs / max(plan.outputs, 1.0)


def _plans(info, samples: list[OperatorSample]) -> Iterator[Plan]:
    # The largest first: generators begin with simple samples, which often have no dimension to grow.
    for sample in sorted(samples, key=_size, reverse=True)[: limits().large.tried]:
        if sample.on_host or sample.process is not None or any(t.layout is not torch.strided for t in sample.tensors):
            continue
        for growth in _growths(sample):
            if (plan := _plan(info, sample, growth)) is not None:
                yield plan


def _size(sample: OperatorSample) -> int:
    return max((tensor.numel() for tensor in sample.tensors), default=0)


def _growths(sample: OperatorSample) -> Iterator[Growth]:
    """Yield sets of dimensions that may grow together: those of equal size and place, and each one alone.

    Only the first tensor and indices lead, as the sizes of other arguments follow from the first one's.
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
            alone = tuple(dim if t is given else None for t in sample.tensors)
            for growth in (alike, from_right, alone):
                if growth not in tried:
                    tried.add(growth)
                    yield growth


def _plan(info, sample: OperatorSample, growth: Growth) -> Plan | None:
    """Return how the operator grows along these dimensions; None if it does not, or faster than its inputs."""
    few, many = (_elements(info, _extended(info, sample, growth, length)) for length in (_FEW, 2 * _FEW))
    if few is None or many is None:
        return None
    # A result that grows faster than its inputs would not fit into memory.
    if many[1] > 2.5 * few[1]:
        return None
    inputs, outputs = ((after - before) / _FEW for before, after in zip(few, many, strict=True))
    return Plan(sample, growth, inputs, outputs) if inputs >= 1 else None


def _elements(info, sample: OperatorSample) -> tuple[int, int] | None:
    """Return the elements of the largest input and of the largest output, or None if the host refuses the sample."""
    state = torch.get_rng_state()
    try:
        result = call(info.op, sample.on(HOST))
    except Exception:  # this dimension cannot grow, for example because an argument repeats its size
        return None
    if not torch.equal(state, torch.get_rng_state()):
        return None  # drawn numbers cannot be compared one by one
    return _size(sample), max((leaf.numel() for leaf in tensors(leaves(result))), default=0)


def _extended(info, sample: OperatorSample, growth: Growth, length: int) -> OperatorSample:
    """Return the sample with ``length`` rows along the growing dimensions."""
    generator = torch.Generator().manual_seed(length)
    dims = {id(tensor): dim for tensor, dim in zip(sample.tensors, growth, strict=True)}
    distinct = info.name in limits().repetition.undefined
    memo: dict[int, torch.Tensor] = {}

    def extend(leaf):
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

    arguments = mapped(sample.arguments, extend)
    first, args, kwargs = arguments
    return OperatorSample(_NUMBER, first, args, kwargs, broadcasts_input=sample.broadcasts_input, tier="large")
