"""Waivers in a run: what they turn into what, and that nothing runs with a file that is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from conformance.reports.model import Report
from conformance.reports.verdict import Reason
from conformance.reports.waivers.model import Waiver
from tests.reports.gate import world

from .running import HERE, Run, run

CASES = str(HERE / "waived_cases.py")
TODAY = datetime.now(timezone.utc).date()


def waiver(case: str, verdict: Reason = Reason.WRONG, days: int = 30) -> Waiver:
    return replace(world.waiver(case, verdict=verdict), expires=TODAY + timedelta(days=days))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("waived")
    waivers = [
        *(waiver(f"known.{name}") for name in ("wrong", "otherwise", "mended")),
        waiver("known.cra*", Reason.CRASH),
        waiver("known.ended", days=-1),
    ]
    (folder / "cpu.toml").write_text(world.toml(*waivers))
    return run(CASES, "--accelerator=cpu", "--waivers=cpu.toml", "-n1", cwd=folder)


def test_each_case_ends_as_its_waiver_makes_it(done: Run) -> None:
    assert done.verdicts == {
        "known.wrong": ("skip", "waived"),
        "known.crash": ("skip", "waived"),
        "known.otherwise": ("fail", "raised"),
        "known.mended": ("fail", "waiver-stale"),
        "known.ended": ("fail", "waiver-expired"),
        "known.core": ("pass", "native"),
    }
    assert done.status == 1


def test_the_report_keeps_what_was_seen_and_lists_the_waived(done: Run) -> None:
    report: Report = done.report
    observed = {case.id: case.metrics.get("observed") for case in report.cases}

    assert observed["known.wrong"] == observed["known.ended"] == "wrong"
    assert observed["known.crash"] == "crash"
    assert sorted(report.waivers.used) == ["known.crash", "known.wrong"]
    assert report.waivers.stale == ("known.mended",)
    assert "https://acme.example/1" in done.messages["known.wrong"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (world.toml(waiver("known.core")), "known.core belongs to the mandatory core, which cannot be waived"),
        (world.toml(waiver("known.wrong", days=400)), "which is more than 180 days ahead"),
        ("[[waiver]]\ncases = 3", "waiver 1 lacks the key 'verdict'"),
    ],
)
def test_nothing_runs_with_a_wrong_file(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "cpu.toml").write_text(text)

    refused = run(CASES, "--accelerator=cpu", "--waivers=cpu.toml", "-n0", cwd=tmp_path)

    assert refused.status == 4
    assert sentence in refused.output
    assert "Traceback" not in refused.output


def test_one_file_of_known_failures_serves_every_profile(tmp_path: Path) -> None:
    known = Path(__file__).parents[2] / "accelerators" / "waivers" / "cpu.toml"

    # One area of the profile. The recipe of this repository, which has a test, runs all of it.
    words = ("--accelerator=cpu", f"--waivers={known}", "--profile=core", "--area=utils", "-n0")
    ended = run(*words, cwd=tmp_path)

    assert ended.status == 0, ended.output
    assert ended.report.cases
    assert ended.report.waivers.used == ended.report.waivers.stale == ()
