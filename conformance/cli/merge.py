"""``conformance merge``: merge the reports of all shards into one report of the whole run."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Merge the reports of all shards into one."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("reports", metavar="REPORT", type=Path, nargs="+", help="the reports of all shards: files or folders")
    add("-o", "--output", metavar="FILE", type=Path, required=True, help="the merged report.json to write")
    add(
        "--manifest",
        metavar="FILE",
        type=Path,
        help="plan of the whole run (default: the released manifest, if it fits)",
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.gate.manifests import read_manifest, released
    from conformance.reports.loading import load_together
    from conformance.reports.merge import merge
    from conformance.reports.report_json import to_json
    from conformance.reports.writer import write_text

    for path in (*arguments.reports, arguments.manifest):
        require(path)
    shards = load_together(arguments.reports)
    first = shards[0]
    released_manifest = released(first.run.suite.version, first.accelerator.torch)
    manifest = read_manifest(arguments.manifest) if arguments.manifest else released_manifest
    # A released manifest plans all bundled cases. It does not fit runs of other cases, or with other selections.
    bundled = manifest is not None and all(case.id in manifest.cases for shard in shards for case in shard.cases)
    complete = not any(set(shard.run.invocation.selection) - {"--shard"} for shard in shards)
    required = None
    if manifest is not None and (arguments.manifest or (bundled and complete)):
        required = manifest.required(first.run.profile or "full")
    merged = merge(shards, required)
    write_text(arguments.output, to_json(merged))
    counts = merged.counts
    print(
        f"{arguments.output}: {len(shards)} reports, planned {counts.planned}: pass {counts.passed}, "
        f"skip {counts.skipped}, fail {counts.failed}, lost {counts.lost}"
    )
    return 0
