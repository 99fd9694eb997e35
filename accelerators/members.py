"""Members of ``torch.<name>``: how one that is optional is reached, and which capabilities each is for.

PyTorch asks little of the module of a device. What a module lacks, another documented function may give; where none
does, ``MissingMember`` names what is missing. It is a finding of the cases about that member. All other cases are
skipped: they have shown nothing about what they are for.
"""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

from conformance.accelerators.interface import MissingMember

#: First names of the capabilities that a member is for, by a pattern of its name. No case is about any other name.
_FOR: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"_is_in_bad_fork|(manual_|initial_)?seed(_all)?|[gs]et_rng_state(_all)?|default_generators?", ("rng",)),
    (r"(re)?set_\w*memory\w*|(max_)?memory_\w+|(total|available)_memory|mem_get_info|empty_cache", ("memory",)),
    (r"Stream|(current_|default_|set_)?stream", ("stream",)),
    (r"Event", ("event",)),
    (r"synchronize", ("synchronize",)),
    (r"graph|\w*Graph|graph_pool_handle|is_current_stream_capturing|\w+_graph|capture_to_graph", ("graph",)),
    (r"_lazy_call|lazy_call", ("lazy-call",)),
    (r"get_amp_supported_dtype", ("autocast",)),
    (r"(set_|current_)?device(_count|_name)?|current_device_name|is_available|get_device_\w+", ("device",)),
)

#: Functions that always have an answer, and take no argument or one that the module itself gives.
_ANSWERING: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys(
        (
            "current_device", "device_count", "get_device_properties", "get_device_name", "get_device_capability",
            "Stream", "Event", "current_stream", "default_stream", "get_rng_state", "initial_seed",
            "get_amp_supported_dtype", "memory_stats", "mem_get_info", "memory_allocated", "memory_reserved",
        ),
        lambda _: (),
    ),
    "device": lambda _: (0,),
    "stream": lambda module: (module.current_stream(),),
}  # fmt: skip

#: Those of them whose names mean nothing else in PyTorch's code.
ASKED_BY_PYTORCH = frozenset({"current_device", "current_stream", "get_rng_state", "Stream", "Event"})

#: Procedures that have an effect on every device.
_DOING = frozenset({"manual_seed", "manual_seed_all", "set_rng_state", "reset_peak_memory_stats"})
#: Instructions of a function that has an empty body, or only returns a constant.
_IDLE = frozenset({"RESUME", "NOP", "COPY_FREE_VARS", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"})


def judges(member: str, subjects: Iterable[str], case_id: str) -> bool | None:
    """Return whether a case is about a member: it names it, or needs a capability that the member is for.

    None if no case is about a member of that name.
    """
    found = next((names for pattern, names in _FOR if re.fullmatch(pattern, member)), None)
    if found is None:
        return None
    if re.search(rf"(?<![a-z_]){member}(?![a-z_])", case_id):
        return True
    return any(subject.partition(".")[0] in found for subject in subjects)


def call(
    module: Any,
    name: str,
    *arguments: Any,
    instead: Callable[[], Any] | None = None,
    homes: Sequence[Any] = (),
    **named: Any,
) -> Any:
    """Return what a function of the device's module or of ``homes`` returns, and what ``instead`` does without one.

    A function whose own code raises NotImplementedError is not there; a kernel that the function waits for may raise
    it too. Raises MissingMember if there is nothing instead, and if a procedure's body is empty.
    """
    refusal = None
    for home in (module, *homes):
        function = getattr(home, name, None)
        if function is None:
            continue
        if name in _DOING:
            check_does_something(module, name, function)
        try:
            return function(*arguments, **named)
        except MissingMember:
            raise
        except NotImplementedError as error:
            if not _refuses_by_itself(error):
                raise
            refusal = error
    if instead is not None:
        return instead()
    raise missing(module, name, refusal) from refusal


def answer(module: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Return what ``call`` returns, for a function that answers: None is wrong, so nothing replaces it."""
    result = call(module, name, *arguments, **options)
    if result is None:
        raise MissingMember(name, module.__name__, f"{module.__name__}.{name}() returns None")
    return result


def check_does_something(module: Any, name: str, function: Any) -> None:
    """Raise MissingMember about a procedure whose body is empty: it returns None as it must, and has no effect."""
    code = getattr(function, "__code__", None)
    if code is not None and _is_idle(code):
        raise MissingMember(name, module.__name__, f"{module.__name__}.{name}() does nothing: its body is empty")


@functools.cache
def _is_idle(code: CodeType) -> bool:
    return all(instruction.opname in _IDLE for instruction in dis.get_instructions(code))


def maker(module: Any, name: str) -> Any:
    """Return a class of the device's module. A function in its place makes an object: None is none."""
    found = getattr(module, name)
    return found if isinstance(found, type) else functools.partial(answer, module, name)


def silent(module: Any, names: Iterable[str]) -> str:
    """Return the first function of these that returns None although it always has an answer; empty if none does."""
    asked = dict.fromkeys(name for name in names if name in _ANSWERING)  # each is called once: some make an object
    return next((name for name in asked if _returns_none(module, name)), "")


def _returns_none(module: Any, name: str) -> bool:
    function = getattr(module, name, None)
    if function is None or isinstance(function, type):
        return False
    try:
        return function(*_ANSWERING[name](module)) is None
    except Exception:  # noqa: BLE001 - it does something else than to return None
        return False


def _refuses_by_itself(error: NotImplementedError) -> bool:
    """Return whether a statement of the called function has raised the exception, and nothing that it has called."""
    called = error.__traceback__.tb_next if error.__traceback__ else None
    if called is None or called.tb_next is not None:
        return False
    return dis.opname[called.tb_frame.f_code.co_code[called.tb_lasti]] == "RAISE_VARARGS"


def missing(module: Any, name: str, refusal: BaseException | None = None) -> MissingMember:
    """Return the exception about a function that is not there, or that refuses."""
    if refusal is None:
        return MissingMember(name, module.__name__)
    said = (str(refusal).splitlines() or [""])[0]
    return MissingMember(name, module.__name__, f"{module.__name__}.{name}() is not implemented: {said}")


def general(type: str, module: Any, name: str, function: str, *arguments: Any) -> Callable[[], Any]:
    """Return a call of ``torch.accelerator.<function>`` in place of ``name``, where that is about the device."""

    def call() -> Any:
        import torch

        found = getattr(torch.accelerator, function, None) if is_general(type) else None
        if found is None:
            raise missing(module, name)
        return found(*arguments)

    return call


def is_general(type: str) -> bool:
    """Return whether ``torch.accelerator`` is the device of this type."""
    import torch

    if not hasattr(torch, "accelerator"):
        return False
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == type


@functools.cache
def makes(type: str, name: str) -> bool:
    """Return whether ``torch.Stream`` or ``torch.Event`` can be made for the device of ``torch.accelerator``."""
    import torch

    if not is_general(type):
        return False
    try:
        getattr(torch, name)(device=type)
        torch.accelerator.current_stream()
    except Exception:  # noqa: BLE001 - whatever a device without streams raises
        return False
    return True
