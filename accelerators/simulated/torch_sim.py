"""Vendor package of the built-in simulated device: importing it registers ``torch.sim``."""

from __future__ import annotations

from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.simulator import start

PROFILE = DeviceProfile().from_environment()

start(PROFILE)
