"""Folder of compiled code: each run has a new one, which its workers share, and the user's own is not read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.process.compiler_cache import FOLDERS, new_compiler_cache
from tests.acceptance.running import Run, run

#: A backend that compiles with ``$COMPILER``, and stores its code as compilers do.
STORES = """
import os, pathlib, pytest
@pytest.mark.parametrize("case", ["first", "second"])
def test_compiled(case):
    folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    print("FOLDER", folder)
    code = folder / "code"
    if not code.exists():
        folder.mkdir(parents=True, exist_ok=True)
        assert os.environ["COMPILER"] == "sound", "the compiler is broken"
        code.write_text("code")
"""


def test_a_second_run_does_not_use_code_that_the_first_has_stored(tmp_path: Path) -> None:
    (tmp_path / "test_stores.py").write_text(STORES)
    own = tmp_path / "own"
    (own / "inductor").mkdir(parents=True)
    (own / "code").write_text("the user's")
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def finished(compiler: str) -> Run:
        return run("--accelerator=cpu", "-n0", "-rP", "test_stores.py", cwd=tmp_path, COMPILER=compiler,
                   TORCHINDUCTOR_CACHE_DIR=str(own), TMPDIR=str(temporary))  # fmt: skip

    first, second = finished("sound"), finished("broken")

    folders = {line.split()[1] for line in first.output.splitlines() if line.startswith("FOLDER")}
    assert "2 passed" in first.output, first.output
    assert len(folders) == 1, f"cases of one run have the folders {folders}"
    assert folders != {str(own)}
    assert "the compiler is broken" in second.output
    assert not list(temporary.glob("conformance-compiled-*")), "the folder outlives its run"
    assert (own / "code").read_text() == "the user's"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_compiles_anew_in_each_folder(tmp_path: Path) -> None:
    program = "import torch; print(torch.compile(lambda x: (x * 3 + 1).relu())(torch.ones(5)).tolist())"

    def compiled(compiler: str) -> subprocess.CompletedProcess[str]:
        undo = new_compiler_cache()
        try:
            # The checks of the instruction sets are compiled as well, which takes seconds.
            environment = {**os.environ, "CXX": compiler, "TORCHINDUCTOR_VEC_ISA_OK": "1", "TMPDIR": str(tmp_path)}
            return subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
            )
        finally:
            undo()

    first, second = compiled("g++"), compiled("false")

    assert "[4.0, 4.0, 4.0, 4.0, 4.0]" in first.stdout, first.stderr
    assert second.returncode != 0, "code that the first run has stored was used"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_only_libraries_that_ask_for_instructions_are_kept(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    undo = new_compiler_cache()
    first = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    for place, name, function in (("pr", "cprobe.cpp", "__avx_chk_kernel"), ("ke", "ckernel.main.cpp", "kernel")):
        code = first / place / name
        code.parent.mkdir(parents=True)
        code.write_text(f'extern "C" void {function}() {{}}')
        subprocess.run(["g++", "-shared", "-fPIC", code, "-o", code.with_suffix(".so")], check=True)
    library = first / "pr" / "cprobe.so"
    content = library.read_bytes() if whole else library.read_bytes()[:1000]
    library.write_bytes(content)
    undo()
    undo = new_compiler_cache()
    second = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    found = {file.name: file.read_bytes() for file in second.glob("*/*.so")}
    undo()

    assert second != first
    assert found == ({"cprobe.so": content} if whole else {})


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_takes_the_kept_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    written = tmp_path / "compiled"
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {written}\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    program = (
        "from torch._inductor.cpu_vec_isa import valid_vec_isa_list\n"
        "print([(str(isa), isa.build_arch_flags()) for isa in valid_vec_isa_list()])"
    )

    def asked() -> tuple[str, int]:
        written.unlink(missing_ok=True)
        undo = new_compiler_cache()
        environment = {**os.environ, "CXX": str(compiler)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        undo()
        lines = written.read_text().splitlines() if written.exists() else []
        return done.stdout, sum(".cpp" in line for line in lines)

    instructions, compiled = asked()
    again, compiled_again = asked()

    assert again == instructions != ""
    assert compiled_again == 0, f"{compiled_again} of {compiled} libraries were compiled again"


def test_the_variables_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "own")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)

    undo = new_compiler_cache()
    folders = {os.environ[name] for name in FOLDERS}
    undo()

    assert len(folders) == len(FOLDERS)
    assert not any(Path(folder).exists() for folder in folders)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "own"
    assert "TRITON_CACHE_DIR" not in os.environ


def test_folders_of_killed_runs_are_deleted_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, beginning = (tmp_path / f"conformance-compiled-{name}" for name in ("killed", "beginning"))
    for folder in (killed, beginning):
        (folder / "inductor").mkdir(parents=True)
    os.utime(killed, (0, 0))

    undo_first = new_compiler_cache()
    first = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent
    undo_second = new_compiler_cache()

    assert not killed.exists()
    assert first.is_dir()
    assert beginning.is_dir()
    undo_second()
    undo_first()
    assert list(tmp_path.iterdir()) == [beginning]
