"""Device profile: every property in which two simulated accelerators differ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from conformance.base.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_DEVICES = 16
_LEAST_MEMORY = 1 << 20


@dataclass(frozen=True)
class DeviceProfile:
    """Names and sizes of one simulated accelerator. A process can have one.

    ``device`` is the device type and the name of ``torch.<device>``. ``comm`` names the collective backend. ``graph``
    names the graph class; it is empty for an accelerator without graphs. ``dtypes`` are the torch dtypes that the
    device stores; empty means all. Operators in ``missing`` raise NotImplementedError. ``memory`` is in bytes per
    device. ``prefix`` begins the names of the environment variables that ``from_environment`` reads.
    """

    device: str = "sim"
    devices: int = 2
    memory: int = 4 << 30
    comm: str = "simccl"
    graph: str = "SIMGraph"
    streams: bool = True
    dtypes: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset()
    prefix: str = "SIM"
    generation: tuple[int, int] = (1, 0)
    product: str = "Simulated accelerator"
    #: Physical numbers of the visible devices, in order; all of them if empty.
    visible: tuple[int, ...] = ()

    def from_environment(self, environment: Mapping[str, str] = os.environ) -> DeviceProfile:
        """Return this profile with ``<PREFIX>_DEVICES``, ``_MEMORY`` and ``_VISIBLE_DEVICES`` applied.

        Raises UsageError with the variable's name for an invalid value.
        """
        devices = _devices(f"{self.prefix}_DEVICES", environment, self.devices)
        memory = _memory(f"{self.prefix}_MEMORY", environment, self.memory)
        visible = _visible(f"{self.prefix}_VISIBLE_DEVICES", environment, devices)
        return replace(self, devices=len(visible), memory=memory, visible=visible)


def _devices(variable: str, environment: Mapping[str, str], default: int) -> int:
    """Return the number of devices in an environment variable."""
    text = environment.get(variable, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DEVICES:
        raise UsageError(
            f"{variable}={text!r} is not a number of devices.\n"
            f"  write a whole number from 1 to {_MOST_DEVICES}, or unset it"
        )
    return int(text)


def _memory(variable: str, environment: Mapping[str, str], default: int) -> int:
    """Return the memory of a device in bytes; the variable may write K, M or G."""
    text = environment.get(variable, "").strip()
    if not text:
        return default
    number, unit = (text[:-1], text[-1].upper()) if text[-1].isalpha() else (text, "")
    if not number.isdecimal() or unit not in _UNITS or int(number) * _UNITS[unit] < _LEAST_MEMORY:
        raise UsageError(
            f"{variable}={text!r} is not a memory size.\n"
            "  write bytes per device, at least 1M; a number may end in K, M or G: 512M"
        )
    return int(number) * _UNITS[unit]


def _visible(variable: str, environment: Mapping[str, str], devices: int) -> tuple[int, ...]:
    """Return the indices of the visible devices. An empty variable hides all of them."""
    text = environment.get(variable)
    if text is None:
        return tuple(range(devices))
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if any(not part.isdecimal() or int(part) >= devices for part in parts):
        raise UsageError(
            f"{variable}={text!r} names no devices.\n"
            f"  write numbers from 0 to {devices - 1} with commas between them, or unset it"
        )
    if len(set(map(int, parts))) < len(parts):
        raise UsageError(f"{variable}={text!r} names a device twice.\n  write every device once")
    return tuple(map(int, parts))
