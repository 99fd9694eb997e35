"""What an accelerator's DeepSpeed-style methods already say: the first and weakest source of claims.

Only clear answers become claims. None, an exception or a wrong type is silence here, and a finding of ``lint``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from conformance.accelerators import capabilities as vocabulary
from conformance.accelerators.capabilities import (
    DIFFERENTIABLE_DTYPES,
    DTYPES,
    FLOATING_DTYPES,
    Capability,
    Cell,
    Mode,
)
from conformance.accelerators.declaration import Claim, ClaimSource, Declaration, Detail, supported, unsupported
from conformance.accelerators.interface import stands_for_nothing

#: What a method answers when it raises or is missing.
SILENCE = object()

_FLAGS: tuple[tuple[str, Capability], ...] = (
    ("is_synchronized_device", vocabulary.SYNCHRONOUS),
    ("use_host_timers", vocabulary.HOST_TIMERS),
    ("resolves_data_dependency", vocabulary.ORDERED),
    ("handles_memory_backpressure", vocabulary.BACKPRESSURE),
    ("is_triton_supported", vocabulary.TRITON),
)
_CLASSES: tuple[tuple[str, tuple[Capability, ...]], ...] = (
    ("Stream", (vocabulary.STREAM, vocabulary.STREAM_ORDER, vocabulary.STREAM_RECORD)),
    ("Event", (vocabulary.EVENT, vocabulary.EVENT_TIMING)),
)
#: Reached by name, when they are used: this room imports no other.
_OUR_BUILDERS, _SPECIFICATIONS = "conformance.kernels.builders", "conformance.kernels.specifications"
#: The method that says no to a dtype.
DTYPE_METHODS = {
    "bfloat16": "is_bf16_supported",
    "float16": "is_fp16_supported",
    "float64": "is_fp64_supported",
}


def from_methods(accelerator: Any) -> Declaration:
    """The claims that the methods' answers amount to."""
    return Declaration.of(
        [
            *_dtype_claims(accelerator),
            *_flag_claims(accelerator),
            *_class_claims(accelerator),
            *_graph_claims(accelerator),
            *_software_claims(accelerator),
            *_kernel_claims(accelerator),
        ]
    )


def ask(accelerator: Any, member: str) -> Any:
    """A member's value, called if it is a method; ``SILENCE`` if it is missing or raises."""
    try:
        value = getattr(accelerator, member)
        return value() if callable(value) and not isinstance(value, type) else value
    except Exception:  # noqa: BLE001 - a broken member is a verdict of its case; here it says nothing
        return SILENCE


def listed_dtypes(accelerator: Any) -> tuple[str, ...]:
    """The names of ``supported_dtypes()``, as far as the vocabulary knows them."""
    answer = ask(accelerator, "supported_dtypes")
    if not isinstance(answer, list | tuple | set | frozenset):
        return ()
    names = {str(dtype).removeprefix("torch.") for dtype in answer}
    return tuple(name for name in DTYPES if name in names)


def _dtype_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    listed = listed_dtypes(accelerator)
    for name in listed:
        yield vocabulary.DTYPE.on(name), _yes()
        yield Cell("operators.*", name, Mode.INFERENCE.value), _yes()
        if name in DIFFERENTIABLE_DTYPES:
            yield Cell("operators.*", name, Mode.TRAINING.value), _yes()
    for name, method in DTYPE_METHODS.items():
        if name not in listed and ask(accelerator, method) is False:
            yield vocabulary.DTYPE.on(name), _no(f"{method}() answers False")


def _flag_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    for method, capability in _FLAGS:
        answer = ask(accelerator, method)
        if isinstance(answer, bool):
            yield capability.cell, _yes() if answer else _no(f"{method}() answers False")


def _class_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    for member, capabilities in _CLASSES:
        answer = _peek(lambda member=member: getattr(accelerator, member))  # type: ignore[misc]
        if answer is SILENCE:
            continue
        for capability in capabilities:
            yield capability.cell, _no(f"{member} is None") if answer is None else _timed(accelerator, capability)


def _timed(accelerator: Any, capability: Capability) -> Claim:
    """Events that exist may still be unfit for taking times, and then the accelerator asks for host timers."""
    if capability is vocabulary.EVENT_TIMING and ask(accelerator, "use_host_timers") is True:
        return _no("use_host_timers() answers True")
    return _yes()


def _graph_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    graph = ask(accelerator, "create_graph")
    if graph is None:
        for capability in (vocabulary.GRAPH_CAPTURE, vocabulary.GRAPH_POOL):
            yield capability.cell, _no("create_graph() answers None")
    elif graph is not SILENCE:
        yield vocabulary.GRAPH_CAPTURE.cell, _yes()


def _software_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    for method, capability in (
        ("communication_backend_name", vocabulary.COMM),
        ("get_compile_backend", vocabulary.COMPILE),
    ):
        answer = ask(accelerator, method)
        if isinstance(answer, str) and answer:
            yield capability.cell, _yes()
        elif answer is None:
            yield capability.cell, _no(f"{method}() answers None")


def _kernel_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """What somebody else's builders say: one that is compatible claims its kernels, one that is not denies them.

    This project's own builders follow from its declarations, where more is said than a bool.
    """
    if ask(accelerator, "op_builder_dir") in (_OUR_BUILDERS, SILENCE, None):
        return
    floating = FLOATING_DTYPES.intersection(listed_dtypes(accelerator))
    catalogue = importlib.import_module(_SPECIFICATIONS)
    answers = {name: _peek(partial(_compatible, accelerator, name)) for name in catalogue.builder_names()}
    for kernel in catalogue.specifications():
        answer = answers[kernel.builder]
        if isinstance(answer, bool):
            said = _yes() if answer else _no(f"there is no {kernel.builder} that is compatible")
            for dtype in floating.union(set(DTYPES) - FLOATING_DTYPES).intersection(kernel.dtypes):
                yield Cell(f"kernels.{kernel.name}", dtype, kernel.mode.value), said


def _compatible(accelerator: Any, builder: str) -> object:
    found = accelerator.create_op_builder(builder)
    return False if stands_for_nothing(found) else found.is_compatible()


def _peek(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - as in ask()
        return SILENCE


def _yes() -> Claim:
    return supported(source=ClaimSource.METHODS)


def _no(reason: str) -> Claim:
    return unsupported(reason, Detail.NOT_YET, ClaimSource.METHODS)
