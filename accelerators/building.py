"""Build of C++ extensions, with a cache.

The result is stored in the user's cache folder, under a hash of everything it depends on. Processes that need the same
extension at the same time wait until one of them has built it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conformance.base.cache import cache_folder, locked
from conformance.base.errors import SetupError


@dataclass(frozen=True)
class Recipe:
    """The sources of one extension and the compiler's arguments for it.

    ``who`` is the subject of error sentences. ``without`` says what still works if the build fails. Every source in
    ``sources`` and everything in ``depends`` goes into the hash. ``arguments`` returns the compiler's arguments for an
    output file. ``hint`` returns the next step for the first line of the compiler's errors.
    """

    name: str
    place: str
    who: str
    without: str
    sources: Path
    depends: tuple[object, ...]
    arguments: Callable[[Path], list[str]]
    hint: Callable[[str], str]


@dataclass(frozen=True)
class Built:
    """The built file, and the seconds that the build took (0 if the cache had it)."""

    file: Path
    seconds: float


class NotBuilt(SetupError):
    """An extension that has to be compiled first, in a process that must not take that long."""


_may_compile = True


def only_built() -> None:
    """Raise ``NotBuilt`` from now on where an extension would have to be compiled."""
    global _may_compile
    _may_compile = False


def build(recipe: Recipe) -> Built:
    """Return the extension; compile it unless the cache has it. Raises SetupError if the build fails."""
    folder = cache_folder() / recipe.place / _fingerprint(recipe)
    file = folder / f"{recipe.name}.so"
    if file.exists():
        return Built(file, 0.0)
    if not _may_compile:
        raise NotBuilt(f"{recipe.who} is compiled in the first run or by doctor with its name, in a minute or two")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"{recipe.who} cannot be built: {folder} cannot be created: {error.strerror}.\n"
            "  set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    with locked(folder / "lock"):
        if file.exists():  # another process built it while this one waited for the lock
            return Built(file, 0.0)
        start = time.perf_counter()
        _compile(recipe, file)
        return Built(file, time.perf_counter() - start)


def compiler(who: str, without: str) -> list[str]:
    """Return the C++ compiler's command, from CXX or PATH; raise SetupError with the package to install."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [["g++"], ["clang++"], ["c++"]]:
        if shutil.which(command[0]):
            return command
    missing = f"CXX names {chosen[0]}, which is not" if chosen else "no C++ compiler is"
    raise SetupError(
        f"{who} is built on first use, and {missing} installed here.\n"
        "  install the package g++ (Debian, Ubuntu), gcc-c++ (Fedora), or conda-forge's cxx-compiler; "
        f"{without}"
    )


def _fingerprint(recipe: Recipe) -> str:
    """Return 16 hex digits over the sources and over everything else that the build depends on."""
    digest = hashlib.sha256()
    # Sorted, because iterdir() has no defined order and equal sources must give equal digits.
    for source in sorted(recipe.sources.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.name.encode() + source.read_bytes())
    digest.update(repr(recipe.depends).encode())
    return digest.hexdigest()[:16]


def _compile(recipe: Recipe, file: Path) -> None:
    """Compile the sources into ``file``. Raises ``SetupError`` with the compiler's first error."""
    print(f"{recipe.who}: compiling {recipe.name}, once for this torch; this takes a minute or more", flush=True)
    partial = file.with_suffix(f".{os.getpid()}.so")
    command = [*compiler(recipe.who, recipe.without), *recipe.arguments(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        # Notes and warnings may come first; the first line with "error" tells the cause.
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        first = lines[0] if lines else "the compiler printed no message"
        raise SetupError(f"{recipe.who} cannot be built: {first.strip()}\n  {recipe.hint(first)}")
    partial.replace(file)  # atomic: no process can load a half-written file
