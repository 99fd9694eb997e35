"""Planned cases, and the hashes that name a plan and a declaration.

One type describes a case before it has a verdict: in the plan, the manifest, the report and the gate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: Separators of a line's parts, and of the items in a part. No id contains them.
_PART, _ITEM = "\x1f", "\x1e"
_FLAGS = {(False, False): "00", (False, True): "01", (True, False): "10", (True, True): "11"}
#: Cases whose lines are not sorted in memory together.
_MANY: int = 50_000
#: The capability of having collectives at all. Capabilities of single collectives begin with this name and a dot.
_COMMUNICATION = "comm"
#: Subjects of cases besides the device, with the words that views show. Such a case counts in no percentage.
ABOUT = {"device": "the device", "package": "this package", "pytorch": "PyTorch", "library": "an optional library"}


@dataclass(frozen=True)
class PlannedCase:
    """Description of one planned case.

    ``requires`` holds cells as strings. An ``adaptive`` case is judged by the claim of its one cell, whatever that
    claim is. ``in_reference`` tells whether a pattern that claims support covers the cell. ``world_size`` is the
    number of ranks the case runs on; None for a case that runs in one process. ``about`` is a key of ``ABOUT``: what
    the case tests. Only cases about the device count in percentages and profiles.
    """

    id: str
    area: str
    tier: str = "unit"
    axes: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    level: str = "standard"
    adaptive: bool = False
    in_reference: bool = True
    world_size: int | None = None
    about: str = "device"

    @property
    def of_device(self) -> bool:
        """Return whether the case tests the device, and so counts in percentages and profiles."""
        return self.about == "device"

    @property
    def about_note(self) -> str:
        """Return ``about this package`` or ``about PyTorch``; nothing for a case about the device."""
        return "" if self.of_device else f"about {ABOUT.get(self.about, self.about)}"

    @property
    def subject(self) -> str:
        """Return the id without area and axes."""
        return self.id.partition("[")[0].removeprefix(f"{self.area}.")

    @property
    def dtype_and_mode(self) -> tuple[str | None, str | None]:
        """Return the values of the axes ``dtype`` and ``mode``."""
        return self.axes.get("dtype"), self.axes.get("mode")

    @property
    def requires_ranks(self) -> bool:
        """Return whether the required cells alone make this a case about several ranks.

        An adaptive case that requires ``comm`` itself is a probe: it asks in one process whether there are collectives.
        """
        for cell in self.requires:
            if cell[:4] == _COMMUNICATION and (cell[4:5] == "." or (cell == _COMMUNICATION and not self.adaptive)):
                return True
        return False

    @property
    def distributed(self) -> bool:
        """Return whether the case belongs to distributed training rather than to one device."""
        return self.world_size is not None or self.requires_ranks


def plan_sha256(suite: str, planned: Iterable[PlannedCase]) -> str:
    """Return a hash of everything that a suite of this version plans, whatever the order of the cases."""
    if isinstance(planned, Sequence) and len(planned) > _MANY:
        return _plan_sha256_of_many(suite, planned)
    rows = list(planned)
    text = "\n".join([suite, *sorted([_line(planned) for planned in rows])])
    if not _is_unambiguous(text, rows):
        # Ids in an untrusted report may contain the separators. They must not be read as other cases.
        text = json.dumps([suite, sorted(_line(planned).split(_PART) for planned in rows), len(rows)])
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _plan_sha256_of_many(suite: str, planned: Sequence[PlannedCase]) -> str:
    """Return the same hash, of lines that are never in memory together. Ids are enough to sort them."""
    ids: Sequence[str] = getattr(planned, "ids", None) or [case.id for case in planned]
    hashed, before, unambiguous = hashlib.sha256(suite.encode("utf-8", errors="surrogatepass")), "", "\n" not in suite
    for place in sorted(range(len(ids)), key=ids.__getitem__):
        row = planned[place]
        line = _line(row)
        unambiguous = unambiguous and before < line and _is_unambiguous(f"\n{line}", [row])
        hashed.update(f"\n{line}".encode("utf-8", errors="surrogatepass"))
        before = line
    # A plan with separators in its ids is nobody's. It gets a hash that no plan has.
    return hashed.hexdigest() if unambiguous else hashlib.sha256(hashed.digest()).hexdigest()


def _line(planned: PlannedCase) -> str:
    """Return a planned case as one line, over which the hash of a plan is made."""
    axes = planned.axes
    values = _ITEM.join([*axes, *axes.values()]) if axes else ""
    flags = _FLAGS[planned.adaptive, planned.in_reference]
    if planned.world_size is not None and not planned.requires_ranks:
        # Profiles depend on it here, so an edited world size must change the hash. Where the requirements imply ranks
        # it decides nothing, and hashes of reports that were written before the field existed stay valid.
        flags += f"x{planned.world_size}"
    if not planned.of_device:
        # It takes the case out of every percentage, so an edit must change the hash.
        flags += f"!{planned.about}"
    return _PART.join((planned.id, planned.area, planned.tier, planned.level, flags, values, *planned.requires))


def _is_unambiguous(text: str, rows: Sequence[PlannedCase]) -> bool:
    """Return whether the text has exactly the separators that were put between its parts."""
    parts = 5 * len(rows) + sum([len(planned.requires) for planned in rows])
    items = sum([2 * len(planned.axes) - 1 for planned in rows if planned.axes])
    return (text.count("\n"), text.count(_PART), text.count(_ITEM)) == (len(rows), parts, items)


def declaration_sha256(rows: Iterable[Sequence[str | None]]) -> str:
    """Return a hash of written claims: cell, state, detail or None, and reason of each, sorted by cell."""
    return hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()
