"""``conformance manifest``: write the plan of the installed suite as a manifest, which the gate judges by."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.reports.gate.manifests import Manifest

SUMMARY = "Write the plan of this suite as a manifest for the gate."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE, such as manifest.json.gz")
    parser.add_argument(
        "--release", action="store_true", help="write the released manifest, and the names for declarations"
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.accelerators import subjects
    from conformance.reports.gate.manifests import FOLDER, dump, file_name
    from conformance.reports.writer import write_bytes, write_text

    manifest = current()
    target = FOLDER / file_name(manifest.suite, manifest.torch) if arguments.release else arguments.output
    # Write before printing: a reader such as `head` may close the pipe, which ends the command.
    if target is not None:
        write_bytes(target, dump(manifest))
    if arguments.release:
        write_text(subjects.FILE, subjects.dump(manifest.torch, _cells(manifest)))
    for name, sha256 in manifest.sha256.items():
        print(f"{name:<12} {len(manifest.required(name)):>6} cases  {sha256}")
    if target is not None:
        print(f"{target.name}: suite {manifest.suite} with torch {manifest.torch}")
    return 0


def _cells(manifest: Manifest) -> Iterator[str]:
    """Yield the cells that the planned cases require, and those of kernels that have no case of their own."""
    from conformance.kernels.specifications import specifications

    yield from (cell for planned in manifest.cases.values() for cell in planned.requires)
    yield from (f"kernels.{kernel.name}" for kernel in specifications())


def current() -> Manifest:
    """Return the manifest of the installed suite with the installed torch."""
    from conformance.plan import bundled_cases, suite_version, torch_version
    from conformance.reports.gate.manifests import make_manifest

    return make_manifest(suite_version(), torch_version(), [bundled.case.planned for bundled in bundled_cases()])
