"""Plan of the suite: finds all bundled cases without hardware and pytest, and hashes them into a manifest."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.base.errors import ConformanceError, UsageError
from conformance.plan.case import Case, CaseFamily, Tier
from conformance.reports.json_files import collector_paused
from conformance.reports.planned import plan_sha256
from conformance.reports.report_json import as_plain

SUITES = Path(__file__).parents[1] / "suites"
MANIFEST_SCHEMA = 1


@dataclass(frozen=True)
class BundledCase:
    """Case of a bundled suite, with the function that is its body and the place of that function."""

    case: Case
    function: Callable[..., Any]
    path: Path
    line: int

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""


def noted_call(fields: Sequence[str]) -> tuple[str, str]:
    """Return the selector of ``--case`` and the label of a call that a process has noted; the selector may be empty.

    ``fields`` are those of a call of an operator, or a label alone.
    """
    if len(fields) == 1:
        return "", fields[0]
    # Imported here: it imports torch, which only a process with a crash to tell needs.
    from conformance.suites.operators.calls.calls import Call

    try:
        call = Call.of_note(*fields)
    except (TypeError, ValueError):
        return "", " ".join(fields)  # cut in the middle
    return call.key, call.label


def operators_named(function: str) -> tuple[str, ...]:
    """Return the operators of PyTorch's database that a public function, or a kernel, of this name computes."""
    from conformance.suites.operator_claims import names_of_kernel

    return names_of_kernel(function)


def area_names() -> list[str]:
    """Return the names of the areas that have a suite, sorted. An area is a folder of ``suites``."""
    return sorted(m.name for m in pkgutil.iter_modules([str(SUITES)]) if m.ispkg)


def suite_version() -> str:
    """Return the version of the installed suite. Raise UsageError if only its files are there."""
    try:
        return metadata.version("accelerator-conformance")
    except metadata.PackageNotFoundError:
        folder = Path(__file__).parents[2]
        raise UsageError(f"accelerator-conformance is not installed. Install it: pip install -e {folder}") from None


def bundled_cases(areas: Iterable[str] | None = None, *, deep: bool = False) -> list[BundledCase]:
    """Return every bundled case of the given areas (default: all areas), by area and then in file order.

    Cases of the deep tier, which an ordinary run leaves out, are among them only with ``deep``.
    """
    chosen = area_names() if areas is None else sorted(areas)
    found = [planned for area in chosen for module in _suite_modules(area) for planned in _cases_of(module)]
    return [planned for planned in found if deep or planned.case.tier is not Tier.DEEP]


def _suite_modules(area: str) -> Iterator[ModuleType]:
    folder = SUITES / area
    for path in sorted(folder.glob("test_*.py")):
        yield importlib.import_module(f"conformance.suites.{area}.{path.stem}")


def _cases_of(module: ModuleType) -> Iterator[BundledCase]:
    """Yield the cases that a suite module defines."""
    path = Path(module.__file__ or "")
    for function in vars(module).values():
        family = family_of(function)
        # A function that a suite imports from another module belongs to that module.
        if family is None or function.__module__ != module.__name__:
            continue
        line = function.__code__.co_firstlineno
        yield from (BundledCase(case, function, path, line) for case in family.expand())


def family_of(function: object) -> CaseFamily | None:
    """Return the cases that ``@case`` or ``@cases`` attached to a function; None for other objects."""
    family = getattr(function, "__conformance_family__", None)
    return family if isinstance(family, CaseFamily) else None


def manifest_sha256(cases: Sequence[Case]) -> str:
    """Return a hash of the planned cases, which does not depend on their order."""
    return plan_sha256(suite_version(), [case.planned for case in cases])


def make_manifest(planned: Sequence[tuple[Case, str]]) -> dict[str, Any]:
    """Return the manifest of ``(case, node id)`` pairs; raise ConformanceError if an id is planned twice."""
    cases = [case for case, _ in planned]
    _reject_duplicates(cases)
    with collector_paused():
        return {
            "schema": MANIFEST_SCHEMA,
            "sha256": manifest_sha256(cases),
            "suite": suite_version(),
            "torch": torch_version(),
            "cases": [{**as_plain(case.planned), "nodeid": nodeid} for case, nodeid in planned],
        }


def _reject_duplicates(cases: Sequence[Case]) -> None:
    """Raise ``ConformanceError`` if two cases have one id."""
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ConformanceError(f"case id {case.id!r} is planned twice; give one of the two another id.")
        seen.add(case.id)


def torch_version() -> str:
    """Return the version of the installed torch."""
    # Importing torch takes seconds, and `conformance list` and help texts do not need it.
    module = sys.modules.get("torch")
    return str(module.__version__) if module else metadata.version("torch")
