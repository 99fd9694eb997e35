"""Builds the engine's C++ core once, and finds it again.

The result lies in the user's cache folder, named by everything it depends on: sources, torch, Python, compiler.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from conformance.errors import SetupError

_SOURCES = Path(__file__).parent / "csrc"
_NAME = "sim_core"
# -O1: -O0 makes every operator ten times dearer, -O2 only the build.
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-g0",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-w",
    f"-DTORCH_EXTENSION_NAME={_NAME}",
)


@dataclass(frozen=True)
class Built:
    """Where the core lies, and the seconds it took to build now (0 if it was there)."""

    file: Path
    seconds: float


def load_core() -> ModuleType:
    """The compiled module. Raises SetupError if it cannot be built or loaded here."""
    built = build()
    spec = importlib.util.spec_from_file_location(_NAME, built.file)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(core)
    except ImportError as error:
        raise SetupError(
            f"the simulated accelerator's core does not load: {error}\n  delete {built.file.parent} and try again"
        ) from None
    return core


def build() -> Built:
    """Compile the core unless it is there already; other processes wait for the one that builds."""
    folder = cache_folder() / _fingerprint()
    file = folder / f"{_NAME}.so"
    if file.exists():
        return Built(file, 0.0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"the simulated accelerator cannot be built: {folder} cannot be created: {error.strerror}.\n"
            "  set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    with _turn(folder / "lock"):
        if file.exists():
            return Built(file, 0.0)
        start = time.perf_counter()
        _compile(file)
        return Built(file, time.perf_counter() - start)


def cache_folder() -> Path:
    """The user's cache folder for this project."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "accelerator-conformance" / "simulated"


def compiler() -> list[str]:
    """The C++ compiler's command, from CXX or PATH. Raises SetupError naming the package to install."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [["g++"], ["clang++"], ["c++"]]:
        if shutil.which(command[0]):
            return command
    asked = f"CXX names {chosen[0]}, which is not" if chosen else "no C++ compiler is"
    raise SetupError(
        f"accelerator 'sim' is built on first use, and {asked} installed here.\n"
        "  install the package g++ (Debian, Ubuntu), gcc-c++ (Fedora), or conda-forge's cxx-compiler; "
        "every other accelerator works without it"
    )


def _fingerprint() -> str:
    import torch

    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.name.encode() + source.read_bytes())
    abi = sysconfig.get_config_var("EXT_SUFFIX") or ""
    digest.update(repr((torch.__version__, torch.version.git_version, sys.version_info[:2], abi, _FLAGS)).encode())
    return digest.hexdigest()[:16]


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _compile(file: Path) -> None:
    partial = file.with_suffix(f".{os.getpid()}.so")
    done = subprocess.run(_command(partial), capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise SetupError(_sentence(done.stderr))
    partial.replace(file)


def _command(output: Path) -> list[str]:
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    folders = [*include_paths(), sysconfig.get_path("include")]
    # Kineto's headers include each other without their folder.
    includes = [f"-isystem{path}" for path in (*folders, *(f"{path}/kineto" for path in folders))]
    libraries = [flag for path in library_paths() for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [
        *compiler(), *_FLAGS, abi, *includes, str(_SOURCES / "unity.cpp"), "-o", str(output),
        *libraries, "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python",
    ]  # fmt: skip


def _sentence(errors: str) -> str:
    import torch

    lines = [line for line in errors.splitlines() if "error" in line.lower()] or errors.splitlines()
    first = lines[0] if lines else "the compiler said nothing"
    hint = (
        "install the package python3-dev"
        if "Python.h" in first
        else f"it is written for torch 2.13; this is {torch.__version__}"
    )
    return f"accelerator 'sim' cannot be built: {first.strip()}\n  {hint}"
