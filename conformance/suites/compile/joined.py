"""Operators of PyTorch's database in compiled code: which are compiled, with which arguments, and how they are run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.judging.checker import Checker
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import mapped, tensors
from conformance.suites.operators.calls import database, execution, sampling
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_a, is_fourier_transform, is_uninitialised, op_class
from conformance.suites.operators.calls.execution import host_call, host_gradients
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.calls.joined import Joined, traced, turned
from conformance.suites.operators.calls.passes import PLAIN, cotangents, differentiable, unique
from conformance.suites.operators.calls.work import work
from conformance.suites.operators.checks import training
from conformance.suites.operators.inputs import arrangements
from conformance.suites.operators.inputs.kinds import representative
from conformance.suites.operators.judge import oracle
from conformance.suites.operators.judge.cells import Cell, Failure

#: Kinds of operators by the type of their description, and by whether a call has indices.
_OF_TYPES: Final = {"unary": "UnaryUfuncInfo", "binary": "BinaryUfuncInfo", "reductions": "ReductionOpInfo"}
_OF_CALLS: Final = ("others", "indices")
#: Words of functions that compilers call, or write as long polynomials.
_LONG: Final = ("polynomial", "bessel", "special.airy", "igamma", "special.i0", "special.i1")
#: A function of elements: its operator, and a function of two tensors, of which it may read one.
Elementwise = tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
#: The form of a compiled call, in messages and selectors.
FORM: Final = "compiled between others"


@dataclass(frozen=True)
class Subject:
    """An operator's cell, its call, and the host's result with the gradients, of which an inference cell has none."""

    cell: Cell
    call: Call
    due: tuple[Any, list[Any]]

    @property
    def name(self) -> str:
        """Return the full name of the operator."""
        return str(self.cell.info.full_name)

    def on_host(self) -> Subject:
        """Return the subject on the host."""
        return replace(self, cell=replace(self.cell, device=HOST, place=HOST))

    def failure(self, backend: Any) -> Failure:
        """Return the call that failed, with the function that was compiled, for its script."""
        one = torch.ones((), dtype=self.cell.dtype)
        call = self.call.into(FORM, Joined(self.cell.info.op, backend), one=one)
        found = self.cell.failure()
        return Failure(call, self.cell.info) if found is None else replace(found, call=call)


def elementwise(claimed: Callable[[str], bool], x: torch.Tensor, y: torch.Tensor) -> list[Elementwise]:
    """Return the claimed functions of elements whose results are real, and finite in float64 for x, for y, or for both.

    A function of one tensor reads x if it can. Those that need numbers beside tensors are left out, and so are those
    that a compiler calls or writes as long polynomials: they take half of its time.
    """
    found = []
    for name in database.database():
        info = database.find(name)
        if not (is_a(info, "UnaryUfuncInfo") or is_a(info, "BinaryUfuncInfo")) or not claimed(name):
            continue
        if any(word in name for word in _LONG):
            continue
        reads = (_both,) if is_a(info, "BinaryUfuncInfo") else (_first, _second)
        function = next((partial(read, info.op) for read in reads if _is_finite(read, info.op, x, y)), None)
        if function is not None:
            found.append((name, function))
    return found


def _first(function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    return function(x)


def _second(function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    return function(y)


def _both(function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    return function(x, y)


def _is_finite(read: Callable[..., Any], function: Any, x: torch.Tensor, y: torch.Tensor) -> bool:
    try:
        result = read(function, x.double(), y.double())
    except Exception:  # it needs more arguments
        return False
    return isinstance(result, torch.Tensor) and not result.is_complex() and bool(result.isfinite().all())


def subjects(
    names: Iterable[str], kind: str, dtype: torch.dtype, device: torch.device, check: Checker, *, trained: bool
) -> Iterator[Subject]:
    """Yield a call of each of these operators that is of a kind, and that a compiler can trace.

    Its inputs are arranged as the operator's name draws it.
    """
    for name in names:
        info = database.find(name)
        own = _kind_of(info)
        if not _is_traced(info) or kind not in ((own,) if own else _OF_CALLS):
            continue
        amount = work(False).training if trained else work(False).inference
        samples = sampling.pick(info, dtype, requires_grad=trained, extent=amount)
        chosen = next(filter(partial(_is_static, info), _choices(info, name, dtype, samples)), None)
        if chosen is None or kind != (own or _OF_CALLS[_has_indices(chosen)]):
            continue
        cell = Cell.of(info, dtype, device, check, samples)
        chosen = chosen.named(form=FORM, seed=cell.seed, backward=PLAIN if trained else None)
        try:
            due = PLAIN.run(info, execution.call, host_gradients, chosen.on(HOST), chosen.seed)
        except Exception:  # the host has no gradient here
            continue
        yield Subject(cell, chosen, due)


def _kind_of(info: Any) -> str:
    """Return the kind of an operator by what a compiler makes of it, "" if the call decides about it."""
    for kind, types in _OF_TYPES.items():
        if is_a(info, types):
            return kind
    if info.name.startswith("nn.functional."):
        return "functional"
    return "transforms" if is_fourier_transform(info) else ""


def _has_indices(call: Call) -> bool:
    return any(not tensor.is_floating_point() for tensor in tensors([call.args, call.kwargs]))


def _choices(info: Any, name: str, dtype: torch.dtype, samples: list[Call]) -> Iterator[Call]:
    """Yield the sample that stands for all, arranged and as it is, and then the others."""
    if not samples:
        return
    usual = replace(representative(samples), source="compiled")
    if (arranged := arrangements.each(info, usual, random.Random(f"{name} {dtype}").choice)) is not None:
        yield arranged
    yield from (usual, *(replace(sample, source="compiled") for sample in samples))


def _is_traced(info: Any) -> bool:
    """Return whether a compiler traces the operator: no function of PyTorch's tests, and none that resizes.

    Compilers call libraries for factorisations, whose signs and orders are open. What reads memory beside its input has
    no values that a compiler keeps.
    """
    if op_class(info) is OpClass.ITERATIVE or info.name.startswith("as_strided"):
        return False
    of_tests = str(getattr(info.op, "__module__", "")).startswith("torch.testing")
    resizes = facts(info.name).resizes or info.name.endswith("_")
    return not (of_tests or resizes or is_uninitialised(info))


def _is_static(info: Any, sample: Call) -> bool:
    """Return whether the call draws nothing, has dense tensors, and results whose shapes depend on shapes alone."""
    made = host_call(info.op, sample)
    results = tensors(made.value) if made.comparable else []
    if not results or any(each.layout is not torch.strided for each in (*sample.tensors, *results)):
        return False
    mode = FakeTensorMode()

    def fake(leaf: Any) -> Any:
        return mode.from_tensor(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf

    try:
        first, args, kwargs = mapped(sample.arguments, fake)
        with mode:
            info.op(first, *args, **kwargs)
    except Exception:  # its shapes depend on values, or PyTorch has no rule for them
        return False
    return True


def run(chosen: Sequence[Subject], compiled: Callable[..., Any]) -> list[tuple[Any, list[Any]]]:
    """Return the results of operators that ``compiled`` compiles in one graph, and their gradients, in order."""
    functions = [Joined(each.cell.info.op) for each in chosen]

    def all_of(ones: list[torch.Tensor], given: list[Any]) -> list[Any]:
        results = []
        for function, one, (first, args, kwargs) in zip(functions, ones, given, strict=True):
            results.append(function(first, *args, one=one, **kwargs))
        return results

    copies = [each.cell.on(each.call) for each in chosen]
    ones = [torch.ones((), dtype=each.cell.dtype).to(each.cell.device) for each in chosen]
    found = compiled(all_of, fullgraph=True)(ones, [copy.arguments for copy in copies])
    results = [traced(result, turned) for result in found]
    outputs, inputs, given = [], [], []
    for each, copy, result in zip(chosen, copies, results, strict=True):
        if each.call.backward is None or not each.due[1]:
            continue
        own = differentiable(copy, result)
        outputs += own
        given += cotangents(own, each.call.seed)
        inputs.append(unique(tensor for tensor in copy.tensors if tensor.requires_grad))
    gradients = iter(execution.gradients(outputs, [leaf for own in inputs for leaf in own], given) if outputs else ())
    return [(result, [next(gradients) for _ in each.due[1]]) for each, result in zip(chosen, results, strict=True)]


def judge(subject: Subject, found: tuple[Any, list[Any]]) -> None:
    """Compare a result and its gradients with the host's. Raises AssertionError for a difference beyond the budget."""
    cell, call, due = subject.cell, subject.call, subject.due
    cell.note(call)
    if call.backward is None:
        n = cell.judge.length(call, due[0])
        cell.judge.result(call, found[0], due[0], oracle.of_forward(cell.info, call), n)
        return
    cell.judge.metadata(call, found[0], due[0])
    given = cotangents(differentiable(call, due[0]), call.seed)
    training.judge_values(cell, call, found, due, given)
