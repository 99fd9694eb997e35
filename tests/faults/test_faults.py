"""The generator of faults is tested in a process that has run no backward pass: its copies could not run another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.layers import longer


@pytest.mark.parametrize(("layer", "part"), longer([("not long", ""), ("long", "fails"), ("long", "not fails")]))
def test_the_generator_of_faults_in_a_fresh_process(layer: str, part: str, tmp_path: Path) -> None:
    file = Path(__file__).with_name("in_a_fresh_process.py")
    words = [
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-m",
        layer,
        "-k",
        part,
        str(file),
    ]

    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=800)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
