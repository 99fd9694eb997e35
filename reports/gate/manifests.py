"""Released manifests: the plan of a suite version with a torch version, which the gate compares reports with.

A file holds every planned case, and the hash of each profile's plan. ``conformance manifest`` writes one. Manifests of
released versions ship with this package, one for each torch series. Only that of ``PINNED`` is complete. The others
hold the cases in which they differ from it, because series differ in some operators only.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from conformance.base.errors import JournalError
from conformance.reports.json_files import GZIP, collector_paused, inflated, parse_json, read_capped
from conformance.reports.planned import PlannedCase, plan_sha256
from conformance.reports.profiles import PROFILES, in_profile
from conformance.reports.report_json import as_plain, read_planned

SCHEMA: Final = 2
#: Compressed bytes of a manifest whose cases are not unpacked before they are needed, and bytes of a first line.
_LARGE: Final = 2 * 1024 * 1024
_LONGEST_HEAD: Final = 64 * 1024
#: Schema of a manifest that holds the changes from another one, which its key ``base`` names.
CHANGES_SCHEMA: Final = 3
#: The torch series of the complete manifests: the one that this project's own CI uses.
PINNED: Final = "2.13"
FOLDER: Final = Path(__file__).parent / "manifests"
#: Suite versions from the oldest to the newest. A release appends its own.
RELEASES: Final = ("0.1.0",)


@dataclass(frozen=True)
class Manifest:
    """Plan of a suite. ``torch`` is major.minor; ``sha256`` names the plan of each profile.

    ``text`` is the JSON of the planned cases. It is parsed only when single cases are needed: a report whose plan has
    the right hash has the right cases. With a ``base``, these are the cases that it lacks or has in another form, and
    ``without`` has the ids of its cases that are not planned.
    """

    suite: str
    torch: str
    sha256: Mapping[str, str]
    text: bytes
    where: str = field(default="", compare=False)
    #: A large file, compressed; it then stands for ``text``.
    packed: bytes = field(default=b"", compare=False, repr=False)
    base: Manifest | None = None
    without: frozenset[str] = frozenset()

    @cached_property
    def cases(self) -> Mapping[str, PlannedCase]:
        """Return every planned case by id; JournalError if the JSON has another form."""
        with collector_paused():
            text = inflated(self.packed, self.where).partition(b"\n")[2] if self.packed else self.text
            value = parse_json(text, self.where)
            own = {planned.id: planned for planned in read_planned(value, f"{self.where}: cases")}
        if self.base is None:
            return own
        merged = {id: planned for id, planned in self.base.cases.items() if id not in self.without} | own
        return {id: merged[id] for id in sorted(merged)}

    def required(self, profile: str) -> frozenset[str]:
        """Return the ids of a profile's cases."""
        return frozenset(id for id, planned in self.cases.items() if in_profile(profile, planned))


def torch_series(version: str) -> str:
    """Return ``2.13`` for ``2.13.0+cpu``. Patch releases and vendor builds have the operators of their series."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else ""


def changes(manifest: Manifest, base: Manifest) -> Manifest:
    """Return the same plan as changes from the plan of another manifest of the suite."""
    differing = [planned for id, planned in manifest.cases.items() if base.cases.get(id) != planned]
    text = json.dumps(as_plain(differing), separators=(",", ":")).encode()
    return replace(manifest, text=text, base=base, without=frozenset(base.cases.keys() - manifest.cases.keys()))


def make_manifest(suite: str, torch: str, planned: Iterable[PlannedCase]) -> Manifest:
    """Return the manifest of a plan."""
    cases = sorted(planned, key=lambda case: case.id)
    sha256 = {name: plan_sha256(suite, [case for case in cases if in_profile(name, case)]) for name in PROFILES}
    text = json.dumps(as_plain(cases), separators=(",", ":"))
    return Manifest(suite, torch_series(torch), sha256, text.encode(), "the new manifest")


def dump(manifest: Manifest) -> bytes:
    """Return two lines of JSON, the head and the cases, compressed; the same bytes for the same manifest."""
    head = {"schema": SCHEMA, "suite": manifest.suite, "torch": manifest.torch, "profiles": dict(manifest.sha256)}
    if manifest.base is not None:
        head |= {"schema": CHANGES_SCHEMA, "base": manifest.base.torch, "without": sorted(manifest.without)}
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


def released_series(suite: str) -> list[str]:
    """Return the torch series of the manifests that ship for a version of the suite, from the oldest to the newest."""
    names = re.compile(rf"{re.escape(suite)}-torch(\d+)\.(\d+)\.json\.gz")
    found = (names.fullmatch(path.name) for path in FOLDER.glob("*.json.gz"))
    return [f"{major}.{minor}" for major, minor in sorted((int(m[1]), int(m[2])) for m in found if m)]


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
    if value["schema"] not in (SCHEMA, CHANGES_SCHEMA):
        raise JournalError(
            f"{path} has schema {value['schema']!r}; this version reads schemas {SCHEMA} and {CHANGES_SCHEMA}. "
            "Make one with: conformance manifest"
        )
    try:
        sha256 = {name: str(value["profiles"][name]) for name in PROFILES}
    except (TypeError, LookupError):
        raise JournalError(f"{path} is not a manifest of this suite: it names other profiles.") from None
    manifest = Manifest(str(value["suite"]), str(value["torch"]), sha256, text, path)
    return _with_base(manifest, value) if value["schema"] == CHANGES_SCHEMA else manifest


def _with_base(manifest: Manifest, head: dict[str, Any]) -> Manifest:
    """Return the manifest with the one whose changes it holds, which ships with this package and is complete."""
    without, series = head.get("without"), head.get("base")
    if not isinstance(without, list) or not all(isinstance(id, str) for id in without):
        raise JournalError(f"{manifest.where} is not a released manifest: its key 'without' is no list of ids.")
    # Only this series: a base with a base of its own could go round in a circle.
    base = released(manifest.suite, PINNED) if series == PINNED and manifest.torch != PINNED else None
    if base is None:
        raise JournalError(f"{manifest.where} holds changes from a manifest that does not ship with this version.")
    return replace(manifest, base=base, without=frozenset(without))
