"""Shards become one report that the gate accepts, or an error that names what is missing or there twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.base.errors import UsageError
from conformance.cli.main import main
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.rules import decide
from conformance.reports.loading import load
from conformance.reports.merge import merge
from conformance.reports.model import Accounting, Report
from conformance.reports.profiles import find_policy
from conformance.reports.report_json import to_json
from tests.reports.gate.world import NOW, PLAN, consistent, honest, manifest

IDS = [one.id for one in PLAN]


def shard(part: int, whole: int = 3, style: str = "=") -> Report:
    """Every third case of the plan, as a run of that part leaves it."""
    report = honest(f"shard-{part}", plan=tuple(PLAN[part - 1 :: whole]))
    words = (f"--shard={part}/{whole}",) if style == "=" else ("--shard", f"{part}/{whole}")
    invocation = replace(report.run.invocation, argv=("--accelerator=acme", *words, "-q"), selection=("--shard",))
    return replace(report, run=replace(report.run, invocation=invocation))


def test_merged_shards_are_accepted_like_the_whole() -> None:
    merged = merge([shard(1), shard(2, style=" "), shard(3)], IDS)

    decision = decide(GateEvidence(merged, find_policy("training"), NOW, manifest(), honest("old", days=10)))

    assert decision.findings == ()
    assert merged.run.invocation.argv == ("--accelerator=acme", "-q")
    assert {case.id for case in merged.cases} == set(IDS)
    assert merged.run.suite.manifest_sha256 == manifest().sha256["full"]


def test_the_order_of_the_shards_changes_nothing_but_the_command_line() -> None:
    forwards, backwards = merge([shard(1), shard(2), shard(3)]), merge([shard(3), shard(2), shard(1)])

    assert to_json(forwards) == to_json(backwards)


def test_a_missing_shard_is_named_by_its_cases_or_by_its_number() -> None:
    with pytest.raises(UsageError, match=r"leave out 4 cases: .*accelerator\.stream.* and 1 more"):
        merge([shard(1), shard(2)], IDS)
    with pytest.raises(UsageError, match=r"shards are missing: 3/3\."):
        merge([shard(1), shard(2)])


def test_overlapping_shards_are_named_by_their_cases() -> None:
    with pytest.raises(UsageError, match=r"overlap in 4 cases: .* and 1 more"):
        merge([shard(1), shard(2), shard(3), shard(2)])


def test_whole_reports_do_not_say_which_part_they_are() -> None:
    first = honest(plan=PLAN[:6])

    with pytest.raises(UsageError, match="do not say which part of the whole they are"):
        merge([first, honest(plan=PLAN[6:])])


def _run(**changes: Any) -> Callable[[Report], Report]:
    return lambda report: replace(report, run=replace(report.run, **changes))


def _suite(**changes: Any) -> Callable[[Report], Report]:
    return lambda report: _run(suite=replace(report.run.suite, **changes))(report)


def _environment(**changes: Any) -> Callable[[Report], Report]:
    return lambda report: replace(report, environment=replace(report.environment, **changes))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: replace(r, accelerator=replace(r.accelerator, name="other")), "accelerators: acme, other"),
        (lambda r: replace(r, schema=1), "formats: 2, 1"),
        (_run(profile="core"), "profiles: none, core"),
        (_run(strictness="certify"), "strictness levels: ci, certify"),
        (lambda r: _run(invocation=replace(r.run.invocation, seed=3))(r), "seeds: 0, 3"),
        (lambda r: _run(invocation=replace(r.run.invocation, selection=("-k", "--shard")))(r), "other selections"),
    ],
)
def test_reports_of_different_runs_are_not_merged(change: Callable[[Report], Report], what: str) -> None:
    with pytest.raises(UsageError, match=f"not shards of one run: they have different {what}"):
        merge([shard(1, 2), change(shard(2, 2))])


def test_what_a_shard_lost_stays_lost() -> None:
    broken = shard(2, 2)
    broken = replace(broken, cases=broken.cases[1:], accounting=Accounting(unaccounted=(PLAN[1],), torn_lines=2))
    unfinished = replace(broken, run=replace(broken.run, finished=""))

    merged = merge([shard(1, 2), unfinished], IDS)

    assert [one.id for one in merged.accounting.unaccounted] == [PLAN[1].id]
    assert (merged.totals.lost, merged.accounting.torn_lines, merged.run.finished) == (1, 2, "")


def test_the_command_writes_what_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{part}.json" for part in (1, 2)]
    for part, path in enumerate(paths, 1):
        path.write_text(to_json(shard(part, 2)))
    words = ["merge", *map(str, paths), "-o", str(tmp_path / "all.json")]

    assert main(words) == 0

    assert "2 reports, planned 12: pass 9, skip 3, fail 0, lost 0" in capsys.readouterr().out
    assert load(tmp_path / "all.json") == merge([shard(1, 2), shard(2, 2)])
    assert main([*words[:2], *words[3:]]) == 4
    assert "at least two" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: replace(r, accelerator=replace(r.accelerator, driver="1.3")), "driver 1.2 and 1.3"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, runtime="9")), r"runtime \(none\) and 9"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, device_names=("Acme Two",))), "chips Acme One"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, device="other:0")), "kind of device acme and other"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, communication_backend="x")), "collectives acmeccl"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, torch="2.6")), "torch 2.13.0"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, torch_build="1d")), "build of torch 2f3c and 1d"),
        (lambda r: replace(r, accelerator=replace(r.accelerator, package="2")), "backend package"),
        (_suite(version="0.0.9"), "suite 0.1.0 and 0.0.9"),
        (_suite(commit="abcdef0"), "commit of the suite"),
        (_suite(files_sha256="11" * 32), "files of the suite 5e5e5e5e5e5e and 111111111111"),
        (lambda r: consistent(replace(r, declaration=replace(r.declaration, cells=()))), "declaration"),
        (_environment(facts={"x": 1}), "python"),
        (_environment(plugins=("pytest-xdist 3.8.0", "mine 1")), "plugins"),
        (_environment(variables={"OMP_NUM_THREADS": "1"}), r"variable OMP_NUM_THREADS \(none\) and 1"),
    ],
)
def test_shards_of_different_stacks_are_not_merged(change: Callable[[Report], Report], what: str) -> None:
    with pytest.raises(UsageError, match=f"not shards of one run: they ran on different stacks: .*{what}"):
        merge([shard(1, 2), change(shard(2, 2))])


def test_the_start_of_the_merged_run_is_the_earliest_time_and_not_the_smallest_text() -> None:
    first, second = shard(1, 2), shard(2, 2)
    early = replace(first, run=replace(first.run, started="2026-05-31T23:00:00+14:00"))
    late = replace(second, run=replace(second.run, started="2026-05-31T11:00:00+00:00"))

    assert merge([early, late], IDS).run.started == "2026-05-31T23:00:00+14:00"
    assert merge([early, late], IDS).run.invocation.shards == 2
