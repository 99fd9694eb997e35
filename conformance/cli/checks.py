"""What the doctor looks at: packages, extras, folders and tools. Facts in, checks out."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Final


class State(Enum):
    """``problem`` keeps the suite from running; ``missing`` and ``note`` only make it do less."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's answer."""

    name: str
    state: State
    text: str


@dataclass(frozen=True)
class Extra:
    """An optional package: the extra that brings it, and what is skipped without it."""

    extra: str
    distribution: str
    skips: str


REQUIRED: Final = ("torch", "pytest", "pytest-xdist", "tabulate", "junitparser", "jinja2", "numpy", "expecttest")
EXTRAS: Final = (
    Extra("workloads", "scikit-learn", "the image workload is skipped"),
    Extra("hf", "transformers", "workloads with Hugging Face models are skipped"),
    Extra("deepspeed", "deepspeed", "--accelerator=deepspeed:NAME cannot be used"),
    Extra("triton", "triton", "Triton kernels are skipped"),
    Extra("forked", "pytest-forked", "--forked cannot be used; crashes are still survived with xdist"),
)
_COMPILERS: Final = ("c++", "g++", "clang++", "cl")

#: The version of an installed distribution, or None.
Versions = Callable[[str], str | None]


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def python_check(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    text = ".".join(map(str, version))
    if version < (3, 10):
        return Check("python", State.PROBLEM, f"{text} is too old; install Python 3.10 or newer")
    return Check("python", State.OK, text)


def package_checks(version_of: Versions = installed_version) -> Iterator[Check]:
    """What the suite cannot do without."""
    for name in REQUIRED:
        version = version_of(name)
        if version is None:
            yield Check(name, State.PROBLEM, f"is not installed: pip install {name}")
        else:
            yield Check(name, State.OK, version)


def extra_checks(version_of: Versions = installed_version) -> Iterator[Check]:
    """What only makes the suite do more."""
    for extra in EXTRAS:
        version = version_of(extra.distribution)
        if version is None:
            install = f"pip install 'accelerator-conformance[{extra.extra}]'"
            yield Check(extra.distribution, State.MISSING, f"{extra.skips}: {install}")
        else:
            yield Check(extra.distribution, State.OK, version)


def forked_check(version_of: Versions = installed_version) -> Check | None:
    """pytest-forked up to 1.7.5 fails every test with pytest 9.2 and later. Runs without ``--forked`` do not mind."""
    forked, pytest = version_of("pytest-forked"), version_of("pytest")
    if forked is None or pytest is None or _numbers(forked) > (1, 7, 5) or _numbers(pytest) < (9, 2):
        return None
    text = f"pytest-forked {forked} fails every test with pytest {pytest}; use pytest < 9.2 for runs with --forked"
    return Check("--forked", State.NOTE, text)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``9.2.0rc1`` is (9, 2, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def compiler_check() -> Check:
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        text = f"none of {', '.join(_COMPILERS)} is on PATH; compiled kernels and torch.compile are skipped"
        return Check("compiler", State.MISSING, text)
    return Check("compiler", State.OK, found)


def cache_check() -> Check:
    """An unwritable cache costs time only: the list of operators is then made anew by every process."""
    # Path.expanduser raises for a user without a home folder; this keeps the ~, which then cannot be written.
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    folder = Path(root) / "accelerator-conformance"
    error = why_unwritable(folder)
    if error:
        return Check("cache folder", State.NOTE, f"{folder}: {error}; every start takes some seconds more")
    return Check("cache folder", State.OK, str(folder))


def report_check(folder: Path) -> Check:
    error = why_unwritable(folder)
    if error:
        return Check("report folder", State.PROBLEM, f"{folder}: {error}; choose another with --conformance-report DIR")
    return Check("report folder", State.OK, str(folder))


def why_unwritable(folder: Path) -> str | None:
    """Why nothing can be written into the folder, or into the nearest parent that exists; None if it can."""
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if not there.is_dir():
        return f"{there} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror or str(error)
