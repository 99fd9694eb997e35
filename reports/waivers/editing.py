"""Editing of waiver files: tables are added or removed, and everything else stays as it is."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator

from conformance.base.errors import JournalError
from conformance.reports.plain_text import one_line
from conformance.reports.waivers.file import HEADER, parse_waivers
from conformance.reports.waivers.model import LARGEST_ERROR, Waiver

_TEXTS = ("ticket", "reason", "owner")
_OPTIONAL = ("device", "driver", "torch")


def table(waiver: Waiver) -> str:
    """Return the waiver as a table of a waiver file."""
    cases = [_text(case) for case in waiver.cases]
    listed = f"[{cases[0]}]" if len(cases) == 1 else "[\n" + "".join(f"    {case},\n" for case in cases) + "]"
    optional = [name for name in _OPTIONAL if getattr(waiver, name)]
    lines = [
        HEADER,
        f"cases = {listed}",
        f"verdict = {_text(waiver.verdict.value)}",
        f"kind = {_text(waiver.kind.value)}",
        *(f"{name} = {_text(getattr(waiver, name))}" for name in _TEXTS),
        f"expires = {waiver.expires.isoformat()}",
        *(f"{name} = {_text(getattr(waiver, name))}" for name in optional),
        *([f"error = {waiver.error!r}"] if waiver.error != LARGEST_ERROR else []),
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Return a TOML string. For plain text on one line, a JSON string is one."""
    return json.dumps(one_line(value), ensure_ascii=False)


def added(text: str, waiver: Waiver) -> str:
    """Return the file's text with the waiver added at its end."""
    between = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    changed = f"{text}{between}{table(waiver)}"
    parse_waivers(changed.encode(), "the changed file")
    return changed


def removed(text: str, waivers: Collection[Waiver]) -> str:
    """Return the file's text without these waivers and the comments directly above them."""
    if any(not waiver.line for waiver in waivers):
        raise JournalError(f"the file writes {HEADER} elsewhere than on lines of its own; edit it by hand.")
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.strip() == HEADER]
    gone = {waiver.line - 1 for waiver in waivers}
    return "".join(_kept(lines, starts, gone))


def _kept(lines: list[str], starts: list[int], gone: Collection[int]) -> Iterator[str]:
    """Return the lines outside removed tables. Comments directly above a table belong to it."""
    begins = [_with_comments(lines, start) for start in starts]
    ends = [*begins[1:], len(lines)]
    dropped: set[int] = set()
    for start, begin, end in zip(starts, begins, ends, strict=True):
        if start in gone:
            dropped.update(range(begin, end))
    yield from (line for number, line in enumerate(lines) if number not in dropped)


def _with_comments(lines: list[str], start: int) -> int:
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start


def needless(waivers: Iterable[Waiver], idle: Collection[Waiver], passing: Collection[str]) -> list[Waiver]:
    """Return the waivers that excuse nothing any more: they match no claimed case, or passing cases only."""
    found = []
    for waiver in waivers:
        only_passing = bool(waiver.exact) and waiver.exact <= set(passing) and len(waiver.exact) == len(waiver.cases)
        if waiver in idle or only_passing:
            found.append(waiver)
    return found
