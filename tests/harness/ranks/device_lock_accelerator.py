"""Simulated accelerator with device locks, as on real devices: no two ranks may share a device."""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.backends.sim import SIM

OWNED = replace(SIM, simulated=False)
