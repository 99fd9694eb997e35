"""Accelerator that declares nothing and may not share its devices between ranks."""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.backends.sim import SIM

SILENT = replace(SIM, capabilities=frozenset(), simulated=False)
