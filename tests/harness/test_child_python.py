"""Tests of child interpreters: they import the same package in every folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance.process.python import child_python, module_path

PROGRAM = "import sys, conformance.base.errors; print(conformance.__file__, *sys.argv[1:])"


def test_a_namesake_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "__init__.py").write_text("raise ImportError('the wrong package')\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    command = child_python(f"import beside\n{PROGRAM}", "one", "two words")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.split(maxsplit=1) == [conformance.__file__, "one two words\n"], done.stderr
    assert sorted(module_path()) == sorted(sys.path)
    assert module_path().index(str(tmp_path)) > module_path().index(str(Path(pytest.__file__).parents[1]))
