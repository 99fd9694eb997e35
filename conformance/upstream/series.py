"""What a series of torch lets a backend set in its device tests: private API, so each series has an entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from conformance.base.errors import UsageError


@dataclass(frozen=True)
class Adapter:
    """Attributes of ``DeviceTypeTestBase`` in one series, and its base classes of devices that are in torch's tree."""

    series: str
    attributes: frozenset[str]
    in_tree: Mapping[str, str]
    out_of_tree: str = "PrivateUse1TestBase"


#: An entry is added after its tests have run with that torch.
ADAPTERS: Final[Mapping[str, Adapter]] = {
    adapter.series: adapter
    for adapter in (
        Adapter(
            "2.13",
            frozenset({"bypass_device_restrictions", "op_allowlist", "op_overrides", "test_exclusions"}),
            {
                "cpu": "CPUTestBase",
                "cuda": "CUDATestBase",
                "hpu": "HPUTestBase",
                "mps": "MPSTestBase",
                "xpu": "XPUTestBase",
            },
        ),
    )
}


def series_of(version: str) -> str:
    """Return ``2.13`` for ``2.13.0+cpu`` and for ``2.13.0a0+git1234``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def adapter_for(version: str) -> Adapter:
    """Return the adapter of a version; raise UsageError for a series without one, or of another torch than this."""
    import torch

    series, installed = series_of(version), series_of(torch.__version__)
    if series not in ADAPTERS:
        raise UsageError(
            f"there is no adapter for the device tests of torch {series}; "
            f"there is one for {', '.join(ADAPTERS)}. Install that torch, or leave --torch out."
        )
    if series != installed:
        raise UsageError(
            f"--torch {version} needs torch {series}, and torch {torch.__version__} is installed: "
            "operators and tests differ between series. Run the command in an environment with that torch."
        )
    return ADAPTERS[series]
