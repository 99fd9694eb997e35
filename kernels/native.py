"""Compiled CPU kernels: each is one C++ file with a C interface, built at first use for this machine's instructions.

The files include no torch headers. So a build takes about a second, and the result depends on no torch version.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from conformance.accelerators import building
from conformance.accelerators.building import Recipe
from conformance.base.errors import SetupError

#: Name of these kernels in reports.
WHAT = "C++ compiled for this CPU"
#: Folder of the headers that kernels share.
SHARED = Path(__file__).parent / "csrc"
# -ffp-contract=off: contraction into fused multiply-add would give other bits than the portable references.
# -fwrapv: integers of the all-reduce wrap around.
_FLAGS = ("-std=c++17", "-O3", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-fwrapv", "-w")


@functools.cache
def shared_object(source: Path, who: str, without: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Build the library of ``source``, the files beside it and the shared headers; return it loaded.

    Calls into it release the interpreter lock. ``who`` is the subject of an error's sentence, and ``without`` says what
    works without the library. ``flags`` are compiler flags in addition to those of all kernels. Raises SetupError if
    there is no compiler, or if the file does not compile or load.
    """
    file = building.build(recipe(source, who, without, flags)).file
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise SetupError(f"{who} does not load: {error}\n  delete {file.parent} and try again") from None


def recipe(source: Path, who: str, without: str, flags: tuple[str, ...] = ()) -> Recipe:
    """Return the build recipe of ``source`` for this machine."""
    # Several machines may share a cache folder, and code made for one of them may not run on the next. So the
    # processor's instructions are part of the key (``depends``).
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
    """Return names and contents of the shared headers; they are part of the cache key."""
    return [(header.name, header.read_text(encoding="utf-8")) for header in sorted(SHARED.glob("*.h"))]


def _instructions() -> str:
    """Return the processor's model and instruction sets as the kernel lists them, or the platform's name of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    # Sorted and without repetitions, because a processor lists the same lines once for each core.
    return "\n".join(
        sorted({line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))})
    )
