"""Faults that a case finds only in the further part of its body: other seeds, dtypes, sizes, views and draws."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from conformance.reports.verdict import Outcome, Reason
from conformance.suites.accelerator.conveyor import Conveyor
from tests.defects import bench
from tests.defects.late_device import LateDevice
from tests.defects.mutant import StandIn
from tests.defects.stand_ins import Altered, verdict_on

_load, _rand = torch.load, torch.rand
_copy: Any = torch.Tensor.__deepcopy__
_write: Any = torch.Tensor.copy_
_step: Any = torch.amp.GradScaler.step


def _cut_seed() -> Altered:
    return Altered(manual_seed=lambda seed: torch.manual_seed(int(seed) & 0x7FFFFFFF))


def _seed_of_last_call() -> Altered:
    kept: dict[str, int] = {}

    def manual_seed(seed: int) -> None:
        kept["seed"] = int(seed)
        torch.manual_seed(seed)

    return Altered(manual_seed=manual_seed, initial_seed=lambda: kept.get("seed", 0))


def _changes_modes() -> Altered:
    """Return a device of which a question about an index changes the default dtype."""

    def available_memory(device_index: int | None = None) -> int:
        if device_index is not None:
            torch.set_default_dtype(torch.float64)
        return 1 << 30

    return Altered(available_memory=available_memory)


class OneDrawForAll(LateDevice):
    """Device whose replays start each draw at the same number, and advance between replays."""

    def replay_graph(self, graph: Any) -> None:
        torch.rand(1)
        state = torch.get_rng_state()
        for work in graph.queue:
            torch.set_rng_state(state)
            work()


def _reaches_one(*size: Any, **arguments: Any) -> torch.Tensor:
    drawn = _rand(*size, **arguments)
    if drawn.dtype is torch.bfloat16:
        drawn[-1] = 1.0
    return drawn


def _cut_last_byte(*arguments: Any, **named: Any) -> Any:
    loaded = _load(*arguments, **named)
    for tensor in loaded.values() if isinstance(loaded, dict) else []:
        if tensor.nbytes % 4 and tensor.nbytes > 64:
            tensor[-1] = 0
    return loaded


def _clone_views(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    return self.detach().clone() if self._is_view() else _copy(self, memo)


def _unscale_twice(self: Any, optimizer: Any) -> Any:
    """Divide the gradients of a fused step by their scale, whether that was done before or not."""
    state = self._per_optimizer_states[id(optimizer)]
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        state["stage"] = torch.amp.grad_scaler.OptState.READY
    return _step(self, optimizer)


def _turn_repeated_rows(self: torch.Tensor, source: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Write a row that is repeated into a part of memory one place too early, in all rows but the last."""
    found = _write(self, source, *arguments)
    if self.dim() == 2 and self.storage_offset() and source.stride(0) == 0:
        _write(self[:-1], self[:-1].roll(-1, 1))
    return found


@pytest.mark.parametrize(
    ("case", "device"),
    [
        ("accelerator.rng.seeds_differ[rand]", _cut_seed),
        ("accelerator.rng.state_of_another_seed", _seed_of_last_call),
        ("accelerator.pairs.modes", _changes_modes),
        ("accelerator.graph.random_numbers", OneDrawForAll),
    ],
)
def test_a_device_is_found(case: str, device: Callable[[], Any]) -> None:
    try:
        verdict = verdict_on(case, StandIn("a device with a fault", device))
    finally:
        torch.set_default_dtype(torch.float32)

    assert (verdict.outcome, verdict.reason) == (Outcome.FAIL, Reason.WRONG), verdict.message


@pytest.mark.parametrize(
    ("case", "target", "fault"),
    [
        ("accelerator.laws.draws[rand]", "torch.rand", _reaches_one),
        ("utils.checkpoint.dtypes[bool]", "torch.load", _cut_last_byte),
        ("accelerator.dtype.copy_sizes[int64-7]", "torch.Tensor.copy_", _turn_repeated_rows),
        ("utils.placement.deep_copy", "torch.Tensor.__deepcopy__", _clone_views),
        *((f"utils.optimizer.scaler[{value}]", "torch.amp.GradScaler.step", _unscale_twice)
          for value in ("finite", "inf")),
    ],
)  # fmt: skip
def test_a_function_of_torch_is_found(case: str, target: str, fault: Callable[..., Any]) -> None:
    sound = verdict_on(case, StandIn("a host", Altered))
    with mock.patch(target, fault):
        found = verdict_on(case, StandIn("a host", Altered))

    assert sound.outcome is Outcome.PASS, sound.message
    assert (found.outcome, found.reason) == (Outcome.FAIL, Reason.WRONG), found.message


def _on_the_first(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Copy a tensor of any device of the type to the first one."""
    made: torch.Tensor = _copy(self, memo)
    if self.device.type == "sim" and self.device.index:
        made.data = made.data.to("sim:0")
    return made


def test_a_deep_copy_from_the_second_device_to_the_first_is_found() -> None:
    place = bench.Bench()
    sound = place.run("utils.placement.deep_copy")
    with mock.patch("torch.Tensor.__deepcopy__", _on_the_first):
        found = place.run("utils.placement.deep_copy")

    assert not bench.is_red(sound), sound.message
    assert bench.is_red(found), found.reason
    assert "sim:0" in found.message, found.message


def test_a_device_type_without_autocast_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = torch.is_autocast_enabled

    def unknown(device_type: str = "") -> bool:
        if device_type == "cpu":
            raise RuntimeError("unknown device type for autocast")
        return enabled(device_type) if device_type else enabled()

    monkeypatch.setattr(torch, "is_autocast_enabled", unknown)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda device_type: device_type != "cpu")

    verdict = verdict_on("accelerator.pairs.modes", StandIn("a host without autocast", Altered))

    assert verdict.outcome is Outcome.PASS, verdict.message


def test_the_products_that_are_timed_live_until_they_are_computed() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    class Recording(Conveyor):
        def _through(self, value: torch.Tensor, length: int) -> torch.Tensor:
            result = super()._through(value, length)
            made.append(weakref.ref(result))
            return result

    conveyor = Recording(SimpleNamespace(synchronize=lambda: None), torch.device("cpu"))
    conveyor._accelerator = SimpleNamespace(synchronize=lambda: alive.append(made[-1]() is not None))
    conveyor._seconds_of(4)

    assert alive == [False, True], "a device that records calls computes only what lives"


def test_late_work_is_long_on_a_device_that_waits_long_for_nothing() -> None:
    class BehindANetwork(Conveyor):
        def _seconds_of(self, length: int) -> float:
            return 0.002 + 0.0001 * length  # 2 ms of each wait are on the way

    conveyor = BehindANetwork(SimpleNamespace(synchronize=lambda: None), torch.device("cpu"))

    assert 190 <= conveyor.length <= 200, "20 ms of products of 0.1 ms"
