"""Tests of observations: the exception's type decides, and its message is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from conformance.accelerators.interface import MissingMember
from conformance.judging.finding import EnvironmentLacks, Finding, Refused
from conformance.judging.observation import Seen, contradicts_out_of_memory, observe
from conformance.reports.verdict import Reason
from conformance.runner.controller import run_status


class OutOfMemoryError(RuntimeError):
    """Exception with the name of torch's."""


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (None, Seen.RIGHT),
        (AssertionError("2 is not 3"), Seen.WRONG),
        (Finding(Reason.STUB, "no effect"), Seen.FINDING),
        (EnvironmentLacks("one device"), Seen.ENVIRONMENT),
        (OutOfMemoryError("full"), Seen.ENVIRONMENT),
        (Refused("Stream is None"), Seen.REFUSED),
        (NotImplementedError("no"), Seen.NOT_IMPLEMENTED),
        (MissingMember("Stream", "x"), Seen.NOT_IMPLEMENTED),
        (AttributeError("no"), Seen.RAISED),
        (RuntimeError("not implemented"), Seen.RAISED),  # its text says so; only its type counts
        (SystemExit(0), Seen.RAISED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_type_decides(error: BaseException | None, seen: Seen) -> None:
    assert observe(error).seen is seen


def _asked_by(name: str, asks: str, **known: object) -> BaseException:
    """Return the exception of code in a module of that name."""
    try:
        exec(asks, {"__name__": name, **known})
    except Exception as error:
        return error
    raise AssertionError(f"{asks} raises nothing")


def test_a_member_that_pytorch_misses_in_the_module_of_the_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch.acme")
    monkeypatch.setattr(torch, torch._C._get_accelerator().type, module)
    asks = "module.get_rng_state()"
    wrapped = f"try:\n    {asks}\nexcept Exception as error:\n    raise RuntimeError('DTensor') from error"

    for text in (asks, wrapped):
        assert observe(_asked_by("torch.utils.checkpoint", text, module=module)).missing == "get_rng_state"
    vendors = observe(_asked_by("acme.kernels", asks, module=module))
    assert (vendors.seen, vendors.missing) == (Seen.RAISED, "")
    another = observe(_asked_by("torch.utils.checkpoint", asks, module=ModuleType("other")))
    assert (another.seen, another.missing) == (Seen.RAISED, "")
    assert observe(MissingMember("Stream", "x")).missing == "Stream"


def test_a_function_of_the_device_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_rng_state() -> None:
        raise NotImplementedError("later")

    def kernel() -> None:
        raise NotImplementedError("no kernel")

    module = ModuleType("torch.acme")
    monkeypatch.setattr(torch, torch._C._get_accelerator().type, module)
    module.get_rng_state, module.synchronize = get_rng_state, lambda: kernel()  # type: ignore[attr-defined]

    assert observe(_asked_by("torch.utils.checkpoint", "module.get_rng_state()", module=module)).missing == (
        "get_rng_state"
    )
    late = observe(_asked_by("torch.utils.checkpoint", "module.synchronize()", module=module))
    assert (late.seen, late.missing) == (Seen.NOT_IMPLEMENTED, "")


#: One method asks, and another one uses what it got.
METHODS = """
class Graph:
    def __init__(self): self.entered = module.device(1)
    def enter(self): self.entered.__enter__()
Graph().enter()
"""


@pytest.mark.parametrize(
    ("asks", "named"),
    [
        ("with module.device(1): pass", "device"),
        ("module.Event().record()", "Event"),
        ("'float32' in module.get_amp_supported_dtype()", "get_amp_supported_dtype"),
        ("def ask(): return module.get_rng_state()\ndef use(state): state.is_cpu\nuse(ask())", "get_rng_state"),
        (
            "class Lazy:\n def start(self): return module.Stream()\ndef use(it): assert it\nuse(Lazy().start())",
            "Stream",
        ),
        (METHODS, "device"),
        ("module.synchronize()\nNone.record()", ""),
        ("module.synchronize()\nassert False", ""),
        ("float(module.initial_seed(), 2)", ""),  # it answers
        ("module.device\nassert False", ""),
    ],
)
def test_a_function_of_the_device_that_returns_none_is_named(
    asks: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("torch.acme")
    monkeypatch.setattr(torch, torch._C._get_accelerator().type, module)
    for name in ("device", "Event", "Stream", "get_amp_supported_dtype", "get_rng_state", "synchronize"):
        setattr(module, name, lambda *_: None)
    module.initial_seed = lambda: 1  # type: ignore[attr-defined]

    seen = observe(_asked_by("torch.utils.checkpoint", asks, module=module))
    vendors = observe(_asked_by("acme.kernels", asks, module=module))

    assert (seen.missing, seen.message.startswith(f"torch.acme.{named}() returns None: ")) == (named, bool(named))
    assert (vendors.seen, vendors.missing) in {(Seen.RAISED, ""), (Seen.WRONG, "")}


@dataclass
class Memory:
    free: int | Exception
    total: int = 64 << 20

    def available_memory(self) -> int:
        if isinstance(self.free, Exception):
            raise self.free
        return self.free

    def total_memory(self) -> int:
        return self.total


@pytest.mark.parametrize(
    ("memory", "complaint"),
    [
        (Memory(60 << 20), "out of memory, although 60 of 64 MiB are free"),
        (Memory(31 << 20), None),
        (Memory(0, total=0), None),
        (Memory(NotImplementedError("no accounting")), None),
    ],
)
def test_a_device_with_room_has_no_excuse(memory: Memory, complaint: str | None) -> None:
    assert contradicts_out_of_memory(memory) == complaint


def test_an_asserts_own_sentence_is_enough() -> None:
    assert observe(AssertionError("1 + 1 is 2\nassert (1 + 1) == 3\n + where")).message == "1 + 1 is 2"
    assert observe(AssertionError("assert 2 == 3")).message == "assert 2 == 3"


@pytest.mark.parametrize(
    ("pytests", "reports", "expected"),
    [(0, 0, 0), (1, 1, 1), (1, 0, 1), (0, 6, 6), (5, 0, 0), (5, 5, 5), (2, 0, 2), (3, 1, 3), (4, 0, 4)],
)
def test_exit_status(pytests: int, reports: int, expected: int) -> None:
    assert run_status(pytests, reports) == expected


def test_an_exception_of_a_library_says_where_it_was_raised() -> None:
    import json

    def case() -> None:
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as raised:
        case()

    assert re.search(r" \(in json\.decoder:\d+\)$", observe(raised.value).message)


def test_a_backend_whose_hooks_say_nothing_of_a_device_loses_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NotImplementedError("isAvailable is not implemented")

    monkeypatch.setattr(torch._C, "_get_accelerator", missing)

    assert observe(_asked_by("acme.kernels", "get_rng_state.none", get_rng_state=missing)).seen is Seen.RAISED
