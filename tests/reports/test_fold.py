"""Every planned id gets exactly one verdict, or is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.base.errors import JournalError
from conformance.reports.fold import fold, fold_without_manifest
from conformance.reports.journal import JournalRecords, JournalWriter, read_journal
from conformance.reports.repro import repro
from conformance.reports.totals import ExitStatus
from conformance.reports.verdict import Outcome, Reason, failed, passed, skipped
from tests.reports.samples import ENDINGS, entry, manifest, report_of, sample_report, write_run, write_sample


def test_every_planned_case_is_a_case_or_unaccounted(tmp_path: Path) -> None:
    report = sample_report(tmp_path)

    planned = [one["id"] for one, _ in ENDINGS] + ["profiling.late"]
    assert sorted(planned) == sorted([c.id for c in report.cases] + [p.id for p in report.accounting.unaccounted])
    assert [p.id for p in report.accounting.unaccounted] == ["profiling.trace", "profiling.late"]
    assert report.accounting.in_flight == ("profiling.trace",)


def test_counts(tmp_path: Path) -> None:
    counts = sample_report(tmp_path).counts

    assert (counts.planned, counts.passed, counts.skipped, counts.failed, counts.lost) == (12, 4, 4, 2, 2)
    # int8 and eig's two cells are not claimed.
    assert counts.claimed == 9


def test_a_second_verdict_and_an_unplanned_one_are_named(tmp_path: Path) -> None:
    journal = write_run(tmp_path, [(entry("a.one"), passed())])
    writer = JournalWriter(journal)
    writer.end("a.one", failed(Reason.CRASH), 1.0)
    writer.end("a.two", passed(), 1.0)
    writer.close()

    report = fold(manifest([entry("a.one")]), read_journal(journal))

    assert report.accounting.duplicates == ("a.one",)
    assert report.accounting.unknown == ("a.two",)
    assert [(c.id, c.outcome) for c in report.cases] == [("a.one", Outcome.PASS)]
    assert report.exit_status() is ExitStatus.UNACCOUNTED


def test_a_failure_carries_a_command_that_repeats_it(tmp_path: Path) -> None:
    argv = ["--accelerator=supa", "--capabilities", "supa claims.toml"]

    report = report_of(tmp_path, (entry("a.b", dtype="int8"), failed(Reason.WRONG)), argv=argv, strictness="certify")

    expected = (
        "pytest --accelerator=supa --case 'a.b[int8]' -n0 --capabilities 'supa claims.toml'"
        " --conformance-seed=7 --strictness=certify"
    )
    assert report.cases[0].repro == expected


def test_a_pass_carries_none(tmp_path: Path) -> None:
    assert report_of(tmp_path, (entry("a.b"), passed())).cases[0].repro == ""


def test_nothing_tells_who_ran_it_and_where(tmp_path: Path) -> None:
    message = "wrong at /home/alice/src/supa/kernels.py:3 and C:\\Users\\alice\\x.py"

    report = report_of(
        tmp_path,
        (entry("a.b"), failed(Reason.WRONG, message)),
        argv=["--conformance-report=/home/alice/out", "--capabilities=/home/alice/supa.toml"],
    )

    everything = repr(report)
    assert "alice" not in everything
    assert report.cases[0].message == "wrong at …/kernels.py:3 and …/x.py"
    assert dict(report.environment.facts) == {"python": "3.11.7", "system": "Linux", "torch": "2.13.0"}


def test_options_that_leave_cases_out_are_the_selection(tmp_path: Path) -> None:
    argv = ["--accelerator=supa", "-n2", "--area=operators", "-kadd", "--profile", "training"]

    report = report_of(tmp_path, (entry("a.b"), passed()), argv=argv)

    assert report.run.invocation.selection == ("--area", "-kadd")
    assert report.badge is None


def test_numbers_that_json_cannot_hold_become_text(tmp_path: Path) -> None:
    report = report_of(tmp_path, (entry("a.b"), passed(error=float("nan"), big=10**30)))

    assert dict(report.cases[0].metrics) == {"big": str(10**30), "error": "nan"}


def test_a_manifest_of_another_run_is_refused(tmp_path: Path) -> None:
    journal = write_run(tmp_path, [(entry("a.b"), passed())])

    with pytest.raises(JournalError, match="belongs to manifest 5f5f5f5f5f5f"):
        fold(manifest([entry("a.b")], sha256="00" * 32), read_journal(journal))


@pytest.mark.parametrize(
    "broken",
    [{}, {"cases": 3}, {"cases": [3]}, {"cases": [{"id": "a.b"}]}, {"cases": [{"id": 3, "area": "a"}]}],
)
def test_a_broken_manifest_is_one_sentence(broken: dict[str, object]) -> None:
    with pytest.raises(JournalError, match="manifest"):
        fold(broken, JournalRecords())


def test_an_id_planned_twice_is_refused() -> None:
    with pytest.raises(JournalError, match=r"plans 'a\.b' twice"):
        fold(manifest([entry("a.b"), entry("a.b")]), JournalRecords())


def test_a_torn_line_is_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    journal = write_sample(tmp_path)
    with journal.open("ab") as file:
        file.write(b'{"kind":"end","id":"profiling.tr')

    report = fold(json.loads((tmp_path / "manifest.json").read_text()), read_journal(journal))

    assert report.accounting.torn_lines == 1
    assert len(report.cases) == 10


def test_without_a_manifest_only_what_began_is_planned_and_a_note_says_so(tmp_path: Path) -> None:
    report = fold_without_manifest(read_journal(write_sample(tmp_path)))

    assert report.counts.planned == 11
    assert report.cases[3].dtype_and_mode == ("float32", "inference")
    assert "The manifest is missing" in report.notes[0]


@pytest.mark.parametrize("value", ["x", None, [], -1, float("inf"), 10**400])
def test_strange_seconds_do_not_stop_the_fold(tmp_path: Path, value: object) -> None:
    journal = write_run(tmp_path, [])
    record = {
        "kind": "end",
        "id": "a.b",
        "outcome": "pass",
        "reason": "native",
        "message": [1],
        "metrics": 3,
        "worker": 1,
    }
    with journal.open("a") as file:
        file.write(json.dumps({**record, "seconds": value}) + "\n")

    report = fold(manifest([entry("a.b")]), read_journal(journal))

    assert report.cases[0].seconds == 0.0


def test_waived_cases_are_listed(tmp_path: Path) -> None:
    stale = failed(Reason.WAIVER_STALE, "passes")

    report = report_of(tmp_path, (entry("a.b"), skipped(Reason.WAIVED)), (entry("a.c"), stale))

    assert (report.waivers.used, report.waivers.stale) == (("a.b",), ("a.c",))


def test_a_repro_line_needs_no_command_line() -> None:
    assert repro({"spec": "cpu", "argv": []}, "a.b") == "pytest --accelerator=cpu --case a.b -n0"


def test_a_repro_line_names_a_vendors_own_files() -> None:
    assert repro({"spec": "cpu", "paths": ["test_mine.py"]}, "a.b").startswith("pytest test_mine.py --accelerator=cpu")
