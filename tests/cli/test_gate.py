"""conformance gate: exit statuses, formats, signatures, and messages about unreadable input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports.gate.finding import Decision, reject
from conformance.reports.gate.rules import RULES
from conformance.reports.gate.views import as_markdown
from conformance.reports.plain_text import SUMMARY_BYTES
from conformance.reports.verdict import passed
from tests.reports.gate import world
from tests.reports.gate.world import Files, honest_files, plain
from tests.reports.samples import entry, write_run

Captured = pytest.CaptureFixture[str]
ADD = "operators.add[float32-training]"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Return files of runs that ended yesterday, by the real clock."""
    monkeypatch.setattr(world, "NOW", datetime.now(timezone.utc))
    return honest_files()


def fail(files: Files, id: str = ADD) -> None:
    case = next(case for case in files.report["cases"] if case["id"] == id)
    case.update(outcome="fail", reason="wrong", message="<script>alert(1)</script> | `x`")


def test_acceptance_is_status_0(files: Files, tmp_path: Path, capsys: Captured) -> None:
    assert main(files.write(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "accepted: acme, profile training · 9 of 12 cases claimed; 6 of 6 due cases passed or are waived"
    )


def test_rejection_is_status_1_and_a_line_each(files: Files, tmp_path: Path, capsys: Captured) -> None:
    fail(files)

    assert main(files.write(tmp_path)) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [line[:10] for line in lines[:3]] == ["G05 reject", "G06 reject", "G07 reject"]
    assert lines[-1].startswith(
        "rejected: acme, profile training · 9 of 12 cases claimed; 5 of 6 due cases passed or are waived; 3 findings"
    )
    assert lines[-1].endswith("(G05, G06, G07); see: conformance gate --explain G05")


def test_the_folder_of_a_run_is_judged_too(files: Files, tmp_path: Path, capsys: Captured) -> None:
    words = files.write(tmp_path)
    words[1] = str(tmp_path)

    assert main(words) == 0


def test_json_names_every_case(files: Files, tmp_path: Path, capsys: Captured) -> None:
    fail(files)

    assert main([*files.write(tmp_path), "--format=json"]) == 1

    decision = json.loads(capsys.readouterr().out)
    assert (decision["decision"], decision["status"], decision["due"], decision["met"]) == ("rejected", 1, 6, 5)
    assert [finding["cases"] for finding in decision["findings"]] == [[], [ADD], [ADD]]


def test_markdown_is_escaped_and_written_to_a_file(files: Files, tmp_path: Path) -> None:
    files.report["accelerator"]["name"] = "<script>|"
    files.baseline["accelerator"]["name"] = "<script>|"
    fail(files)

    assert main([*files.write(tmp_path), "--format=markdown", "-o", str(tmp_path / "summary.md")]) == 1

    text = (tmp_path / "summary.md").read_text()
    assert "❌ rejected" in text
    assert "<script>" not in text
    assert r"operators.add\[float32-training\]" in text


def test_a_summary_stays_below_its_limit_with_rejections_first() -> None:
    many = tuple(reject(f"G{n:02}", "x" * 200, [f"case.{i}" * 30 for i in range(900)]) for n in range(2, 9))

    text = as_markdown(Decision("acme", "full", many))

    assert len(text.encode()) <= SUMMARY_BYTES
    assert text.endswith("see the report for the rest.\n")
    assert all(f"| G{n:02} | reject |" in text for n in range(2, 9))


def test_the_runs_own_profile_is_the_default(files: Files, tmp_path: Path, capsys: Captured) -> None:
    inside = files.manifest.required("training")
    files.report = plain(world.honest(plan=tuple(case for case in world.PLAN if case.id in inside)))
    files.report["run"]["profile"] = "training"
    files.report["run"]["invocation"]["argv"].append("--profile=training")
    files.baseline = files.report
    words = [word for word in files.write(tmp_path) if not word.startswith("--profile")]
    assert main(words) == 0
    assert "not checked: whether this is the profile that you require (--profile)" in capsys.readouterr().out

    del files.report["run"]["profile"]
    files.write(tmp_path)
    assert main(words) == 4
    assert "name the profile to judge by, such as --profile training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a report"),
        (["nowhere.json", "--profile=core"], "there is no nowhere.json"),
        (["REPORT", "--profile=cor"], "did you mean 'core'"),
        (["REPORT", "--profile=core", "--format=xml"], "format 'xml' is not registered"),
        (["REPORT", "--profile=core", "--waivers=nowhere.toml"], "there is no nowhere.toml"),
        (["REPORT", "--profile=core", "--signature=x.sig"], "--signature needs --allowed-signers"),
        (["REPORT", "--profile=core", "--signers=x.toml"], "--signers needs --allowed-signers"),
        (["--explain", "G77"], "gate rule 'G77' is not registered"),
    ],
)
def test_slips_are_status_4(files: Files, tmp_path: Path, capsys: Captured, words: list[str], sentence: str) -> None:
    files.write(tmp_path)

    assert main(["gate", *(str(tmp_path / "report.json") if word == "REPORT" else word for word in words)]) == 4
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", ["report.json", "baseline.json", "manifest.json.gz", "waivers.toml"])
@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe{", b"[" * 200_000, b"\x1f\x8b\x08", b'{"schema": 7}', b"a = 1"])
def test_what_cannot_be_read_is_status_2(
    files: Files, tmp_path: Path, capsys: Captured, name: str, data: bytes
) -> None:
    words = files.write(tmp_path)
    (tmp_path / name).write_bytes(data)
    if name == "waivers.toml" and not data:
        assert main(words) == 0  # nothing is waived
        return

    assert main(words) == 2

    said = capsys.readouterr()
    assert said.err.startswith("G01 cannot judge: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_explain_tells_one_rule_or_all(capsys: Captured) -> None:
    assert main(["gate", "--explain", "g07"]) == 0
    assert capsys.readouterr().out.startswith("G07  Every case that passed in the baseline passes now.")

    assert main(["gate", "--explain", "all"]) == 0
    assert all(f"{id}  " in capsys.readouterr().out for id in list(RULES)[:1])


# --- signatures -----------------------------------------------------------------------------------------------------

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the keys ``ada`` and ``eve``; only ada is an allowed signer."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ada", "eve"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(words, check=True, capture_output=True)
    (folder / "allowed").write_text(f"ada@acme.example {(folder / 'ada.pub').read_text()}")
    return folder


def signed(files: Files, folder: Path, keys: Path, key: str = "ada") -> list[str]:
    words = files.write(folder)
    assert main(["sign", words[1], "--key", str(keys / key)]) == 0
    return [*words, f"--allowed-signers={keys / 'allowed'}"]


@needs_ssh
def test_g14_a_signed_report_is_accepted(files: Files, tmp_path: Path, keys: Path, capsys: Captured) -> None:
    words = signed(files, tmp_path, keys)

    assert main(words) == 0
    assert main(["verify", words[1], f"--allowed-signers={keys / 'allowed'}"]) == 0
    assert "signed by ada@acme.example" in capsys.readouterr().out


@needs_ssh
def test_g14_a_signer_signs_only_for_the_accelerators_of_the_signer_file(
    files: Files, tmp_path: Path, keys: Path, capsys: Captured
) -> None:
    signers = tmp_path / "signers.toml"
    words = [*signed(files, tmp_path, keys), f"--signers={signers}"]

    signers.write_text('[[signer]]\nprincipal = "*@acme.example"\naccelerators = ["acme"]\n')
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "; signed by ada@acme.example; 0 cases waived\n" in out
    assert "--signers" not in out

    signers.write_text('[[signer]]\nprincipal = "ada@acme.example"\naccelerators = ["other"]\n')
    assert main(words) == 1
    sentence = "G14 reject ada@acme.example may sign for other, and the report is of 'acme'."
    assert capsys.readouterr().out.splitlines()[0] == sentence

    signers.write_text("")
    assert main(words) == 1
    assert "may sign for no accelerator" in capsys.readouterr().out


def test_the_required_accelerator_is_compared_with_the_name(files: Files, tmp_path: Path, capsys: Captured) -> None:
    words = files.write(tmp_path)

    assert main([*words, "--accelerator=acme"]) == 0
    assert "--accelerator" not in capsys.readouterr().out
    assert main([*words, "--accelerator=cuda"]) == 1
    assert capsys.readouterr().out.startswith("G17 reject The report is of 'acme', not of 'cuda'")


def test_a_decision_states_the_run_and_what_was_not_checked(files: Files, tmp_path: Path, capsys: Captured) -> None:
    words = files.write(tmp_path)
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("run new, ended 2")
    assert lines[-2].endswith("; not signed by an allowed signer; 0 cases waived")
    assert "not checked: who made the report (--allowed-signers)" in lines

    assert main([*words, "--format=json"]) == 0
    decision = json.loads(capsys.readouterr().out)
    assert (decision["run"]["id"], decision["signer"], decision["waived"]) == ("new", "", 0)
    assert "who made the report (--allowed-signers)" in decision["not_checked"]

    assert main([*words, "--format=markdown"]) == 0
    assert "Not checked:" in capsys.readouterr().out


@needs_ssh
def test_g14_what_only_a_signature_shows(files: Files, tmp_path: Path, keys: Path, capsys: Captured) -> None:
    """Only the signature shows a failure that was turned into a pass with every number adjusted."""
    fail(files)
    words = signed(files, tmp_path, keys)
    case = next(case for case in files.report["cases"] if case["id"] == ADD)
    for name in ("outcome", "reason", "message"):
        del case[name]
    files.write(tmp_path)
    capsys.readouterr()

    assert main(words) == 1
    assert capsys.readouterr().out.startswith("G14 reject The signature of ada@acme.example does not verify")
    assert main(words[:-1]) == 0  # nothing else sees it


@needs_ssh
def test_g14_a_signature_of_somebody_else_or_none(files: Files, tmp_path: Path, keys: Path, capsys: Captured) -> None:
    assert main(signed(files, tmp_path, keys, "eve")) == 1
    assert "not signed by an allowed signer" in capsys.readouterr().out

    (tmp_path / "report.json.sig").unlink()
    assert main([*files.write(tmp_path), f"--allowed-signers={keys / 'allowed'}"]) == 1
    assert "The report is not signed" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "report.json"), f"--allowed-signers={keys / 'allowed'}"]) == 1


@needs_ssh
def test_g14_a_signature_made_for_something_else_or_no_signature_at_all(
    files: Files, tmp_path: Path, keys: Path, capsys: Captured
) -> None:
    words = [*files.write(tmp_path), f"--allowed-signers={keys / 'allowed'}"]
    line = (tmp_path / "report.json").read_bytes()
    command = ["ssh-keygen", "-Y", "sign", "-q", "-n", "git", "-f", str(keys / "ada")]
    done = subprocess.run(command, input=line, capture_output=True, check=True)

    for data in (done.stdout, b"", b"\x00" * 100, b"-----BEGIN SSH SIGNATURE-----\n"):
        (tmp_path / "report.json.sig").write_bytes(data)
        assert main(words) == 1
        assert capsys.readouterr().out.startswith("G14 reject ")


@needs_ssh
def test_a_key_that_is_not_there_cannot_sign(files: Files, tmp_path: Path, capsys: Captured) -> None:
    assert main(["sign", files.write(tmp_path)[1], "--key", str(tmp_path / "nobody")]) == 4
    assert "there is no" in capsys.readouterr().err


FORGED = "forged"


@needs_ssh
@pytest.mark.parametrize("command", ["gate", "publish", "verify"])
def test_with_signers_the_signed_bytes_are_read_and_no_journal(
    command: str, files: Files, tmp_path: Path, keys: Path, capsys: Captured
) -> None:
    words = signed(files, tmp_path, keys)
    write_run(tmp_path, [(entry(ADD), passed())], accelerator=FORGED)
    capsys.readouterr()
    signers = f"--allowed-signers={keys / 'allowed'}"

    if command == "publish":
        assert main(["publish", str(tmp_path), signers, "-o", str(tmp_path / "page")]) == 0
        shown = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
        assert "ada@acme.example" in shown
        assert '<th scope="row" id="state-0">acme</th>' in shown
    else:
        assert main([command, str(tmp_path), *(words[2:] if command == "gate" else [signers])]) == 0
        shown = capsys.readouterr().out
        assert (
            "accepted: acme, profile training · 9 of 12 cases claimed"
            if command == "gate"
            else "signed by ada@acme.example"
        ) in shown
    assert FORGED not in shown


@needs_ssh
@pytest.mark.parametrize("command", ["gate", "verify"])
@pytest.mark.parametrize("name", ["", "journal.jsonl"])
def test_a_journal_has_no_signature(command: str, name: str, tmp_path: Path, keys: Path, capsys: Captured) -> None:
    write_run(tmp_path, [(entry("a.b"), passed())])

    assert main([command, str(tmp_path / name), f"--allowed-signers={keys / 'allowed'}"]) == 2
    assert "a signature covers that file, and no journal" in capsys.readouterr().err


@needs_ssh
def test_publish_says_when_a_signature_does_not_verify(
    files: Files, tmp_path: Path, keys: Path, capsys: Captured
) -> None:
    words = signed(files, tmp_path, keys)
    with Path(words[1]).open("a", encoding="utf-8") as file:
        file.write(" ")

    assert main(["publish", words[1], f"--allowed-signers={keys / 'allowed'}", "-o", str(tmp_path / "page")]) == 0

    assert "does not verify" in capsys.readouterr().err
    assert "ada@acme.example" not in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


@needs_ssh
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ('valid-before="20200101"', "a key of ada@acme.example that is not allowed now: valid-before 20200101."),
        ('valid-after="29990101"', "a key of ada@acme.example that is not allowed now: valid-after 29990101."),
        ('namespaces="git"', "a key of ada@acme.example that is not allowed now: namespaces git."),
    ],
)
def test_g14_a_key_with_limits_is_named_with_them(
    option: str, sentence: str, files: Files, tmp_path: Path, keys: Path, capsys: Captured
) -> None:
    words = signed(files, tmp_path, keys)
    allowed = tmp_path / "limited"
    allowed.write_text(f"ada@acme.example {option} {(keys / 'ada.pub').read_text()}", encoding="utf-8")

    assert main([*words[:-1], f"--allowed-signers={allowed}"]) == 1

    assert sentence in capsys.readouterr().out


@needs_ssh
def test_a_large_signature_is_refused_with_the_limit(
    files: Files, tmp_path: Path, keys: Path, capsys: Captured
) -> None:
    words = signed(files, tmp_path, keys)
    (tmp_path / "report.json.sig").write_bytes(b"x" * 100_000)

    assert main(words) == 2
    assert "report.json.sig is larger than 64 KiB; no signature of this suite is." in capsys.readouterr().err


# --- messages and statuses --------------------------------------------------------------------------------------------


def test_g15_fingerprints_are_told_apart_however_alike_they_begin(
    files: Files, tmp_path: Path, capsys: Captured
) -> None:
    words = files.write(tmp_path)
    own = files.report["environment"]["fingerprint_sha256"]
    other = own[:40] + ("0" if own[40] != "0" else "1") + own[41:]

    assert main([*words, f"--fingerprint={own.upper()}"]) == 0
    capsys.readouterr()
    assert main([*words, f"--fingerprint={other}"]) == 1
    assert f"is {own[:41]}, not the {other[:41]} that is required" in capsys.readouterr().out
    assert main([*words, f"--fingerprint={own[:12]}"]) == 4
    assert "--fingerprint has 12 characters; expected the 64 hexadecimal digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["gate", "REPORT"],
        ["report", "REPORT"],
        ["diff", "REPORT", "REPORT"],
        ["publish", "REPORT"],
        ["explain", "accelerator.device", "--report", "REPORT"],
        ["challenge", "REPORT", "--nonce=0123456789"],
        ["merge", "REPORT", "REPORT", "-o", "merged.json"],
    ],
    ids=lambda words: words[0],
)
def test_an_unreadable_report_is_status_2_and_a_missing_one_status_4(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")

    for name, status in (("broken.json", 2), ("nowhere.json", 4)):
        assert main([name if word == "REPORT" else word for word in command]) == status
        assert capsys.readouterr().err.count("\n") == 1


# --- what it costs --------------------------------------------------------------------------------------------------


def test_judging_imports_neither_torch_nor_pytest_nor_what_views_need(files: Files, tmp_path: Path) -> None:
    code = (
        "import sys; from conformance.cli.main import main\n"
        f"status = main({files.write(tmp_path)!r})\n"
        "heavy = {'torch', 'pytest', '_pytest', 'numpy', 'jinja2', 'tabulate', 'junitparser'}\n"
        "print(status, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env={**os.environ}
    )

    assert done.stdout.splitlines()[-1] == "0 []"


def test_plain_reports_are_those_that_runs_write(files: Files) -> None:
    assert files.report == plain(world.honest())
