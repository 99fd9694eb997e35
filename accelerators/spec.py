"""Specification of an accelerator: the one that a user named, before any device is touched."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.accelerators.autoload import describe
from conformance.accelerators.declaration import ClaimSource, Declaration
from conformance.accelerators.declaration_file import read_declaration
from conformance.accelerators.derivation import from_methods
from conformance.accelerators.proxy import AcceleratorProxy
from conformance.base.errors import ConformanceError, DeclarationError


@dataclass(frozen=True)
class AcceleratorSpec(ABC):
    """An accelerator as the command line names it. ``conformance.accelerators.sources`` has one subclass per source.

    ``text`` is the text that was typed; ``name`` is safe as a folder's name. Only ``load`` may import a vendor's
    package.
    """

    text: str
    name: str

    @functools.cached_property
    def static_declaration(self) -> Declaration:
        """Return the claims that need no device: the capabilities, then the TOML file shipped with them."""
        try:
            return self._declared()
        except ConformanceError:  # its message already has a next step
            raise
        except Exception as error:
            # A list, None or an object whose properties raise, where claims should be.
            raise DeclarationError(
                f"'{self.text}': its declaration cannot be read: {describe(error)}.\n"
                "  make `capabilities` a set of capabilities, cells, statements or names"
            ) from error

    @abstractmethod
    def _declared(self) -> Declaration:
        """Return the claims that need no device."""

    @property
    def declaration_sources(self) -> list[str]:
        """Return the names of the sources that ``static_declaration`` has read, for people."""
        return ["none"]

    @abstractmethod
    def preflight(self) -> None:
        """Raise SetupError if the vendor's software is missing; import nothing for it."""

    def build(self) -> None:  # noqa: B027 - most accelerators need nothing
        """Compile what the vendor's package loads, under a time limit of its own."""

    def load(self) -> AcceleratorProxy:
        """Return the accelerator, ready for use.

        Raises SetupError if its software fails, and UsageError if the object is no accelerator.
        """
        return AcceleratorProxy(self._loaded(), self.text)

    @abstractmethod
    def _loaded(self) -> Any:
        """Return the accelerator object, ready for use."""

    @abstractmethod
    def unloaded(self) -> Any:
        """Return the accelerator object for reading its members; ask no device."""

    @property
    def default_workers(self) -> int:
        """Return how many processes share the device by default."""
        return 1

    def declaration(self, accelerator: Any, file: Path | None = None) -> Declaration:
        """Return the claims of all three sources; later sources win.

        The sources are the answers of the loaded accelerator's methods, its capabilities, and the TOML ``file``.
        """
        merged = from_methods(accelerator).overridden_by(self.static_declaration)
        return merged.overridden_by(read_declaration(file, ClaimSource.FILE)) if file else merged


def folder_name(text: str) -> str:
    """Return ``text`` with ``-`` in place of everything that is unsafe in a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "accelerator"
