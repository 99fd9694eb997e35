"""``conformance manifest``: write the plan of the installed suite as a manifest, which the gate judges by.

With ``--release`` it writes the manifests of all torch series. The plans of two series differ in the operators only,
and the list of operators of each series is kept beside the operator cases.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.reports.gate.manifests import Manifest

SUMMARY = "Write the plan of this suite as a manifest for the gate."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE, such as manifest.json.gz")
    parser.add_argument(
        "--release",
        action="store_true",
        help="write the released manifests of all torch series, and the names for declarations, in a checkout",
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.accelerators import subjects
    from conformance.reports.gate.manifests import dump
    from conformance.reports.writer import write_bytes, write_text

    manifest = current()
    # Write before printing: a reader such as `head` may close the pipe, which ends the command.
    if arguments.output is not None:
        write_bytes(arguments.output, dump(manifest))
    written = [f"{arguments.output.name}: {_versions(manifest)}"] if arguments.output is not None else []
    if arguments.release:
        keep_operators()
        released = list(releases())
        written += [_release(other) for other in released]
        write_text(subjects.FILE, subjects.dump({other.torch: _cells(other) for other in released}))
    for name, sha256 in manifest.sha256.items():
        print(f"{name:<12} {len(manifest.required(name)):>6} cases  {sha256}")
    print("\n".join(written), end="\n" if written else "")
    return 0


def _cells(manifest: Manifest) -> Iterator[str]:
    """Yield the cells that the planned cases require, and those of kernels that have no case of their own."""
    from conformance.kernels.specifications import specifications

    yield from (cell for planned in manifest.cases.values() for cell in planned.requires)
    yield from (f"kernels.{kernel.name}" for kernel in specifications())


def _versions(manifest: Manifest) -> str:
    return f"suite {manifest.suite} with torch {manifest.torch}"


def current() -> Manifest:
    """Return the manifest of the installed suite with the installed torch."""
    from conformance.plan.bundled import bundled_cases, suite_version, torch_version
    from conformance.reports.gate.manifests import make_manifest

    return make_manifest(suite_version(), torch_version(), [bundled.case.planned for bundled in bundled_cases()])


# --- releases -------------------------------------------------------------------------------------------------------


def keep_operators() -> None:
    """Write the list of operators of the installed torch to the lists of all series."""
    from conformance.plan.bundled import torch_version
    from conformance.reports.gate.manifests import torch_series
    from conformance.suites.operators.plan.series import write_list

    write_list(torch_series(torch_version()))


def releases() -> Iterable[Manifest]:
    """Return the manifest of every series whose list of operators is kept: a complete one, and changes from it."""
    from conformance.plan.bundled import area_names, bundled_cases, suite_version
    from conformance.reports.gate.manifests import PINNED, changes, make_manifest
    from conformance.suites.operators.plan.catalogue import AREA, cases_of
    from conformance.suites.operators.plan.series import known_series, read_list

    others = [bundled.case.planned for bundled in bundled_cases(set(area_names()) - {AREA})]

    def plan(series: str) -> Manifest:
        operators = [case.planned for operator in read_list(series) for case in cases_of(operator)]
        return make_manifest(suite_version(), series, [*others, *operators])

    base = plan(PINNED)
    return [base, *(changes(plan(series), base) for series in known_series() if series != PINNED)]


def _release(manifest: Manifest) -> str:
    """Write a released manifest, and return the line about it."""
    from conformance.reports.gate.manifests import FOLDER, dump, file_name
    from conformance.reports.writer import write_bytes

    path = FOLDER / file_name(manifest.suite, manifest.torch)
    write_bytes(path, dump(manifest))
    return f"{path.name}: {_versions(manifest)}, {len(manifest.cases)} cases"
