"""``conformance list``: print cases, capabilities or accelerators, one per line."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from conformance.cli.main import known_name, known_names

if TYPE_CHECKING:
    from conformance.reports.planned import PlannedCase

SUMMARY = "List cases, capabilities or accelerators."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--area", metavar="AREA", action="append", help="only these areas (repeat the option, or use commas)"
    )
    parser.add_argument("--tier", metavar="TIER", help="only one tier: unit, workload or deep (default: not deep)")
    parser.add_argument(
        "--dtype", metavar="DTYPE", action="append", help="only these dtypes (repeat the option, or use commas)"
    )
    parser.add_argument("--profile", metavar="NAME", help="only the cases that a profile requires")
    parser.add_argument("--count", action="store_true", help="print the number of cases of each area")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--capabilities", action="store_true", help="list all capabilities instead of cases")
    instead.add_argument(
        "--accelerators", action="store_true", help="list the names for --accelerator instead of cases"
    )


def run(arguments: argparse.Namespace) -> int:
    for line in _lines(arguments):
        print(line)
    return 0


def _lines(arguments: argparse.Namespace) -> Iterator[str]:
    """Return the lines to print: capabilities, accelerators, counts, or case ids."""
    if arguments.capabilities:
        return _capabilities()
    if arguments.accelerators:
        return _accelerators()
    chosen = _chosen(arguments)
    return _counts(chosen) if arguments.count else map(_line, chosen)


def _line(planned: PlannedCase) -> str:
    """Return the id, with a comment for a case that is not about the device. ``--case-file`` reads such lines."""
    note = planned.about_note
    return f"{planned.id}  # {note}" if note else planned.id


def _capabilities() -> Iterator[str]:
    """Yield the capabilities with their descriptions. Core capabilities are marked."""
    from conformance.accelerators.capabilities import VOCABULARY

    width = max(map(len, VOCABULARY))
    for capability in VOCABULARY.values():
        yield f"{capability.name:<{width}}  {'core  ' if capability.core else '      '}{capability.doc}"


def _accelerators() -> Iterator[str]:
    from conformance.accelerators.registry import names

    yield from names()


def _chosen(arguments: argparse.Namespace) -> list[PlannedCase]:
    """Return the cases that the options select. A wrong option is reported before any suite is imported."""
    from conformance.accelerators.capabilities import DTYPES
    from conformance.plan.bundled import area_names
    from conformance.plan.case import Tier
    from conformance.plan.known_cases import known_cases
    from conformance.plan.run_options import RunOptions
    from conformance.plan.selection import selector
    from conformance.reports.profiles import PROFILES

    options = RunOptions(
        accelerator="",
        profile=arguments.profile and known_name("profile", arguments.profile, PROFILES),
        areas=known_names("area", arguments.area, area_names()),
        tier=arguments.tier and known_name("tier", arguments.tier, [tier.value for tier in Tier]),
        dtypes=known_names("dtype", arguments.dtype, DTYPES),
    )
    is_selected = selector(options)
    return [planned for planned in known_cases(options.areas or None) if is_selected(planned)]


def _counts(chosen: list[PlannedCase]) -> Iterator[str]:
    """Yield the number of cases of each area, and their sum."""
    areas = Counter(planned.area for planned in chosen)
    width = max(map(len, [*areas, "total"]))
    for area, number in sorted(areas.items()):
        yield f"{area:<{width}}  {number:>6}"
    yield f"{'total':<{width}}  {len(chosen):>6}"
