"""Reading of untrusted JSON, whose bytes and values are limited before any object is built; atomic writing."""

from __future__ import annotations

import gc
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from conformance.base.errors import JournalError

#: Cases of one report. In a large report each takes some 300 bytes of memory.
MAX_CASES: Final = 1_000_000
#: Bytes of a report. A report of 20,000 cases takes 7 MiB, one of a million 350 MiB.
MAX_REPORT_BYTES: Final = 768 * 1024 * 1024
#: Reports with more bytes are read piece by piece; those with fewer at once, which is faster.
LARGE: int = 16 * 1024 * 1024
#: Bytes of other files, which are read at once.
MAX_BYTES: Final = 128 * 1024 * 1024
#: Cases in a file that is read at once, and brackets in it; a case has four objects and lists, and brackets in its id
#: and its requirement. An empty object takes 3 bytes of the file and 64 bytes of memory.
_CASES_AT_ONCE: Final = 200_000
MAX_CONTAINERS: Final = 7 * _CASES_AT_ONCE
#: Values in a file. Numbers and strings take memory too.
MAX_VALUES: Final = 25 * _CASES_AT_ONCE
#: First bytes of gzip data. The name of a file says nothing reliable.
GZIP: Final = b"\x1f\x8b"


def read_json(path: Path) -> Any:
    """Return the JSON value of a file, compressed by gzip or not.

    JournalError says in one sentence what is wrong. Duplicate keys, NaN and infinities are errors.
    """
    return parse_json(inflated(read_capped(path), str(path)), str(path))


def inflated(data: bytes, where: str, limit: int | None = None) -> bytes:
    """Return the bytes, decompressed if they are compressed; JournalError if they exceed the limit of a file.

    With a ``limit`` of their own, no more than so many bytes and one are returned, and nothing is raised.
    """
    if not data.startswith(GZIP):
        return data
    # Imported here, because plain files do not need it.
    import gzip
    import zlib

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read((MAX_BYTES if limit is None else limit) + 1)
    except (OSError, EOFError, zlib.error):
        raise JournalError(f"{where} cannot be decompressed.") from None
    if limit is None and len(text) > MAX_BYTES:
        raise JournalError(f"{where} unpacks to more than {size_text(MAX_BYTES)}; no report of this suite does.")
    return text


def parse_json(data: bytes, where: str) -> Any:
    """Return the JSON value of UTF-8 text. Errors call it ``where``."""
    reject_crowds(data, where)
    try:
        with collector_paused():
            return json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys, parse_constant=no_constant)
    except RecursionError:
        raise JournalError(f"{where} is nested too deeply to be a report.") from None
    except UnicodeDecodeError:
        raise JournalError(f"{where} is not valid JSON: it is not UTF-8 text.") from None
    except ValueError as error:
        raise JournalError(f"{where} is not valid JSON: {error}.") from None


def size_text(size: int) -> str:
    """Return a number of bytes in words: ``64 MiB``, ``512 KiB``, ``10 bytes``."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >> shift and not size % (1 << shift):
            return f"{size >> shift} {unit}"
    return f"{size} bytes"


def read_capped(path: Path, limit: int | None = None, kind: str = "report") -> bytes:
    """Return the bytes of a regular file up to a size limit. Pipes and devices are refused: they may never end.

    An error calls a larger file no ``kind`` of this suite.
    """
    limit = MAX_BYTES if limit is None else limit
    with opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise JournalError(f"{path} is larger than {size_text(limit)}; no {kind} of this suite is.")
    return data


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; JournalError for all that cannot be read. Pipes and devices may never end."""
    if "\0" in str(path):
        raise JournalError("cannot read a file whose name holds a NUL character.")
    try:
        if path.exists() and not path.is_file():
            raise JournalError(f"{path} is not a file.")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}.") from None


def reject_crowds(data: bytes, where: str, share: float = 1) -> None:
    """Reject text that may hold too many values, by counting brackets and commas: an upper bound within 1 ms.

    ``share`` is the part of a file's limit that the text may use.
    """
    containers = data.count(b"{") + data.count(b"[")
    # A value and its comma take two bytes, so that the commas of most files need not be counted.
    values = containers + len(data) // 2
    if values > share * MAX_VALUES:
        values = containers + data.count(b",")
    if containers > share * MAX_CONTAINERS or values > share * MAX_VALUES:
        raise JournalError(
            f"{where} holds more values in {len(data):,} bytes than this version reads at once; no file of this suite "
            "holds so many."
        )


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object's members. Raises ``ValueError`` for a key that occurs twice."""
    # json keeps the last of two equal keys, so two readers could see different values in one file.
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return members


def no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector inside. It takes half the time of reading a report, a fifth of importing torch."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def write_json(path: Path, value: Any) -> None:
    """Write compact JSON atomically: several processes may write the same file at once, and one may read it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, separators=(",", ":")))
    temporary.replace(path)
