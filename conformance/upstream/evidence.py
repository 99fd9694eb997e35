"""What the cases of a report say about an operator in a dtype, in the words of PyTorch's database of operators."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome, Reason

#: An operator's full name, and a dtype.
Variant = tuple[str, str]
_MOST_TEXT = 160
#: Reasons of a skip that say what the device does not do.
_DENIED = (Reason.UNSUPPORTED, Reason.UNDECLARED)


class Standing(Enum):
    """What is known of an operator in a dtype."""

    VERIFIED = "verified"
    FAILING = "failing"
    DENIED = "denied"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Evidence:
    """Standing of a variant, and the sentence of the case that decided it."""

    standing: Standing
    why: str = ""


UNKNOWN = Evidence(Standing.UNKNOWN)


@functools.cache
def operators() -> dict[str, Any]:
    """Return the entries of the installed torch's database by full name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {info.full_name: info for info in op_db}


@functools.cache
def followers() -> dict[str, str]:
    """Return the operators of PyTorch's other databases, and which one of ours each is about; "" for none.

    ``_refs.abs`` is a second implementation of abs in Python, and ``_foreach_abs`` is abs of a list of tensors.
    """
    from torch.testing._internal import common_methods_invocations as databases

    found = {info.full_name: info.torch_opinfo.full_name for info in databases.python_ref_db}
    for kind in ("unary", "binary", "pointwise", "reduce", "other"):
        for info in getattr(databases, f"foreach_{kind}_op_db", []):
            found[info.full_name] = info.full_name.removeprefix("_foreach_")
    return {name: operator if operator in operators() else "" for name, operator in found.items()}


def dtypes_of(name: str, device_type: str = "cpu") -> list[str]:
    """Return the dtypes for which PyTorch makes a test of the operator on a device."""
    info = operators()[name]
    # An out-of-tree device has the dtypes of the CPU's entry, and a list may be older than the entry of its device.
    dtypes = set(info.supported_dtypes("cpu"))
    with contextlib.suppress(RuntimeError):  # torch does not know the type of a device that is not loaded here
        dtypes |= set(info.supported_dtypes(device_type))
    return sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)


def evidence_of(report: Report) -> dict[Variant, Evidence]:
    """Return the evidence for each operator and dtype of which the report has a case."""
    full_names = {name.replace("-", "_"): name for name in operators()}
    cases: dict[Variant, list[CaseRecord]] = defaultdict(list)
    for case in report.cases:
        area, _, rest = case.id.partition(".")
        name = full_names.get(rest.partition("[")[0])
        if area == "operators" and name is not None and case.axes.get("dtype"):
            cases[name, case.axes["dtype"]].append(case)
    return {variant: _judged(found) for variant, found in cases.items()}


def _judged(cases: Iterable[CaseRecord]) -> Evidence:
    """Return one evidence for all modes: a failure decides, then a pass, then a denial."""
    ranked = {Standing.FAILING: 0, Standing.VERIFIED: 1, Standing.DENIED: 2, Standing.UNKNOWN: 3}
    return min((_of(case) for case in cases), key=lambda evidence: ranked[evidence.standing], default=UNKNOWN)


def _of(case: CaseRecord) -> Evidence:
    text = f"{case.reason.value}: {one_line(case.message, _MOST_TEXT)}" if case.message else case.reason.value
    if case.outcome is Outcome.PASS:
        return Evidence(Standing.VERIFIED)
    if case.outcome is Outcome.FAIL or case.reason is Reason.WAIVED:
        return Evidence(Standing.FAILING, f"{text} ({case.id})")
    return Evidence(Standing.DENIED, text) if case.reason in _DENIED else UNKNOWN


def standing_of(evidence: Mapping[Variant, Evidence], variants: Iterable[Variant]) -> Evidence:
    """Return the evidence for all variants together: verified only if every one that a case knows is verified."""
    known = [evidence[variant] for variant in variants if variant in evidence]
    known = [entry for entry in known if entry.standing is not Standing.UNKNOWN]
    if not known:
        return UNKNOWN
    worst = [entry for entry in known if entry.standing is not Standing.VERIFIED]
    return worst[0] if worst else Evidence(Standing.VERIFIED)
