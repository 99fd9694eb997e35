"""Released manifests: what ships is what the suite plans, and a foreign file is refused."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from conformance.base.errors import JournalError
from conformance.cli.manifest import current, releases
from conformance.reports import json_files
from conformance.reports.gate import manifests
from conformance.reports.gate.manifests import (
    PINNED,
    RELEASES,
    changes,
    dump,
    make_manifest,
    read_manifest,
    released,
    released_series,
    torch_series,
)
from conformance.reports.planned import plan_sha256
from conformance.suites.operators.plan.series import known_series

from .world import PLAN, TORCH, manifest

#: The torch that this project's own CI pins.
PINNED_BY_TOX = re.search(r"torch==([\d.]+)", (Path(__file__).parents[3] / "tox.ini").read_text())


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "m.json.gz").write_bytes(dump(manifest()))
    (tmp_path / "m.json").write_bytes(gzip.decompress(dump(manifest())))

    assert read_manifest(tmp_path / "m.json.gz") == read_manifest(tmp_path / "m.json") == manifest()
    assert dump(manifest()) == dump(manifest(PLAN[::-1]))


def test_a_profiles_hash_is_that_of_a_run_of_it() -> None:
    inside = [one for one in PLAN if one.level == "core"]

    assert manifest().sha256["core"] == plan_sha256("0.1.0", inside)
    assert manifest().required("core") == {one.id for one in inside}
    assert manifest().required("full") == {one.id for one in PLAN}


def test_the_manifests_that_ship_are_what_the_suite_plans() -> None:
    """The plan of the installed torch is that of a run, and the plans of all series are of the cases of today."""
    installed, now = metadata.version("torch"), current()
    made = {plan.torch: plan for plan in releases()}

    assert now.suite == RELEASES[-1]
    assert released_series(now.suite) == known_series() == sorted(made, key=_numbers)
    for series, plan in made.items():
        assert released(now.suite, series) == plan, "run: conformance manifest --release"
    if torch_series(installed) in made:
        assert made[torch_series(installed)].cases == now.cases, "run: conformance manifest --release"


def test_the_complete_manifest_is_of_the_torch_that_ci_pins() -> None:
    assert PINNED_BY_TOX
    assert torch_series(PINNED_BY_TOX[1]) == PINNED


def _numbers(series: str) -> list[int]:
    return [int(part) for part in series.split(".")]


def test_changes_from_another_manifest_are_the_same_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = [replace(PLAN[4], in_reference=False), *PLAN[5:], replace(PLAN[0], id="accelerator.older")]
    whole, base = make_manifest("0.1.0", "2.9", older), manifest()
    monkeypatch.setattr(manifests, "FOLDER", tmp_path)
    (tmp_path / f"0.1.0-torch{PINNED}.json.gz").write_bytes(dump(base))
    (tmp_path / "0.1.0-torch2.9.json.gz").write_bytes(dump(changes(whole, base)))

    read = released("0.1.0", "2.9.1")

    assert read is not None
    assert (list(read.cases.items()), read.sha256) == (list(whole.cases.items()), whole.sha256)
    assert len(read.text) < len(whole.text) / 2
    assert (released_series("0.1.0"), released_series("0.2.0")) == (["2.9", PINNED], [])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"base": "2.9"}, "holds changes from a manifest that does not ship"),
        ({"base": ["2.13"]}, "holds changes from a manifest that does not ship"),
        ({"torch": PINNED}, "holds changes from a manifest that does not ship"),
        ({"suite": "0.0.9"}, "holds changes from a manifest that does not ship"),
        ({"without": "all"}, "its key 'without' is no list of ids"),
        ({"without": [1]}, "its key 'without' is no list of ids"),
    ],
)
def test_changes_from_nothing_are_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    head = {"schema": 3, "suite": "0.1.0", "torch": "2.9", "base": PINNED, "without": []}
    profiles = dict(manifest().sha256)
    (tmp_path / "m").write_bytes(json.dumps({**head, "profiles": profiles, **change}).encode() + b"\n[]")

    with pytest.raises(JournalError, match=sentence):
        read_manifest(tmp_path / "m")


def test_no_manifest_is_found_by_a_name_that_leads_elsewhere() -> None:
    assert released("../manifests/0.1.0", TORCH) is None
    assert released("0.1.0", "../2.13") is None
    assert released("*", "2.13") is None
    assert released("0.1.0", "") is None


def _changed(head: Any = lambda v: None, cases: Any = lambda v: None) -> bytes:
    parts = [json.loads(line) for line in gzip.decompress(dump(manifest())).splitlines()]
    head(parts[0])
    cases(parts[1])
    return b"\n".join(json.dumps(part).encode() for part in parts)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{}", "is not a released manifest"),
        (b"[]", "is not a released manifest"),
        (_changed(lambda v: v.update(schema=1)), "has schema 1; this version reads schemas 2 and 3"),
        (_changed(cases=lambda v: v.append([1, 2])), r"cases\[12\] must be an object"),
        (_changed(cases=lambda v: v.append(v[0])), "cases plans 'accelerator.device' twice"),
        (_changed(cases=lambda v: v[0].update(axes=[])), r"cases\[0\]\.axes must be an object"),
        (_changed(cases=lambda v: v[0].update(profiles=1)), r"cases\[0\] has an unknown key 'profiles'"),
        (_changed(lambda v: v["profiles"].pop("core")), "it names other profiles"),
        (b"\x1f\x8b" + b"x" * 50, "cannot be decompressed"),
        (dump(manifest())[:-20], "cannot be decompressed"),
    ],
)
def test_what_is_no_manifest_is_one_sentence(data: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(data)

    with pytest.raises(JournalError, match=sentence) as caught:
        _ = read_manifest(tmp_path / "m").cases

    assert "\n" not in str(caught.value)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_BYTES", 1000)
    (tmp_path / "m").write_bytes(gzip.compress(b" " * 100_000))

    with pytest.raises(JournalError, match="unpacks to more than"):
        read_manifest(tmp_path / "m")


def test_ids_that_hold_separators_do_not_look_like_other_cases() -> None:
    """One case whose id is written like two would let a report leave one out."""
    two = PLAN[:2]
    text = "accelerator.device\x1faccelerator\x1funit\x1fcore\x1f01\x1f\x1fdevice\naccelerator.rng"
    one = replace(two[1], id=text)

    assert plan_sha256("0.1.0", two) != plan_sha256("0.1.0", [one])
    assert plan_sha256("0.1.0", two) == plan_sha256("0.1.0", two[::-1])
    parts = [replace(two[0], requires=("a\x1fb",)), replace(two[0], requires=("a", "b"))]
    assert plan_sha256("x", parts[:1]) != plan_sha256("x", parts[1:])


def test_a_world_size_changes_the_hash_where_it_decides_the_profile() -> None:
    """Where collectives are required it decides nothing, and reports without it keep their hash."""
    alone, collective = PLAN[2], replace(PLAN[2], requires=("comm",))

    assert plan_sha256("x", [replace(alone, world_size=2)]) != plan_sha256("x", [alone])
    assert plan_sha256("x", [replace(alone, world_size=2)]) != plan_sha256("x", [replace(alone, world_size=3)])
    assert plan_sha256("x", [replace(collective, world_size=2)]) == plan_sha256("x", [collective])
