"""Bodies of the kernel cases: the accelerator's own kernel, and the portable reference beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from conformance.accelerators.capabilities import Cell
from conformance.accelerators.declaration import Detail
from conformance.accelerators.interface import stands_for_nothing
from conformance.judging.finding import Reason, Refused, environment_lacks, report
from conformance.kernels.arguments import tensors_in
from conformance.kernels.implementation import Choice, Implementation
from conformance.kernels.specification import Arguments, TensorLocation
from conformance.numerics.compare import plain
from conformance.numerics.trees import leaves, mapped
from conformance.plan.case import Case, seed_of
from conformance.suites.shared_bodies import assert_computes

from .judging import KernelJudge, differing
from .loading import is_compatible, loaded, report_kernel, report_own_check
from .planned import KernelTask


@dataclass(frozen=True)
class Loaded:
    """Functions that the accelerator's builder loads for one kernel."""

    functions: object
    function: Callable
    builder: str


def load(accelerator, task: KernelTask) -> Loaded:
    """Return the accelerator's kernel.

    Raise Refused if there is no builder, if it is not compatible, or if it does not load this kernel.
    """
    kernel, name = task.kernel, task.kernel.attribute_for(task.dtype)
    builder = accelerator.create_op_builder(kernel.builder)
    if stands_for_nothing(builder) or not hasattr(builder, "load"):
        raise Refused(f"the accelerator has no {kernel.builder}")
    if not is_compatible(builder):
        raise Refused(f"{kernel.builder}.is_compatible() is false")
    functions = loaded(builder)
    function = getattr(functions, name, None)
    if function is None:
        raise Refused(f"{kernel.builder} does not load {name}")
    return Loaded(functions, function, kernel.builder)


def run_sample(accelerator, device, declaration, case: Case, check) -> None:
    """Check a call of the accelerator's kernel, and of the portable reference unless the kernel is the reference."""
    task: KernelTask = case.payload
    loaded, kernel_device = load(accelerator, task), _kernel_device(task, device)
    given = sample_of(task, task.what, case, check)
    worst = _judged_call(
        accelerator, task, loaded.function, loaded.functions, given, kernel_device, check, loaded.builder
    )
    choice = report_kernel(check, loaded.function)  # after the call: it says which implementation the call used
    _report_ratio(check, worst)
    check.answer()
    # The reference is judged too: accelerators fall back to it where the environment lacks their own kernel.
    if choice.implementation is not Implementation.REFERENCE and task.kernel.reference is not None:
        reference = task.kernel.reference
        # The same functions as from a builder, for the kernels that need companions around a call.
        alone = SimpleNamespace(**{**task.kernel.companions, task.kernel.attribute_for(task.dtype): reference})
        _judged_call(accelerator, task, reference, alone, given, kernel_device, check, "the portable reference")
    if not any(bool(tensor.any()) for _, tensor in tensors_in(given)):
        assert_computes(device)  # a call without elements, or of a lowered flag alone, computes nothing by itself
    _compare_with_claim(declaration, case, choice)


def run_refusal(accelerator, device, case: Case, check) -> None:
    """Check that an invalid call raises before it changes a tensor; this project's kernels also name the argument."""
    task: KernelTask = case.payload
    loaded = load(accelerator, task)
    given = sample_of(task, task.kernel.samples[0], case)
    kernel_device = _kernel_device(task, device)
    bad = task.what.spoil(on_device(given, kernel_device))
    # A tensor on meta has no content that could change.
    before = {path: plain(tensor).clone() for path, tensor in tensors_in(bad) if tensor.device.type != "meta"}

    error = None
    with task.kernel.session(loaded.functions, bad):
        try:
            loaded.function(*bad.values())
        except Exception as raised:  # builders are free in the type of the exception
            error = raised
    accelerator.synchronize()

    report_own_check(check, loaded.function)
    check.that(error is not None, f"{task.what.argument} is wrong ({task.what.name}), but the call does not raise")
    if isinstance(error, NotImplementedError):
        raise error  # the kernel is missing, which says nothing about its checks of arguments
    after = {path: tensor for path, tensor in tensors_in(bad) if path in before}
    changed = differing(before, after)
    check.that(not changed, f"the call raised, but had already changed {', '.join(changed)}")
    # Only functions of this project have ``choice``; vendors are free in the text of their errors.
    if hasattr(loaded.function, "choice"):
        check.that(task.what.argument in str(error), f"the error does not name {task.what.argument}: {error}")
    check.that(_computes(task, loaded, given, kernel_device), "a right call after the wrong one changes nothing")


def _computes(task: KernelTask, loaded: Loaded, given: Arguments, device: torch.device) -> bool:
    """Return whether a right call returns anything but zeros, or writes anything but zeros into an argument."""
    arguments = on_device(given, device)
    before = {path: plain(tensor).clone() for path, tensor in tensors_in(arguments)}
    with task.kernel.session(loaded.functions, arguments):
        result = loaded.function(*arguments.values())
    returned = [plain(leaf) for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
    after = dict(tensors_in(arguments))
    written = [plain(after[path]) for path in differing(before, after)]
    return any(bool(tensor.any()) for tensor in (*returned, *written))


def run_property(accelerator, device, declaration, case: Case, check) -> None:
    """Check a relation between several calls of the accelerator's kernel."""
    task: KernelTask = case.payload
    loaded, kernel_device = load(accelerator, task), _kernel_device(task, device)
    generator = torch.Generator().manual_seed(_seed(case, check))
    judge = KernelJudge(check, task.kernel.budget, loaded.builder)
    for name, tensor, expected in task.what.run(loaded.functions, kernel_device, getattr(torch, task.dtype), generator):
        judge.tensor(name, tensor, expected)
    choice = report_kernel(check, loaded.function)
    _report_ratio(check, judge.ratio)
    check.answer()
    _compare_with_claim(declaration, case, choice)


def sample_of(task: KernelTask, sample, case: Case, check=None) -> Arguments:
    """Return the sample's arguments on the host; they depend on the case's id, and on the challenge if there is one."""
    return sample.make(torch.Generator().manual_seed(_seed(case, check)), getattr(torch, task.dtype))


def _seed(case: Case, check) -> int:
    """Return the seed of a case's arguments. A challenge makes them new: answers cannot be known before it."""
    challenged = check is not None and check.answers is not None
    return seed_of(case.id, check.answers.base_seed if challenged else 0)


def on_device(given: Arguments, device: torch.device) -> Arguments:
    """Return a copy of the arguments with every tensor on that device."""
    return mapped(given, lambda leaf: leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else leaf)


def _kernel_device(task: KernelTask, device: torch.device) -> torch.device:
    return torch.device("cpu") if task.kernel.location is TensorLocation.HOST else device


def _judged_call(
    accelerator, task: KernelTask, function, functions, given: Arguments, device, check, who: str
) -> float:
    arguments = on_device(given, device)
    with task.kernel.session(functions, arguments):
        result = function(*arguments.values())
    accelerator.synchronize()
    judge = KernelJudge(check, task.kernel.budget, who)
    judge.call(task.kernel, given, arguments, result)
    return judge.ratio


def _report_ratio(check, ratio: float) -> None:
    check.metric("max_budget_ratio", float(f"{ratio:.3g}"))


def _compare_with_claim(declaration, case: Case, choice: Choice) -> None:
    """Fail if the kernel is claimed as native but its reference ran; skip if the environment lacks something."""
    cell: Cell = case.requires[0]
    if declaration.claim(cell).detail is not Detail.NATIVE or choice.implementation is not Implementation.REFERENCE:
        return
    if choice.lacks:
        environment_lacks(f"{cell} is claimed as native, but this machine can only run the reference: {choice.lacks}")
    report(Reason.OVER_DECLARED, f"{cell} is claimed as native, but the reference computes: {choice.reason}")
