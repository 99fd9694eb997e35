"""Judgement of one call on its own inputs: the device's result against the host's and against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.numerics.budgets import OpClass, unit_roundoff
from conformance.numerics.compare import Comparison, Exact, compare, host_ratio, plain, same_bits
from conformance.numerics.layout import significant_strides
from conformance.numerics.transfer import copied, widened
from conformance.numerics.trees import tensors
from conformance.suites.calls.choices import chooses
from conformance.suites.calls.kernels import base_name, class_of, is_pointwise, named, outputs_of
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.judging import reduction_length
from conformance.suites.operators.judge.oracle import Oracle, wide_defaults

from .host_forms import WORKSPACES, on_host
from .memory import fetched
from .recording import Step, is_drawn

HOST = torch.device("cpu")
#: Why a call is not judged that the device has no memory for.
TOO_LARGE = "it does not fit into the device's memory"
#: What a kernel raises that has no version in float64, or none on the host.
_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)


@dataclass(frozen=True)
class Before:
    """Arguments of a call as the device had them, on the host."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Before:
        """Return copies on the host; strides and shared memory are kept."""
        return cls(*fetched((args, kwargs)))

    def call(self, step: Step) -> Call:
        """Return the call as a value, from which a script can be written."""
        first, *others = self.args if self.args else (None,)
        return Call(step.number, first, tuple(others), self.kwargs, function=step.function, source=step.module)


@dataclass
class Local:
    """Judgement of one call.

    ``ratio`` is the largest error in budgets, and infinite if a result has another shape, dtype or NaN. ``host_ratio``
    is that of PyTorch's CPU. ``unjudged`` says why the numbers were not compared; with ``needs_constants``, a
    replay takes the device's numbers, because the host has none. ``before`` has the inputs on
    the host, and ``deltas`` the results of the device less the exact ones; both are kept only of a call to talk about.
    ``kept`` is the judgement of what a fused cell keeps for its backward, which ``cells`` takes into account.
    """

    step: Step
    rank: int = 0
    ratio: float = 0.0
    host_ratio: float = 0.0
    finding: str = ""
    unjudged: str = ""
    host_refuses: bool = False
    needs_constants: bool = False
    before: Before | None = None
    deltas: list[torch.Tensor | None] = field(default_factory=list)
    kept: Local | None = None
    misplaced: bool = False  # a result lies on another device, or a view has a memory of its own
    misread: bool = False  # what is right comes back from the device as another one

    @property
    def call(self) -> Call | None:
        """Return the call with its inputs on the host, if they were kept."""
        return self.before.call(self.step) if self.before else None

    @property
    def wrong(self) -> bool:
        """Return whether the device's result is wrong."""
        return bool(self.finding)

    def note(self, position: int, compared: Comparison) -> None:
        """Keep what a comparison of one output has shown: the largest error, and the first finding."""
        self.ratio = max(self.ratio, compared.ratio, 0.0 if compared.right else _over(compared))
        if not compared.right and not self.finding:
            self.finding = f"{_which(position)}{compared}"


def judge(step: Step, before: Before, after: list[torch.Tensor], inputs_after: list[torch.Tensor]) -> Local:
    """Judge the tensors ``after`` a call, copies on the host in the order of ``outputs_of``.

    ``inputs_after`` are the tensor arguments after the call: those that it does not write must be unchanged.
    """
    found = Local(step)
    if reason := _why_unjudged(step):
        found.unjudged, found.needs_constants = reason, base_name(step.function) not in named("uninitialised")
        return found
    try:
        host = outputs_on_host(step.function, *copied((before.args, before.kwargs), HOST))
    except NotImplementedError as error:
        found.unjudged, found.needs_constants = f"no oracle: {str(error).splitlines()[0]}", True
        return found
    except _REFUSALS as error:
        found.unjudged, found.needs_constants = f"the host refuses it: {str(error).splitlines()[0]}", True
        found.host_refuses = True
        return found
    if step.is_view and (text := _placed_otherwise(after, host)):
        found.finding, found.ratio = text, float("inf")
        return found
    oracle = _oracle(step, before)
    n, op_class = _length(step, before, after), class_of(step.function)
    keeps = base_name(step.function) in named("keep")
    first = len(after) - len(step.function._schema.returns)  # before it are arguments that the call writes
    for position, actual in enumerate(map(plain, after)):
        expected = plain(host[position]) if position < len(host) and host[position] is not None else None
        if expected is None:
            found.deltas.append(None)
            continue
        if keeps and position > first and actual.dtype != expected.dtype:
            expected = _as_kept(actual, expected, oracle.leaf(position))
        judged = found
        if position == WORKSPACES.get(base_name(step.function)):
            judged = found.kept = Local(step)
            found.deltas.append(None)
        _judge_output(judged, position, actual, expected, oracle, op_class, n, before)
    judge_inputs(found, step, before, inputs_after)
    return found


def judge_collective(step: Step, after: list[torch.Tensor], exact: Sequence[torch.Tensor | None], ranks: int) -> Local:
    """Judge what a collective has written on this rank, by what it had to write; None is not defined."""
    found = Local(step)
    for position, (actual, value) in enumerate(zip(after, exact, strict=False)):
        if value is None:
            found.deltas.append(None)
            continue
        wide = value.reshape(actual.shape)
        host = wide.to(actual.dtype)
        oracle = Exact(wide, lambda: None, rounds=True) if wide.dtype in (torch.float64, torch.complex128) else None
        compared = compare(plain(actual), host, lambda one=oracle: one, OpClass.REDUCTION, float(ranks))  # type: ignore[misc]
        found.deltas.append(_delta(plain(actual), host, oracle))
        found.note(position, compared)
    return found


def _judge_output(
    found: Local,
    position: int,
    actual: torch.Tensor,
    host: torch.Tensor,
    oracle: Oracle,
    op_class: OpClass,
    n: float,
    before: Before,
) -> None:
    if (actual.dtype, actual.shape) != (host.dtype, host.shape):
        found.finding = f"{_which(position)}{_kind(actual)} in place of {_kind(host)}"
        found.ratio = float("inf")
        found.deltas.append(None)
        return
    exact = oracle.leaf(position)
    found.deltas.append(_delta(actual, host, exact))
    if exact is not None and actual.is_floating_point():
        found.host_ratio = max(found.host_ratio, _of_host(host, exact, op_class, n))
    compared = compare(actual, host, lambda: _quick(exact), op_class, n)
    if not compared.right and exact is not None:
        compared = compare(actual, host, lambda: exact, op_class, n)
    if not compared.right and chooses(found.step.function, before.args, before.kwargs, position, actual, host):
        return
    found.note(position, compared)


def _as_kept(actual: torch.Tensor, host: torch.Tensor, exact: Exact | None) -> torch.Tensor:
    """Return what the host should keep of a statistic in the dtype of the device's, if that is a wider one."""
    both_float = actual.is_floating_point() and host.is_floating_point()
    if not both_float or unit_roundoff(actual.dtype) >= unit_roundoff(host.dtype):
        return host
    return (host if exact is None else exact.value).to(actual.dtype)


def _of_host(host: torch.Tensor, exact: Exact, op_class: OpClass, n: float) -> float:
    """Return the host's largest error in budgets; its response is computed only where it matters."""
    quick = host_ratio(host, replace(exact, response=lambda: None), op_class, n)
    return quick if quick <= 1 else host_ratio(host, exact, op_class, n)


def _quick(exact: Exact | None) -> Exact | None:
    """Return the exact value without its response, which costs further evaluations."""
    return None if exact is None else replace(exact, response=lambda: None)


def _over(compared: Comparison) -> float:
    """Return a wrong error in budgets; infinite without a budget."""
    return compared.worst / compared.budget if compared.budget else float("inf")


def _delta(actual: torch.Tensor, host: torch.Tensor, exact: Exact | None) -> torch.Tensor | None:
    """Return the device's error; None for equal bits and for what has no differences."""
    if same_bits(actual, host):
        return None
    if not (actual.is_floating_point() or actual.is_complex()):
        return actual  # integers are taken whole
    wide = exact.value if exact is not None and exact.value.shape == actual.shape else host
    return actual.to(torch.complex128 if actual.is_complex() else torch.float64) - wide


def _which(position: int) -> str:
    return "" if position == 0 else f"output {position}: "


def _kind(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _why_unjudged(step: Step) -> str:
    name = base_name(step.function)
    if step.function.namespace in ("c10d", "_c10d_functional") and name != "wait_tensor":
        return "a message between ranks"
    if is_drawn(step):
        return "random numbers"
    if name in named("open"):
        return "its results are not unique"
    return "uninitialised memory" if name in named("uninitialised") else ""


def _placed_otherwise(after: list[torch.Tensor], host: list[Any]) -> str:
    """Return in which way a view's metadata are not the host's; empty if they are."""
    for actual, due in zip(after, host, strict=False):
        if due is None or actual.shape != due.shape or actual.dtype != due.dtype:
            continue  # the comparison of the numbers says so
        if significant_strides(actual) != significant_strides(due):
            return f"a view with the strides {tuple(actual.stride())} in place of {tuple(due.stride())}"
    return ""


def judge_inputs(found: Local, step: Step, before: Before, after: list[torch.Tensor]) -> None:
    """Find inputs that a call has changed without being asked to."""
    if found.finding or not after or step.function.namespace != "aten":
        return  # the schemas of other operators may not say what is written
    for number, (old, new) in enumerate(zip(unwritten(step.function, before.args, before.kwargs), after, strict=True)):
        if not same_bits(plain(old), plain(new)):
            found.finding, found.ratio = f"it has changed its input {number}", float("inf")
            return


def unwritten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensor arguments that a call may not write, and that share no memory with one that it writes."""
    written = {t.untyped_storage()._cdata for t in outputs_of(func, args, kwargs, None) if _is_strided(t)}
    return [t for t in tensors((args, kwargs)) if _is_strided(t) and t.untyped_storage()._cdata not in written]


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def outputs_on_host(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, own: bool = True
) -> list[torch.Tensor]:
    """Make a call on the host, and return its outputs in the order of ``outputs_of``."""
    return outputs_of(func, args, kwargs, on_host(func, args, kwargs, own=own))


def _oracle(step: Step, before: Before) -> Oracle:
    """Return the float64 values of the outputs of a call, and their response to changes of the inputs."""
    given = len(before.args)

    def compute(wide: Call, _: Any) -> list[torch.Tensor]:
        args = (wide.input, *wide.args)[:given]
        return [plain(leaf) for leaf in outputs_on_host(step.function, args, wide.kwargs, own=False)]

    return Oracle(compute, before.call(step))


def evaluate_wide(step: Step, before: Before) -> list[Any]:
    """Return the outputs of a call in float64; an empty list if it has no such version."""
    try:
        with wide_defaults():
            found = outputs_on_host(step.function, *widened((before.args, before.kwargs)), own=False)
        return [plain(leaf) for leaf in found]
    except _REFUSALS:
        return []


def _length(step: Step, before: Before, after: list[torch.Tensor]) -> float:
    if is_pointwise(step.function):
        return 1.0
    return reduction_length(before.call(step), after)
