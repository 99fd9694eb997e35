"""Table of very many cases in little memory: a million cases take some 200 MB.

It is a sequence of case records, each of which is made when it is asked for. What many cases share is kept once.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from typing import Any, Final, overload

from conformance.base.errors import JournalError
from conformance.reports.model import CaseRecord

#: Members that are kept for each case; the others are kept once for all cases that are alike in them.
_OWN: Final = frozenset({"id", "seconds", "metrics", "message", "repro"})
_SHARED: Final = tuple(field.name for field in fields(CaseRecord) if field.name not in _OWN | {"axes", "requires"})
#: Kinds of cases that differ in shared members. Cases of further kinds are kept whole, up to a number.
_MOST_KINDS: Final = 20_000
_MOST_WHOLE: Final = 20_000
#: Characters of ids, messages and metrics in all cases together.
MAX_TEXT: Final = 320_000_000


class CaseTable(Sequence[CaseRecord]):
    """Sequence of case records that are stored by columns. Rows are added at the end, and never change."""

    def __init__(self, where: str = "report.json") -> None:
        self.where = where
        self.ids: list[str] = []
        self._seconds = array("d")
        self._kind = array("l")
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._members: list[dict[str, Any]] = []
        self._metric_names: list[tuple[str, ...]] = []
        # The values of all metrics in one string of bytes, and where those of each case end.
        self._values = bytearray()
        self._ends = array("Q")
        self._texts: dict[int, tuple[str, str]] = {}
        self._whole: dict[int, CaseRecord] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> CaseRecord: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[CaseRecord, ...]: ...

    def __getitem__(self, place: int | slice) -> CaseRecord | tuple[CaseRecord, ...]:
        """Return a case record, or a tuple of them."""
        places = range(len(self.ids))[place]
        return self._made(places) if isinstance(places, int) else tuple(map(self._made, places))

    def __iter__(self) -> Iterator[CaseRecord]:
        return map(self._made, range(len(self.ids)))

    def extend(self, cases: Iterable[CaseRecord]) -> None:
        """Add cases; JournalError if their texts are too large for a report."""
        for case in cases:
            self._add(case)
        if self._size > MAX_TEXT:
            raise JournalError(
                f"{self.where} has more than {MAX_TEXT:,} characters of ids, messages and metrics; no report of this "
                "suite does."
            )

    def _add(self, case: CaseRecord) -> None:
        place, id = len(self.ids), case.id
        names = tuple(case.metrics)
        values = marshal.dumps(tuple(case.metrics.values())) if names else b""
        key = (
            *(getattr(case, name) for name in _SHARED),
            tuple(case.axes.items()),
            None if case.requires == (id,) else case.requires,
            names,
        )
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._new_kind(case, key, names)
        if kind < 0:
            self._whole[place] = case
        self.ids.append(id)
        self._seconds.append(case.seconds)
        self._kind.append(kind)
        self._values += values
        self._ends.append(len(self._values))
        if case.message or case.repro:
            self._texts[place] = (case.message, case.repro)
        self._size += len(id) + len(case.message) + len(case.repro) + len(values)

    def _new_kind(self, case: CaseRecord, key: tuple[Any, ...], names: tuple[str, ...]) -> int:
        """Return the number of a new kind, or -1 if there are too many kinds; JournalError if there are still more."""
        if len(self._kinds) >= _MOST_KINDS:
            if len(self._whole) >= _MOST_WHOLE:
                raise JournalError(
                    f"{self.where} has cases of more than {_MOST_KINDS + _MOST_WHOLE:,} kinds, by area, axes, "
                    "requirements, verdict and metrics; no report of this suite does."
                )
            return -1
        members = {name: getattr(case, name) for name in (*_SHARED, "axes")}
        if case.requires != (case.id,):
            members["requires"] = case.requires
        self._kinds[key] = len(self._members)
        self._members.append(members)
        self._metric_names.append(names)
        return len(self._members) - 1

    def _made(self, place: int) -> CaseRecord:
        kind = self._kind[place]
        if kind < 0:
            return self._whole[place]
        members = self._members[kind].copy()
        id = members["id"] = self.ids[place]
        members["seconds"] = self._seconds[place]
        members["metrics"] = self._metrics(place, kind)
        members["message"], members["repro"] = self._texts.get(place, ("", ""))
        if "requires" not in members:
            members["requires"] = (id,)
        # The record was checked when it was read; __init__ would check it again, at three times the time.
        made = object.__new__(CaseRecord)
        object.__setattr__(made, "__dict__", members)
        return made

    def _metrics(self, place: int, kind: int) -> dict[str, Any]:
        names = self._metric_names[kind]
        if not names:
            return {}
        start = self._ends[place - 1] if place else 0
        # These bytes were made by _add() in this process.
        values = marshal.loads(self._values[start : self._ends[place]])  # noqa: S302
        return dict(zip(names, values, strict=True))

    def with_texts(self, changed: Callable[[CaseRecord], CaseRecord]) -> CaseTable:
        """Replace the message and the repro line of each case that has one; return the same table."""
        for place in self._texts:
            case = changed(self._made(place))
            self._texts[place] = (case.message, case.repro)
            if place in self._whole:
                self._whole[place] = case
        return self

    def grouped(self, key: Callable[[CaseRecord], object], apart: AbstractSet[str]) -> list[CaseSubset]:
        """Return the cases with equal keys, in the order of the first ones. Cases of one kind have the same key.

        Cases whose ids are in ``apart`` are in other groups than the rest.
        """
        keys: dict[int, object] = {}
        found: dict[object, array[int]] = {}
        for place, kind in enumerate(self._kind):
            if kind < 0 or kind not in keys:
                keys[kind] = key(self._made(place))
            whole = (keys[kind], self.ids[place] in apart)
            members = found.get(whole)
            if members is None:
                members = found[whole] = array("L")
            members.append(place)
        return [CaseSubset(self, places) for places in found.values()]


class CaseSubset(Sequence[CaseRecord]):
    """Some cases of a table, in its order."""

    def __init__(self, table: CaseTable, places: array[int]) -> None:
        self._table, self._places = table, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> CaseRecord: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[CaseRecord, ...]: ...

    def __getitem__(self, place: int | slice) -> CaseRecord | tuple[CaseRecord, ...]:
        """Return a case record, or a tuple of them."""
        found = self._places[place]
        return self._table[found] if isinstance(found, int) else tuple(self._table[one] for one in found)

    def __iter__(self) -> Iterator[CaseRecord]:
        return map(self._table.__getitem__, self._places)


class CaseIndex(Mapping[str, CaseRecord]):
    """Cases of a table by id."""

    def __init__(self, table: CaseTable) -> None:
        self._table = table
        self._places = {id: place for place, id in enumerate(table.ids)}

    def __getitem__(self, id: str) -> CaseRecord:
        return self._table[self._places[id]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, id: object) -> bool:
        return id in self._places
