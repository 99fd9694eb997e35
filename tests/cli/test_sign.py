"""conformance sign: a report is signed, and a missing key comes with the command that makes one."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.cli.main import main
from tests.reports.gate.world import honest, plain

Captured = pytest.CaptureFixture[str]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_the_command_for_a_missing_key_makes_one(suffix: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "report.json").write_text("{}")
    key = tmp_path / "a key"

    assert main(["sign", str(tmp_path), "--key", f"{key}{suffix}"]) == 4
    command = capsys.readouterr().err.partition("make one: ")[2].strip()
    subprocess.run([*shlex.split(command), "-N", "", "-q"], check=True)

    assert main(["sign", str(tmp_path), "--key", str(key)]) == 0
    assert capsys.readouterr().out.endswith(f"the public key {key}.pub\n")
    assert (tmp_path / "report.json.sig").is_file()


needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")


@pytest.fixture
def signed(tmp_path: Path, capsys: Captured) -> Path:
    """A folder with a signed report, the key of Ada, and another key."""
    for name in ("ada", "eve"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "report.json").write_text(json.dumps(plain(honest())))
    assert main(["sign", str(tmp_path), "--key", str(tmp_path / "ada")]) == 0
    capsys.readouterr()
    return tmp_path


def key(folder: Path, name: str = "ada") -> str:
    return " ".join((folder / f"{name}.pub").read_text().split()[:2])


LINES = {
    "one name": ("ada@x {ada}\n", "signed by ada@x"),
    "several names": ("ada@x,bob@x {ada}\n", "signed by ada@x, bob@x"),
    "several lines": ('ada@x namespaces="git" {ada}\nbob@x {ada}\n', "signed by bob@x"),
    "both lines": ("ada@x {ada}\nbob@x {ada}\n", "signed by ada@x, bob@x"),
    "windows": ("\ufeffada@x {ada}\r\n", "signed by ada@x"),
    "quotes": ('"ada of x" {ada}\n', "signed by ada of x"),
    "a pattern": ("*@x,!ada@x {ada}\n", "signed by SHA256:"),
    "a pattern and a name": ("*@x,ada@x {ada}\n", "signed by ada@x"),
    "another key": ("ada@x {eve}\n", "none of them has the key"),
    "a comment": ("# ada@x {ada}\n", "none of them has the key"),
    "an unknown option": ("ada@x magic {ada}\n", "does not verify: its line has bad options"),
    "a time": ('ada@x valid-before="20200101" {ada}\n', "not allowed now: valid-before 20200101"),
}


@needs_ssh
@pytest.mark.parametrize("name", LINES)
def test_every_line_and_every_name_of_a_key_counts(name: str, signed: Path, capsys: Captured) -> None:
    line, words = LINES[name]
    allowed = signed / "allowed"
    allowed.write_bytes(line.format(ada=key(signed), eve=key(signed, "eve")).encode())

    status = main(["verify", str(signed), f"--allowed-signers={allowed}"])

    said = capsys.readouterr().out
    assert words in said
    assert status == (0 if words.startswith("signed") else 1)
    assert not {"*", "!"} & set(said)


@needs_ssh
def test_a_file_in_utf16_is_read(signed: Path) -> None:
    (signed / "allowed").write_text(f"ada@x {key(signed)}\n", encoding="utf-16")

    assert main(["verify", str(signed), f"--allowed-signers={signed / 'allowed'}"]) == 0


@needs_ssh
@pytest.mark.parametrize("kind", ["key", "list"])
def test_a_revoked_key_signs_for_nobody(kind: str, signed: Path, capsys: Captured) -> None:
    (signed / "allowed").write_text(f"ada@x {key(signed)}\n")
    revoked = signed / "ada.pub"
    if kind == "list":
        revoked = signed / "krl"
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revoked), str(signed / "ada.pub")], check=True)
    words = ["verify", str(signed), f"--allowed-signers={signed / 'allowed'}"]

    assert main([*words, f"--revoked-keys={revoked}"]) == 1
    assert "a key of ada@x that is revoked" in capsys.readouterr().out
    assert main([*words, f"--revoked-keys={signed / 'eve.pub'}"]) == 0


@needs_ssh
def test_verify_knows_for_which_accelerators_a_signer_may_sign(signed: Path, capsys: Captured) -> None:
    (signed / "allowed").write_text(f"ada@x,bob@x {key(signed)}\n")
    words = ["verify", str(signed), f"--allowed-signers={signed / 'allowed'}", f"--signers={signed / 'signers'}"]
    for names, status in (('["acme"]', 0), ('["other"]', 1)):
        (signed / "signers").write_text(f'\ufeff[[signer]]\nprincipal = "bob@x"\naccelerators = {names}\n')
        assert main(words) == status
    assert "may not sign for 'acme'" in capsys.readouterr().out
