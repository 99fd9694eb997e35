"""The calls of PyTorch in a body that failed, and whether the device claims their operators.

A case may need operators that it is not about, and that the device never claimed. If one of them raises, or is wrong,
the case has shown nothing about its own subject.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from conformance.accelerators.capabilities import Cell, Mode
from conformance.accelerators.declaration import Declaration
from conformance.judging.observation import Observation, Seen
from conformance.judging.verdicts import not_claimed
from conformance.numerics.trees import tensors
from conformance.plan.bundled import operators_named
from conformance.plan.case import Case, Level
from conformance.plan.run_options import Strictness
from conformance.reports.calls import NEEDS, REFUSING
from conformance.reports.verdict import Outcome, Verdict

#: Ends of a body that a call of PyTorch may have caused.
_RAISED = (Seen.RAISED, Seen.NOT_IMPLEMENTED)
#: The words with which PyTorch's dispatcher says that a device has no kernel, and the kernel's name.
_NO_KERNEL = re.compile(r"Could not run 'aten::(\w+)")
#: Functions that make, copy and read tensors: the core of every device.
_CORE = ("empty", "zeros", "ones", "full", "tensor", "zero", "fill", "clone", "copy", "to", "item", "cpu", "tolist")
#: Areas whose cases name their call themselves, or whose bodies take a compiler or a model's time.
_UNWATCHED = ("operators", "compile", "workloads")
#: Seconds for the search of a wrong call: a case has a minute, and to judge a call takes longer than the call.
_WATCHED_SECONDS = 10.0
#: Functions that take derivatives of the calls before them.
_DERIVING = ("backward", "grad")
#: Ends of the names of operators that one function computes, by what it is given.
_FORMS = frozenset({"binary", "reduction_with_dim", "reduction_no_dim"})


@dataclass(frozen=True)
class CalledFunction:
    """Name of a public function, the dtypes of its tensors, and whether it may be derived, backward or forward.

    ``form`` is what tells operators of one name apart: it reads one tensor, one and numbers, or more tensors.
    """

    name: str
    dtypes: frozenset[str]
    trained: bool
    form: str = ""


@dataclass
class _Calls(TorchFunctionMode):
    """Keep the public functions that are called, and the errors that they raise."""

    made: list[CalledFunction] = field(default_factory=list)
    raised: list[tuple[CalledFunction, BaseException]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = _described(func, args, kwargs)
        self.made.append(call)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self.raised.append((call, error))
            raise


def _described(func: Any, args: Any, kwargs: dict[str, Any]) -> CalledFunction:
    given = tensors((args, kwargs))
    asked = kwargs.get("dtype") or torch.get_default_dtype()
    dtypes = {each.dtype for each in given} or {asked, torch.int64}
    trained = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    trained |= forward_ad._current_level >= 0
    # Compiled code calls overloads, such as addmm.default.
    named = getattr(func, "overloadpacket", func)
    name = str(getattr(named, "__name__", named)).strip("_")
    form = "binary" if len(given) > 1 else "reduction_with_dim" if len(args) + len(kwargs) > 1 else "reduction_no_dim"
    return CalledFunction(name, frozenset(str(each).removeprefix("torch.") for each in dtypes), trained, form)


def attributed(
    verdict: Verdict,
    observation: Observation,
    case: Case,
    declaration: Declaration,
    strictness: Strictness,
    again: Callable[[], Any],
    device: torch.device,
) -> Verdict:
    """Return the verdict of a case that fails because of a call which the case is not about.

    If the call raises, or has a wrong result, and the device does not claim its operator, the case needs what is not
    claimed, as if it required that cell. Else the failure names the call, and so does that of an operator's case.
    ``again`` runs the body once more. Cases on ranks run elsewhere.
    """
    if verdict.outcome is not Outcome.FAIL or observation.missing or case.world_size is not None:
        return verdict
    needing = functools.partial(_needing, verdict, declaration, strictness)
    if observation.seen is Seen.WRONG:
        is_watched = case.area not in _UNWATCHED and not case.adaptive
        call = first_wrong_call(again, device) if is_watched else None
        return verdict if call is None else _behind_wrong(call, verdict, case, declaration, needing)
    if observation.seen not in _RAISED:
        return verdict
    calls = refusing_calls(again)
    found = [cells for call in calls if (cells := _cells(call))]
    about = {cell.subject for cell in case.requires}
    is_of_operator = case.area == "operators"
    unclaimed = next((cells[0] for cells in found if not any(map(declaration.supports, cells))), None)
    if not found and calls:
        name, of_core = calls[0].name, calls[0].name in _CORE
        if is_of_operator and (not of_core or about & {f"operators.{each}" for each in (name, *operators_named(name))}):
            return verdict
        private = Cell(f"operators.{name}", min(calls[0].dtypes), _mode(calls[0]))
        is_private = name.startswith("_") and not is_of_operator and case.level is not Level.CORE
        if is_private and not declaration.supports(private):
            # A kernel that PyTorch calls by itself: claims by names do not promise it, and all operators do.
            return needing(private, "it raises")
        # Several cases are about calls of the core. An operator's case is not, and its claim may be true.
        metrics = {**verdict.metrics, REFUSING: name} if is_of_operator else verdict.metrics
        return replace(verdict, message=f"{verdict.message}\nit is raised by a call of {name}()", metrics=metrics)
    if not found or any(cell.subject in about for cells in found for cell in cells):
        return verdict
    if unclaimed is not None and not is_of_operator:
        return needing(unclaimed, "it raises")
    if len(found) > 1:
        return verdict
    subject = found[0][0].subject
    said = f"{verdict.message}\nit is raised by a call of {subject}"
    return replace(verdict, message=said, metrics={**verdict.metrics, REFUSING: subject})


def _needing(verdict: Verdict, declaration: Declaration, strictness: Strictness, unclaimed: Cell, what: str) -> Verdict:
    """Return the skip of a case that calls an operator which the device does not claim."""
    skip = not_claimed(unclaimed, declaration.claim(unclaimed), strictness)
    said = f"{skip.message}; the case calls it, and {what}: {verdict.message}"
    return replace(skip, message=said, metrics={NEEDS: str(unclaimed)})


def _behind_wrong(
    call: CalledFunction,
    verdict: Verdict,
    case: Case,
    declaration: Declaration,
    needing: Callable[[Cell, str], Verdict],
) -> Verdict:
    """Return the verdict of a case behind a call whose own result is wrong. The core runs whatever is claimed."""
    cells = _cells(call) if case.level is not Level.CORE else []
    if cells and not any(map(declaration.supports, cells)):
        return needing(cells[0], "its own result is wrong")
    return replace(verdict, message=f"{verdict.message}\nthe first call whose own result is wrong: {call.name}()")


def first_wrong_call(again: Callable[[], Any], device: torch.device) -> CalledFunction | None:
    """Run a body once more, and return the first call on the device whose result is wrong for its own inputs.

    The search ends at that call, or after some seconds.
    """
    # Imported here: what judges calls is large, and few runs need it.
    from conformance.blame.program import Program
    from conformance.blame.watching import watch

    latest = time.monotonic() + _WATCHED_SECONDS
    found = watch(Program("", lambda _: again()), device, ends=lambda local: local.wrong or time.monotonic() > latest)
    local = next((local for local in found.judged if local.wrong), None)
    if local is None or local.before is None:
        return None
    call = _described(local.step.function, local.before.args, local.before.kwargs)
    return replace(call, trained=False)


def refusing_calls(again: Callable[[], Any]) -> list[CalledFunction]:
    """Run a body that raised once more, and return the calls of PyTorch of which one ends it.

    That is one call; if a derivative ends the body, all calls before it that were to be derived. A body that ends
    otherwise has none.
    """
    calls = _Calls()
    try:
        with calls:
            again()
    except Exception as error:  # noqa: BLE001 - a vendor's software may raise anything
        ends = [call for call, raised in calls.raised if raised in (error, error.__cause__, error.__context__)]
        last = ends[-1] if ends else _UNKNOWN
        if last.name in _CORE or operators_named(last.name):
            return [last]
        # What no public function names is named by the dispatcher.
        found = _NO_KERNEL.match(str(error))
        name = found[1] if found else last.name
        if operators_named(name.strip("_")):
            return [replace(last, name=name.strip("_"))]
        if last.name in _DERIVING:
            return [call for call in calls.made if call.trained and call.name not in _DERIVING]
        if name:
            return [replace(last, name=name)]
    return []


_UNKNOWN = CalledFunction("", frozenset({"float32"}), trained=False)


def _cells(call: CalledFunction) -> list[Cell]:
    """Return the cells of a call's operator: of each name that it has in the database, in each dtype of its tensors."""
    return [
        Cell(f"operators.{name}", dtype, _mode(call))
        for name in (() if call.name in _CORE else operators_named(call.name))
        if name.rpartition(".")[2] not in _FORMS - {call.form}
        for dtype in sorted(call.dtypes)
    ]


def _mode(call: CalledFunction) -> str:
    mode: Mode = Mode.TRAINING if call.trained else Mode.INFERENCE
    return str(mode.value)
