"""One table of a waiver file, as it is written there."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date

from conformance.errors import JournalError
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Reason
from conformance.reports.waivers.model import Waiver, WaiverKind


@dataclass(frozen=True)
class Entry:
    """The keys of a table; all but the last three are due."""

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

    def waiver(self, line: int, where: str) -> Waiver:
        """The waiver that the table describes."""
        if not self.cases or not all(self.cases):
            raise JournalError(f"{where} names no case.")
        members = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "expires"}
        return Waiver(**members, expires=self._date(where), line=line)

    def _date(self, where: str) -> date:
        try:
            return date.fromisoformat(self.expires)
        except ValueError:
            text = one_line(self.expires, 40)
            raise JournalError(f"{where}.expires must be a day such as 2026-12-31, not {text!r}.") from None
