"""Claims derived from an accelerator's DeepSpeed-style methods: the first and weakest source of claims.

Only clear answers of the accelerator's own members become claims. An exception or a value of the wrong type gives no
claim; ``lint`` reports it. Neither does a default: an answer that this project's classes derive from other data, or
the compile backend that every device has unless it chooses another.
"""

from __future__ import annotations

import importlib
import inspect
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
from conformance.accelerators.proxy import unwrap

#: The result of a member that is missing or raises.
NO_ANSWER = object()

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
#: Imported by name on use: this room must not import the kernels room.
_OUR_BUILDERS, _SPECIFICATIONS = "conformance.kernels.builders", "conformance.kernels.specifications"
#: Members whose code is in this package derive their answers from the declaration, or from nothing.
_OUR_PACKAGE = "conformance.accelerators."
#: The default of ``torch.compile``. The interface demands a name, so accelerators without a compiler return it as well.
_DEFAULT_COMPILE_BACKEND = "inductor"
#: The method whose False denies a dtype.
DTYPE_METHODS = {
    "bfloat16": "is_bf16_supported",
    "float16": "is_fp16_supported",
    "float64": "is_fp64_supported",
}


def from_methods(accelerator: Any) -> Declaration:
    """Return the claims that follow from the results of the accelerator's methods."""
    return Declaration.of(
        [
            *_device_claims(accelerator),
            *_dtype_claims(accelerator),
            *_flag_claims(accelerator),
            *_class_claims(accelerator),
            *_graph_claims(accelerator),
            *_mode_claims(accelerator),
            *_software_claims(accelerator),
            *_kernel_claims(accelerator),
        ]
    )


def ask(accelerator: Any, member: str) -> Any:
    """Return a member's value, or the result if it is a method; ``NO_ANSWER`` if it is missing or raises."""
    try:
        value = getattr(accelerator, member)
        # Stream and Event are classes: the class itself is the answer, not an instance.
        return value() if callable(value) and not isinstance(value, type) else value
    except Exception:  # noqa: BLE001 - the member's own case gives the verdict; here it makes no claim
        return NO_ANSWER


def is_inherited(accelerator: Any, member: str) -> bool:
    """Return whether a member's code comes from this project's own classes, and not from the accelerator's vendor."""
    static = inspect.getattr_static(unwrap(accelerator), member, None)
    function = static.fget if isinstance(static, property) else static
    return inspect.isfunction(function) and f"{function.__module__}.".startswith(_OUR_PACKAGE)


def _own_answer(accelerator: Any, member: str) -> Any:
    """Return the answer of a member that the vendor wrote; ``NO_ANSWER`` for a default of this project's classes."""
    return NO_ANSWER if is_inherited(accelerator, member) else ask(accelerator, member)


def listed_dtypes(accelerator: Any) -> tuple[str, ...]:
    """Return the names of ``supported_dtypes()`` that the vocabulary knows."""
    return _dtype_names(ask(accelerator, "supported_dtypes"))


def _dtype_names(answer: Any) -> tuple[str, ...]:
    if not isinstance(answer, list | tuple | set | frozenset):
        return ()
    names = {str(dtype).removeprefix("torch.") for dtype in answer}
    return tuple(name for name in DTYPES if name in names)


def _device_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield the claim of a class whose device names have an index. A name without one claims and denies nothing."""
    if is_inherited(accelerator, "device_name"):
        return
    plain, first = _peek(lambda: accelerator.device_name()), _peek(lambda: accelerator.device_name(0))
    if isinstance(plain, str) and first == f"{plain}:0":
        yield vocabulary.DEVICE_INDEX.cell, _yes()


def _dtype_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield claims from ``supported_dtypes()``, and denials from methods that return False."""
    listed = _dtype_names(_own_answer(accelerator, "supported_dtypes"))
    for name in listed:
        yield vocabulary.DTYPE.on(name), _yes()
        yield Cell("operators.*", name, Mode.INFERENCE.value), _yes()
        if name in DIFFERENTIABLE_DTYPES:
            yield Cell("operators.*", name, Mode.TRAINING.value), _yes()
    for name, method in DTYPE_METHODS.items():
        if name not in listed and _own_answer(accelerator, method) is False:
            yield vocabulary.DTYPE.on(name), _no(f"{method}() returns False")


def _flag_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield a claim or a denial for each method that answers with a bool."""
    for method, capability in _FLAGS:
        answer = _own_answer(accelerator, method)
        if isinstance(answer, bool):
            yield capability.cell, _yes() if answer else _no(f"{method}() returns False")


def _mode_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield the claim that a mode of invariance takes effect, where the accelerator declares its settings."""
    settings = _peek(lambda: dict(accelerator.invariant_mode))
    if isinstance(settings, dict) and settings:
        yield vocabulary.INVARIANT_MODE.on("float32"), _yes()


def _class_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield claims from members that are classes, such as ``Event``. None denies their capabilities."""
    for member, capabilities in _CLASSES:
        answer = _peek(lambda member=member: getattr(accelerator, member))  # type: ignore[misc]
        if answer is NO_ANSWER or is_inherited(accelerator, member):
            continue
        for capability in capabilities:
            yield capability.cell, _no(f"{member} is None") if answer is None else _timed(accelerator, capability)


def _timed(accelerator: Any, capability: Capability) -> Claim:
    """Return the claim for an event or stream capability. Events without usable times need host timers."""
    if capability is vocabulary.EVENT_TIMING and ask(accelerator, "use_host_timers") is True:
        return _no("use_host_timers() returns True")
    return _yes()


def _graph_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield claims about graphs. A graph object proves capture, and tells nothing about pools."""
    graph = _own_answer(accelerator, "create_graph")
    if graph is None:
        for capability in (vocabulary.GRAPH_CAPTURE, vocabulary.GRAPH_POOL):
            yield capability.cell, _no("create_graph() returns None")
    elif graph is not NO_ANSWER:
        yield vocabulary.GRAPH_CAPTURE.cell, _yes()


def _software_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield claims about collectives and torch.compile, from the names that the methods return."""
    for method, capability in (
        ("communication_backend_name", vocabulary.COMM),
        ("get_compile_backend", vocabulary.COMPILE),
    ):
        answer = _own_answer(accelerator, method)
        if isinstance(answer, str) and answer not in ("", _DEFAULT_COMPILE_BACKEND):
            yield capability.cell, _yes()
        elif answer is None:
            yield capability.cell, _no(f"{method}() returns None")


def _kernel_claims(accelerator: Any) -> Iterator[tuple[Cell, Claim]]:
    """Yield the claims of a vendor's own builders: a compatible builder claims its kernels, any other denies them.

    This project's own builders are skipped: they follow from the declarations, which say more than a bool.
    """
    if ask(accelerator, "op_builder_dir") in (_OUR_BUILDERS, NO_ANSWER, None):
        return
    floating = FLOATING_DTYPES.intersection(listed_dtypes(accelerator))
    catalogue = importlib.import_module(_SPECIFICATIONS)
    answers = {name: _peek(partial(_compatible, accelerator, name)) for name in catalogue.builder_names()}
    for kernel in catalogue.specifications():
        answer = answers[kernel.builder]
        if isinstance(answer, bool):
            claim = _yes() if answer else _no(f"there is no compatible {kernel.builder}")
            # supported_dtypes() lists floating-point dtypes only, so it says nothing about integers.
            for dtype in floating.union(set(DTYPES) - FLOATING_DTYPES).intersection(kernel.dtypes):
                yield Cell(f"kernels.{kernel.name}", dtype, kernel.mode.value), claim


def _compatible(accelerator: Any, builder: str) -> object:
    found = accelerator.create_op_builder(builder)
    return False if stands_for_nothing(found) else found.is_compatible()


def _peek(read: Callable[[], Any]) -> Any:
    """Return the value that ``read`` returns, or ``NO_ANSWER`` for any exception."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - as in ask()
        return NO_ANSWER


def _yes() -> Claim:
    return supported(source=ClaimSource.METHODS)


def _no(reason: str) -> Claim:
    return unsupported(reason, Detail.NOT_YET, ClaimSource.METHODS)
