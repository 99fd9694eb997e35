"""From a case to its verdict: the accelerator's own kernel, and the portable reference beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from conformance.accelerators.capabilities import Cell
from conformance.accelerators.declaration import Detail
from conformance.accelerators.interface import stands_for_nothing
from conformance.case import Case, seed_of
from conformance.finding import Reason, Refused, environment_lacks, report
from conformance.kernels.arguments import tensors_in
from conformance.kernels.implementation import Choice, Implementation, choice_behind
from conformance.kernels.specification import Arguments, TensorLocation
from conformance.numerics.bits import plain
from conformance.numerics.trees import mapped

from .judging import Judge, unchanged
from .loading import loaded, says_yes
from .planned import Task


@dataclass(frozen=True)
class Loaded:
    """What the accelerator's builder gives for one kernel."""

    functions: object
    function: Callable
    builder: str


def load(accelerator, task: Task) -> Loaded:
    """The accelerator's kernel. Raises Refused where there is none: no builder, or one that says no."""
    kernel, name = task.kernel, task.kernel.attribute_for(task.dtype)
    builder = accelerator.create_op_builder(kernel.builder)
    if stands_for_nothing(builder) or not hasattr(builder, "load"):
        raise Refused(f"there is no {kernel.builder}")
    if not says_yes(builder):
        raise Refused(f"{kernel.builder} says it is not compatible")
    functions = loaded(builder)
    function = getattr(functions, name, None)
    if function is None:
        raise Refused(f"{kernel.builder} loads no {name}")
    return Loaded(functions, function, kernel.builder)


def run_sample(accelerator, device, declaration, case: Case, check) -> None:
    """One call of the accelerator's kernel, and of the reference on the device where that is another."""
    task: Task = case.payload
    loaded, place = load(accelerator, task), _place(task, device)
    given = sample_of(task, task.what, case)
    worst = _judged_call(accelerator, task, loaded.function, loaded.functions, given, place, check, loaded.builder)
    choice = choice_behind(loaded.function)
    _tell(check, choice, worst)
    if choice.implementation is not Implementation.REFERENCE and task.kernel.reference is not None:
        reference = task.kernel.reference
        alone = SimpleNamespace(**{**task.kernel.companions, task.kernel.attribute_for(task.dtype): reference})
        _judged_call(accelerator, task, reference, alone, given, place, check, "the portable reference")
    _compare_with_claim(declaration, case, choice)


def run_refusal(accelerator, device, case: Case, check) -> None:
    """A bad call raises before anything is modified; this project's own kernels name the argument."""
    task: Task = case.payload
    loaded = load(accelerator, task)
    given = sample_of(task, task.kernel.samples[0], case)
    bad = task.what.spoil(on_device(given, _place(task, device)))
    before = {path: plain(tensor).clone() for path, tensor in tensors_in(bad) if tensor.device.type != "meta"}

    error = None
    with task.kernel.session(loaded.functions, bad):
        try:
            loaded.function(*bad.values())
        except Exception as raised:  # which exception it is, is the builder's own business
            error = raised
    accelerator.synchronize()

    check.that(error is not None, f"{task.what.argument} is wrong ({task.what.name}), and nothing is raised")
    if isinstance(error, NotImplementedError):
        raise error
    after = {path: tensor for path, tensor in tensors_in(bad) if path in before}
    changed = unchanged(before, after)
    check.that(not changed, f"the call was refused, and had changed {', '.join(changed)} before")
    if hasattr(loaded.function, "choice"):
        check.that(task.what.argument in str(error), f"the error does not name {task.what.argument}: {error}")


def run_property(accelerator, device, declaration, case: Case, check) -> None:
    """Several calls, and what holds between them."""
    task: Task = case.payload
    loaded, place = load(accelerator, task), _place(task, device)
    generator = torch.Generator().manual_seed(seed_of(case.id))
    judge = Judge(check, task.kernel.budget, loaded.builder)
    for what, tensor, expected in task.what.run(loaded.functions, place, getattr(torch, task.dtype), generator):
        judge.tensor(what, tensor, expected)
    choice = choice_behind(loaded.function)
    _tell(check, choice, judge.ratio)
    _compare_with_claim(declaration, case, choice)


def sample_of(task: Task, sample, case: Case) -> Arguments:
    """The sample's arguments on the host; they depend on the case's id alone."""
    return sample.make(torch.Generator().manual_seed(seed_of(case.id)), getattr(torch, task.dtype))


def on_device(given: Arguments, place: torch.device) -> Arguments:
    """A copy of the arguments with every tensor on that device."""
    return mapped(given, lambda leaf: leaf.to(place, copy=True) if isinstance(leaf, torch.Tensor) else leaf)


def _place(task: Task, device: torch.device) -> torch.device:
    return torch.device("cpu") if task.kernel.location is TensorLocation.HOST else device


def _judged_call(accelerator, task: Task, function, functions, given: Arguments, place, check, who: str) -> float:
    arguments = on_device(given, place)
    with task.kernel.session(functions, arguments):
        result = function(*arguments.values())
    accelerator.synchronize()
    judge = Judge(check, task.kernel.budget, who)
    judge.call(task.kernel, given, arguments, result)
    return judge.ratio


def _tell(check, choice: Choice, ratio: float) -> None:
    check.metric("implementation", choice.implementation.value)
    check.metric("implementation_reason", choice.reason)
    check.metric("max_budget_ratio", float(f"{ratio:.3g}"))


def _compare_with_claim(declaration, case: Case, choice: Choice) -> None:
    """A kernel that is claimed as more than its portable reference has to be more."""
    cell: Cell = case.requires[0]
    if declaration.claim(cell).detail is not Detail.NATIVE or choice.implementation is not Implementation.REFERENCE:
        return
    if choice.lacks:
        environment_lacks(f"{cell} is claimed as native, and the reference computes here, rightly: {choice.lacks}")
    report(Reason.OVER_DECLARED, f"{cell} is claimed as native, and the reference computes: {choice.reason}")
