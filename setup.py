"""Packages of the distribution: every folder with an ``__init__.py`` in the four rooms."""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

#: Import name of each room, and its folder. pyproject.toml cannot map discovered packages to other names.
ROOMS = {
    "conformance": "conformance",
    "conformance.accelerators": "accelerators",
    "conformance.kernels": "kernels",
    "conformance.reports": "reports",
}


def packages() -> list[str]:
    """Return the import names of all packages on disk."""
    root = Path(__file__).parent
    return [name for room, folder in ROOMS.items() for name in [room, *_inside(room, root / folder)]]


def _inside(room: str, folder: Path) -> list[str]:
    return [f"{room}.{name}" for name in find_packages(str(folder))]


if __name__ == "__main__":
    setup(packages=packages(), package_dir=ROOMS)
