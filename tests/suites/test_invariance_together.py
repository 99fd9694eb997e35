"""Ranks, compilers and modes on which the bits of a row depend are named; those that hold are green."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import declaration_of
from conformance.accelerators.derivation import from_methods
from conformance.judging.checker import Checker
from conformance.judging.finding import Refused
from conformance.suites.invariance import compiled, ranks, surroundings
from conformance.suites.invariance import mode as modes
from conformance.suites.invariance import test_mode as suite
from conformance.suites.invariance.judging import tell
from conformance.suites.invariance.test_compiled import compile_cases
from conformance.suites.invariance.test_rank import rank_cases

HOST = torch.device("cpu")


# --- ranks ----------------------------------------------------------------------------------------------------------


class Threads(ranks.Group):
    """Group of threads. ``spoil`` changes the sums of a group on one of its ranks."""

    def __init__(self, shared: Any, size: int, number: int, spoil: Callable[[torch.Tensor, int, int], None]) -> None:
        super().__init__(size, number)
        self._barrier, self._parts, self._spoil = *shared, spoil

    def all_reduced(self, tensor: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        self._parts[self.number] = tensor.detach()
        self._barrier.wait()
        parts = torch.stack([self._parts[number] for number in range(self.size)])
        self._barrier.wait()
        result = parts.amax(0) if largest else parts.sum(0)
        self._spoil(result, self.size, self.number)
        return result


def found_on(world: int, spoil: Callable[[torch.Tensor, int, int], None]) -> dict[str, int]:
    """Return the operators that change, with the size of the group, on that many ranks."""
    sizes = [size for size in (2, 4) if size <= world]
    shared = {(size, start): (threading.Barrier(size), {}) for size in sizes for start in range(0, world, size)}
    results: dict[int, torch.Tensor] = {}

    def run(rank: int) -> None:
        groups = [Threads(shared[size, rank // size * size], size, rank % size, spoil) for size in sizes]
        results[rank], _ = ranks.compare(groups, HOST, torch.float32)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = torch.stack([results[rank] for rank in range(world)]).sum(0)
    return {change.operator: change.size for change in ranks.changes_of(total, sizes)}


#: Operators that are exact over whole numbers, so that a sum of parts has the bits of the whole.
EXACT = ("linear.by_columns", "linear.by_rows", "embedding")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every operator whole numbers as rows and weights."""

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).float()

    monkeypatch.setattr(ranks.Weights, "__call__", lambda self, *shape: drawn(shape))
    monkeypatch.setattr(surroundings.Subject, "rows", lambda self, count: drawn((count, ranks.WIDTH)))
    monkeypatch.setattr(ranks, "PARALLEL", {name: ranks.PARALLEL[name] for name in EXACT})


def test_sums_that_are_exact_do_not_depend_on_the_ranks(exact: None) -> None:
    for world in (2, 4):
        assert found_on(world, lambda result, size, number: None) == {}


@pytest.mark.parametrize(("size", "on"), [(2, 0), (2, 1), (4, 0), (4, 3)])
def test_a_group_whose_sums_change_is_named_with_its_size(exact: None, size: int, on: int) -> None:
    def spoil(result: torch.Tensor, of: int, number: int) -> None:
        if of == size and number == on:
            result.view(torch.int32).flatten()[0] ^= 1

    assert set(found_on(4, spoil).values()) == {size}


def test_a_group_that_sums_nothing_is_named(exact: None) -> None:
    assert set(found_on(2, lambda result, size, number: result.zero_())) == set(EXACT)


def test_every_operator_has_the_same_values_in_a_group_up_to_rounding() -> None:
    group = [ranks.computed(name, ranks.Group(1), HOST, torch.float64) for name in ranks.PARALLEL]

    shared: Any = (threading.Barrier(2), {})
    results: dict[int, list[Any]] = {}

    def run(rank: int) -> None:
        here = Threads(shared, 2, rank, lambda result, size, number: None)
        results[rank] = [ranks.computed(name, here, HOST, torch.float64) for name in ranks.PARALLEL]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, alone, *pair in zip(ranks.PARALLEL, group, results[0], results[1], strict=True):
        for together in pair:
            torch.testing.assert_close(together[0], alone[0], msg=lambda text, name=name: f"{name}: {text}")
            torch.testing.assert_close(together[1], alone[1], msg=lambda text, name=name: f"{name}, backward: {text}")


def test_operators_without_values_are_named() -> None:
    class Nothing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            fresh = isinstance(result, torch.Tensor) and not func.is_view and not func._schema.is_mutable
            return torch.zeros_like(result) if fresh and result.is_floating_point() else result

    with Nothing():
        _, empty = ranks.compare([], HOST, torch.float32)
    assert set(empty) == set(ranks.PARALLEL)


# --- compilers ------------------------------------------------------------------------------------------------------


def compiler_that(changes: Callable[[int, int], bool]) -> Callable[..., Any]:
    """Return a compiler that changes the last bit of operator number ``n`` in a graph of ``count`` operators."""

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: torch.Tensor) -> Any:
            results, consumed = function(x)
            for number, result in enumerate(results):
                if changes(number, len(results)):
                    result.view(torch.int32).flatten()[-1] ^= 1
            return results, consumed

        return run

    return compiler


def test_a_compiler_that_keeps_bits_is_green() -> None:
    assert compiled.changes(compiler_that(lambda number, count: False), HOST, torch.float32) == ([], [])


@pytest.mark.parametrize("count", [2, 4])
def test_a_compiler_whose_bits_depend_on_the_graph_is_named(count: int) -> None:
    found, _ = compiled.changes(compiler_that(lambda number, of: of == count and number == 1), HOST, torch.float32)

    assert {(change.operator, change.size) for change in found} == (
        {("softmax", 1), ("linear", 1)} if count == 2 else {("softmax", 3)}
    )


def test_a_compiler_that_returns_zeros_shows_nothing() -> None:
    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ([torch.zeros_like(each) for each in function(x)[0]], [])

    assert compiled.changes(compiler, HOST, torch.float32)[1] == list(compiled.NAMES)


@pytest.mark.parametrize("case", [*compile_cases(), *rank_cases()], ids=lambda case: case.id)
def test_a_claim_is_red_and_a_report_without_one_names_the_size(case: Any) -> None:
    found = [surroundings.Change("softmax", "compile", 3, "forward")]
    claims = {*case.requires, can.DTYPE.on(case.dtype)}

    with pytest.raises(AssertionError, match=r"softmax at 3 \(forward\)"):
        tell(Checker(), declaration_of(claims), case, "compile", found, 4)
    with pytest.raises(Refused, match=r"softmax at 3 \(forward\)"):
        tell(Checker(), declaration_of({can.DTYPE.on(case.dtype)}), case, "compile", found, 4)


# --- modes ----------------------------------------------------------------------------------------------------------


class Vendor:
    """Switch of a vendor's package, and the device that it changes. ``habit`` says what is wrong with it."""

    def __init__(self) -> None:
        self.habit, self._on, self._was_on = "", False, False

    @property
    def on(self) -> bool:
        return self._on

    @on.setter
    def on(self, value: bool) -> None:
        if self.habit == "stays on" and not value:
            return
        self._on = value and self.habit != "takes no value"
        self._was_on = self._was_on or self._on

    @property
    def effect(self) -> bool:
        if self.habit == "lasts":
            return self._was_on
        return self._on and self.habit != "has no effect"


VENDOR = Vendor()


class Device(TorchDispatchMode):
    """Device on which the switch changes the last bit of a product."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::mm" and _vendor().effect:
            result.view(torch.int32).bitwise_xor_(1)
        return result


def _vendor() -> Vendor:
    from tests.suites import test_invariance_together

    return test_invariance_together.VENDOR


class Declared:
    """Accelerator that declares a mode."""

    invariant_mode: ClassVar = {"tests.suites.test_invariance_together.VENDOR.on": True}


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Vendor:
    from tests.suites import test_invariance_together

    known = surroundings.operators()
    monkeypatch.setattr(modes, "operators", lambda: {name: known[name] for name in ("linear", "softmax")})
    monkeypatch.setattr(test_invariance_together, "VENDOR", Vendor())
    return test_invariance_together.VENDOR


def run_mode(accelerator: Any = None) -> None:
    (case,) = suite.mode_cases()
    with Device():
        suite.test_mode(accelerator or Declared(), HOST, case, Checker())


def test_a_mode_with_an_effect_is_green_and_restored(vendor: Vendor) -> None:
    run_mode()

    assert not vendor.on


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("takes no value", "the declared mode is not on"),
        ("has no effect", "the declared mode has no effect: 2 operators"),
        ("stays on", r"the mode does not end: .*VENDOR.on has another value"),
        ("lasts", "the mode does not end: linear has other bits afterwards"),
    ],
)
def test_a_mode_that_does_not_do_it_is_red(vendor: Vendor, habit: str, message: str) -> None:
    vendor.habit = habit

    with pytest.raises(AssertionError, match=message):
        run_mode()


def test_without_a_mode_there_is_nothing_to_claim() -> None:
    with pytest.raises(Refused, match="declares no mode"):
        run_mode(object())


def test_declared_settings_are_a_claim_of_their_effect() -> None:
    assert from_methods(Declared()).supports(can.INVARIANT_MODE.on("float32"))
    assert not from_methods(object()).supports(can.INVARIANT_MODE.on("float32"))
