"""conformance sign: a report is signed, and a missing key comes with the command that makes one."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.cli.main import main

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
