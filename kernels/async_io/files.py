"""Opening of files for one transfer, twice where possible: through the page cache and bypassing it."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from conformance.kernels.arguments import wrong

#: A path, or the descriptor of an open file.
FileName = str | bytes | int


@dataclass(frozen=True)
class OpenFile:
    """Descriptors of one file: ``plain`` uses the page cache, ``direct`` bypasses it (-1 where that is impossible)."""

    plain: int
    direct: int

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.plain)
        if self.direct >= 0:
            os.close(self.direct)


def open_to_read(filename: FileName, bytes_: int, offset: int) -> OpenFile:
    """Open the file; raise UsageError unless it exists and holds ``bytes_`` bytes from ``offset`` on."""
    opened = _open(filename, os.O_RDONLY)
    status = os.fstat(opened.plain)
    if stat.S_ISREG(status.st_mode) and status.st_size >= offset + bytes_:
        return opened
    opened.close()
    if not stat.S_ISREG(status.st_mode):
        raise wrong("filename", "a regular file", f"{filename!r}, which is none")
    needed = f"a file of at least {offset + bytes_} bytes (buffer {bytes_}, file_offset {offset})"
    raise wrong("filename", needed, f"{filename!r} with {status.st_size}")


def open_to_write(filename: FileName) -> OpenFile:
    """Open the file, and create it if it does not exist; it is not truncated. Raises UsageError."""
    return _open(filename, os.O_WRONLY | os.O_CREAT)


def _open(filename: FileName, flags: int) -> OpenFile:
    """Open a path or duplicate a descriptor. Raises ``UsageError`` if the file does not open."""
    path = _path_of(filename, flags) if isinstance(filename, int) else filename
    doing = "reading" if flags == os.O_RDONLY else "writing"
    try:
        # A duplicate, so that closing it leaves the caller's descriptor open.
        plain = os.dup(path) if isinstance(path, int) else os.open(path, flags, 0o664)
    except OSError as error:
        raise wrong("filename", f"a file that opens for {doing}", f"{filename!r}: {error.strerror}") from None
    return OpenFile(plain, -1 if isinstance(path, int) else _direct(path, flags))


def _direct(path: str | bytes, flags: int) -> int:
    """Open the file again past the page cache, and return the descriptor, or -1 where that is impossible."""
    bypass = getattr(os, "O_DIRECT", None)
    if bypass is None:
        return -1
    try:
        return os.open(path, flags | bypass, 0o664)
    except OSError:
        return -1  # tmpfs and network file systems may refuse; the page cache works everywhere


def _path_of(descriptor: int, flags: int) -> str | int:
    """Return a path that opens the descriptor's file again, or the descriptor itself if there is none.

    A file opened again has its own flags and position, so those of the caller's descriptor do not matter.
    """
    try:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError as error:
        raise wrong("filename", "an open file's number", f"{descriptor}: {error.strerror}") from None
    needed, doing = (os.O_RDONLY, "reading") if flags == os.O_RDONLY else (os.O_WRONLY, "writing")
    if mode not in (needed, os.O_RDWR):
        raise wrong("filename", f"a file opened for {doing}", f"number {descriptor}, which is not")
    path = f"/proc/self/fd/{descriptor}"
    return path if Path(path).exists() and os.access(path, os.R_OK if flags == os.O_RDONLY else os.W_OK) else descriptor
