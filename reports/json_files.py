"""Reading JSON that a stranger wrote: bounded in bytes, in values and in depth before anything is built of it."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from conformance.errors import JournalError

#: A report of 20,000 cases takes 7 MiB.
MAX_BYTES: Final = 64 * 1024 * 1024
#: Objects and lists a file may hold; a case takes four. An empty one costs 64 bytes of memory and three of the file.
MAX_CONTAINERS: Final = 500_000
#: Values: numbers and strings cost memory too.
MAX_VALUES: Final = 2_500_000
_GZIP: Final = b"\x1f\x8b"


def read_json(path: Path) -> Any:
    """The JSON value of a file, compressed by gzip or not; no duplicate keys, no NaN, no infinities.

    JournalError is one sentence.
    """
    return parse_json(inflated(read_capped(path), str(path)), str(path))


def inflated(data: bytes, where: str) -> bytes:
    """The bytes, unpacked if they are packed; never more than a report may hold: few bytes can unpack to gigabytes."""
    if not data.startswith(_GZIP):
        return data
    # Imported here: nobody waits for it who reads plain files.
    import gzip
    import zlib

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise JournalError(f"{where} cannot be decompressed.") from None
    if len(text) > MAX_BYTES:
        raise JournalError(f"{where} unpacks to more than {MAX_BYTES >> 20} MiB; no report of this suite does.")
    return text


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value of UTF-8 text; ``where`` is what errors call it."""
    _reject_crowds(data, where)
    try:
        with collector_paused():
            return json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise JournalError(f"{where} is nested too deeply to be a report.") from None
    except UnicodeDecodeError:
        raise JournalError(f"{where} is not valid JSON: it is not UTF-8 text.") from None
    except ValueError as error:
        raise JournalError(f"{where} is not valid JSON: {error}.") from None


def read_capped(path: Path, limit: int | None = None) -> bytes:
    """The bytes of a plain file that is not too large. A pipe or a device is refused: it may never end."""
    limit = MAX_BYTES if limit is None else limit
    try:
        if path.exists() and not path.is_file():
            raise JournalError(f"{path} is not a file.")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError:  # a NUL in the name
        raise JournalError("cannot read a file whose name holds a NUL character.") from None
    if len(data) > limit:
        raise JournalError(f"{path} is larger than {limit >> 20} MiB; no report of this suite is.")
    return data


def _reject_crowds(data: bytes, where: str) -> None:
    """Counting signs is an upper bound, and costs a millisecond where building the values could cost gigabytes."""
    containers = data.count(b"{") + data.count(b"[")
    if containers > MAX_CONTAINERS or containers + data.count(b",") > MAX_VALUES:
        raise JournalError(f"{where} holds more values than a report of this suite can have.")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@contextmanager
def collector_paused() -> Iterator[None]:
    """No looking for garbage inside: it is half of the time of reading a report, and a fifth of importing torch."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
