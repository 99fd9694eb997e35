"""Script that reproduces the failure of an operator cell with torch and the vendor's package alone.

The report names the failed call by its fields. The case runs again on PyTorch's CPU, where this call alone is looked
at, and its arguments are written as Python.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING

from conformance.base.errors import ConformanceError, UsageError
from conformance.judging.checker import Checker

if TYPE_CHECKING:
    from conformance.plan.case import Case
    from conformance.reports.model import CaseRecord, Report
    from conformance.suites.operators.judge.cells import Failure


def script(case: Case, report: Report | None, accelerator: str = "") -> str:
    """Return the script for the case's failure in the report, or for its first call without a report.

    ``accelerator`` replaces the one of the report, which is used only if it is a registered name.
    Raises UsageError for a case that has no script.
    """
    record = next((found for found in report.cases if found.id == case.id), None) if report else None
    if case.area != "operators" or case.dtype is None:
        repro = f"; run it with: {record.repro}" if record and record.repro else ""
        raise UsageError(f"{case.id} has no script: only cells of operators with a dtype have one{repro}")
    seed = report.run.invocation.seed if report else 0
    spec = accelerator or (_registered(report.accelerator.spec) if report else "cpu")
    failure, (device, package) = _failure(case, record, seed, spec), _vendor(spec, report)
    from conformance.suites.operators import cell
    from conformance.suites.operators.judge.script import Unwritable
    from conformance.suites.operators.judge.script import script as written

    what = f"{record.reason.value}: {record.message}" if record and record.message else "first call"
    profiled = record is not None and record.reason.value == "fallback"
    try:
        with cell.quiet():
            about = f"{case.id}{failure.call.key} on {device}: {what}"
            return written(failure, about, device=device, package=package, profiled=profiled)
    except Unwritable as error:
        raise UsageError(f"{case.id}{failure.call.key} has no script: {error}") from None


def _registered(spec: str) -> str:
    """Return the report's accelerator; UsageError for a module, which the report's author could choose to be run."""
    from conformance.accelerators.registry import names

    if spec in names() or spec.partition(":")[0] in ("deepspeed", "torch"):
        return spec
    name = shlex.quote(spec or "NAME")
    raise UsageError(
        f"the report names the accelerator {spec or '(none)'}, which is not a registered name, and no module is "
        f"imported because a report names it.\n  if you trust it, name it yourself: --accelerator {name}"
    )


def _failure(case: Case, record: CaseRecord | None, seed: int, spec: str) -> Failure:
    """Return the call that failed, found on the CPU if the report names it, and else on the device."""
    failed = record is not None and record.outcome.value == "fail"
    key = str(record.metrics.get("call", "")) if record is not None and failed else ""
    if not failed or (record is not None and record.reason.value == "fallback"):
        found = _found(case, seed, "cpu", _First())
    else:
        found = _found(case, seed, "cpu", _selecting(key)) if key else None
    if found is not None:
        return found
    assert record is not None
    if record.reason.value in ("crash", "hang", "poisoned"):
        raise UsageError(f"{case.id} has no script: it ended as {record.reason.value}; run it with: {record.repro}")
    try:
        found = _found(case, seed, spec, Checker())
    except ConformanceError as reason:
        raise UsageError(
            f"{case.id} has no script here: the report does not name the call that failed, and accelerator "
            f"'{spec}' is not usable on this machine ({str(reason).splitlines()[0]}); repeat the command where it is"
        ) from None
    if found is None:
        raise UsageError(f"{case.id} has no script: it did not fail again on this machine")
    return found


class _First(Checker):
    """Checker that ends a case at its first comparison."""

    def that(self, condition: object, message: str) -> None:
        """Raise AssertionError, whatever is compared."""
        del condition, message
        raise AssertionError("the first call is known")


def _selecting(key: str) -> Checker:
    found = Checker()
    found.calls = key
    return found


def _found(case: Case, seed: int, spec: str, checker: Checker) -> Failure | None:
    """Run the case on an accelerator; return the call that the checker kept."""
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.plan.case import seed_of
    from conformance.process.state import seed_everything
    from conformance.suites.operators import cell

    accelerator = resolve(spec).load()
    seed_everything(seed_of(case.id, seed), accelerator)
    # The case may fail in any way; that is what is looked for.
    with contextlib.suppress(Exception):
        cell.run(case, torch.device(accelerator.current_device_name()), checker)
    failure: Failure | None = checker.failed
    return failure


def _vendor(spec: str, report: Report | None) -> tuple[str, str]:
    """Return the name of the device, and the package to import; empty if torch itself has the device."""
    from conformance.accelerators.registry import resolve

    device = report.accelerator.device if report else "cpu"
    try:
        return device or "cpu", str(getattr(resolve(spec).unloaded(), "package", "") or "")
    except ConformanceError:
        return device or "cpu", ""
