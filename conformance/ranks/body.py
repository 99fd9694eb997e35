"""Body of a case on a rank: find the function, collect its arguments, and turn its end into a message."""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from conformance.judging.checker import Checker
from conformance.judging.observation import Observation, Seen, observe_body
from conformance.plan.bundled import family_of
from conformance.plan.case import Case
from conformance.ranks.channel import End, Work

#: Characters of a traceback; a longer one is cut in the middle.
_LONGEST_TRACE = 6000


@functools.cache
def find_function(module: str, file: str, name: str) -> Callable[..., Any]:
    """Return the test function, imported as pytest has imported it. A method is bound to a new object."""
    found: Any = _module(module, file)
    for part in name.split("."):
        found = getattr(found() if isinstance(found, type) else found, part)
    function: Callable[..., Any] = found
    return function


def _module(name: str, file: str) -> ModuleType:
    """Import the test module by name, or from its file where the name means another file (or none) on this rank."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return _module_of_file(name, file)
    # A test file named like an installed package must not run that package's module.
    same = getattr(module, "__file__", None) and Path(str(module.__file__)).resolve() == Path(file).resolve()
    return module if same else _module_of_file(name, file)


def _module_of_file(name: str, file: str) -> ModuleType:
    """Import ``file`` under ``name`` and register it, so that later lookups and pickles find the same module."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"the rank cannot import {file}", name=name, path=file)
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and pickle look their module up in sys.modules.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def _cases_of(function: Callable[..., Any]) -> Mapping[str, Case]:
    family = family_of(function)
    return {case.id: case for case in family.expand()} if family else {}


def case_named(function: Callable[..., Any], case_id: str) -> Case:
    """Return the case of a test function by its id."""
    return _cases_of(getattr(function, "__func__", function))[case_id]


def is_generated(function: Callable[..., Any]) -> bool:
    """Tell whether the function is the body of generated cases."""
    family = family_of(function)
    return family is not None and family.generated


def arguments(function: Callable[..., Any], values: str, on_rank: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the function's arguments: values that ranks make themselves, or that the pytest process has sent."""
    sent = pickle.loads(base64.b64decode(values)) if values else {}  # noqa: S301 - from the process that forked this one
    names = inspect.signature(function).parameters
    return {name: on_rank[name]() if name in on_rank else sent[name] for name in names}


def end_of(work: Work, error: BaseException | None, checker: Checker, accelerator: Any, *, generated: bool) -> End:
    """Return the message that reports how a body ended."""
    observation = _observe(error, checker, accelerator, generated=generated)
    return End(
        nonce=work.nonce,
        seen=observation.seen.name,
        message=observation.message,
        reason=observation.reason.name if observation.reason else None,
        missing=observation.missing,
        trace="" if error is None else trace_of(error),
        at=time.monotonic(),
        count=checker.count,
        metrics=checker.metrics,
        digests=checker.digests,
        answers=checker.answers.values() if checker.answers else {},
    )


def _observe(error: BaseException | None, checker: Checker, accelerator: Any, *, generated: bool) -> Observation:
    if isinstance(error, unittest.SkipTest):
        return Observation(Seen.ENVIRONMENT, str(error) or "skipped")
    return observe_body(error, checker, accelerator, generated=generated)


def trace_of(error: BaseException) -> str:
    """Return the traceback from the body on, shortened in the middle."""
    text = "".join(traceback.format_exception(type(error), error, _from_the_body(error.__traceback__)))
    if len(text) <= _LONGEST_TRACE:
        return text
    return f"{text[: _LONGEST_TRACE // 2]}\n…\n{text[-_LONGEST_TRACE // 2 :]}"


def _from_the_body(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback without its first frames, which belong to the ranks' code and not to the case."""
    own = str(Path(__file__).parent)
    while frames is not None and frames.tb_next and frames.tb_frame.f_code.co_filename.startswith(own):
        frames = frames.tb_next
    return frames
