"""Reader of large reports: it never holds the file in memory, and hashes the same bytes that it parses.

Small files are parsed at once, which is faster. The rules are the same: no key twice, no unknown key, no wrong type, no
value over the limits. A message names the line of the value.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from io import BytesIO, RawIOBase
from typing import Any, Final, Protocol

from conformance.base.errors import JournalError
from conformance.reports.case_table import CaseTable
from conformance.reports.json_files import (
    GZIP,
    MAX_CASES,
    MAX_REPORT_BYTES,
    collector_paused,
    no_constant,
    reject_crowds,
    size_text,
    unique_keys,
)
from conformance.reports.model import CaseRecord
from conformance.reports.reading import read_many
from conformance.reports.report_json import unpacked_rows

#: Bytes that are read at once, and the longest run of blanks between two values.
_CHUNK: Final = 1 << 18
#: Characters of one case, and of one other member of a report, such as its declaration.
_LONGEST_CASE: Final = 1 << 20
_LONGEST_MEMBER: Final = 1 << 24
#: Part of the values of a whole file that one member may hold.
_SHARE: Final = 0.2
#: Characters at the end of a window in which a value may be cut: ``-Infinity``, a number, an escaped character.
_TAIL: Final = 32
#: Cases that are checked together.
_BATCH: Final = 2_000
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=no_constant)


class Readable(Protocol):
    """Anything that bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes; none at the end."""


def read_large(file: Readable, where: str) -> tuple[dict[str, Any], CaseTable, str]:
    """Return the members of a report without its cases, the cases, and the SHA-256 of the file's bytes.

    JournalError says in one sentence what is wrong, and on which line.
    """
    with collector_paused():
        text = _Text(file, where)
        head, cases = _read_object(text)
        text.finish()
    return head, cases, text.sha256


class _Hashed(RawIOBase):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: Readable, where: str) -> None:
        self._file, self._where = file, where
        self._hash = hashlib.sha256()
        self._size = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size >= 0 else _CHUNK)
        self._size += len(data)
        if self._size > MAX_REPORT_BYTES:
            raise JournalError(
                f"{self._where} is larger than {size_text(MAX_REPORT_BYTES)}; no report of this suite is."
            )
        self._hash.update(data)
        return data

    def hexdigest(self) -> str:
        """Return the hash of the whole file: what was not read yet is read now."""
        while self.read(_CHUNK):
            pass
        return self._hash.hexdigest()


class _Text:
    """Text of a file, of which a window is in memory. ``line`` is the line of the next character."""

    def __init__(self, file: Readable, where: str) -> None:
        self.where, self.line = where, 1
        first = file.read(len(GZIP))
        self._raw = _Hashed(Rest(first, file), where)
        self._bytes: Any = gzip.GzipFile(fileobj=self._raw) if first == GZIP else self._raw
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._window, self._at, self._ended, self._size = "", 0, False, 0

    @property
    def sha256(self) -> str:
        return self._raw.hexdigest()

    def _fill(self, least: int = _CHUNK) -> None:
        """Read further characters into the window, at least so many if the file has them."""
        parts = [self._window[self._at :]]
        self._at = 0
        while least > 0 and not self._ended:
            part = self._decoded()
            least -= len(part)
            parts.append(part)
        self._window = "".join(parts)

    def _decoded(self) -> str:
        """Return the text of the next bytes; an empty text at the end of the file."""
        try:
            data = self._bytes.read(_CHUNK)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError:
            raise JournalError(f"{self.where} is not valid JSON: it is not UTF-8 text.") from None
        except (OSError, EOFError, zlib.error):
            raise JournalError(f"{self.where} cannot be decompressed.") from None
        self._size += len(data)
        if self._size > MAX_REPORT_BYTES:
            raise JournalError(f"{self.where} unpacks to more than {size_text(MAX_REPORT_BYTES)}; no report does.")
        return text

    def peek(self) -> str:
        """Return the next character that is not blank, or an empty text at the end."""
        for _ in range(2):
            blank = _BLANK.match(self._window, self._at)
            end = blank.end() if blank else self._at
            self._pass(end)
            if end < len(self._window) or self._ended:
                break
            self._fill()
        else:
            if self._at == len(self._window):
                raise self.fault("there is no value in a quarter of a million blanks")
        return self._window[self._at : self._at + 1]

    def take(self, expected: str) -> str:
        """Return the next character, which must be one of those expected."""
        found = self.peek()
        if not found or found not in expected:
            raise self.fault(f"expected {' or '.join(expected)}")
        self._at += 1
        return found

    def value(self, longest: int) -> Any:
        """Return the next JSON value, of at most so many characters."""
        self.peek()
        while True:
            value, end, said = self._decode()
            # A number may go on behind the window.
            if not said and (end < len(self._window) or self._ended):
                if end - self._at > longest:
                    raise self.fault(f"a value has more than {longest:,} characters")
                self._pass(end)
                return value
            if self._ended:
                raise self._syntax(said, end)
            if len(self._window) - self._at > longest:
                raise self._too_long(said, end, longest)
            self._fill(max(_CHUNK, len(self._window) - self._at))
            if len(self._window) > _LONGEST_CASE:
                reject_crowds(self._window.encode("utf-8", "surrogatepass"), self.where, _SHARE)

    def _decode(self) -> tuple[Any, int, str]:
        """Return the value at the beginning of the window and its end; or what is wrong in the window, and where."""
        try:
            return *_DECODER.raw_decode(self._window, self._at), ""
        except RecursionError:
            raise JournalError(f"{self.where} is nested too deeply to be a report.") from None
        except json.JSONDecodeError as error:
            # Not the error itself: it holds the whole window, and stays until the collector runs.
            return None, error.pos, error.msg
        except ValueError as error:
            raise self.fault(str(error)) from None

    def _too_long(self, said: str, place: int, longest: int) -> JournalError:
        # A fault at the very end may only mean that the value goes on. An open string is named by its beginning.
        goes_on = said.startswith("Unterminated") or place >= len(self._window) - _TAIL
        return self.fault(f"a value has more than {longest:,} characters") if goes_on else self._syntax(said, place)

    def _syntax(self, said: str, place: int) -> JournalError:
        line = self.line + self._window.count("\n", self._at, place)
        return JournalError(f"{self.where} is not valid JSON: line {line}: {said}.")

    def fault(self, said: str) -> JournalError:
        """Return an error about the next value."""
        return JournalError(f"{self.where} is not valid JSON: line {self.line}: {said}.")

    def _pass(self, end: int) -> None:
        self.line += self._window.count("\n", self._at, end)
        self._at = end

    def finish(self) -> None:
        """Check that nothing follows."""
        if self.peek():
            raise self.fault("there is more text behind the report")


class Rest:
    """Bytes that were read before, and the rest of their file."""

    def __init__(self, first: bytes, file: Readable) -> None:
        self._first, self._file = BytesIO(first), file

    def read(self, size: int) -> bytes:
        """Return at most so many bytes; fewer only at the end."""
        data = self._first.read(size)
        return data if len(data) == size else data + self._file.read(size - len(data))


def _read_object(text: _Text) -> tuple[dict[str, Any], CaseTable]:
    """Return the members of the outermost object, and its cases: a list ``cases``, or packed ``rows``."""
    head: dict[str, Any] = {}
    cases: CaseTable | None = None
    text.take("{")
    while text.peek() != "}":
        line, name = text.line, text.value(_LONGEST_CASE)
        if type(name) is not str:
            raise text.fault("a key must be a string")
        text.take(":")
        if name in head or (name in ("cases", "rows") and cases is not None):
            where = JournalError(f"{text.where} is not valid JSON: line {line}: a key occurs twice in one object.")
            raise where
        if name in ("cases", "rows") and text.peek() == "[":
            if name == "rows" and "shapes" not in head:
                raise JournalError(f"{text.where} is packed, and its rows stand before their shapes: sort the members.")
            cases = _read_cases(text, head.get("shapes") if name == "rows" else None)
            head[name] = []
        else:
            head[name] = text.value(_LONGEST_MEMBER)
        if text.peek() != "}":
            text.take(",")
            if text.peek() == "}":
                raise text.fault("a comma stands before the end of an object")
    text.take("}")
    return head, cases if cases is not None else CaseTable(text.where)


def _read_cases(text: _Text, shapes: Any) -> CaseTable:
    """Return the cases of a list, or of the rows of a packed report."""
    table, seen = CaseTable(text.where), set[str]()
    for values, lines in _batches(text):
        if len(table) + len(values) > MAX_CASES:
            raise JournalError(f"{text.where} has more than {MAX_CASES:,} cases, the most that this version reads.")
        plain = values if shapes is None else unpacked_rows(values, shapes, text.where)
        cases = read_many(CaseRecord, plain, f"{text.where}.cases", len(table), lines)
        for case in cases:
            if case.id in seen:
                raise JournalError(f"{text.where} lists the case {case.id!r} twice.")
            seen.add(case.id)
        table.extend(cases)
    return table


def _batches(text: _Text) -> Iterator[tuple[list[Any], list[int]]]:
    """Yield the items of a list, some at a time, each with its line."""
    values: list[Any] = []
    lines: list[int] = []
    text.take("[")
    while text.peek() != "]":
        lines.append(text.line)
        values.append(text.value(_LONGEST_CASE))
        if len(values) == _BATCH:
            yield values, lines
            values, lines = [], []
        if text.peek() != "]":
            text.take(",")
            if text.peek() == "]":
                raise text.fault("a comma stands before the end of a list")
    text.take("]")
    if values:
        yield values, lines
