"""The simulated accelerator with another module: it claims what the simulated one claims.

pytest --accelerator=tests.missing_members.accelerator:GAP
"""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.backends.sim import SIM

GAP = replace(
    SIM,
    name="gap",
    package="tests.missing_members.device",
    collectives={"linux": "gapccl"},
    graph="GapGraph",
    visible_devices="GAP_VISIBLE_DEVICES",
    exports=("GAP",),
)
