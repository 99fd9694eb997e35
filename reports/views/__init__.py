"""Views: a report as text, one module for each format.

The module's name is the format's name. It has ``SUMMARY``, a few words for help texts, and ``render(report, width)``,
whose width in columns matters to terminals only. A view that every report folder holds also has ``FILE``, its name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from conformance.base.errors import UnknownName
from conformance.reports.model import Report

#: The format of ``conformance report`` without ``--format``.
DEFAULT = "text"


@dataclass(frozen=True)
class View:
    """One format. ``file`` is its name in a report folder, empty if it is written on request only."""

    name: str
    summary: str
    render: Callable[[Report, int], str]
    file: str = ""


def view_names() -> list[str]:
    """Return the names of all formats, the default first."""
    return sorted((module.name for module in pkgutil.iter_modules(__path__)), key=lambda name: (name != DEFAULT, name))


def find_view(name: str) -> View:
    """Return the view of that name; UnknownName with suggestions if there is none. Only its module is imported."""
    if name not in view_names():
        raise UnknownName("format", name, view_names())
    module = importlib.import_module(f"{__name__}.{name}")
    return View(name, module.SUMMARY, module.render, getattr(module, "FILE", ""))


def all_views() -> list[View]:
    """Return every view."""
    return [find_view(name) for name in view_names()]
