"""The simulated accelerator as if each of its devices were real: no two ranks may share one."""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.backends.sim import SIM

OWNED = replace(SIM, simulated=False)
