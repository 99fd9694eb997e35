"""Released manifests: the plan of a suite version with a torch version, which the gate compares reports with.

A file holds every planned case, and the hash of each profile's plan. ``conformance manifest`` writes one. Manifests of
released versions ship with this package.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from conformance.errors import JournalError
from conformance.reports.json_files import GZIP, collector_paused, inflated, parse_json, read_capped
from conformance.reports.planned import PlannedCase, plan_sha256
from conformance.reports.profiles import PROFILES, in_profile
from conformance.reports.report_json import as_plain, read_planned

SCHEMA: Final = 2
#: Compressed bytes of a manifest whose cases are not unpacked before they are needed, and bytes of a first line.
_LARGE: Final = 2 * 1024 * 1024
_LONGEST_HEAD: Final = 64 * 1024
FOLDER: Final = Path(__file__).parent / "manifests"
#: Suite versions from the oldest to the newest. A release appends its own.
RELEASES: Final = ("0.1.0",)


@dataclass(frozen=True)
class Manifest:
    """Plan of a suite. ``torch`` is major.minor; ``sha256`` names the plan of each profile.

    ``text`` is the JSON of the planned cases. It is parsed only when single cases are needed: a report whose plan has
    the right hash has the right cases.
    """

    suite: str
    torch: str
    sha256: Mapping[str, str]
    text: bytes
    where: str = field(default="", compare=False)
    #: A large file, compressed; it then stands for ``text``.
    packed: bytes = field(default=b"", compare=False, repr=False)

    @cached_property
    def cases(self) -> Mapping[str, PlannedCase]:
        """Return every planned case by id; JournalError if the JSON has another form."""
        with collector_paused():
            text = inflated(self.packed, self.where).partition(b"\n")[2] if self.packed else self.text
            value = parse_json(text, self.where)
            return {planned.id: planned for planned in read_planned(value, f"{self.where}: cases")}

    def required(self, profile: str) -> frozenset[str]:
        """Return the ids of a profile's cases."""
        return frozenset(id for id, planned in self.cases.items() if in_profile(profile, planned))


def torch_series(version: str) -> str:
    """Return ``2.13`` for ``2.13.0+cpu``. Patch releases and vendor builds have the operators of their series."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else ""


def make_manifest(suite: str, torch: str, planned: Iterable[PlannedCase]) -> Manifest:
    """Return the manifest of a plan."""
    cases = sorted(planned, key=lambda case: case.id)
    sha256 = {name: plan_sha256(suite, [case for case in cases if in_profile(name, case)]) for name in PROFILES}
    text = json.dumps(as_plain(cases), separators=(",", ":"))
    return Manifest(suite, torch_series(torch), sha256, text.encode(), "the new manifest")


def dump(manifest: Manifest) -> bytes:
    """Return two lines of JSON, the head and the cases, compressed; the same bytes for the same manifest."""
    head = {"schema": SCHEMA, "suite": manifest.suite, "torch": manifest.torch, "profiles": dict(manifest.sha256)}
    text = json.dumps(head, separators=(",", ":")).encode() + b"\n" + manifest.text
    return gzip.compress(text, 9, mtime=0)


def file_name(suite: str, torch: str) -> str:
    return f"{suite}-torch{torch_series(torch)}.json.gz"


def released(suite: str, torch: str) -> Manifest | None:
    """Return the manifest that ships for these versions, or None."""
    # The versions come from a report. They are compared with names of files, and never become a path.
    wanted = file_name(suite, torch)
    path = next((path for path in FOLDER.glob("*.json.gz") if path.name == wanted), None)
    return None if path is None else read_manifest(path)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file, compressed or not; JournalError says in one sentence why it cannot be read."""
    data, where = read_capped(path), str(path)
    if not data.startswith(GZIP) or len(data) < _LARGE:
        return parse_manifest(inflated(data, where), where)
    # The cases of a large manifest are seldom needed, and would take more memory than the report.
    head, end, _ = inflated(data, where, _LONGEST_HEAD).partition(b"\n")
    return replace(parse_manifest(head + end, where), packed=data)


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest in two lines of JSON. Errors call them ``path``."""
    head, _, text = data.partition(b"\n")
    value = parse_json(head, path)
    if not isinstance(value, dict) or not {"schema", "suite", "torch", "profiles"} <= value.keys():
        raise JournalError(f"{path} is not a released manifest; make one with: conformance manifest")
    if value["schema"] != SCHEMA:
        raise JournalError(
            f"{path} has schema {value['schema']!r}; this version reads schema {SCHEMA}. "
            "Make one with: conformance manifest"
        )
    try:
        sha256 = {name: str(value["profiles"][name]) for name in PROFILES}
    except (TypeError, LookupError):
        raise JournalError(f"{path} is not a manifest of this suite: it names other profiles.") from None
    return Manifest(str(value["suite"]), str(value["torch"]), sha256, text, path)
