"""Observations: what running a case's body has shown, in one sentence. Pure functions of values."""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import pytest

from conformance.accelerators.interface import MissingMember
from conformance.accelerators.members import ASKED_BY_PYTORCH, silent
from conformance.base.errors import ConformanceError
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks, Finding, Refused
from conformance.judging.origin import (
    Origin,
    foreign_place,
    is_assertion_of_the_case,
    is_raised_by_torch,
    names_around,
    names_in,
    origin_of,
)
from conformance.reports.verdict import Reason

_LONGEST_MESSAGE = 2000
#: Exceptions behind an exception that are looked at.
_MOST_CAUSES = 8


class Seen(Enum):
    """Kind of an observation."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_IMPLEMENTED = "not implemented"
    REFUSED = "refused"
    RAISED = "raised"
    FINDING = "finding"
    SUITE_ERROR = "suite error"
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Observation:
    """Kind and sentence of an observation. ``reason`` is set only for a finding that names its own reason.

    ``missing`` is the member of the accelerator, or of its torch module, without which the body could not go on.
    """

    seen: Seen
    message: str = ""
    reason: Reason | None = None
    missing: str = ""


class Observed(Exception):
    """Carries an observation made on ranks back to pytest."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation.message)
        self.observation = observation


def observe_body(error: BaseException | None, checker: Checker, accelerator: Any, *, generated: bool) -> Observation:
    """Return the observation of a body that ended with ``error``, or with None.

    A ``generated`` body that compared nothing has verified nothing. An out-of-memory error counts against the device
    if the device reports that most of its memory is free.
    """
    observation = observe(error)
    if is_out_of_memory(error) and (contradiction := contradicts_out_of_memory(accelerator)):
        return Observation(Seen.RAISED, f"{contradiction}: {_first_lines(error)}")
    if observation.seen is Seen.RIGHT and generated and not checker.count:
        return Observation(Seen.FINDING, "the case compared nothing, so it verified nothing", Reason.WRONG)
    return observation


def observe(error: BaseException | None) -> Observation:
    """Return the observation of an exception, or of None.

    Its type decides, and the code that raised it: an exception of the suite's own code tells nothing about the device,
    and an AssertionError of a library is an exception like any other. Its text never decides.
    """
    if error is None:
        return Observation(Seen.RIGHT)
    if isinstance(error, Observed):
        return error.observation
    message = _first_lines(error)
    if isinstance(error, Finding):
        return Observation(Seen.FINDING, error.message, error.reason)
    if _is_of_the_suite(error):
        return Observation(Seen.SUITE_ERROR, f"{type(error).__name__}: {message}{_place(error)}")
    if not _is_said_by_the_case(error) and (missing := _observe_missing(error, message)):
        return missing
    if isinstance(error, AssertionError) and not is_assertion_of_the_case(error):
        return Observation(Seen.RAISED, f"{type(error).__name__}: {message}{foreign_place(error)}")
    for types, seen in _SEEN_BY_TYPE:
        if isinstance(error, types):
            return Observation(seen, message)
    if is_out_of_memory(error):
        return Observation(Seen.ENVIRONMENT, f"out of memory on this machine: {message}")
    return Observation(Seen.RAISED, f"{type(error).__name__}: {message}{foreign_place(error)}")


def _is_said_by_the_case(error: BaseException) -> bool:
    """Tell whether the suite's own code ended the case on purpose."""
    return is_assertion_of_the_case(error) if isinstance(error, AssertionError) else isinstance(error, _SAYING)


def _observe_missing(error: BaseException, message: str) -> Observation | None:
    """Return the observation of a member that is missing, or that returns None; None if neither is the cause."""
    if missing := missing_member(error):
        return Observation(Seen.NOT_IMPLEMENTED, message, missing=missing)
    if not is_out_of_memory(error) and (missing := silent_member(error)):
        said = f"{_module_of_the_device().__name__}.{missing}() returns None: {message}{foreign_place(error)}"
        return Observation(Seen.NOT_IMPLEMENTED, said, missing=missing)
    return None


def missing_member(error: BaseException) -> str:
    """Return the member that the accelerator, or the module that PyTorch knows for it, lacks; empty if none does.

    What a vendor's own code looks up in vain is a fault of that code.
    """
    for one in _with_causes(error):
        if isinstance(one, MissingMember):
            return one.member
        if isinstance(one, AttributeError) and _is_module_of_the_device(one.obj) and is_raised_by_torch(one):
            return one.name or ""
        if isinstance(one, NotImplementedError) and (refusing := _refusing_member(one)):
            return refusing
    return ""


def _refusing_member(error: NotImplementedError) -> str:
    """Return the function of the device's module whose own code has raised the exception; empty if another code has."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or (module := _module_of_the_device()) is None:
        return ""
    code = frames[-1].f_code
    function = getattr(module, code.co_name, None)
    return code.co_name if getattr(function, "__code__", None) is code else ""


def silent_member(error: BaseException) -> str:
    """Return the function of the device's module that returns None to the code that raised; empty if none does.

    None is used in vain where it was asked for. PyTorch may ask in one function and raise in another, of any type.
    """
    if (module := _module_of_the_device()) is None:
        return ""
    for one in _with_causes(error):
        names = names_in(one) if isinstance(one, TypeError) or _is_attribute_of_none(one) else ()
        around = () if isinstance(one, NotImplementedError) else names_around(one)
        if name := silent(module, names) or silent(module, (name for name in around if name in ASKED_BY_PYTORCH)):
            return name
    return ""


def _is_attribute_of_none(error: BaseException) -> bool:
    return isinstance(error, AttributeError) and error.name is not None and error.obj is None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those from which it was raised: compilers and DTensor wrap what they catch.

    Dynamo hides what it wraps ("from None"), and still keeps it.
    """
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _is_module_of_the_device(value: object) -> bool:
    return isinstance(value, ModuleType) and value is _module_of_the_device()


def _module_of_the_device() -> Any:
    """Return ``torch.<name>`` of the accelerator that PyTorch knows, or None; torch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        device = torch._C._get_accelerator()
    except Exception:  # noqa: BLE001  a backend's hooks may have no answer
        device = torch.accelerator.current_accelerator()
    return device and getattr(torch, device.type, None)


def _is_of_the_suite(error: BaseException) -> bool:
    """Tell whether the suite's own code raised an exception that it does not use to judge."""
    if isinstance(error, (*_JUDGING, ConformanceError)) or is_out_of_memory(error):
        return False
    return isinstance(error, Exception) and origin_of(error) is Origin.MACHINERY


def _place(error: BaseException) -> str:
    """Return file and line of the innermost frame, for a report about the suite."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (in {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def is_out_of_memory(error: BaseException | None) -> TypeGuard[BaseException]:
    """Tell whether this is torch's OutOfMemoryError, without importing torch for plain Python cases."""
    return type(error).__name__ == "OutOfMemoryError"


def contradicts_out_of_memory(accelerator: Any) -> str | None:
    """Return why "out of memory" is the device's fault, or None: it counts its memory, and most of it is free.

    Call it while the exception still holds what the case had allocated. No case needs half of a device's memory.
    """
    try:
        free, total = int(accelerator.available_memory()), int(accelerator.total_memory())
    except Exception:  # noqa: BLE001 - a device that cannot say how much is free may well be full
        return None
    if total <= 0 or free < total / 2:
        return None
    return f"out of memory, although {free >> 20} of {total >> 20} MiB are free"


#: Exceptions by which the suite's own code ends a case on purpose.
_SAYING = (AssertionError, pytest.fail.Exception, pytest.skip.Exception, EnvironmentLacks, Refused)
_JUDGING = (*_SAYING, MissingMember)

_SEEN_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], Seen], ...] = (
    ((EnvironmentLacks, pytest.skip.Exception), Seen.ENVIRONMENT),
    ((Refused,), Seen.REFUSED),
    ((AssertionError, pytest.fail.Exception), Seen.WRONG),
    ((NotImplementedError, MissingMember), Seen.NOT_IMPLEMENTED),
)


def _first_lines(error: BaseException) -> str:
    """Return the sentence of an exception, without the expression of an assert, which pytest appends."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    sentence = list(itertools.takewhile(lambda line: not line.startswith("assert "), lines))
    return "\n".join((sentence or lines)[:4])[:_LONGEST_MESSAGE]
