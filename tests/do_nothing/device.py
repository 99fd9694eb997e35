"""Vendor package of the do-nothing device: importing it registers ``torch.nil``.

Every kernel returns zeros of the right shape, every copy carries zeros, every collective leaves its tensors alone, and
every answer of the device's module is the smallest plausible one. It is the simulator with these switches on.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.simulator import start
from tests.defects.faults import Fault, Where, arm

PROFILE = DeviceProfile(device="nil", comm="nilccl", graph="NilGraph", prefix="NIL", product="Does nothing")
#: Each switch turns one part of the simulator into a part that does nothing.
SWITCHES = {
    "kernels_give_zeros": 1,
    "alloc_current_constant": 0,
    "alloc_peak_constant": 0,
    "alloc_reserved_constant": 0,
    "alloc_no_limit": 1,
    "comm_wait_ignored": 1,
    "device_set_ignored": 1,
    "device_sync_ignored": 1,
    "event_elapsed_constant": 0,
    "event_query_true": 1,
    "event_sync_ignored": 1,
    "event_wait_ignored": 1,
    "graph_replay_nothing": 1,
    "pin_flag": 0,
    "pin_pageable": 1,
    "record_stream_ignored": 1,
    "rng_seed_ignored": 1,
    "rng_set_state_ignored": 1,
    "stream_order_ignored": 1,
    "stream_query_true": 1,
    "stream_sync_ignored": 1,
    "stream_wait_ignored": 1,
}


def _collectives(_store: Any, rank: int, size: int, _timeout: Any) -> Any:
    """Return PyTorch's process group for tests, which sends nothing."""
    from torch._C._distributed_c10d import FakeProcessGroup

    return FakeProcessGroup._create_internal(rank, size)


def _constant(value: Any) -> Any:
    return lambda _old: lambda *_args, **_kwargs: value


#: Answers of ``torch.nil``: plausible, and without work behind them.
_ANSWERS = {
    "current_device": 0,
    "initial_seed": 0,
    "seed": 0,
    "manual_seed": None,
    "manual_seed_all": None,
    "set_rng_state": None,
    "set_rng_state_all": None,
    "empty_cache": None,
    "mem_get_info": (0, 0),
    "memory_stats": {},
    "synchronize": None,
    "set_device": None,
    "is_current_stream_capturing": False,
}


def _begin() -> None:
    """Register the device and switch everything off, once per process."""
    started = start(PROFILE)
    dist.Backend.backend_list.remove("nilccl")  # the simulator's, which would send
    dist.Backend.register_backend("nilccl", _collectives, devices=[PROFILE.device, "cpu"])
    answers = {**_ANSWERS, "get_rng_state": torch.zeros(16, dtype=torch.uint8)}
    members = {name: _constant(value) for name, value in answers.items()}
    arm(Fault("does nothing", "device", "", Where.DEVICE, "", switches=SWITCHES, members=members))
    assert started.core is not None


_begin()
