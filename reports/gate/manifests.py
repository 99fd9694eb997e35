"""Released manifests: what a version of the suite plans with a version of torch, as the gate holds reports against it.

One file holds every case with what it needs and the profiles it belongs to; a profile's plan is named by its hash.
``conformance manifest`` writes one. Those of released versions ship with this package.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance.errors import JournalError
from conformance.reports.json_files import collector_paused, inflated, parse_json, read_capped
from conformance.reports.model import PlannedRecord
from conformance.reports.plan_digest import plan_sha256
from conformance.reports.profiles import PROFILES, in_profile

SCHEMA: Final = 1
FOLDER: Final = Path(__file__).parent / "manifests"
#: Suite versions from the oldest to the newest. A release appends its own.
RELEASES: Final = ("0.1.0",)
_BITS: Final = {name: 1 << place for place, name in enumerate(PROFILES)}


class PlannedRow(NamedTuple):
    """One planned case; ``profiles`` has a bit for each profile that it belongs to."""

    tier: str
    level: str
    adaptive: bool
    in_reference: bool
    requires: tuple[str, ...]
    axes: Mapping[str, str]
    profiles: int


@dataclass(frozen=True)
class Manifest:
    """What a suite plans. ``torch`` is major.minor; ``sha256`` names the plan of each profile.

    ``rows`` is the JSON text of the cases, which is only parsed when somebody asks for single ones: a report whose
    plan has the right hash has the right cases.
    """

    suite: str
    torch: str
    sha256: Mapping[str, str]
    rows: bytes
    where: str = field(default="", compare=False)

    @cached_property
    def cases(self) -> Mapping[str, PlannedRow]:
        """Every planned case by id; JournalError if the rows have another form."""
        with collector_paused():
            value = parse_json(self.rows, self.where)
        try:
            return _checked({id: PlannedRow._make((*row[:4], tuple(row[4]), *row[5:])) for id, *row in value})
        except (TypeError, ValueError, AttributeError, LookupError):
            raise JournalError(f"{self.where} is not a manifest of this suite: its rows have another form.") from None

    def required(self, profile: str) -> frozenset[str]:
        """The ids of a profile's cases."""
        bit = _BITS[profile]
        return frozenset(id for id, row in self.cases.items() if row.profiles & bit)


def torch_series(version: str) -> str:
    """``2.13`` of ``2.13.0+cpu``: patch releases and vendors' builds have the operators of their series."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else ""


def make_manifest(suite: str, torch: str, planned: Iterable[PlannedRecord]) -> Manifest:
    """The manifest of a plan."""
    records = sorted(planned, key=lambda one: one.id)
    sha256 = {name: plan_sha256(suite, (one for one in records if in_profile(name, one.facts))) for name in PROFILES}
    rows = json.dumps([[one.id, *_row(one)] for one in records], separators=(",", ":"))
    return Manifest(suite, torch_series(torch), sha256, rows.encode(), "the new manifest")


def _row(one: PlannedRecord) -> PlannedRow:
    mask = sum(bit for name, bit in _BITS.items() if in_profile(name, one.facts))
    return PlannedRow(one.tier, one.level, one.adaptive, one.in_reference, one.requires, dict(one.axes), mask)


def dump(manifest: Manifest) -> bytes:
    """Two lines of JSON, the head and the cases, compressed; the same bytes for the same manifest."""
    head = {"schema": SCHEMA, "suite": manifest.suite, "torch": manifest.torch, "profiles": dict(manifest.sha256)}
    text = json.dumps(head, separators=(",", ":")).encode() + b"\n" + manifest.rows
    return gzip.compress(text, 9, mtime=0)


def file_name(suite: str, torch: str) -> str:
    return f"{suite}-torch{torch_series(torch)}.json.gz"


def released(suite: str, torch: str) -> Manifest | None:
    """The manifest that ships for these versions, or None. The names come from a report, so they are only compared."""
    wanted = file_name(suite, torch)
    path = next((path for path in FOLDER.glob("*.json.gz") if path.name == wanted), None)
    return None if path is None else read_manifest(path)


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file, compressed or not; JournalError is one sentence."""
    return parse_manifest(inflated(read_capped(path), str(path)), str(path))


def parse_manifest(data: bytes, path: str) -> Manifest:
    """The manifest in two lines of JSON; ``path`` is what errors call them."""
    head, _, rows = data.partition(b"\n")
    value = parse_json(head, path)
    if not isinstance(value, dict) or not {"schema", "suite", "torch", "profiles"} <= value.keys():
        raise JournalError(f"{path} is not a released manifest; make one with: conformance manifest")
    if value["schema"] != SCHEMA:
        raise JournalError(f"{path} has schema {value['schema']!r}; this version reads schema {SCHEMA}.")
    try:
        sha256 = {name: str(value["profiles"][name]) for name in PROFILES}
    except (TypeError, LookupError):
        raise JournalError(f"{path} is not a manifest of this suite: it names other profiles.") from None
    return Manifest(str(value["suite"]), str(value["torch"]), sha256, rows, path)


def _checked(cases: dict[Any, PlannedRow]) -> dict[str, PlannedRow]:
    for id, row in cases.items():
        if type(id) is not str or type(row.profiles) is not int or type(row.axes) is not dict:
            raise TypeError(id)
    return cases
