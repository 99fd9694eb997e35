"""JSON form of reports and plans: ``report.json``, its packed form, and lists of planned cases.

A member that holds its default is left out, which keeps twenty thousand passing cases small. Reading rejects unknown
and repeated keys, wrong types and values over the limits. The same report gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from conformance.base.accelerator_name import is_accelerator_name
from conformance.base.errors import JournalError
from conformance.reports import json_files
from conformance.reports.json_files import collector_paused, inflated, opened, parse_json, size_text
from conformance.reports.model import LATEST_SCHEMA, Report
from conformance.reports.planned import PlannedCase
from conformance.reports.reading import MAX_ITEMS, read
from conformance.reports.repro import with_own_repro_lines

#: Formats that this version reads.
SCHEMAS: Final = (1, LATEST_SCHEMA)
#: Characters of a wrong value in a message.
_SHOWN: Final = 80


def to_json(report: Report) -> str:
    """Return the canonical text. Each case is one line, so that tools can compare reports line by line."""
    head = {"schema": report.schema, **as_plain(dataclasses.replace(report, cases=()))}
    lines = [f"{_compact(name)}: {_compact(value)}" for name, value in head.items()]
    rows = ",\n".join(_compact(as_plain(case)) for case in report.cases)
    return "{\n" + ",\n".join([*lines, f'"cases": [\n{rows}\n]' if rows else '"cases": []']) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def from_json(value: Any, where: str = "report.json") -> Report:
    """Return the report that a JSON value describes; JournalError names the first thing that is wrong with it."""
    _check_schema(value, where)
    if "packed" in value:
        value = unpack(value, where)
    report = read(Report, dict(value), where)
    if repeated := _repeated_id(chain(report.cases, report.accounting.unaccounted)):
        raise JournalError(f"{where} lists the case {repeated!r} twice.")
    _check_accelerator(report, where)
    return with_own_repro_lines(report)


def _check_schema(value: Any, where: str) -> None:
    if not isinstance(value, dict) or "schema" not in value or "run" not in value:
        raise JournalError(f"{where} is not a conformance report: it has no 'schema' and 'run'.")
    if type(value["schema"]) is not int or value["schema"] not in SCHEMAS:
        known = " and ".join(map(str, SCHEMAS))
        raise JournalError(f"{where} has schema {reprlib.repr(value['schema'])}; this version reads schemas {known}.")


def _check_accelerator(report: Report, where: str) -> None:
    """Raise JournalError if the text that the report gives for ``--accelerator`` could not have started a run."""
    spec = report.accelerator.spec
    if spec and not is_accelerator_name(spec):
        shown = ascii(spec if len(spec) <= _SHOWN else spec[:_SHOWN] + "…")
        raise JournalError(
            f"{where}.accelerator.spec must be a name, module:Object, deepspeed:NAME, torch:TYPE or auto, not {shown}."
        )


def read_planned(value: Any, where: str) -> tuple[PlannedCase, ...]:
    """Return the planned cases of a JSON list; JournalError names the first thing that is wrong with it."""
    kind: Any = tuple[PlannedCase, ...]
    planned: tuple[PlannedCase, ...] = read(kind, value, where)
    if repeated := _repeated_id(planned):
        raise JournalError(f"{where} plans {repeated!r} twice; it was not written by this suite.")
    return planned


def _repeated_id(planned: Iterable[PlannedCase]) -> str | None:
    """Return the first id that occurs twice, or None."""
    ids: list[str] = [case.id for case in planned]
    if len(set(ids)) == len(ids):
        return None
    seen: set[str] = set()
    for id in ids:
        if id in seen:
            return id
        seen.add(id)
    return None


def read_report(path: Path) -> Report:
    """Return the report in a ``report.json``, compressed or not."""
    return _read_once(path)[0]()


def read_hashed(path: Path) -> tuple[Callable[[], Report], str]:
    """Read a file once. Return a function that returns its report, and the SHA-256 of the bytes that it is read from.

    A small file is parsed when the function is called, a large one now, because it is not kept.
    """
    report, sha256 = _read_once(path)
    return report, sha256()


def _read_once(path: Path) -> tuple[Callable[[], Report], Callable[[], str]]:
    """Read a file once. Return functions that return its report, and the SHA-256 of its bytes."""
    where = str(path)
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > json_files.MAX_REPORT_BYTES:
            raise JournalError(
                f"{path} is larger than {size_text(json_files.MAX_REPORT_BYTES)}; no report of this suite is."
            )
        data = file.read(json_files.LARGE + 1)
        if len(data) > json_files.LARGE:
            report, sha256 = _large(data, file, where)
            return (lambda: report), lambda: sha256
    return (lambda: parse_report(data, where)), lambda: hashlib.sha256(data).hexdigest()


def parse_report(data: bytes, where: str) -> Report:
    """Return the report in the bytes of a ``report.json``, compressed or not. Errors call it ``where``."""
    text = inflated(data, where, json_files.LARGE)
    if len(text) > json_files.LARGE:
        return _large(data, io.BytesIO(), where)[0]
    with collector_paused():
        return from_json(parse_json(text, where), where)


def _large(first: bytes, file: BinaryIO, where: str) -> tuple[Report, str]:
    """Return the report in these bytes and the rest of a file, and their SHA-256."""
    # Imported here, because small reports do not need it.
    from conformance.reports.streaming import Rest, read_large

    head, cases, sha256 = read_large(Rest(first, file), where)
    _check_schema(head, where)
    if "packed" in head and head["packed"] != PACKED:
        raise JournalError(f"{where} is packed in a way that this version does not read.")
    if "packed" in head and "cases" in head:
        raise JournalError(f"{where} is packed, and lists cases besides.")
    left_out = ("packed", "shapes", "rows") if "packed" in head else ()
    report = read(Report, {name: member for name, member in head.items() if name not in left_out}, where)
    lost = report.accounting.unaccounted
    if lost and (repeated := _repeated_id(chain(cases, lost))):
        raise JournalError(f"{where} lists the case {repeated!r} twice.")
    _check_accelerator(report, where)
    return with_own_repro_lines(dataclasses.replace(report, cases=cases)), sha256


# --- values as JSON --------------------------------------------------------------------------------------------------

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def as_plain(value: Any) -> Any:
    """Return the JSON form of dataclasses, enums, tuples and mappings. Members that hold their default are left out."""
    kind: Any = type(value)
    return value if kind in _SCALARS else _converter(kind)(value)


@cache
def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return the function that converts values of a type."""
    if dataclasses.is_dataclass(kind):
        return _members_converter(kind)
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: {k: v if type(v) in _SCALARS else as_plain(v) for k, v in value.items()}
    if issubclass(kind, Sequence):
        return lambda value: [v if type(v) in _SCALARS else as_plain(v) for v in value]
    return lambda value: value


def _members_converter(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """Return the converter of a dataclass. It reads ``vars``, since values that were read lack their defaults there."""
    defaults = {field.name: _default(field) for field in dataclasses.fields(kind)}

    def convert(value: Any) -> dict[str, Any]:
        """Return the members of ``value`` that differ from their defaults."""
        members, plain = vars(value), {}
        for name, default in defaults.items():
            # The types are compared too: 0, 0.0 and False are equal, and different in JSON.
            member = members.get(name, default)
            if member != default or type(member) is not type(default):
                plain[name] = member if type(member) in _SCALARS else as_plain(member)
        return plain

    return convert


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or a value that equals nothing."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return object() if field.default is dataclasses.MISSING else field.default


# --- packed reports -------------------------------------------------------------------------------------------------

PACKED: Final = 1
#: Members that a shape has for all of its cases.
COMMON: Final = (
    "area", "tier", "level", "adaptive", "in_reference", "world_size", "about", "outcome", "reason", "ranks"
)  # fmt: skip
_PARTS: Final = 8


def said_axes(id: str, names: Sequence[str]) -> Mapping[str, str] | None:
    """Return the axes in the id's brackets, or None if their values cannot be told apart."""
    values = id.partition("[")[2].removesuffix("]").split("-") if names else []
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else None


def unpack(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the canonical value of a packed one. The reader of reports checks its members."""
    if value["packed"] != PACKED:
        raise JournalError(f"{where} is packed in a way that this version does not read.")
    if "cases" in value:
        raise JournalError(f"{where} is packed, and lists cases besides.")
    shapes, rows = value.get("shapes"), value.get("rows")
    if isinstance(rows, list) and len(rows) > MAX_ITEMS:
        raise JournalError(f"{where} has {len(rows)} cases; this version reads at most {MAX_ITEMS}.")
    if not isinstance(shapes, list) or not isinstance(rows, list):
        raise JournalError(f"{where} is not a packed report: it has no lists of shapes and rows.")
    head = {name: member for name, member in value.items() if name not in ("packed", "shapes", "rows")}
    return {**head, "cases": unpacked_rows(rows, shapes, where)}


def unpacked_rows(rows: Sequence[Any], shapes: Any, where: str) -> list[dict[str, Any]]:
    """Return rows of a packed report as canonical cases; JournalError if one does not fit its shape."""
    said: dict[int, dict[str, Any]] = {}
    try:
        return [_case(row, shapes, said) for row in rows]
    except (TypeError, ValueError, LookupError, AttributeError):
        raise JournalError(f"{where} is not a packed report: a row does not fit its shape.") from None


def _case(row: Any, shapes: Sequence[Any], said: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return one row of a packed report as a canonical case. Raises errors of a wrong type, value or index.

    ``said`` keeps the members that a shape has for its cases: thousands of rows have the same shape.
    """
    if type(row) is not list or not 2 <= len(row) <= _PARTS or type(row[1]) is not int or row[1] < 0:
        raise TypeError
    # The writer leaves out zeros at the end of a row.
    full: list[Any] = [*row, *[0] * (_PARTS - len(row))]
    id, shape, seconds, requires, axes, values, message, repro = full
    common, names, metrics = shapes[shape]
    if shape not in said:
        if not set(common) <= set(COMMON):
            raise TypeError
        said[shape] = {name: value for name, value in common.items() if _is_said(value)}
    if type(id) is not str:
        raise TypeError
    case = {"id": id, **said[shape]}
    if _is_said(seconds):
        case["seconds"] = seconds
    if _is_said(requires) or requires == 0:
        case["requires"] = [id] if requires == 0 else requires
    if known := dict(zip(names, axes, strict=True)) if axes else said_axes(id, names):
        case["axes"] = known
    if known := dict(zip(metrics, values or (), strict=True)):
        case["metrics"] = known
    case.update((name, text) for name, text in (("message", message), ("repro", repro)) if _is_said(text))
    return case


def _is_said(value: Any) -> bool:
    """Return whether a member holds something. A zero stands for a missing one."""
    return value is False or value not in (0, [], {})
