"""What a dishonest vendor would do to a report, one thing at a time: each is rejected, and by the rule that is for it.

A *careless* edit changes the file alone; a *careful* one mends every count, list and hash afterwards, as ``careful``
does here. What nothing in the file can show is caught by the signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import gate
from conformance.cli.main import main
from conformance.reports.report_json import from_json
from conformance.reports.verdict import Reason

from .world import NOW, PLAN, Files, Tampering, consistent, honest, honest_files, manifest, plain, toml, waiver

ADD = "operators.add[float32-training]"
EIG = "operators.eig[float32-training]"


@dataclass(frozen=True)
class Attempt:
    name: str
    rule: str
    change: Tampering
    #: Other rules that see it too.
    also: frozenset[str] = frozenset()


ATTEMPTS: list[Attempt] = []


def attempt(name: str, rule: str, *also: str) -> Callable[[Tampering], Tampering]:
    def note(change: Tampering) -> Tampering:
        ATTEMPTS.append(Attempt(name, rule, change, frozenset(also)))
        return change

    return note


def case(files: Files, id: str = ADD) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in files.report["cases"] if one["id"] == id)
    return found


def careful(files: Files) -> None:
    files.report = plain(consistent(from_json(files.report)))


def failing(files: Files, id: str = ADD, reason: str = "wrong") -> None:
    case(files, id).update(outcome="fail", reason=reason)


@attempt("a pass becomes a failure", "G05", "G06", "G07")
def _(files: Files) -> None:
    failing(files)


@attempt("a failure becomes a pass", "G05")
def _(files: Files) -> None:
    failing(files)
    careful(files)
    case(files).update(outcome="pass", reason="native")


@attempt("a failure becomes a skip for silence", "G08", "G07")
def _(files: Files) -> None:
    case(files).update(outcome="skip", reason="undeclared", message="left out")
    careful(files)


@attempt("a failure becomes a skip for want of support", "G08", "G07")
def _(files: Files) -> None:
    files.baseline["cases"] = [one for one in files.baseline["cases"] if one["id"] != ADD]
    case(files).update(outcome="skip", reason="unsupported", message="left out")
    careful(files)


@attempt("a failure becomes the environment's fault", "G06", "G07")
def _(files: Files) -> None:
    case(files).update(outcome="skip", reason="environment", message="left out")
    careful(files)


@attempt("a failure becomes a waiver of nobody's", "G06", "G05", "G07")
def _(files: Files) -> None:
    case(files).update(outcome="skip", reason="waived", message="left out")
    careful(files)


@attempt("a failure leaves the profile as a case on ranks", "G03", "G04", "G06", "G07", "G15")
def _(files: Files) -> None:
    failing(files)
    case(files)["world_size"] = 2
    careful(files)


@attempt(
    "a failure leaves the profile as a case on ranks, and the released hash is kept", "G05", "G04", "G06", "G07", "G15"
)
def _(files: Files) -> None:
    failing(files)
    kept = files.report["run"]["suite"]["manifest_sha256"]
    case(files)["world_size"] = 2
    careful(files)
    files.report["run"]["suite"]["manifest_sha256"] = kept


@attempt("a case is dropped", "G05", "G04", "G07")
def _(files: Files) -> None:
    files.report["cases"].remove(case(files))


@attempt("a case is dropped with care", "G04", "G03", "G07")
def _(files: Files) -> None:
    files.report["cases"].remove(case(files))
    careful(files)


@attempt("a case is dropped and the released hash kept", "G05", "G04", "G07")
def _(files: Files) -> None:
    kept = files.report["run"]["suite"]["manifest_sha256"]
    files.report["cases"].remove(case(files))
    careful(files)
    files.report["run"]["suite"]["manifest_sha256"] = kept


@attempt("a case is renamed", "G04", "G05", "G07")
def _(files: Files) -> None:
    case(files)["id"] = "operators.adder[float32-training]"


@attempt("an easy case is added", "G04", "G03")
def _(files: Files) -> None:
    files.report["cases"].append({**case(files), "id": "operators.easy[float32-training]"})
    careful(files)


@attempt("a case of the core is made an ordinary one", "G04", "G03")
def _(files: Files) -> None:
    del case(files, "accelerator.rng")["level"]
    careful(files)


@attempt("a case's needs are dropped", "G04", "G03")
def _(files: Files) -> None:
    del case(files)["requires"]
    careful(files)


@attempt("a case that adapts to its claim is made one that does not", "G04", "G05")
def _(files: Files) -> None:
    del case(files, EIG)["adaptive"]


@attempt("a case is moved out of the reference", "G04", "G05", "G08")
def _(files: Files) -> None:
    case(files)["in_reference"] = False


@attempt("a case is moved to another column", "G04", "G05")
def _(files: Files) -> None:
    case(files)["axes"]["mode"] = "inference"


@attempt("a claim is dropped", "G11", "G07")
def _(files: Files) -> None:
    cells = files.report["declaration"]["cells"]
    files.report["declaration"]["cells"] = [one for one in cells if one["cell"] != "stream"]
    case(files, "accelerator.stream").update(outcome="skip", reason="undeclared", message="left out")
    careful(files)


@attempt("a claim is dropped without care", "G05", "G08", "G11")
def _(files: Files) -> None:
    cells = files.report["declaration"]["cells"]
    files.report["declaration"]["cells"] = [one for one in cells if one["cell"] != "stream"]


@attempt("an operator is denied", "G11", "G07")
def _(files: Files) -> None:
    denied = {"cell": ADD, "state": "unsupported", "detail": "not-yet", "reason": "later"}
    files.report["declaration"]["cells"].append(denied)
    case(files).update(outcome="skip", reason="unsupported", message="left out")
    careful(files)


@attempt("a pattern is narrowed", "G11", "G07")
def _(files: Files) -> None:
    for one in files.report["declaration"]["cells"]:
        if one["cell"] == "operators.*[float32-training]":
            one["cell"] = "operators.m*[float32-training]"
    case(files).update(outcome="skip", reason="undeclared", message="left out")
    careful(files)


@attempt("a claim is made smaller: computed on the host", "G11", "G08")
def _(files: Files) -> None:
    files.report["declaration"]["cells"].append({"cell": ADD, "state": "supported", "detail": "host"})
    careful(files)


@attempt("a claim of everything is added", "G08")
def _(files: Files) -> None:
    files.report["declaration"]["cells"].append({"cell": "operators.*[bfloat16-training]", "state": "supported"})
    careful(files)


@attempt("the number of passes is raised", "G05")
def _(files: Files) -> None:
    files.report["totals"]["passed"] += 1


@attempt("the number of planned cases is lowered", "G05")
def _(files: Files) -> None:
    files.report["run"]["suite"]["cases"] -= 1


@attempt("the totals are left out", "G05")
def _(files: Files) -> None:
    del files.report["totals"]


@attempt("a waived case is left out of the list", "G05", "G06", "G07")
def _(files: Files) -> None:
    case(files).update(outcome="skip", reason="waived", message="left out", metrics={"observed": "crash"})
    careful(files)


@attempt("an old run is dated today", "G13")
def _(files: Files) -> None:
    files.report["run"]["finished"] = (NOW - timedelta(days=2)).isoformat()


@attempt("the run is of last year", "G13")
def _(files: Files) -> None:
    files.report = plain(honest(days=365))


@attempt("the run is of tomorrow", "G13")
def _(files: Files) -> None:
    files.report = plain(honest(days=-1))


@attempt("the run took no time", "G13")
def _(files: Files) -> None:
    for one in files.report["cases"]:
        one.pop("seconds")


@attempt("an accepted report is sent again as a newer one's baseline", "G13")
def _(files: Files) -> None:
    files.report, files.baseline = files.baseline, files.report


@attempt("the run's manifest is swapped", "G03", "G05")
def _(files: Files) -> None:
    files.report["run"]["suite"]["manifest_sha256"] = "ab" * 32


@attempt("the released manifest is swapped for a smaller one", "G03", "G04")
def _(files: Files) -> None:
    files.manifest = manifest(PLAN[:5])


@attempt("the manifest of another torch is given", "G03")
def _(files: Files) -> None:
    files.manifest = replace(files.manifest, torch="2.6")


@attempt("the suite's version is one that never was", "G02", "G03", "G05", "G12", "G15")
def _(files: Files) -> None:
    files.report["run"]["suite"]["version"] = "9.9.9"


@attempt("a selection is hidden from the list, not from the command line", "G12")
def _(files: Files) -> None:
    files.report["run"]["invocation"]["argv"].append("--deselect=operators.eig")


@attempt("a selection is named", "G12")
def _(files: Files) -> None:
    files.report["run"]["invocation"]["selection"] = ["-k"]


@attempt("the strictness is lowered", "G12")
def _(files: Files) -> None:
    files.report["run"]["strictness"] = "bring-up"


@attempt("a lie is made a note", "G08", "G06", "G07")
def _(files: Files) -> None:
    case(files).update(outcome="skip", reason="stub", message="left out")
    careful(files)


@attempt("a waiver is widened to what passes", "G10")
def _(files: Files) -> None:
    failing(files)
    careful(files)
    files.waivers = toml(waiver("operators.*[float32-training]"))


@attempt("a waiver is widened to the core", "G09", "G10")
def _(files: Files) -> None:
    files.waivers = toml(waiver("*", verdict=Reason.WRONG))


@attempt("a waiver's end is moved beyond what is allowed", "G09")
def _(files: Files) -> None:
    failing(files)
    careful(files)
    files.waivers = toml(waiver(ADD, expires=NOW.date() + timedelta(days=400)))


@attempt("a waiver is left to run out", "G09", "G06", "G07")
def _(files: Files) -> None:
    failing(files)
    careful(files)
    files.waivers = toml(waiver(ADD, expires=NOW.date() - timedelta(days=1)))


@attempt("a waiver for a wrong value is used for a crash", "G06", "G07")
def _(files: Files) -> None:
    failing(files, reason="crash")
    careful(files)
    files.waivers = toml(waiver(ADD))


@attempt("a waiver stays when the bug is gone", "G10")
def _(files: Files) -> None:
    files.waivers = toml(waiver(ADD))


@attempt("everything that fails is called flaky", "G16")
def _(files: Files) -> None:
    files.arguments.append("--profile=core")
    extra = tuple(
        replace(one, id=f"operators.f{n}[float32-training]") for n in range(9) for one in PLAN if one.id == ADD
    )
    files.manifest = manifest((*PLAN, *extra))
    files.report = plain(honest(plan=(*PLAN, *extra)))
    for n in range(9):
        failing(files, f"operators.f{n}[float32-training]")
    careful(files)
    files.waivers = toml(waiver(*(f"operators.f{n}[float32-training]" for n in range(9)), kind=_flaky()))


def _flaky() -> Any:
    from conformance.reports.waivers.model import WaiverKind

    return WaiverKind.FLAKY


@attempt("the facts of the environment are edited", "G15")
def _(files: Files) -> None:
    files.report["environment"]["facts"]["system"] = "Windows"


@attempt("the tested torch is renamed", "G15")
def _(files: Files) -> None:
    files.report["accelerator"]["torch"] = "2.13.1"


@attempt("a report of another stack is sent", "G15")
def _(files: Files) -> None:
    files.arguments.append("--fingerprint=" + hashlib.sha256(b"ours").hexdigest())


@attempt("the baseline is another accelerator's", "G07")
def _(files: Files) -> None:
    files.baseline["accelerator"]["name"] = "other"


@attempt("a verdict is hidden among the unaccounted", "G04", "G07")
def _(files: Files) -> None:
    lost = case(files)
    files.report["cases"].remove(lost)
    planned = {name: lost[name] for name in ("id", "area", "axes", "requires", "adaptive")}
    files.report.setdefault("accounting", {})["unaccounted"] = [planned]
    careful(files)


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        @staticmethod
        def now(_zone: Any) -> Any:
            return NOW

    monkeypatch.setattr(gate, "datetime", Clock)


def judged(files: Files, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, set[str]]:
    status = main([*files.write(folder), "--format=json"])
    decision = json.loads(capsys.readouterr().out)
    assert decision["status"] == status
    return status, {one["id"] for one in decision["findings"] if one["severity"] == "reject"}


@pytest.mark.usefixtures("today")
def test_what_nobody_tampered_with_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(honest_files(), tmp_path, capsys) == (0, set())


@pytest.mark.usefixtures("today")
@pytest.mark.parametrize("one", ATTEMPTS, ids=lambda one: one.name.replace(" ", "-"))
def test_each_tampering_is_rejected_by_the_rule_for_it(
    one: Attempt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = honest_files()
    one.change(files)

    status, rules = judged(files, tmp_path, capsys)

    assert status == 1
    assert rules == {one.rule, *one.also}


def test_there_are_thirty_and_more_and_they_need_most_rules() -> None:
    assert len({one.name for one in ATTEMPTS}) == len(ATTEMPTS) >= 45
    assert {one.rule for one in ATTEMPTS} == {f"G{n:02}" for n in range(2, 17)} - {"G14"}
