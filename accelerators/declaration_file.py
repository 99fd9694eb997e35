"""Declarations in TOML files.

    [capabilities]
    stream = "native"                                        # native, emulated or host
    "precision.accumulate-wide[bfloat16]" = "native"         # a capability that is claimed per dtype
    triton = { unsupported = "not-yet", reason = "no compiler yet" }   # hardware or not-yet, and why

    [dtypes]
    bfloat16 = "native"

    [operators]                                              # names or patterns; a longer pattern wins
    "*" = { inference = ["float32", "bfloat16"], training = ["float32"] }
    "linalg.*" = { inference = ["bfloat16"], unsupported = "hardware", reason = "no 16-bit solver" }
    "matmul" = [{ inference = ["float16"], as = "emulated" }, { training = ["float16"] }]

    [workloads]
    "*" = { inference = ["float32"], training = ["float32"] }

Every unknown name is an error. A typing mistake must neither make a claim nor drop one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from conformance.accelerators.capabilities import DTYPES, FAMILIES, VOCABULARY, Cell, Mode
from conformance.accelerators.claims import parse_cell
from conformance.accelerators.declaration import Claim, ClaimSource, Declaration, Detail, State
from conformance.accelerators.subjects import check_subject
from conformance.base.errors import DeclarationError, UnknownName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLES = ("capabilities", "dtypes", *FAMILIES)
_MODES = tuple(mode.value for mode in Mode)
_CLAIM_KEYS = ("as", "unsupported", "reason")
_SUPPORTED = (Detail.NATIVE.value, Detail.EMULATED.value, Detail.HOST.value)
_UNSUPPORTED = (Detail.HARDWARE.value, Detail.NOT_YET.value)


def read_declaration(file: Path, source: ClaimSource = ClaimSource.FILE) -> Declaration:
    """Return the declaration in a TOML file; raise DeclarationError with file and line for any mistake."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeclarationError(f"the declaration {file} cannot be read: {reason}.") from None
    return parse_declaration(text, source, str(file))


def parse_declaration(text: str, source: ClaimSource = ClaimSource.FILE, file: str = "<text>") -> Declaration:
    """Return the declaration in a TOML text; raise DeclarationError with ``file`` and line for any mistake."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{file} is not valid TOML: {error}. Fix that line and run again.") from None
    return Declaration.of(_TableReader(text, source, file).claims(tables))


@dataclass(frozen=True)
class _TableReader:
    """Reader of the file's tables. Its errors name the line."""

    text: str
    source: ClaimSource
    file: str

    def claims(self, tables: dict[str, Any]) -> list[tuple[Cell, Claim]]:
        """Return the claims of all tables. Raises ``DeclarationError`` that names the line of the first fault."""
        self._known("table", tables, _TABLES)
        for name, table in tables.items():
            if not isinstance(table, dict):
                self._fail(name, f"[{name}] must be a table, not {_kind(table)}")
        rows = [
            *self._capabilities(tables.get("capabilities", {})),
            *self._dtypes(tables.get("dtypes", {})),
            *(row for family in FAMILIES for row in self._families(family, tables.get(family, {}))),
        ]
        return self._without_contradictions(rows)

    # --- tables -----------------------------------------------------------------------------------------------------

    def _capabilities(self, table: dict[str, Any]) -> Iterator[tuple[Cell, Claim]]:
        for name, value in table.items():
            yield self._cell(name), self._claim(name, value)

    def _dtypes(self, table: dict[str, Any]) -> Iterator[tuple[Cell, Claim]]:
        self._known("dtype", table, DTYPES)
        for name, value in table.items():
            yield Cell("dtype", name), self._claim(name, value)

    def _families(self, family: str, table: dict[str, Any]) -> Iterator[tuple[Cell, Claim]]:
        for name, value in table.items():
            for row in value if isinstance(value, list) else [value]:
                yield from self._row(family, name, row)

    def _row(self, family: str, name: str, row: Any) -> Iterator[tuple[Cell, Claim]]:
        """Yield the claims of one row of a family: a cell for each mode and dtype."""
        if not isinstance(row, dict):
            self._fail(name, f"'{name}' must be a table such as {{ inference = [\"float32\"] }}, not {_kind(row)}")
        self._known("key", row, (*_MODES, *_CLAIM_KEYS), name)
        try:
            check_subject(f"{family}.{name}")
        except DeclarationError as error:
            self._fail(name, str(error))
        # A row without a kind of support claims native support.
        claim = self._claim(name, {key: row[key] for key in _CLAIM_KEYS if key in row} or "native")
        modes = [mode for mode in _MODES if mode in row]
        if not modes:
            self._fail(name, f"'{name}' names neither inference nor training dtypes")
        for mode in modes:
            for dtype in self._dtype_list(name, mode, row[mode]):
                yield Cell(f"{family}.{name}", dtype, mode), claim

    def _dtype_list(self, name: str, mode: str, value: Any) -> list[str]:
        """Return the dtypes of one mode, after a check of each name."""
        if not isinstance(value, list) or not all(isinstance(dtype, str) for dtype in value):
            self._fail(name, f"'{mode}' of '{name}' must be a list of dtype names")
        self._known("dtype", value, DTYPES, name)
        return value

    # --- values -----------------------------------------------------------------------------------------------------

    def _cell(self, name: str) -> Cell:
        """Return the cell of a capability. A name that belongs into another table is an error."""
        try:
            cell = parse_cell(name)
        except DeclarationError as error:
            self._fail(name, str(error))
        if cell.subject not in VOCABULARY:
            self._fail(name, f"'{name}' belongs in [{cell.subject.partition('.')[0]}]")
        return cell

    def _claim(self, name: str, value: Any) -> Claim:
        """Return the claim of a value: a kind of support, or a table with a reason."""
        if isinstance(value, str):
            value = {"as": value}
        if not isinstance(value, dict):
            self._fail(name, f"'{name}' must be one of {', '.join(_SUPPORTED)}, or unsupported, not {_kind(value)}")
        self._known("key", value, _CLAIM_KEYS, name)
        for key, text in value.items():
            if not isinstance(text, str):
                self._fail(name, f"'{key}' of '{name}' must be a string, not {_kind(text)}")
        return self._unsupported(name, value) if "unsupported" in value else self._supported(name, value)

    def _supported(self, name: str, value: dict[str, str]) -> Claim:
        """Return a claim of support."""
        if "as" not in value:
            self._fail(name, f"'{name}' gives a reason but does not say what is unsupported: 'hardware' or 'not-yet'")
        self._known("kind of support", [value["as"]], _SUPPORTED, name)
        return Claim(State.SUPPORTED, Detail(value["as"]), value.get("reason", ""), self.source)

    def _unsupported(self, name: str, value: dict[str, str]) -> Claim:
        """Return a claim of no support, which needs a reason."""
        self._known("kind of lack", [value["unsupported"]], _UNSUPPORTED, name)
        if "as" in value:
            self._fail(name, f"'{name}' is both supported and unsupported")
        if not value.get("reason", "").strip():
            self._fail(name, f"'{name}' is unsupported without a reason; say why")
        return Claim(State.UNSUPPORTED, Detail(value["unsupported"]), value["reason"], self.source)

    # --- errors -----------------------------------------------------------------------------------------------------

    def _without_contradictions(self, rows: list[tuple[Cell, Claim]]) -> list[tuple[Cell, Claim]]:
        """Return the rows, if no cell is claimed in two different ways."""
        # Declaration.of checks this too, but only here the line is known.
        seen: dict[Cell, Claim] = {}
        for cell, claim in rows:
            if seen.setdefault(cell, claim) != claim:
                self._fail(cell.subject.partition(".")[2] or cell.subject, f"{cell} is declared twice and differently")
        return rows

    def _known(self, kind: str, names: Iterable[str], known: Iterable[str], within: str = "") -> None:
        for name in names:
            if name not in known:
                self._fail(name, str(UnknownName(kind, name, known)), within)

    def _fail(self, key: str, sentence: str, within: str = "") -> NoReturn:
        line = self._line(key, within)
        raise DeclarationError(f"{self.file}{f', line {line}' if line else ''}: {sentence}")

    def _line(self, key: str, within: str) -> int | None:
        """Return the number of the first line with this key or value, searched from the entry ``within`` on."""
        # tomllib gives no positions for keys, so the line is found by its text.
        lines = self.text.splitlines()
        start = (self._first(lines, within, 0) or 1) - 1 if within else 0
        return self._first(lines, key, start)

    def _first(self, lines: list[str], word: str, start: int) -> int | None:
        spelled = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])")
        hits = (number for number, line in enumerate(lines[start:], start + 1) if spelled.search(line))
        return next(hits, None)


def _kind(value: object) -> str:
    names = {dict: "a table", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


# --- writing --------------------------------------------------------------------------------------------------------


def dump(declaration: Declaration) -> str:
    """Return the declaration as TOML text. ``parse_declaration`` reads the same claims from it."""
    cells = declaration.cells
    blocks = [
        _table("capabilities", _capability_lines(cells)),
        _table("dtypes", _dtype_lines(cells)),
        *(_table(family, _family_lines(family, cells)) for family in FAMILIES),
    ]
    return "\n".join(block for block in blocks if block)


def _table(name: str, lines: list[str]) -> str:
    return "\n".join([f"[{name}]", *lines, ""]) if lines else ""


def _capability_lines(cells: dict[Cell, Claim]) -> list[str]:
    rows = [(str(cell), claim) for cell, claim in cells.items() if not _is_dtype(cell) and not _family(cell)]
    return [f"{_string(name)} = {_value(claim)}" for name, claim in rows if claim.state is not State.UNDECLARED]


def _dtype_lines(cells: dict[Cell, Claim]) -> list[str]:
    claims = {cell.dtype: claim for cell, claim in cells.items() if _is_dtype(cell)}
    ordered = [name for name in DTYPES if name in claims and claims[name].state is not State.UNDECLARED]
    return [f"{name} = {_value(claims[name])}" for name in ordered]


def _is_dtype(cell: Cell) -> bool:
    return cell.subject == "dtype" and cell.dtype is not None


def _family(cell: Cell) -> str:
    first, dot, _ = cell.subject.partition(".")
    return first if dot and first in FAMILIES else ""


def _family_lines(family: str, cells: dict[Cell, Claim]) -> list[str]:
    """Return one line for each name. All dtypes with the same claim share a table."""
    names: dict[str, dict[str, dict[str, list[str]]]] = {}
    for cell, claim in cells.items():
        if _family(cell) == family and cell.dtype and cell.mode and claim.state is not State.UNDECLARED:
            modes = names.setdefault(cell.subject.partition(".")[2], {}).setdefault(_suffix(claim), {})
            modes.setdefault(cell.mode, []).append(cell.dtype)
    return [f"{_string(name)} = {_rows(names[name])}" for name in sorted(names)]


def _rows(by_claim: dict[str, dict[str, list[str]]]) -> str:
    """Return the claims of one subject as TOML: one inline table, or a list of them."""
    tables = [
        "{ " + ", ".join([f"{mode} = {_list(modes[mode])}" for mode in _MODES if mode in modes]) + suffix + " }"
        for suffix, modes in sorted(by_claim.items())
    ]
    return tables[0] if len(tables) == 1 else f"[{', '.join(tables)}]"


def _list(dtypes: list[str]) -> str:
    return "[" + ", ".join(_string(dtype) for dtype in sorted(dtypes, key=DTYPES.index)) + "]"


def _suffix(claim: Claim) -> str:
    """Return the keys that follow the dtypes of a row. Native support without a reason needs none."""
    reason = f", reason = {_string(claim.reason)}" if claim.reason else ""
    assert claim.detail is not None
    if claim.state is State.UNSUPPORTED:
        return f", unsupported = {_string(claim.detail.value)}{reason}"
    return f", as = {_string(claim.detail.value)}{reason}" if claim.detail is not Detail.NATIVE or reason else ""


def _value(claim: Claim) -> str:
    """Return the claim of a capability as a TOML value, a plain string where that suffices."""
    assert claim.detail is not None
    if claim.state is State.SUPPORTED and not claim.reason:
        return _string(claim.detail.value)
    key = "unsupported" if claim.state is State.UNSUPPORTED else "as"
    return f"{{ {key} = {_string(claim.detail.value)}, reason = {_string(claim.reason)} }}"


def _string(text: str) -> str:
    """Return a TOML basic string; see https://toml.io/en/v1.0.0#string."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    body = "".join(escapes.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text)
    return f'"{body}"'
