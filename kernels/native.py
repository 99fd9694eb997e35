"""Compiled CPU kernels: one C++ file with a C interface, built at first use for this machine's instructions.

No torch headers are involved, so a build takes about a second, and the result depends on no torch version.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from conformance.accelerators import building
from conformance.accelerators.building import Recipe
from conformance.errors import SetupError

#: How reports call what is built here.
WHAT = "C++ compiled for this CPU"
#: Headers that kernels share.
SHARED = Path(__file__).parent / "csrc"
#: Contraction into fused multiply-add would give other bits than the portable references.
_FLAGS = ("-std=c++17", "-O3", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-fwrapv", "-w")


@functools.cache
def shared_object(source: Path, who: str, without: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The library made of ``source``, what lies beside it and shared headers, loaded.

    Calls into it release the interpreter lock. ``who`` is the subject of the error's sentence, ``without`` what still
    works, ``flags`` are the compiler's beyond those that all kernels have. Raises SetupError if there is no compiler,
    or if the file does not compile or load.
    """
    file = building.build(recipe(source, who, without, flags)).file
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise SetupError(f"{who} does not load: {error}\n  delete {file.parent} and try again") from None


def recipe(source: Path, who: str, without: str, flags: tuple[str, ...] = ()) -> Recipe:
    """How ``source`` is built here."""
    # A cache folder may be shared by machines: what one of them calls native may be illegal on the next.
    tuned = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    return Recipe(
        name=source.stem,
        place="kernels",
        who=who,
        without=without,
        sources=source.parent,
        depends=(source.name, *_FLAGS, *flags, tuned, platform.machine(), _instructions(), *_headers()),
        arguments=lambda output: [*_FLAGS, *flags, tuned, f"-I{SHARED}", str(source), "-o", str(output)],
        hint=lambda _: f"the compiler must know C++17; CXX chooses another one, and {without}",
    )


def _headers() -> list[tuple[str, str]]:
    """Shared headers and their contents: another one makes another library."""
    return [(header.name, header.read_text(encoding="utf-8")) for header in sorted(SHARED.glob("*.h"))]


def _instructions() -> str:
    """What this machine's processor says it can do; empty where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(
        sorted({line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))})
    )
