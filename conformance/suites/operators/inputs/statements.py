"""Statements of two calls: a part is read and written, a view is written and its base read, a call is made again.

Assignments to parts are calls of several operators, too.

Each call alone is right on a device that queues the read behind the write, keeps a copy for a view, or keeps what it
has prepared for a call under a key that leaves out data, shape or an exception between.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.layout import shares_memory
from conformance.numerics.trees import leaves
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import Attempt, Statement, attempt, call, host_call, perform, settled
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Oracle, of_forward

from . import arrangements, variants
from .families import Stage, check, source
from .kinds import of_other_sizes, representative

#: Numbers from 7800 on are no numbers of other samples.
_NUMBER = 7800
#: Rows and columns of what statements read and write.
_SHAPE = (6, 3)


def _compare(cell: Cell, statement: Call) -> None:
    """Compare what a statement leaves with the host's; it moves elements or adds small numbers, and needs no oracle."""
    expected = attempt(call, cell.info, statement.on(HOST))
    if expected.error is not None:
        return
    try:
        found = perform(execution.execute, cell.info, cell.on(statement))
    except NotImplementedError:
        if statement.source not in _ASSIGNMENTS:
            raise
        # Sums and masks take operators that a device need not have in the dtype of an index.
        cell.check.metric("statements", f"not supported: {statement.source}")
        return
    cell.judge.result(statement, found, expected.value, Oracle(_nothing, statement), 1.0)


def _nothing(*_: Any) -> list[Any]:
    """Return no arguments: the statement needs none beside the tensor."""
    return []


# --- parts that are read and written ----------------------------------------------------------------------------------


_MASK, _INDEX = torch.tensor([True, False, True, True, False, True]), torch.tensor([4, 1, 5])
_COLUMNS = torch.tensor([2, 0])
_ELEMENTS = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1], [0, 0, 0]]).bool()
_SELECTED = "t.masked_scatter_(a, t.masked_select(a).flip(0))"
#: Statements by the operator that reads, and the tensors behind the first one.
_STATEMENTS: Final[dict[str, dict[str, tuple[torch.Tensor, ...]]]] = {
    "__getitem__": {
        "t[a] = t[a].flip(-1)": (_MASK,),
        "t[a,] = t[a,].flip(-1)": (_INDEX,),
        "t[:, a] = t[:, a].flip(-1)": (_COLUMNS,),
        _SELECTED: (_MASK.view(6, 1).expand(6, 3).clone(),),
        "t[a], t[b] = t[b], t[a]": (torch.tensor([0, 1]), torch.tensor([4, 2])),
        "t[1:] = t[:-1].clone()": (),
    },
    "masked_select": {_SELECTED: (_MASK.view(6, 1).expand(6, 3).clone(),)},
    "gather": {"t.scatter_(0, a, t.gather(0, a).flip(-1))": (torch.tensor([[5, 0, 2], [1, 3, 4]]),)},
}
#: Places in a tensor, and the tensors by which they are named.
_PLACES: Final[dict[str, tuple[torch.Tensor, ...]]] = {
    "a": (_MASK,),
    "a & ~a": (_ELEMENTS,),
    "2, a": (_ELEMENTS[3],),
    "a[:0]": (_INDEX,),
    ":, a": (_COLUMNS,),
    "1:5, a": (_COLUMNS,),
    "a, b": (_INDEX, torch.tensor([2, 0, 1])),
    "a[:, None], b": (_INDEX, _COLUMNS),
    "1::2, ::2": (),
    "True": (),
    "False": (),
}
#: Assignments of numbers, of numbers of the host, and of rows and columns, which are broadcast.
_ASSIGNMENTS: Final[dict[str, tuple[torch.Tensor, ...]]] = {
    **{f"t[{place}] = 20": given for place, given in _PLACES.items()},
    **{f"t[{place}] += 20": given for place, given in _PLACES.items()},
    "t[a] = torch.tensor(21, dtype=t.dtype)": (_ELEMENTS,),
    "t[..., [2, 0]] = torch.tensor(21, dtype=t.dtype)": (),
    "t[2, -1] = torch.tensor(21, dtype=t.dtype)": (),
    "t[a] = torch.arange(22, 28).to(t)": (_ELEMENTS,),
    "t[a] = torch.arange(22, 25).to(t)": (_INDEX,),
    "t[~a] += torch.arange(22, 25).to(t)": (_INDEX,),
    "t[a[0]] = torch.arange(22, 25).to(t)": (_INDEX,),
    "t[:, 1] = torch.arange(22, 28).to(t)": (),
    "t[None, ..., -1] += torch.arange(22, 28).to(t)": (),
}


@source(Mode.INFERENCE, _compare, values=True)
def statements(cell: Cell) -> Iterator[Call]:
    """Yield statements that read a part and write it, and assignments by each kind of index, in every dtype."""
    several = 2 if cell.dtype is torch.bool else 13
    values = (torch.arange(torch.Size(_SHAPE).numel()) % several).to(cell.dtype).view(_SHAPE)
    texts = _STATEMENTS.get(cell.info.full_name, {})
    texts = {**texts, **_ASSIGNMENTS} if cell.info.full_name == "__getitem__" else texts
    for order, (text, given) in enumerate(texts.items()):
        if _is_claimed(cell, Statement(text), (values.clone(), *given)):
            yield Call(_NUMBER + order, values, given, source=text).into("a statement", Statement(text))


def _is_claimed(cell: Cell, statement: Statement, given: tuple[torch.Tensor, ...]) -> bool:
    """Return whether the device claims all that a statement calls; what the host refuses is refused by it, too."""
    try:
        return cell.check.claims(statement, given)
    except Exception:
        return True


# --- views ------------------------------------------------------------------------------------------------------------


class _Written:
    """A view is written in reverse order of its elements, and its base is returned."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, base: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Reverse the first view that the function returns, in its memory, and return its base."""
        views = self._function(base, *args, **kwargs)
        view = next(leaf for leaf in leaves(views) if isinstance(leaf, torch.Tensor))
        view.copy_(view.detach().cpu().flip(tuple(range(view.dim()))))
        return base


@functools.cache
def _can_copy(device: torch.device) -> bool:
    """Return whether a tensor of the device can be written by a copy, of which other cases tell."""
    try:
        torch.zeros(2, device=device).copy_(torch.zeros(2, device=device))
    except RuntimeError:
        return False
    return True


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, fixed=True)
def written_views(cell: Cell) -> Iterator[Call]:
    """Yield a sample of an operator that returns a view: the view is written, and the base read."""
    sample = representative(cell.fixed)
    usual = host_call(cell.info.op, sample)
    view = next((leaf for leaf in leaves(usual.value) if isinstance(leaf, torch.Tensor)), None)
    if view is None or not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
        return
    if view.numel() > 1 and shares_memory(view, usual.given.input) and _can_copy(cell.device):
        yield sample.into("the view written, then the base", _Written(cell.info.op))


# --- calls that are made again ----------------------------------------------------------------------------------------


@check(Mode.INFERENCE, stage=Stage.FORMS, once=True, fixed=True)
def calls_again(cell: Cell) -> None:
    """Compare a call that is made again with other data in the same memory, after another shape and a refused call."""
    sample = _in_other_calls(cell)
    if sample is None or sample.input.numel() < 2 or 0 in sample.input.stride():
        return
    # What a device prepares anew after a refusal may leave the offset out.
    for offset in (
        () if facts(cell.info.name).by_memory else arrangements.of(cell.info, sample, ("with a storage offset",))
    ):
        usual = host_call(cell.info.op, offset)
        if usual.error is None and variants.is_sound(cell, offset, usual.value):
            sample = offset
    turned = sample.input.detach().flip(tuple(range(sample.input.dim())))
    other = sample.with_tensor(sample.input, turned).named(form="again, with other data")
    due = host_call(cell.info.op, other)
    if not due.comparable:
        return
    device = cell.on(sample)
    execution.execute(cell.info.op, device)
    for other_call in between(cell, sample):
        refused = attempt(call, cell.info, other_call.on(HOST)).error is not None
        if refused:
            _tried(cell, other_call)
        else:
            perform(execution.execute, cell.info, cell.on(other_call))
    for other_call in _refused(cell, sample):
        _tried(cell, other_call)  # nobody claims it, also where the host has a kernel for it
    try:
        device.input.copy_(cell.on(other).input)
    except RuntimeError:
        return  # a device without this copy, of which other cases tell
    cell.note(other)
    found = execution.execute(cell.info.op, device)
    n = cell.judge.length(other, due.value)
    cell.judge.result(other, found, due.value, of_forward(cell.info, other), n)


def _tried(cell: Cell, other: Call) -> None:
    """Make a call that may be refused, and wait for its end: some devices refuse when a result is read."""
    with contextlib.suppress(Exception):
        settled(Attempt(perform(execution.execute, cell.info, cell.on(other))))


def _in_other_calls(cell: Cell) -> Call | None:
    """Return the representative sample if its first tensor may have other values, as that of eigenvectors may."""
    sample = representative(cell.fixed)
    has_values = sample.process is not None and isinstance(sample.input, torch.Tensor) and not sample.on_host
    known = facts(cell.info.name)
    is_safe = has_values and sample.input.layout is torch.strided and not (known.unchecked or known.resizes)
    return of_other_sizes(cell) or (sample if is_safe else None)


def _refused(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the call into integers or of integers, which many functions refuse: of one tensor, they refuse no shape."""
    value = host_call(cell.info.op, sample).value
    made = leaves(value)
    if cell.info.supports_out and all(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in made):
        outs = tuple(torch.zeros(leaf.shape, dtype=torch.int64) for leaf in made)
        out = outs if isinstance(value, tuple) else outs[0]
        yield sample.into("out= variant with integer outputs", cell.info.op, out=out)
    elif sample.input.is_floating_point():
        yield sample.with_tensor(sample.input, sample.input.detach().to(torch.int64)).named(change="of integers")


def between(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield a sample of another shape, and a call that fits no other argument; none has an index out of its bounds."""
    shapes = [tensor.shape for tensor in sample.tensors]
    yield from [other for other in cell.fixed if [tensor.shape for tensor in other.tensors] != shapes][:1]
    if all(tensor.is_floating_point() for tensor in sample.tensors) and sample.input.shape[-1] > 2:
        shorter = sample.with_tensor(sample.input, sample.input.detach()[..., 1:].contiguous())
        yield shorter.named(change="one column less")
