"""Checks of this machine for ``conformance doctor``: packages, extras, folders and tools."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Final


class CheckState(Enum):
    """Result of a check: ``problem`` prevents a run; ``missing`` and ``note`` do not."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """Line of the output of ``conformance doctor``."""

    name: str
    state: CheckState
    text: str


@dataclass(frozen=True)
class Extra:
    """Optional package: the extra that installs it, and the effect if it is missing."""

    extra: str
    distribution: str
    skips: str


REQUIRED: Final = ("torch", "pytest", "pytest-xdist", "tabulate", "junitparser", "jinja2", "numpy", "expecttest")
EXTRAS: Final = (
    Extra("workloads", "scikit-learn", "the image workload is skipped"),
    Extra("hf", "transformers", "workloads with Hugging Face models are skipped"),
    Extra("deepspeed", "deepspeed", "--accelerator=deepspeed:NAME cannot be used"),
    Extra("triton", "triton", "Triton kernels are skipped"),
)
_COMPILERS: Final = ("c++", "g++", "clang++", "cl")

#: Function that returns the version of an installed distribution, or None.
Versions = Callable[[str], str | None]


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or ``None``."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def python_check(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Check that this Python is new enough."""
    text = ".".join(map(str, version))
    if version < (3, 10):
        return Check("python", CheckState.PROBLEM, f"{text} is too old; install Python 3.10 or newer")
    return Check("python", CheckState.OK, text)


def package_checks(version_of: Versions = installed_version) -> Iterator[Check]:
    """Yield a check of each package that the suite requires."""
    for name in REQUIRED:
        version = version_of(name)
        if version is None:
            yield Check(name, CheckState.PROBLEM, f"is not installed: pip install {name}")
        else:
            yield Check(name, CheckState.OK, version)


def extra_checks(version_of: Versions = installed_version) -> Iterator[Check]:
    """Yield a check of each optional package."""
    for extra in EXTRAS:
        version = version_of(extra.distribution)
        if version is None:
            install = f"in the checkout, pip install '.[{extra.extra}]'"
            yield Check(extra.distribution, CheckState.MISSING, f"{extra.skips}: {install}")
        else:
            yield Check(extra.distribution, CheckState.OK, version)


def manifest_check(version_of: Versions = installed_version) -> Check | None:
    """Return a note if the gate has no released manifest for the installed torch, else None."""
    from conformance.reports.gate.manifests import RELEASES, released_series, torch_series

    version = version_of("torch")
    known = released_series(RELEASES[-1])
    if version is None or torch_series(version) in known:
        return None
    text = f"torch {version} has no released manifest (there are {known[0]} to {known[-1]}); a run works, and the gate "
    return Check("manifest", CheckState.NOTE, f"{text}needs one: conformance manifest -o manifest.json.gz")


def compiler_check() -> Check:
    """Look for a C++ compiler, without which compiled cases are skipped."""
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        text = f"none of {', '.join(_COMPILERS)} is on PATH; compiled kernels and torch.compile are skipped"
        return Check("compiler", CheckState.MISSING, text)
    return Check("compiler", CheckState.OK, found)


def cache_check() -> Check:
    """Check that the cache folder is writable. If it is not, every process builds the list of operators again."""
    # Path.expanduser() raises for a user without a home folder; os.path.expanduser() keeps the ~.
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    folder = Path(root) / "accelerator-conformance"
    error = why_unwritable(folder)
    if error:
        return Check("cache folder", CheckState.NOTE, f"{folder}: {error}; every start takes some seconds longer")
    return Check("cache folder", CheckState.OK, str(folder))


def report_check(folder: Path) -> Check:
    """Check that reports can be written to ``folder``."""
    error = why_unwritable(folder)
    if error:
        return Check(
            "report folder", CheckState.PROBLEM, f"{folder}: {error}; choose another with --conformance-report DIR"
        )
    return Check("report folder", CheckState.OK, str(folder))


def why_unwritable(folder: Path) -> str | None:
    """Return why nothing can be written into the folder or its nearest existing parent; None if it is writable."""
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return error.strerror or str(error)
