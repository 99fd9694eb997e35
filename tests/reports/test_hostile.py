"""A vendor's report is hostile until proven otherwise: one sentence, status 2, and bounded time and memory."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.cli.main import main
from conformance.reports import json_files, streaming
from conformance.reports.json_files import MAX_CONTAINERS, MAX_REPORT_BYTES, MAX_VALUES
from conformance.reports.report_json import from_json, read_report, to_json
from tests.call_count import calls_of
from tests.fuzz import blast, documents, targets
from tests.layers import longer
from tests.reports.gate.world import PLAN, dump, honest, manifest, operator, plain

Captured = pytest.CaptureFixture[str]
HONEST = plain(honest())
TEXT = json.dumps(HONEST).encode()
#: About twice what the gate needs: 85 calls for an honest case, 90 for one whose text must be made harmless.
CALLS_A_CASE = 200
#: Far more than a refusal needs; input that is read again and again needs more.
MOST_CALLS = 3_000_000


def _edited(**changes: Any) -> bytes:
    return json.dumps({**plain(honest()), **changes}).encode()


def _cases(change: Callable[[list[Any]], Any]) -> bytes:
    value = plain(honest())
    change(value["cases"])
    return json.dumps(value).encode()


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not valid JSON"),
    "truncated": (TEXT[: len(TEXT) // 2], "is not valid JSON"),
    "UTF-16": (TEXT.decode().encode("utf-16"), "is not UTF-8 text"),
    "a byte order mark": (b"\xef\xbb\xbf" + TEXT, "is not valid JSON"),
    "Latin-1": (TEXT.replace(b"acme", b"acm\xe9"), "is not UTF-8 text"),
    "nested in lists": (b"[" * 100_000, "is nested too deeply"),
    "nested in objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "is nested too deeply"),
    "NaN": (TEXT.replace(b"0.25", b"NaN", 1), "NaN is not a JSON number"),
    "an infinity": (TEXT.replace(b"0.25", b"-Infinity", 1), "-Infinity is not a JSON number"),
    "a number beyond all": (TEXT.replace(b"0.25", b"1e999", 1), "must be a finite number"),
    "a number of many digits": (TEXT.replace(b"0.25", b"9" * 100_000, 1), "is not valid JSON"),
    "a large whole number": (TEXT.replace(b"0.25", b"9" * 40, 1), "must be a whole number"),
    "a key twice": (TEXT.replace(b'"schema"', b'"schema": 1, "schema"', 1), "a key occurs twice"),
    "an id twice": (_cases(lambda cases: cases.append(cases[0])), "lists the case 'accelerator.device' twice"),
    "an unknown key": (_edited(extra=1), "has an unknown key 'extra'"),
    "a wrong type": (_edited(cases={}), "cases must be a list"),
    "another schema": (_edited(schema=99), "has schema 99"),
    "a schema that is a list": (_edited(schema=[[]]), "has schema [[]]"),
    "a key as long as a book": (_edited(**{"k" * 1_000_000: 1}), "has an unknown key 'kkkk"),
    "a text as long as a book": (_edited(notes=["n" * 100_000]), "is longer than 20000 characters"),
    "too many keys": (_cases(lambda cases: cases[0].update(metrics={str(n): n for n in range(999)})), "more than 256"),
    "too many objects": (b'{"schema": 1, "run": [' + b"{}," * MAX_CONTAINERS + b"1]}", "holds more values in"),
    "too many numbers": (b'{"schema": 1, "run": [' + b"1," * MAX_VALUES + b"1]}", "holds more values in"),
    "another tool's": (b'{"reportFormat": "CTRF"}', "is not a conformance report"),
    "XML": (b"<testsuites/>", "is not valid JSON"),
    "an outcome of its own": (
        _cases(lambda cases: cases[0].update(outcome="great")),
        "must be one of pass, skip, fail",
    ),
    "a pair that cannot be": (
        _cases(lambda cases: cases[0].update(outcome="fail")),
        "cannot be fail with reason native",
    ),
}


def refused(words: list[str], capsys: Captured) -> str:
    """The sentence with which the gate says that it cannot judge."""
    statuses: list[int] = []
    calls = calls_of(lambda: statuses.append(main(["gate", *words, "--profile=core"])))

    assert statuses == [2]
    assert calls < MOST_CALLS
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("G01 cannot judge: ")
    assert len(said.err) < 1_500
    assert all(c.isprintable() or c == "\n" for c in said.err)
    return said.err


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_sentence_and_status_2(name: str, tmp_path: Path, capsys: Captured) -> None:
    data, sentence = FILES[name]
    (tmp_path / "report.json").write_bytes(data)

    assert sentence in refused([str(tmp_path / "report.json")], capsys)


def test_a_file_of_two_gigabytes_is_not_read(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "report.json"
    with path.open("wb") as file:
        file.truncate(2 << 30)

    assert f"is larger than {MAX_REPORT_BYTES >> 20} MiB" in refused([str(path)], capsys)


def test_a_compressed_report_is_read_and_one_that_unpacks_to_gigabytes_is_not(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json.gz"
    path.write_bytes(gzip.compress(TEXT))
    assert to_json(read_report(path)) == to_json(from_json(HONEST))

    path.write_bytes(gzip.compress(TEXT)[:-9])
    assert "cannot be decompressed" in refused([str(path)], capsys)

    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(b" " * (1 << 20))
    assert path.stat().st_size < 1 << 20
    assert "is not valid JSON: line 1: expected {" in refused([str(path)], capsys)

    monkeypatch.setattr(streaming, "MAX_REPORT_BYTES", 20 << 20)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"schema":1')
        for _ in range(30):
            file.write(b" " * 200_000 + b',"notes' + b'":["' + b"x" * (1 << 20) + b'"]')
    assert "report.json.gz" in refused([str(path)], capsys)


def test_an_input_that_takes_long_by_the_processor_is_told_from_a_machine_that_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blast, "_SECONDS", 0.01)

    def work() -> None:
        end = time.process_time() + 0.03
        while time.process_time() < end:
            pass

    assert blast.seconds_of(work) >= 0.03
    assert blast.seconds_of(lambda: time.sleep(0.03)) < 0.01


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_a_link_to_what_never_ends_is_not_followed(target: str, tmp_path: Path, capsys: Captured) -> None:
    if target == "pipe":
        os.mkfifo(tmp_path / "pipe")
    (tmp_path / "report.json").symlink_to(target)

    assert "is not a file" in refused([str(tmp_path / "report.json")], capsys)


def test_a_link_to_itself_and_a_name_that_is_none_are_slips(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "report.json").symlink_to("report.json")

    assert main(["gate", str(tmp_path / "report.json"), "--profile=core"]) == 4
    assert main(["gate", "a\x00b", "--profile=core"]) == 4
    assert capsys.readouterr().err.count("\n") == 2


def test_names_that_lead_elsewhere_write_and_read_nothing(tmp_path: Path, capsys: Captured) -> None:
    """Names in a report never become paths: not of manifests, not of signatures."""
    value = plain(honest())
    value["run"]["suite"]["version"] = "../../../../etc/passwd"
    value["accelerator"].update(name="../../x", torch="../../../2.13")
    value["run"]["id"] = "/etc/passwd"
    (tmp_path / "report.json").write_text(json.dumps(value))
    before = sorted(tmp_path.rglob("*"))

    assert main(["gate", str(tmp_path / "report.json"), "--profile=training"]) == 1

    assert sorted(tmp_path.rglob("*")) == before
    assert "G02 reject Suite version ../../../../etc/passwd is not a release" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_hostile_texts_are_harmless_in_every_format(form: str, tmp_path: Path, capsys: Captured) -> None:
    value = json.loads(
        json.dumps(plain(honest())).replace('"accelerator.', '"<script>\\u001b[31m\\u202e|`accelerator.')
    )
    value["accelerator"]["name"] = "<script>alert(1)</script>\x1b]0;x\x07"
    value["run"].update(strictness="<script>\x1b[2J", started="<script>\x9b")
    (tmp_path / "report.json").write_text(json.dumps(value))

    assert main(["gate", str(tmp_path / "report.json"), "--profile=training", f"--format={form}"]) == 1

    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert form != "markdown" or "<script" not in shown


def words_for(folder: Path, number: int, hostile: bool) -> list[str]:
    """Write a report of about ``number`` cases and its manifest; return the words that have the gate judge it."""
    modes = ("inference", "training")
    names = [operator(f"nn.functional.case{n}", "float32", mode) for n in range(number // 2) for mode in modes]
    plan = (*PLAN[:4], *names)
    value = plain(honest(plan=plan))
    for case in value["cases"]:
        case.update(seconds=0.01, message="é" * 40, metrics={"max_abs": 1.25e-07, "max_ulp": 1.5, "budget": 4.0})
        if hostile:
            case.update(id=f"😀\x1b[31m{case['id']}", message="😀" * 200)
    (folder / "report.json").write_text(json.dumps(value, ensure_ascii=not hostile))
    (folder / "manifest.json.gz").write_bytes(dump(manifest(plan)))
    return [
        "gate", str(folder / "report.json"), f"--manifest={folder / 'manifest.json.gz'}",
        "--profile=full", "--format=markdown",
    ]  # fmt: skip


@pytest.mark.parametrize("hostile", longer([False, True], True))
def test_twenty_thousand_cases_take_300_megabytes(tmp_path: Path, hostile: bool) -> None:
    words = words_for(tmp_path, 20_000, hostile)
    code = (
        "import pathlib, sys; from conformance.cli.main import main\n"
        f"main({words!r})\n"
        # Not what getrusage says, which counts what the parent had when this process was begun.
        "(peak,) = [one.split()[1] for one in pathlib.Path('/proc/self/status').open() if one.startswith('VmHWM')]\n"
        "print(peak, file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert int(done.stderr) <= 300_000
    assert len(done.stdout.encode()) <= 900 * 1024


@pytest.mark.parametrize("hostile", longer([False, True], True))
def test_the_gate_does_the_same_work_for_every_case(tmp_path: Path, hostile: bool, capsys: Captured) -> None:
    """Count calls and not seconds, which the machine has a part in; benchmarks/gate.py measures what somebody waits."""
    main(words_for(tmp_path, 100, hostile))

    few, many = (calls_of(partial(main, words_for(tmp_path, number, hostile))) for number in (4_000, 8_000))

    assert (many - few) / 4_000 <= CALLS_A_CASE
    assert many <= 2.1 * few


def test_the_memory_of_this_process_stays_small(tmp_path: Path, capsys: Captured) -> None:
    """What is refused is refused before it is built."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tmp_path / "report.json").write_bytes(b'{"schema":1,"run":[' + b'{"a":1},' * (MAX_CONTAINERS * 2) + b"1]}")

    refused([str(tmp_path / "report.json")], capsys)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("number", [8_000, 8_001])
def test_the_limit_of_cases_is_named_and_what_is_below_is_judged(
    number: int, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streaming.MAX_CASES == 1_000_000
    monkeypatch.setattr(streaming, "MAX_CASES", 8_000)
    monkeypatch.setattr(json_files, "LARGE", 1_000)
    value = plain(honest())
    cases = value.pop("cases")
    rows = ",".join(f'{{"id":"a.b{n}","area":"a"}}' for n in range(number - len(cases)))
    text = f'{json.dumps(value)[:-1]},"cases":[{json.dumps(cases)[1:-1]},{rows}]}}'
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")

    if number <= streaming.MAX_CASES:
        assert len(read_report(path).cases) == number
    else:
        assert "has more than 8,000 cases, the most that this version reads." in refused([str(path)], capsys)


# --- a few inputs of the fuzzers, in every run of the tests ---------------------------------------------------------

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(documents.ODD),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@QUICK
@given(st.sampled_from([HONEST, documents.honest(packed=True)]), st.randoms())
def test_changed_documents_are_judged_or_refused(document: Any, random: Any) -> None:
    targets.value(documents.mutated(document, random.randrange))


@QUICK
@given(st.dictionaries(st.sampled_from([*HONEST, "packed", "shapes", "rows"]), VALUES))
def test_members_of_any_kind_are_judged_or_refused(members: dict[str, Any]) -> None:
    targets.value({**HONEST, **members})


@QUICK
@given(st.sampled_from(list(targets.TARGETS)), st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused(kind: str, data: bytes) -> None:
    targets.TARGETS[kind](data)


@QUICK
@given(st.sampled_from([(k, one) for k, files in blast.honest_files().items() for one in files]), st.randoms())
def test_changed_files_are_read_or_refused(file: tuple[str, bytes], random: Any) -> None:
    kind, data = file

    targets.TARGETS[kind](blast.changed_bytes(data, random))


def test_the_fuzzers_inputs_are_not_all_refused() -> None:
    """Most of what a fuzzer makes must get as far as the rules, or it fuzzes the front door only."""
    feed, judged = blast.Blast(1), []
    original, targets.decide = targets.decide, lambda evidence: judged.append(1) or original(evidence)  # type: ignore[func-returns-value]
    try:
        for _ in range(400):
            feed.one()()
    finally:
        targets.decide = original

    assert len(judged) > 25
    assert set(feed.fed) >= {*targets.TARGETS, "value", "shown"}
