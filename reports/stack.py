"""Stack of a run: everything under the cases that their verdicts depend on, with one comparison.

The fingerprint, ``--resume``, ``merge``, the gate's baseline, ``diff`` and the page's columns all compare stacks with
:func:`difference`. A new fact of a stack is one line in ``_FACTS``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from conformance.reports.model import RECORDS_STACK, Report
from conformance.reports.plain_text import one_line, told_apart

#: Facts of every stack by the name that people read. The environment's facts and variables are added.
_FACTS: Final[Mapping[str, Callable[[Report], object]]] = {
    "accelerator": lambda report: report.accelerator.name,
    "kind of device": lambda report: report.accelerator.device.partition(":")[0],
    "number of devices": lambda report: report.accelerator.devices,
    "chips": lambda report: ", ".join(report.accelerator.device_names),
    "driver": lambda report: report.accelerator.driver,
    "runtime": lambda report: report.accelerator.runtime,
    "backend package": lambda report: report.accelerator.package,
    "collectives": lambda report: report.accelerator.communication_backend,
    "torch": lambda report: report.accelerator.torch,
    "build of torch": lambda report: report.accelerator.torch_build,
    "suite": lambda report: report.run.suite.version,
    "commit of the suite": lambda report: report.run.suite.commit,
    "files of the suite": lambda report: report.run.suite.files_sha256,
    "declaration": lambda report: report.declaration.sha256,
    "plugins": lambda report: ", ".join(report.environment.plugins),
}
#: Facts that only newer reports record. A report of the older format does not differ in them.
_NEWER: Final = frozenset({"build of torch", "files of the suite", "plugins"})
_VARIABLE: Final = "variable "
#: Differences in a sentence, and characters of a value in it.
_NAMED: Final = 4
_LONGEST: Final = 60


def stack_of(report: Report) -> dict[str, str]:
    """Return the facts of the run's stack by name. Facts that are empty, or that nobody recorded, are left out."""
    facts = {name: str(value(report)) for name, value in _FACTS.items()}
    # The accelerator's record has the version of torch already.
    facts |= {name: str(value) for name, value in report.environment.facts.items() if name not in facts}
    facts |= {f"{_VARIABLE}{name}": str(value) for name, value in report.environment.variables.items()}
    return {name: value for name, value in facts.items() if value}


def fingerprint(report: Report) -> str:
    """Return a hash that is equal for runs on equal stacks. A report of format 1 hashes the machine's facts alone."""
    if report.schema < RECORDS_STACK:
        return _sha256(report.environment.facts) if report.environment.facts else ""
    return _sha256(stack_of(report))


def _sha256(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()


def with_fingerprint(report: Report) -> Report:
    """Return the report with the fingerprint of its stack."""
    return replace(report, environment=replace(report.environment, fingerprint_sha256=fingerprint(report)))


def differing(before: Report, now: Report, without: Iterable[str] = ()) -> dict[str, tuple[str, str]]:
    """Return the facts that differ, with the value before and now. Facts of ``without`` are not compared."""
    old, new = stack_of(before), stack_of(now)
    left_out = set(without)
    if min(before.schema, now.schema) < RECORDS_STACK:
        left_out |= _NEWER | {name for name in (*old, *new) if name.startswith(_VARIABLE)}
    names = [name for name in dict.fromkeys((*old, *new)) if name not in left_out]
    return {name: (old.get(name, ""), new.get(name, "")) for name in names if old.get(name, "") != new.get(name, "")}


def difference(before: Report, now: Report, without: Iterable[str] = ()) -> str:
    """Return what differs as one clause, such as ``driver 1.2 and 1.3``; empty if the stacks are equal."""
    found = differing(before, now, without)
    said = [f"{one_line(name, _LONGEST)} {' and '.join(shown(*pair))}" for name, pair in list(found.items())[:_NAMED]]
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return ", ".join([*said, *more])


def shown(before: str, now: str) -> tuple[str, str]:
    """Return two different values for a sentence: of lists what differs, of long texts as much as tells them apart."""
    if ", " in before + now:
        old, new = before.split(", "), now.split(", ")
        before = ", ".join(item for item in old if item not in new)
        now = ", ".join(item for item in new if item not in old)
    if max(len(before), len(now)) > _LONGEST // 2:
        before, now = told_apart(before, now)
    return one_line(before, _LONGEST) or "(none)", one_line(now, _LONGEST) or "(none)"
