"""Accelerators with members that take a call and do nothing, for the lies that claim them."""

from __future__ import annotations

from typing import Any

from conformance.accelerators.registry import resolve


class _Stubbed:
    """A healthy accelerator, three of whose members have no effect."""

    name = ""

    def __init__(self) -> None:
        self._healthy = resolve(self.name).load()

    def __getattr__(self, member: str) -> Any:
        return getattr(self._healthy, member)

    def lazy_call(self, callback: Any) -> None:
        """The callback is dropped."""

    def set_rng_state(self, new_state: Any, device_index: int | None = None) -> None:
        """The state stays what it was."""


class StubbedCpu(_Stubbed):
    name = "cpu"


class StubbedSim(_Stubbed):
    name = "sim"

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Nothing is ever counted."""
        return 0
