"""Reports on disk: written whole or not at all, and found wherever a run left them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conformance.base.errors import JournalError, UsageError
from conformance.reports import loading
from conformance.reports.loading import load
from conformance.reports.report_json import to_json
from conformance.reports.views import all_views
from conformance.reports.writer import write_report, write_text
from tests.reports.samples import sample_report, write_sample


def test_a_folder_gets_every_view(tmp_path: Path) -> None:
    written = write_report(sample_report(tmp_path / "run"), tmp_path / "new" / "out")

    assert (
        sorted(path.name for path in written)
        == sorted(view.file for view in all_views() if view.file)
        == sorted(p.name for p in (tmp_path / "new/out").iterdir())
    )


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match=r"cannot write .*Choose another folder"):
        write_report(sample_report(tmp_path / "run"), tmp_path / "file" / "out")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_text(path, "new")

    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]


def test_a_device_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    write_text(pipe, "text")

    assert os.read(reader, 10) == b"text"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_lone_surrogate_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "a\ud800b")

    assert (tmp_path / "x").read_text() == "a?b"


def test_folder_report_and_journal_give_the_same_report(tmp_path: Path) -> None:
    write_sample(tmp_path)
    write_report(load(tmp_path), tmp_path)

    texts = {to_json(load(path)) for path in (tmp_path, tmp_path / "report.json", tmp_path / "journal.jsonl")}

    assert len(texts) == 1


def test_a_killed_run_is_read_from_its_journal_not_from_an_older_report(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "report.json").write_text("an older one")

    assert load(tmp_path).run.id == "r-1"


def test_the_only_accelerator_of_a_parent_folder_is_taken(tmp_path: Path) -> None:
    write_sample(tmp_path / "supa")

    assert load(tmp_path).accelerator.name == "supa"

    write_sample(tmp_path / "cpu")
    with pytest.raises(JournalError, match="It holds reports of cpu, supa; name one"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("journal.jsonl", "", "is not a journal"),
        ("journal.jsonl", '{"a": 1}\n[]\n3\n', "is not a journal"),
        ("journal.jsonl", "\x00\xff\n" * 9, "is not a journal"),
        ("report.json", '{"hello": "world"}', "is not a conformance report"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(JournalError, match=sentence):
        load(tmp_path / name)


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        load(tmp_path / "nowhere")
    with pytest.raises(JournalError, match="holds neither"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"cases": []}', '{"cases": [{}]}', json.dumps({"cases": 1})])
def test_a_broken_manifest_beside_a_journal_is_refused(tmp_path: Path, text: str) -> None:
    write_sample(tmp_path)
    (tmp_path / "manifest.json").write_text(text)

    if text == '{"cases": []}':
        assert load(tmp_path).exit_status() == 6
    else:
        with pytest.raises(JournalError, match="manifest"):
            load(tmp_path)


def test_a_huge_journal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_BYTES", 100)

    with pytest.raises(JournalError, match="is larger than"):
        load(write_sample(tmp_path))


def test_a_journal_line_nested_without_end_is_refused(tmp_path: Path) -> None:
    journal = write_sample(tmp_path)
    with journal.open("a") as file:
        file.write('{"kind":' + "[" * 200_000 + "\n")

    with pytest.raises(JournalError, match="nested too deeply"):
        load(tmp_path)
