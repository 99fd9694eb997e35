"""Vendor package of the simulated device with CUDA's habits: importing it registers ``torch.sim``."""

from __future__ import annotations

from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.simulator import start
from tests.like_cuda.habits import HABITS

_simulator = start(DeviceProfile().from_environment())
for _operator, _habit in HABITS.items():
    _simulator.core.set_around(f"aten::{_operator}", _habit)
