"""Integer arguments in 32 bits, and indices that are equal: kernels have a path of their own for each index dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from . import execution, large, sampling, special_inputs
from .execution import HOST, OperatorSample, call
from .oracle import of_forward
from .sampling import limits
from .variants import attempt

#: Numbers from 9000 on are no numbers of other samples.
_NUMBER = 9000
#: Equal indices: more than eight bits count.
_OFTEN = 600
#: Dtypes of indices.
_KINDS = (torch.int64, torch.int32)


def check(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results for indices of 32 and 64 bits, some of which are equal, with the host's; in one dtype."""
    if not judge.values or not sampling.is_first_dtype(info, dtype):
        return
    for sample in special_inputs.unlike(info, judge, samples):
        for number, tensor in enumerate(sample.tensors):
            if tensor.dtype is not torch.int64 or tensor is sample.input or number in sample.on_host:
                continue
            for kind in _KINDS:
                _check_kind(info, judge, sample, tensor, kind)
            for often in _often(info, sample, tensor):
                _check_often(info, judge, often)
                for one in _with_one_value(info, often):
                    _check_often(info, judge, one)


def repeated(info, samples: list[OperatorSample]) -> Iterator[OperatorSample]:
    """Yield the samples with equal indices in one row, in two rows, and of one index that occurs very often.

    The operator has to be defined for these.
    """
    for sample in samples:
        for tensor in sample.tensors:
            if tensor.dtype is torch.int64 and tensor is not sample.input:
                if _may_repeat(info, tensor):
                    yield from _repeated(sample, tensor)
                yield from _often(info, sample, tensor)


def _often(info, sample: OperatorSample, tensor: torch.Tensor) -> Iterator[OperatorSample]:
    """Yield the sample with so many equal indices that a counter of eight bits or one group of threads has fewer."""
    if not tensor.dim() or not (info.name in limits().indices.repeated or _accumulates(info, sample)):
        return
    if sample.kwargs.get("include_last_offset"):
        return  # the last offset is the number of indices, and PyTorch does not check it
    place = next(number for number, other in enumerate(sample.tensors) if other is tensor)
    size = tensor.shape[0]
    # What is written has a row for each index.
    with_rows = tuple(
        0 if number and other.dim() and other.shape[0] == size else None for number, other in enumerate(sample.tensors)
    )
    for growth in (with_rows, *large.growths(sample)):
        if growth[place] is None:
            continue
        longer = large.extended(info, sample, growth, _OFTEN + tensor.shape[growth[place]])
        index = longer.tensors[place].clone()
        index.narrow(growth[place], 0, _OFTEN).copy_(index.select(growth[place], 0).unsqueeze(growth[place]).clone())
        found = replace(
            longer.with_tensor(longer.tensors[place], index), number=_NUMBER, tier=f"{_OFTEN} equal indices"
        )
        if attempt(call, info.op, found.on(HOST)).error is None:
            yield found
            return


def _with_one_value(info, sample: OperatorSample) -> Iterator[OperatorSample]:
    """Yield the sample with one value for all equal indices, if what is written to one place is added up."""
    values = sample.tensors[-1]
    if _accumulates(info, sample) and values.is_floating_point() and values.numel() > 1:
        one = sample.with_tensor(values, values.detach().reshape(-1)[0].clone())
        if attempt(call, info.op, one.on(HOST)).error is None:
            yield replace(one, tier=f"one value for {_OFTEN} equal indices")


def _accumulates(info, sample: OperatorSample) -> bool:
    """Return whether what is written to one place is added up, because an argument says so."""
    return info.name in limits().indices.accumulating and any(
        value is True for value in (*sample.args, *sample.kwargs.values())
    )


def _check_often(info, judge, sample: OperatorSample) -> None:
    expected = call(info.op, sample.on(HOST))
    found = execution.execute(info.op, sample.on(judge.device))
    judge.result(str(sample), sample, found, expected, of_forward(info, sample), judge.length(sample, expected))


def _repeated(sample: OperatorSample, tensor: torch.Tensor) -> Iterator[OperatorSample]:
    equal = _with_equal_ends(tensor)
    for tier, index in (("equal indices", equal), ("equal indices in two rows", torch.stack([equal, equal.flip(-1)]))):
        yield replace(sample.with_tensor(tensor, index), tier=tier)


def _may_repeat(info, tensor: torch.Tensor) -> bool:
    """Return whether the result is defined for equal indices in this tensor, which has several."""
    return info.name in limits().indices.repeated and tensor.dim() > 0 and tensor.shape[-1] > 1


def _with_equal_ends(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in which the last index of each row is the first one."""
    index = tensor.clone(memory_format=torch.contiguous_format)
    index[..., -1] = index[..., 0]
    return index


def _check_kind(info, judge, sample: OperatorSample, tensor: torch.Tensor, kind: torch.dtype) -> None:
    """Compare one call with an index in this dtype; the last index is the first one where the result is defined."""
    repeats = _may_repeat(info, tensor)
    if kind is torch.int64 and not repeats:
        return  # the plain results show it
    index = _with_equal_ends(tensor) if repeats else tensor.clone(memory_format=torch.contiguous_format)
    changed = sample.with_tensor(tensor, index.to(kind))
    label = f"{sample}, {'equal ' if repeats else ''}indices in {str(kind).removeprefix('torch.')}"
    host, device = changed.on(HOST), changed.on(judge.device)
    expected = attempt(call, info.op, host)
    if expected.error is not None:
        return
    found = attempt(execution.execute, info.op, device)
    if found.error is not None:
        if kind is torch.int64 or info.name in limits().indices.documented:
            raise found.error
        judge.check.metric("indices", "refused in 32 bits")  # a note: the documentation names 64 bits alone
        return
    n = judge.length(host, expected.value)
    judge.result(label, changed, found.value, expected.value, of_forward(info, changed), n)
