"""Packages of the distribution: every folder with an ``__init__.py`` in the four rooms."""

from __future__ import annotations

import atexit
import shutil
import tempfile
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


def scratch() -> str:
    """Return a folder that is deleted when the build ends.

    setuptools builds in the checkout. It leaves ``build/`` there, and installs from it what the checkout no longer has.
    """
    folder = tempfile.mkdtemp(prefix="conformance-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


if __name__ == "__main__":
    folder = scratch()
    # setuptools refuses a folder for metadata that does not exist, and makes the other one itself.
    setup(
        packages=packages(),
        package_dir=ROOMS,
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )
