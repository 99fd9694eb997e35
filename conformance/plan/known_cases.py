"""Descriptions of all cases of the suite, without importing the suite where they are known already.

The modules of the cases import torch, which takes seconds. The plan is therefore kept in a file in the user's cache
folder. The file's name is a hash of everything that the plan depends on: the versions of the packages, and size and
time of every file of the suite.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from conformance.base.cache import cache_folder, keep
from conformance.plan.bundled import area_names, bundled_cases, suite_version
from conformance.plan.run_options import RunOptions
from conformance.plan.selection import areas_of, selector
from conformance.process.python import child_python
from conformance.reports.planned import PlannedCase

#: Names of the values of a case, in the order in which they are kept.
_FIELDS: Final = [field.name for field in fields(PlannedCase)]
#: Timeout in seconds for the process that makes the plan.
_LONGEST_PLANNING: Final = 300.0


def known_cases(areas: Iterable[str] | None = None) -> list[PlannedCase]:
    """Return every bundled case of the given areas (default: all areas), also of the deep tier, in plan order."""
    rows = _read(cache_path())
    if rows is None:
        rows = [bundled.case.planned for bundled in bundled_cases(areas, deep=True)]
        if areas is None:
            keep(cache_path(), _dump(rows))
    wanted = None if areas is None else frozenset(areas)
    return [planned for planned in rows if wanted is None or planned.area in wanted]


def areas_in(options: RunOptions) -> list[str]:
    """Return the areas in which the options select a case, so that no other area is imported.

    Where no file has the plan, these are all areas that the options do not exclude by name.
    """
    named = areas_of(options, area_names())
    if not (options.profile or options.cases or options.dtypes or options.tier):
        return named
    rows = _read(cache_path())
    if rows is None:
        return named
    selected = selector(options)
    wanted = {planned.area for planned in rows if planned.area in named and selected(planned)}
    return [area for area in named if area in wanted] or named


def begin_reading_operators(areas: Sequence[str]) -> None:
    """Start to read PyTorch's database of operators, if it is needed and no file has the list."""
    from conformance.suites.operators.plan import catalogue

    if catalogue.AREA in areas:
        catalogue.begin_filling()


def known_elsewhere() -> list[PlannedCase]:
    """Return every bundled case; if no file has them, a child process makes the plan and writes the file.

    This process then does not import torch.
    """
    if not cache_path().exists():
        program = f"from {__name__} import known_cases; known_cases()"
        subprocess.run(  # noqa: S603 - this interpreter with our own module
            child_python(program), capture_output=True, check=False, timeout=_LONGEST_PLANNING
        )
    return known_cases()


@cache
def cache_path() -> Path:
    """Return the path of the file with the plan of this suite, these packages and this Python."""
    digest = hashlib.sha256("\0".join(_facts()).encode()).hexdigest()[:16]
    return cache_folder() / f"plan-{digest}.json"


def _facts() -> Iterator[str]:
    from conformance.suites.operators.plan.catalogue import cache_path as operators

    yield suite_version()
    yield platform.python_version()
    yield metadata.version("torch")
    yield operators().name  # changes with PyTorch's database of operators
    for folder in _folders():
        for path in _files(folder):
            status = os.stat(path)  # noqa: PTH116 - of a thousand files
            yield f"{path}:{status.st_size}:{status.st_mtime_ns}"


def _folders() -> list[str]:
    """Return the folders of the packages that a plan is made of."""
    import conformance.accelerators
    import conformance.kernels

    return [str(Path(__file__).parents[1]), *conformance.accelerators.__path__, *conformance.kernels.__path__]


def _files(folder: str) -> Iterator[str]:
    """Yield the files of a package that may shape its cases, sorted."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(entry.path)
            elif entry.name.endswith((".py", ".toml", ".json", ".gz")):
                yield entry.path


def _dump(rows: Iterable[PlannedCase]) -> str:
    """Return the plan as JSON: one list of values for each case."""
    return json.dumps([list(vars(planned).values()) for planned in rows], separators=(",", ":"))


def _planned(row: dict[str, Any]) -> PlannedCase:
    return PlannedCase(**{**row, "requires": tuple(row["requires"])})


def _read(path: Path) -> list[PlannedCase] | None:
    """Return the plan in a file, or None if there is none that can be read."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [_planned(dict(zip(_FIELDS, row, strict=True))) for row in rows]
    except (OSError, ValueError, TypeError, LookupError):
        return None
