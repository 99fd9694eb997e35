"""A subject: an accelerator that was named, with what can be known of it before a device is touched."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conformance.accelerators.declaration import Declaration, Source
from conformance.accelerators.declaration_file import read_declaration
from conformance.accelerators.derivation import from_methods
from conformance.accelerators.live import Live


class Origin(Protocol):
    """Where a subject comes from. Only ``load`` may import a vendor's package."""

    def declaration(self) -> Declaration:
        """What it declares without a device: its capabilities, then the TOML file shipped with it."""

    def preflight(self) -> None:
        """Raise SetupError if software is missing, without importing it."""

    def load(self) -> Any:
        """The accelerator object, ready for use."""

    def unloaded(self) -> Any:
        """The accelerator object or class for reading alone: no device is asked for."""

    @property
    def default_workers(self) -> int:
        """How many processes may share the device."""


@dataclass(frozen=True)
class Subject:
    """``spec`` is what was typed; ``name`` is safe as a folder's name."""

    spec: str
    name: str
    origin: Origin

    @functools.cached_property
    def static_declaration(self) -> Declaration:
        """What is declared without asking a device."""
        return self.origin.declaration()

    @property
    def default_workers(self) -> int:
        return self.origin.default_workers

    def preflight(self) -> None:
        """A cheap check that the vendor's software is installed; SetupError if not."""
        self.origin.preflight()

    def load(self) -> Live:
        """The live accelerator; SetupError if its software fails, UsageError if it is no accelerator."""
        return Live(self.origin.load(), self.spec)

    def declaration(self, live: Any, file: Path | None = None) -> Declaration:
        """All three sources, later wins: the methods' answers, the capabilities, a TOML file."""
        merged = from_methods(live).overridden_by(self.static_declaration)
        return merged.overridden_by(read_declaration(file, Source.FILE)) if file else merged


def folder_name(text: str) -> str:
    """``text`` with everything that is unsafe in a file name replaced by ``-``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "accelerator"
