"""Map of a recorded run: what cases reach, and what PyTorch's own databases reach on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.base.errors import JournalError

#: Changes when the file's fields change.
FORMAT = 1
#: Cases that are kept for each overload.
_CASES = 3
#: Flags by overload and argument.
Flags = dict[str, dict[str, list[str]]]


@dataclass
class CoverageMap:
    """What cases and databases reach.

    ``calls`` and ``rules`` are of cases: flags by overload and argument, and asked inputs by derivative rule.
    ``databases`` has the same flags of PyTorch's databases, and ``inputs`` the number of inputs of each of their rules.
    """

    accelerator: str
    torch: str
    cases: int = 0
    calls: Flags = field(default_factory=dict)
    rules: dict[str, list[str]] = field(default_factory=dict)
    databases: Flags = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    #: Up to three cases that call each overload.
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add what processes have recorded."""
        calls: dict[str, dict[str, set[str]]] = {
            name: {at: set(flags) for at, flags in places.items()} for name, places in self.calls.items()
        }
        rules = {name: set(masks) for name, masks in self.rules.items()}
        for line in lines:
            self.cases += 1
            for overload, places in line["calls"].items():
                examples = self.examples.setdefault(overload, [])
                if len(examples) < _CASES:
                    examples.append(line["case"])
                mine = calls.setdefault(overload, {})
                for at, flags in places.items():
                    mine.setdefault(at, set()).update(flags)
            for name, masks in line["rules"].items():
                rules.setdefault(name, set()).update(masks)
        self.calls = {name: {at: sorted(found) for at, found in calls[name].items()} for name in sorted(calls)}
        self.rules = {name: sorted(masks) for name, masks in sorted(rules.items())}

    def write(self, path: Path) -> None:
        """Write the map as JSON."""
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}), encoding="utf-8")


def read(path: Path) -> CoverageMap:
    """Return the map of a file; raise JournalError if it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise JournalError(f"{path} cannot be read: {reason}. {_NEXT}") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise JournalError(f"{path} is no coverage map of format {FORMAT}. {_NEXT}")
    try:
        return CoverageMap(**data)
    except TypeError as error:
        raise JournalError(f"{path} is no coverage map of format {FORMAT}. {_NEXT}") from error


_NEXT = "Make a map: conformance coverage --accelerator NAME --out FILE."
