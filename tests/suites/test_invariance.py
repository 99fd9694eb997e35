"""Devices whose bits depend on a row's surrounding are named with operator and size; an invariant one is not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import declaration_of
from conformance.cli.invariance import table
from conformance.judging.checker import Checker
from conformance.judging.finding import Refused
from conformance.suites.invariance import surroundings
from conformance.suites.invariance import test_invariance as suite
from conformance.suites.invariance.mode import invariant_mode
from conformance.suites.invariance.surroundings import SIZES, Change, changes
from tests.layers import longer

HOST = torch.device("cpu")
#: Operators with an aten function of their own, on whose rows the simulated devices depend.
DRAWN = {"tanh": "tanh", "exp": "exp", "sin": "sin", "erf": "erf", "sigmoid": "sigmoid", "silu": "silu",
         "gelu": "gelu", "cumsum": "cumsum", "softmax": "_softmax", "layer_norm": "native_layer_norm",
         "mv": "mv", "linear": "mm", "bmm": "bmm", "conv1d": "convolution"}  # fmt: skip


class Invariant(TorchDispatchMode):
    """Device that computes in float64 and rounds once: no surrounding reaches its float32.

    With a ``target``, that function has another last bit from a size on: of rows, of a gap between rows, or of calls.
    """

    def __init__(self, target: str = "", kind: str = "", size: int = 0) -> None:
        super().__init__()
        self.target, self.kind, self.size, self.calls = target, kind, size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        computes = not func.is_view and not func._schema.is_mutable
        given = [each.double() if _single(each) and computes else each for each in args]
        named = {key: each.double() if _single(each) and computes else each for key, each in (kwargs or {}).items()}
        result = func(*given, **named)
        name = func._schema.name.partition("::")[2]
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        if computes:
            outputs = [each.float() if _double(each) and any(map(_single, args)) else each for each in outputs]
        if name == self.target and self._depends(next(each for each in args if isinstance(each, torch.Tensor))):
            outputs[0] = (outputs[0].contiguous().view(torch.int32) ^ 1).view(torch.float32)
        return type(result)(outputs) if isinstance(result, tuple | list) else outputs[0]

    def _depends(self, x: torch.Tensor) -> bool:
        self.calls += 1
        if self.kind == "batch":
            return x.shape[0] >= self.size
        if self.kind == "stride":
            return x.dim() > 1 and x.stride(0) - x.shape[-1] >= self.size
        return self.calls >= self.size


def _single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def _double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    chosen = {name: operator for name, operator in surroundings.operators().items() if name in names}
    monkeypatch.setattr(surroundings, "operators_in", lambda kind: chosen)


@pytest.mark.parametrize("number", longer(range(30), step=15, repeating=[n for n in range(30) if n % 5]))
def test_a_hidden_size_is_named(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(f"hidden {number}")
    name, size = draw.choice(sorted(DRAWN)), draw.randint(2, 1000)
    others = draw.sample(sorted(set(DRAWN) - {name} - ({"mv"} if DRAWN[name] == "mm" else set())), 3)
    only(monkeypatch, name, *(other for other in others if DRAWN[other] != DRAWN[name]))

    with Invariant(DRAWN[name], "batch", size):
        found = changes("batch", HOST, torch.float32)

    assert {change.operator: change.size for change in found} == {name: next(n for n in SIZES if n >= size)}


@pytest.mark.parametrize("size", [1, 4, 9, 65])
def test_a_hidden_stride_is_named(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "tanh", "exp", "erf")

    with Invariant("exp", "stride", size):
        found = changes("stride", HOST, torch.float32)

    gaps = (1, 2, 3, 4, 7, 8, 16, 17, 64, 129)
    assert {change.operator: change.size for change in found} == {"exp": next(gap for gap in gaps if gap >= size)}


def test_a_result_that_changes_with_the_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "tanh", "sin")

    with Invariant("sin", "run", 3):
        found = changes("run", HOST, torch.float32)

    assert [str(change) for change in found] == ["sin at 3 (forward)"]


@pytest.mark.parametrize("kind", longer(["run", "padding", "batch", "chunk", "stride"]))
def test_an_invariant_device_has_no_difference(kind: str) -> None:
    with Invariant():
        assert [str(change) for change in changes(kind, HOST, torch.float32)] == []


class Switch:
    """Setting of a vendor's package; with ``stuck`` it does not take a value."""

    def __init__(self, *, stuck: bool = False) -> None:
        self._on, self._stuck = False, stuck

    @property
    def on(self) -> bool:
        return self._on

    @on.setter
    def on(self, value: bool) -> None:
        self._on = self._on if self._stuck else value


class Declared:
    """Accelerator that declares a mode."""

    invariant_mode: ClassVar = {"tests.suites.test_invariance.SWITCH.on": True}


SWITCH = Switch()


@pytest.fixture
def switch() -> Iterator[Switch]:
    from tests.suites import test_invariance

    kept = test_invariance.SWITCH
    yield kept
    test_invariance.SWITCH = kept


def test_a_mode_is_made_and_restored(switch: Switch) -> None:
    with invariant_mode(Declared()) as ignored:
        assert (switch.on, ignored) == (True, [])
    assert not switch.on


def test_a_mode_that_does_not_take_its_value_is_named(switch: Switch) -> None:
    from tests.suites import test_invariance

    test_invariance.SWITCH = Switch(stuck=True)

    with invariant_mode(Declared()) as ignored:
        assert ignored == ["tests.suites.test_invariance.SWITCH.on"]


def test_every_kind_compares_the_gradient_too(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "tanh")

    with Invariant("tanh_backward", "batch", 9):
        found = changes("batch", HOST, torch.float32)

    assert [str(change) for change in found] == ["tanh at 9 (backward)"]


def judged(declaration: Any, mode: Any, monkeypatch: pytest.MonkeyPatch) -> Checker:
    """Run the case of batches in float32 on the host inside a mode."""
    only(monkeypatch, "tanh", "exp")
    monkeypatch.setattr(suite, "without_values", lambda device, dtype: [])
    case = next(case for case in suite.invariance_cases() if case.id == "invariance.batch[float32]")
    check = Checker()
    with mode:
        suite.test_invariance(Declared(), HOST, declaration, case, check)
    return check


CLAIMED = declaration_of({can.INVARIANT_BATCH.on("float32"), can.DTYPE.on("float32")})
UNCLAIMED = declaration_of({can.DTYPE.on("float32")})


def test_a_claimed_mode_that_does_nothing_is_red(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"bits change with the batch: tanh at 15 \(forward\)$"):
        judged(CLAIMED, Invariant("tanh", "batch", 10), monkeypatch)


def test_a_claim_that_holds_is_green(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(CLAIMED, Invariant(), monkeypatch).metrics["changed"] == 0


def test_without_a_claim_the_size_is_reported(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"tanh at 15 \(forward\)"):
        judged(UNCLAIMED, Invariant("tanh", "batch", 10), monkeypatch)


class Zeros(TorchDispatchMode):
    """Device that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and not func._schema.is_mutable:
            return result if func.is_view else torch.zeros_like(result)
        return result


def test_a_device_that_does_nothing_shows_nothing() -> None:
    with Zeros():
        assert len(surroundings.without_values(HOST, torch.float32)) > 60
    assert surroundings.without_values(HOST, torch.float32) == []


def test_the_table_has_a_row_for_each_operator_that_changes() -> None:
    found = {"batch": [Change("mv", "batch", 9, "forward")], "run": [Change("exp", "run", 2, "backward")]}

    assert table(found, 4) == [
        "operator     batch       run",
        "exp              ·         2",
        "mv               9         ·",
        "2 of 4 operators: the same bits in every surrounding",
    ]
