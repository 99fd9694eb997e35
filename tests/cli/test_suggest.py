"""conformance suggest: results of a run correct its claims; bugs and untested claims change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.declaration_file import parse_declaration
from conformance.cli.main import main
from conformance.reports.calls import REFUSING
from conformance.reports.declaration.corrections import correct
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Reason, Verdict, failed, passed, skipped
from tests.reports.samples import REPORTED, entry, report_of

Captured = pytest.CaptureFixture[str]
YES, NO = ("supported", "native", ""), ("unsupported", "hardware", "no unit")


def operator(cell: str, **more: Any) -> dict[str, Any]:
    """Return the planned case of an operator's cell, such as ``add[float32-training]``."""
    name, _, axes = cell.rstrip("]").partition("[")
    dtype, _, mode = axes.partition("-")
    return {**entry(f"operators.{name}", dtype=dtype, mode=mode), "adaptive": True, **more}


def probe(capability: str, **more: Any) -> dict[str, Any]:
    return {**entry(f"capabilities.{capability}"), "requires": [capability], "adaptive": True, **more}


def check(id: str, *cells: str) -> dict[str, Any]:
    return {**entry(id), "requires": list(cells)}


def unheard(saw: str, certify: bool = False) -> Verdict:
    """Return the verdict of an undeclared cell whose probe observed ``saw``."""
    make = failed if certify else skipped
    return make(Reason.UNDECLARED, f"it is not declared; probe: {saw}: the evidence", probe=saw)


@pytest.fixture
def suggest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Any:
    """Return a function that writes a report with given claims and verdicts, and returns the output of the command."""

    def run(claims: dict[str, tuple[str, str, str]], *endings: Any, argv: tuple[str, ...] = (), **header: Any) -> str:
        cells = [[cell, *claim] for cell, claim in claims.items()]
        monkeypatch.setitem(REPORTED, "declaration", {"sha256": "ab" * 32, "cells": cells})
        report = report_of(tmp_path, *endings, argv=["--accelerator=supa", *argv], **header)
        (tmp_path / "journal.jsonl").unlink()
        (tmp_path / "manifest.json").unlink()
        (tmp_path / "report.json").write_text(to_json(report))
        assert main(["suggest", str(tmp_path / "report.json")]) == 0
        return capsys.readouterr().out

    return run


def claims_in(text: str) -> dict[str, tuple[str, str]]:
    cells = parse_declaration(text).cells.items()
    return {str(cell): (claim.state.value, claim.detail.value if claim.detail else "") for cell, claim in cells}


@pytest.mark.parametrize(
    ("claim", "verdict", "expected"),
    [
        (YES, failed(Reason.OVER_DECLARED, "create_graph() is None"), ("unsupported", "not-yet")),
        (YES, skipped(Reason.OVER_DECLARED, "create_graph() is None"), ("unsupported", "not-yet")),
        (YES, failed(Reason.STUB, "nothing happens"), ("unsupported", "not-yet")),
        (YES, failed(Reason.RAISED, "RuntimeError: no"), ("unsupported", "not-yet")),
        (YES, failed(Reason.FALLBACK, "computed on the host"), ("supported", "host")),
        (NO, failed(Reason.UNDER_DECLARED, "but works"), ("supported", "native")),
        (NO, skipped(Reason.UNDER_DECLARED, "but works"), ("supported", "native")),
        (NO, failed(Reason.UNDER_DECLARED, "but works, on the host", probe="fallback"), ("supported", "host")),
        (None, unheard("right"), ("supported", "native")),
        (None, unheard("fallback"), ("supported", "host")),
        (None, unheard("refused", certify=True), ("unsupported", "not-yet")),
        (None, unheard("raised", certify=True), ("unsupported", "not-yet")),
    ],
)
def test_a_false_claim_is_corrected(suggest: Any, claim: Any, verdict: Verdict, expected: tuple[str, str]) -> None:
    claims = {"stream": YES, **({"graph.capture": claim} if claim else {})}

    out = suggest(claims, (probe("graph.capture"), verdict), (probe("stream"), passed()))

    assert claims_in(out) == {"stream": ("supported", "native"), "graph.capture": expected}
    assert "graph.capture (case capabilities.graph.capture): " in out


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (YES, failed(Reason.WRONG, "2 is not 3")),
        (YES, failed(Reason.CRASH, "SIGSEGV")),
        (YES, failed(Reason.HANG, "no end")),
        (YES, failed(Reason.POISONED, "1 + 1 is 3")),
        (NO, failed(Reason.UNSAFE, "answers 3")),
        (None, unheard("wrong", certify=True)),
        (None, unheard("crash")),
    ],
)
def test_a_bug_is_no_capability(suggest: Any, claim: Any, verdict: Verdict) -> None:
    claims = {"graph.capture": claim} if claim else {}

    out = suggest(claims, (probe("graph.capture"), verdict), (probe("stream"), passed()))

    assert out.startswith("Nothing to correct")
    assert f"fix it, or waive it\n#   capabilities.graph.capture: {verdict.reason.value}: {verdict.message}" in out


@pytest.mark.parametrize("saw", ["refused", "raised", "stub", "not implemented"])
def test_silence_stays_silence_unless_it_failed_the_run(suggest: Any, saw: str) -> None:
    out = suggest({}, (probe("graph.capture"), unheard(saw)))

    assert out == "Nothing to correct: 1 cases of supa were judged against their claims, and no claim is false.\n"


def test_the_core_is_never_declared_away(suggest: Any) -> None:
    out = suggest({"copy": YES}, (probe("copy", level="core"), failed(Reason.CORE_MISSING, "no copy")))

    raised = suggest({"copy": YES}, (probe("copy", level="core"), failed(Reason.RAISED, "RuntimeError: no copy")))

    assert "Nothing to correct" in out
    assert "capabilities.copy: core-missing: no copy" in out
    assert "Nothing to correct" in raised
    assert "capabilities.copy: raised: RuntimeError: no copy" in raised


def test_two_false_cells_under_a_pattern_become_two_exceptions(suggest: Any) -> None:
    column = "operators.*[float16-inference]"
    rest = [(operator(f"op{n}[float16-inference]"), passed()) for n in range(5)]
    false = [(operator(f"{name}[float16-inference]"), failed(Reason.OVER_DECLARED, "no")) for name in ("add", "mul")]

    out = suggest({column: YES, "operators.*[float32-inference]": YES}, *rest, *false)

    assert claims_in(out) == {
        column: ("supported", "native"),
        "operators.*[float32-inference]": ("supported", "native"),
        "operators.add[float16-inference]": ("unsupported", "not-yet"),
        "operators.mul[float16-inference]": ("unsupported", "not-yet"),
    }
    assert '"add" = { inference = ["float16"], unsupported = "not-yet", reason = "no" }' in out


SOLVERS = ("cholesky", "eig", "inv", "svd")
FAMILY = [
    *((operator(f"linalg.{name}[float16-inference]"), failed(Reason.OVER_DECLARED, "no solver")) for name in SOLVERS),
    (operator("linalg.norm[float16-inference]"), passed()),
    *((operator(f"op{n}[float16-inference]"), passed()) for n in range(5)),
]


def test_exceptions_that_are_the_rule_become_a_pattern_with_its_own_exceptions(suggest: Any) -> None:
    out = suggest({"operators.*[float16-inference]": YES}, *FAMILY)

    assert claims_in(out) == {
        "operators.*[float16-inference]": ("supported", "native"),
        "operators.linalg.*[float16-inference]": ("unsupported", "not-yet"),
        "operators.linalg.norm[float16-inference]": ("supported", "native"),
    }
    assert "4 of 5 cells are not there; operators.linalg.cholesky[float16-inference]: no solver" in out


def test_a_run_that_was_narrowed_changes_no_pattern(suggest: Any) -> None:
    out = suggest({"operators.*[float16-inference]": YES}, *FAMILY, argv=("--case", "operators.*"))

    assert len(claims_in(out)) == 5
    assert "operators.linalg.*[float16-inference]" not in claims_in(out)


def test_a_pattern_is_not_denied_over_a_silence_that_answers_wrongly(suggest: Any) -> None:
    beyond = operator("linalg.odd[float16-inference]", in_reference=False)

    denied = suggest({"operators.*[float16-inference]": YES}, *FAMILY, (beyond, unheard("refused")))
    by_name = suggest({"operators.*[float16-inference]": YES}, *FAMILY, (beyond, unheard("wrong")))

    assert "operators.linalg.*[float16-inference]" in claims_in(denied)
    assert "operators.linalg.*[float16-inference]" not in claims_in(by_name)


def test_what_works_beyond_the_reference_is_claimed_by_name(suggest: Any) -> None:
    beyond = operator("add[float16-inference]", in_reference=False)
    rest = [(operator(f"op{n}[float16-inference]"), passed()) for n in range(5)]

    out = suggest({"operators.*[float16-inference]": YES}, (beyond, unheard("right")), *rest)

    assert claims_in(out)["operators.add[float16-inference]"] == ("supported", "native")


def test_a_denial_by_name_is_taken_back_by_name(suggest: Any) -> None:
    claims = {"operators.*[float32-inference]": YES, "operators.add[float32-inference]": NO}
    rest = [(operator(f"op{n}[float32-inference]"), passed()) for n in range(5)]

    out = suggest(claims, (operator("add[float32-inference]"), failed(Reason.UNDER_DECLARED, "but works")), *rest)

    # The pattern would do in this file; the accelerator's own denial by name would still win over it.
    assert claims_in(out)["operators.add[float32-inference]"] == ("supported", "native")


def test_a_check_is_blamed_on_the_claim_that_its_probe_refutes(suggest: Any) -> None:
    out = suggest(
        {"stream": YES, "event": YES},
        (probe("stream"), failed(Reason.OVER_DECLARED, "Stream is None")),
        (probe("event"), passed()),
        (check("accelerator.stream.nest", "stream"), failed(Reason.RAISED, "TypeError")),
        (check("accelerator.event.query", "event"), failed(Reason.WRONG, "query() is None")),
    )

    assert claims_in(out) == {"stream": ("unsupported", "not-yet"), "event": ("supported", "native")}
    assert "accelerator.stream.nest" not in out
    assert "#   accelerator.event.query: wrong: query() is None" in out


def test_a_workload_that_no_probe_covers_is_withdrawn_by_its_own_case(suggest: Any) -> None:
    case = check("workloads.gpt.train[bfloat16-training]", "workloads.gpt[bfloat16-training]", "autocast")

    out = suggest(
        {"workloads.*[bfloat16-training]": YES, "autocast": YES},
        (case, failed(Reason.OVER_DECLARED, "embedding is not implemented")),
        (probe("autocast"), passed()),
    )

    assert claims_in(out)["workloads.gpt[bfloat16-training]"] == ("unsupported", "not-yet")
    assert claims_in(out)["workloads.*[bfloat16-training]"] == ("supported", "native")


def test_a_refused_operator_withdraws_nothing_else(suggest: Any) -> None:
    out = suggest(
        {"ranges": YES, "operators.add[float32-inference]": YES},
        (probe("ranges"), failed(Reason.RAISED, "mul supports float32 only", **{REFUSING: "operators.mul"})),
        (
            check("accelerator.laws.printed", "operators.add[float32-inference]"),
            failed(Reason.OVER_DECLARED, "no view"),
        ),
    )

    assert out.startswith("Nothing to correct")
    assert "#   capabilities.ranges: raised: mul supports float32 only" in out
    assert "#   accelerator.laws.printed: over-declared: no view" in out


def test_what_a_report_quotes_cannot_leave_its_comment_or_its_string(suggest: Any) -> None:
    evil = 'no"\n[capabilities]\nevent = "native"\n\x1b[31m'

    out = suggest(
        {"graph.capture": YES}, (probe("graph.capture"), failed(Reason.OVER_DECLARED, evil)), accelerator=evil
    )

    assert claims_in(out) == {"graph.capture": ("unsupported", "not-yet")}
    assert "\x1b" not in out


def test_it_says_what_to_type_next_and_overwrites_nothing(suggest: Any, tmp_path: Path, capsys: Captured) -> None:
    report, target = tmp_path / "report.json", tmp_path / "claims.toml"
    out = suggest({"event": YES}, (probe("event"), failed(Reason.STUB, "no effect")), strictness="certify")
    assert out.endswith(f"# next: conformance suggest {report} -o capabilities.toml\n")

    assert main(["suggest", str(report), "-o", str(target)]) == 0
    said = capsys.readouterr().out.splitlines()
    written = target.read_text()

    assert said[-1] == f"next: pytest --accelerator=supa --capabilities={target} --strictness=certify"
    assert written.endswith(f"# {said[-1]}\n")
    target.write_text("edited by hand")
    assert main(["suggest", str(report), "-o", str(target)]) == 4
    assert capsys.readouterr().err == f"{target} exists and is not overwritten. Choose another name, or add --force.\n"
    assert target.read_text() == "edited by hand"
    assert main(["suggest", str(report), "-o", str(target), "--force"]) == 0
    assert target.read_text() == written


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON"),
        ('{"some": "other tool"}', "is not a conformance report"),
        ('{"schema": 99, "run": {}}', "has schema 99"),
    ],
)
def test_what_is_no_report_is_one_sentence(tmp_path: Path, capsys: Captured, text: str, sentence: str) -> None:
    (tmp_path / "report.json").write_text(text)

    assert main(["suggest", str(tmp_path / "report.json")]) == 2

    captured = capsys.readouterr()
    assert sentence in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


def test_a_missing_report_and_a_missing_folder_are_one_sentence(suggest: Any, tmp_path: Path, capsys: Captured) -> None:
    assert main(["suggest", str(tmp_path / "nowhere")]) == 4
    assert "there is no" in capsys.readouterr().err

    suggest({"event": YES}, (probe("event"), failed(Reason.STUB, "no effect")))
    assert main(["suggest", str(tmp_path / "report.json"), "-o", str(tmp_path / "none" / "claims.toml")]) == 4
    assert "cannot write" in capsys.readouterr().err


def test_a_report_with_an_impossible_claim_is_one_sentence(suggest: Any, tmp_path: Path, capsys: Captured) -> None:
    suggest({"event": YES}, (probe("event"), failed(Reason.STUB, "no effect")))
    report = json.loads((tmp_path / "report.json").read_text())
    for cell, state in (("event.timing", "perhaps"), ("no.such.capability", "supported")):
        report["declaration"]["cells"][0] = {"cell": cell, "state": state, "detail": "native"}
        (tmp_path / "report.json").write_text(json.dumps(report))

        assert main(["suggest", str(tmp_path / "report.json")]) == 4
        assert cell in capsys.readouterr().err


def test_a_run_that_judged_no_claim_says_so(suggest: Any) -> None:
    out = suggest({}, (check("accelerator.event.query", "event"), passed()))

    assert out == "This run of supa tested no claim. Run the areas capabilities and operators.\n"


def test_a_core_capability_is_never_withdrawn_because_of_a_member(tmp_path: Path) -> None:
    """A case of pinned memory that needs the device alone says nothing about the device."""
    pinned = {**entry("accelerator.effect.pin"), "requires": ["device"]}
    report = report_of(tmp_path, (pinned, failed(Reason.OVER_DECLARED, "pin_memory() is refused")))

    assert [found.cell for found in correct(report).corrections] == ["device"]
    found = correct(report, core=["device"])
    assert (found.corrections, [defect.case for defect in found.defects]) == ((), ["accelerator.effect.pin"])
