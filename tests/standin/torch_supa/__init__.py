"""Stands in for a vendor's package that is not public: the simulator, under the vendor's names.

Importing it makes ``torch.supa``, and lets ``torch.cuda`` answer with it, as the vendor's package does. How many
devices there are and how large they are is read from ``SUPA_DEVICES``, ``SUPA_MEMORY`` and ``SUPA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

from .importing import import_torch

torch = import_torch()

from conformance.accelerators.simulated.device_profile import DeviceProfile  # noqa: E402
from conformance.accelerators.simulated.simulator import start  # noqa: E402 - it imports torch

from . import impersonation, vendor_module  # noqa: E402

PROFILE = DeviceProfile(
    device="supa",
    comm="bccl",
    graph="SUPAGraph",
    prefix="SUPA",
    generation=(1, 0),
    product="SUPA stand-in",
).from_environment()

# Nothing of torch is touched before the simulator has the one place for out-of-tree devices.
start(PROFILE)
vendor_module.complete(torch.supa)
impersonation.answer_for(torch.cuda, torch.supa)


def autoload() -> None:
    """The entry point of group ``torch.backends``: the import has done everything."""
