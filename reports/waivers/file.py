"""Waiver files: ``waivers/<accelerator>.toml``, a list of ``[[waiver]]`` tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Final

from conformance.base.errors import JournalError
from conformance.reports.json_files import read_capped
from conformance.reports.plain_text import one_line
from conformance.reports.reading import read
from conformance.reports.verdict import Reason
from conformance.reports.waivers.model import LARGEST_ERROR, Waiver, WaiverKind

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Size of a file. A waiver takes about 250 bytes, so this is room for 2,000 waivers.
MAX_BYTES: Final = 512 * 1024
#: Dots in a line. Python's TOML reader takes quadratic time for a key of many parts.
_MOST_DOTS: Final = 300
HEADER: Final = "[[waiver]]"


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """Return the waivers of a file; JournalError names in one sentence the first thing that cannot be read."""
    return parse_waivers(read_capped(path, MAX_BYTES, "file of waivers"), str(path))


def parse_waivers(data: bytes, where: str) -> tuple[Waiver, ...]:
    """Return the waivers in TOML text. Errors call it ``where``."""
    try:
        text = data.decode("utf-8-sig")
        _reject_long_keys(text, where)
        value = tomllib.loads(text)
    except UnicodeDecodeError:
        raise JournalError(f"{where} is not valid TOML: it is not UTF-8 text.") from None
    except RecursionError:
        raise JournalError(f"{where} is nested too deeply to be a waiver file.") from None
    except ValueError as error:
        raise JournalError(f"{where} is not valid TOML: {error}.") from None
    return tuple(_waivers(value, list(_lines(text)), where))


def _reject_long_keys(text: str, where: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS:
            raise JournalError(f"{where}: line {number} has more than {_MOST_DOTS} dots; write one case a line.")


def _waivers(value: Mapping[str, Any], lines: list[int], where: str) -> Iterator[Waiver]:
    """Yield the waivers of a parsed file. ``lines`` are the line numbers of their tables, for messages."""
    strays = [name for name in value if name != "waiver"]
    if strays:
        raise JournalError(f"{where} has an unknown key {strays[0]!r}; a waiver begins with {HEADER}.")
    tables = value.get("waiver", [])
    if not isinstance(tables, list):
        raise JournalError(f"{where}: write {HEADER}, with two brackets, above each waiver.")
    for number, table in enumerate(tables):
        # The lines come from a search in the text. Without one line for each table they are not trusted.
        line = lines[number] if len(lines) == len(tables) else 0
        yield _waiver(table, line, f"{where}: waiver {number + 1}")


def _lines(text: str) -> Iterator[int]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() == HEADER:
            yield number


def _waiver(table: Any, line: int, where: str) -> Waiver:
    return read(WaiverTable, _as_json(table), where).waiver(line, where)


def _as_json(table: Any) -> Any:
    """Return the table with the types of JSON: dates as text, and a single case as a list of one."""
    if not isinstance(table, dict):
        return table
    plain = {name: member.isoformat() if type(member) is date else member for name, member in table.items()}
    if isinstance(plain.get("cases"), str):
        plain["cases"] = [plain["cases"]]
    return plain


@dataclass(frozen=True)
class WaiverTable:
    """Table of a waiver file. All keys but the last four are required."""

    cases: tuple[str, ...]
    verdict: Reason
    kind: WaiverKind
    ticket: str
    reason: str
    owner: str
    expires: str
    device: str = ""
    driver: str = ""
    torch: str = ""
    error: float = LARGEST_ERROR

    def waiver(self, line: int, where: str) -> Waiver:
        """Return the waiver that the table describes."""
        if not self.cases or not all(self.cases):
            raise JournalError(f"{where} names no case.")
        members = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "expires"}
        return Waiver(**members, expires=self._date(where), line=line)

    def _date(self, where: str) -> date:
        """Return the day of expiry. Raises ``JournalError`` if the text is not an ISO date."""
        try:
            return date.fromisoformat(self.expires)
        except ValueError:
            text = one_line(self.expires, 40)
            raise JournalError(f"{where}.expires must be a day such as 2026-12-31, not {text!r}.") from None
