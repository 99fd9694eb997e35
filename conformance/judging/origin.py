"""Origin of an exception: whose code raised it. The frames of its traceback decide.

Frames of torch, NumPy and the standard library are neutral: they run for whoever has called them. C functions have no
frame. So a module of the suite is *machinery* only if it never calls the device on purpose; :data:`_MACHINERY` lists
these modules. All other code of the suite counts as the body of a case: what it calls is the device's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FrameType, FunctionType, TracebackType

_PACKAGE = "conformance"
#: Modules and packages of the suite that judge. They get host tensors, or ask a tensor for its metadata only.
_MACHINERY = (
    "conformance.judging.answers",
    "conformance.numerics",
    "conformance.suites.operators",
    "conformance.suites.ops.judging",
)
#: Modules inside these that call the device on purpose.
_BORDERS = (
    "conformance.numerics.transfer",
    "conformance.suites.operators.calls.database",  # it wraps operators
    "conformance.suites.operators.calls.execution",
)
#: Packages whose frames stand between pytest, or the process of a rank, and the body of a case.
_RUNNERS = ("_pytest", "pluggy", "pytest", "xdist", "conformance.ranks", "conformance.runner", "conformance.process")
#: Modules of assertions: an AssertionError that one of them raises belongs to its caller.
_ASSERTIONS = ("torch.testing", "numpy.testing", "unittest.case")
_NEUTRAL = frozenset({"torch", "numpy", *sys.stdlib_module_names})


class Origin(Enum):
    """Code that raised an exception. ``UNKNOWN``: it has no traceback, or none below the runner."""

    BODY = "body"
    MACHINERY = "machinery"
    OUTSIDE = "outside"
    UNKNOWN = "unknown"


def origin_of(error: BaseException) -> Origin:
    """Return whose code raised an exception, neutral frames left out."""
    frames = _frames_of_the_case(error.__traceback__)
    if not frames:
        return Origin.UNKNOWN
    if isinstance(error, (NameError, UnboundLocalError)) and _is_ours(frames[-1], frames[0]):
        return Origin.MACHINERY  # no C function raises it, so the code of this frame is wrong
    asked = [frame for frame in frames if _module(frame).partition(".")[0] not in _NEUTRAL]
    if not asked:
        return Origin.OUTSIDE
    if _is_in(_module(asked[-1]), _MACHINERY) and not _is_in(_module(asked[-1]), _BORDERS):
        return Origin.MACHINERY
    return Origin.BODY if _is_ours(asked[-1], frames[0]) else Origin.OUTSIDE


def foreign_place(error: BaseException) -> str:
    """Return module and line of the innermost frame, if it is of torch or of a vendor's package; empty if it is ours.

    Without it a vendor does not see which of many calls below the case's own one has failed.
    """
    frames = _frames_of_the_case(error.__traceback__)
    if len(frames) < 2 or _is_ours(frames[-1], frames[0]):
        return ""
    return f" (in {_module(frames[-1])}:{frames[-1].f_lineno})"


def is_assertion_of_the_case(error: AssertionError) -> bool:
    """Tell whether a check of the case failed; else torch, a vendor's package or another library asserted.

    Code in the folder of the body counts as the case's: users keep the helpers of their cases there.
    """
    frames = _frames_of_the_case(error.__traceback__)
    while len(frames) > 1 and _is_in(_module(frames[-1]), _ASSERTIONS):
        frames.pop()
    return not frames or _is_ours(frames[-1], frames[0])


def is_raised_by_torch(error: BaseException) -> bool:
    """Tell whether the innermost frame of an exception is of PyTorch, or of this suite."""
    frames = _frames_of_the_case(error.__traceback__)
    return bool(frames) and _is_in(_module(frames[-1]), ("torch", _PACKAGE))


def names_in(error: BaseException) -> Iterator[str]:
    """Yield the names in the functions of PyTorch and of this suite that an exception has left, innermost first.

    A method uses what another method of its class has asked for.
    """
    for frame in reversed(_frames_of_the_case(error.__traceback__)):
        if _is_in(_module(frame), ("torch", _PACKAGE)):
            yield from frame.f_code.co_names
            if frame.f_code.co_varnames[:1] == ("self",):
                yield from _names_of(type(frame.f_locals.get("self")))


def names_around(error: BaseException) -> Iterator[str]:
    """Yield the names in these functions of PyTorch, and in the functions and classes that these can name."""
    for frame in reversed(_frames_of_the_case(error.__traceback__)):
        if _is_in(_module(frame), ("torch",)):
            yield from frame.f_code.co_names
            for value in list(frame.f_globals.values()):
                yield from _names_of(value)


def _names_of(value: object) -> Iterator[str]:
    """Yield the names in a function, or in the methods of a class."""
    for one in vars(value).values() if isinstance(value, type) else (value,):
        yield from one.__code__.co_names if isinstance(one, FunctionType) else ()


def _frames_of_the_case(trace: TracebackType | None) -> list[FrameType]:
    """Return the frames from the body on, outermost first."""
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    start = next((i for i, frame in enumerate(frames) if not _is_in(_module(frame), _RUNNERS)), len(frames))
    return frames[start:]


def _is_ours(frame: FrameType, body: FrameType) -> bool:
    return _is_in(_module(frame), (_PACKAGE,)) or _folder(frame) == _folder(body)


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _folder(frame: FrameType) -> Path:
    return Path(frame.f_code.co_filename).parent
