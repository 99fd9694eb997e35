"""Each member of the interface, replaced by one that does nothing, is called a stub, and no other is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conformance.accelerators.declaration import Declaration
from conformance.accelerators.interface import MEMBERS
from conformance.accelerators.registry import resolve
from conformance.judging.finding import Finding
from conformance.plan.case import Case
from conformance.reports.verdict import Reason
from tests.defects.stand_ins import planned

#: Members for which doing nothing is an answer that the interface allows: no case can tell it from a stub.
DOING_NOTHING_IS_RIGHT = {
    "communication_backend_name": "None says that there is none; where there is one, the probe of `comm` asks for it",
    "range_push": "what a range shows is in the vendor's own trace",
    "range_pop": "the same",
    "unpin_memory": "None says that torch owns the lock",
    "unregister_host_memory": "right where nothing was registered",
}
#: Cases that are not named after the member they look at.
BY_OTHER_NAMES = {
    "Event": "accelerator.event.none_means_host_timers",
    "Stream": "accelerator.stream.none_is_consistent",
    "current_stream": "accelerator.stream.none_is_consistent",
    "default_stream": "accelerator.stream.none_is_consistent",
    "stream": "accelerator.stream.nest",
    "synchronize": "accelerator.stream.device_synchronize",
    "create_graph": "accelerator.graph.capture_runs_nothing",
    "capture_to_graph": "accelerator.graph.capture_runs_nothing",
    "replay_graph": "accelerator.graph.replay_is_idempotent",
    "set_device": "accelerator.device.set",
    "manual_seed": "accelerator.rng.initial_seed[1234]",
    "manual_seed_all": "accelerator.rng.seed_all_repeats",
    "set_rng_state": "accelerator.rng.state_roundtrip[rand]",
    "reset_peak_memory_stats": "accelerator.memory.peak_reset[reset_peak_memory_stats]",
    "reset_max_memory_allocated": "accelerator.memory.peak_reset[reset_max_memory_allocated]",
    "lazy_call": "accelerator.lazy_call.runs",
    "on_accelerator": "accelerator.on_accelerator.device_tensors",
    "get_op_builder": "accelerator.builders.reachable",
    "create_op_builder": "accelerator.builders.reachable",
    "set_visible_devices_envs": "accelerator.environment.set_visible[one]",
    "set_compile_backend": "accelerator.compile_backend.set",
    "memory_stats": "accelerator.memory.stats",
    "BFloat16Tensor": "accelerator.tensor_types.from_list[bfloat16]",
    "ByteTensor": "accelerator.tensor_types.from_list[uint8]",
    "DoubleTensor": "accelerator.tensor_types.from_list[float64]",
    "FloatTensor": "accelerator.tensor_types.from_list[float32]",
    "HalfTensor": "accelerator.tensor_types.from_list[float16]",
    "IntTensor": "accelerator.tensor_types.from_list[int32]",
    "LongTensor": "accelerator.tensor_types.from_list[int64]",
    "supports_nvtx_domain": "accelerator.interface.range_domain",
}
FAMILIES = (
    "accelerator.effect.",
    *(f"accelerator.interface.{kind}" for kind in ("bool", "int", "str", "list")),
)


@functools.cache
def cases() -> dict[str, list[str]]:
    """The cases that look at each member's answer or effect."""
    found: dict[str, list[str]] = {}
    for name, one in planned().items():
        if name.startswith(FAMILIES):
            found.setdefault(_member_of(one.case), []).append(name)
    for member, name in BY_OTHER_NAMES.items():
        found.setdefault(member, []).append(name)
    return {member: sorted(set(names)) for member, names in found.items()}


def _member_of(case: Case) -> str:
    return dict(case.axes).get("member") or case.subject.rpartition(".")[2]


class Without:
    """The simulated accelerator, one member of which does nothing."""

    def __init__(self, live: Any, member: str = "") -> None:
        self._live = live
        if member:
            is_property = next(one for one in MEMBERS if one.name == member).kind == "property"
            setattr(self, member, None if is_property else lambda *args, **kwargs: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)


@pytest.fixture(scope="module")
def live() -> Any:
    return resolve("sim").load()


@pytest.fixture(autouse=True)
def left_as_found(live: Any) -> Iterator[None]:
    yield
    live.set_device(0)
    live.synchronize()


def run(case_id: str, accelerator: Any) -> None:
    one = planned()[case_id]
    offered = {"accelerator": accelerator, "device": torch.device("sim", 0), "declaration": Declaration()}
    offered |= dict(one.case.axes)
    one.function(**{name: offered[name] for name in inspect.signature(one.function).parameters})


def test_every_member_has_a_case_or_a_reason() -> None:
    assert {member.name for member in MEMBERS} == cases().keys() & {m.name for m in MEMBERS} | set(
        DOING_NOTHING_IS_RIGHT
    )
    assert not cases().keys() & set(DOING_NOTHING_IS_RIGHT)


@pytest.mark.parametrize("member", sorted({member.name for member in MEMBERS} - set(DOING_NOTHING_IS_RIGHT)))
def test_a_member_that_does_nothing_is_a_stub(member: str, live: Any) -> None:
    for name in cases()[member]:
        with pytest.raises(Finding) as caught:
            run(name, Without(live, member))

        assert caught.value.reason is Reason.STUB, f"{name}: {caught.value.message}"


@pytest.mark.parametrize("name", sorted({name for names in cases().values() for name in names}))
def test_the_whole_accelerator_has_no_stub(name: str, live: Any) -> None:
    run(name, Without(live))
