"""A file opened for one transfer, twice where possible: through the page cache and past it."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from conformance.kernels.arguments import wrong

Name = str | bytes | int


@dataclass(frozen=True)
class OpenFile:
    """``plain`` goes through the page cache; ``direct`` past it, and is -1 where the file system cannot do that."""

    plain: int
    direct: int

    def close(self) -> None:
        os.close(self.plain)
        if self.direct >= 0:
            os.close(self.direct)


def open_to_read(filename: Name, bytes_: int, offset: int) -> OpenFile:
    """Raises UsageError unless the file is there and holds ``bytes_`` from ``offset`` on."""
    opened = _open(filename, os.O_RDONLY)
    status = os.fstat(opened.plain)
    if stat.S_ISREG(status.st_mode) and status.st_size >= offset + bytes_:
        return opened
    opened.close()
    if not stat.S_ISREG(status.st_mode):
        raise wrong("filename", "a regular file", f"{filename!r}, which is none")
    needed = f"a file of at least {offset + bytes_} bytes (buffer {bytes_}, file_offset {offset})"
    raise wrong("filename", needed, f"{filename!r} with {status.st_size}")


def open_to_write(filename: Name) -> OpenFile:
    """The file is created if it is not there, and keeps what it has beyond the transfer. Raises UsageError."""
    return _open(filename, os.O_WRONLY | os.O_CREAT)


def _open(filename: Name, flags: int) -> OpenFile:
    path = _path_of(filename, flags) if isinstance(filename, int) else filename
    doing = "reading" if flags == os.O_RDONLY else "writing"
    try:
        plain = os.dup(path) if isinstance(path, int) else os.open(path, flags, 0o664)
    except OSError as error:
        raise wrong("filename", f"a file that opens for {doing}", f"{filename!r}: {error.strerror}") from None
    return OpenFile(plain, -1 if isinstance(path, int) else _direct(path, flags))


def _direct(path: str | bytes, flags: int) -> int:
    past_the_cache = getattr(os, "O_DIRECT", None)
    if past_the_cache is None:
        return -1
    try:
        return os.open(path, flags | past_the_cache, 0o664)
    except OSError:
        return -1  # the page cache always works; tmpfs and network file systems have nothing else


def _path_of(descriptor: int, flags: int) -> str | int:
    """A path that opens the same file anew, so that its flags and position do not matter; else the number itself."""
    try:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError as error:
        raise wrong("filename", "an open file's number", f"{descriptor}: {error.strerror}") from None
    needed, doing = (os.O_RDONLY, "reading") if flags == os.O_RDONLY else (os.O_WRONLY, "writing")
    if mode not in (needed, os.O_RDWR):
        raise wrong("filename", f"a file opened for {doing}", f"number {descriptor}, which is not")
    path = f"/proc/self/fd/{descriptor}"
    return path if Path(path).exists() and os.access(path, os.R_OK if flags == os.O_RDONLY else os.W_OK) else descriptor
