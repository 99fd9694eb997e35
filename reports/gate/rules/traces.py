"""G18: a verdict carries no trace of another verdict."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from conformance.base.errors import JournalError
from conformance.reports.calls import CALL, SCRIPT
from conformance.reports.challenge import ANSWER, parsed
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.gate.numbers import odd_metrics
from conformance.reports.model import CaseRecord, Fact
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import OBSERVED

#: Metrics of errors as parts of their budgets. More than 1 is a failure.
_RATIOS: Final = ("max_budget_ratio", "error_of_bound")
#: Metric of a case whose cell is not claimed, and of one that computed on the host.
_PROBE, _HOST_BYTES = "probe", "host_bytes"
#: Metrics that count, and metrics of errors. No run writes a zero, a fraction or a text for a count, nor a negative
#: number or a text for an error.
_COUNTS: Final = ("comparisons", "samples")
_ERRORS: Final = ("max_abs", "host_budget_ratio", *_RATIOS)
#: Comparisons and samples that no case makes.
_MOST_COUNTED: Final = 10**7
#: Errors that are enough to tell an invented one by its repetition.
_TELLING: Final = 200
#: Largest numbers of floating-point dtypes. Two results differ by twice as much at the most, in each of two parts.
_LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": 3.4e38,
    "float32": 3.41e38,
    "complex64": 3.41e38,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    # An operator of integers may return float32.
    **dict.fromkeys(("bool", "uint8", "int8", "int16", "int32", "int64"), 3.41e38),
}
_PARTS: Final = 4
#: Results of a probe that computed, on the device or on the host: such a case has numbers of errors.
_COMPUTED: Final = frozenset({"right", "fallback"})
#: Reasons that a passed case has.
_PASSED: Final = frozenset(reason.value for reason in Reason if Outcome.PASS in reason.facts.outcomes)
#: Reasons of cases whose sentence says what the probe saw.
_SAYS_PROBE: Final = frozenset({Reason.UNSUPPORTED, Reason.UNDECLARED})
#: Reasons of cases that a probe has seen.
_PROBED: Final = frozenset({Reason.UNSUPPORTED, Reason.UNDECLARED, Reason.UNDER_DECLARED})


def check_traces(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G18: verdicts with the message, command or metrics of another verdict."""
    found: dict[str, list[str]] = defaultdict(list)
    for group in evidence.report.groups:
        if group.outcome is Outcome.PASS or group.reason is Reason.WAIVER_STALE:
            traces = _of_failures
        elif group.outcome is Outcome.SKIP:
            traces = _of_other_skips
        else:
            continue
        for case in group.cases:
            for trace in traces(case):
                found[trace].append(case.id)
    challenged = bool(evidence.report.run.invocation.challenge)
    for case in evidence.report.cases:
        if case.metrics:
            for trace in _impossible(case, challenged=challenged):
                found[trace].append(case.id)
    yield from _check_repeated_errors(evidence)
    yield from _check_repeated_modes(evidence)
    for trace, ids in found.items():
        yield reject("G18", f"{counted(len(ids), 'case')} {trace}: {named(ids)}.", ids)


def _check_repeated_errors(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject one and the same error in most cases that have one: measured errors differ."""
    errors = Counter(case.metrics.get(_RATIOS[0]) or 0 for case in evidence.report.cases if case.metrics)
    del errors[0]
    number = sum(errors.values())
    if number >= _TELLING and (most := errors.most_common(1)[0])[1] > number / 2:
        yield reject("G18", f"{most[1]} of {number} cases with an error have the same one: {most[0]}.")


def _check_repeated_modes(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject operators whose numbers in training are those of their inference: training compares gradients too."""
    cases, pairs, same = evidence.cases, 0, []
    for case in evidence.report.cases:
        if case.axes.get("mode") == "training" and case.outcome is Outcome.PASS and "comparisons" in case.metrics:
            other = cases.get(case.id.replace("-training]", "-inference]"))
            pairs += other is not None
            if other is not None and other is not case and other.metrics == case.metrics:
                same.append(case.id)
    if pairs >= _TELLING and len(same) > pairs / 2:
        yield reject("G18", f"{len(same)} of {pairs} operators have the numbers of inference in training.", same)


def _impossible(case: CaseRecord, *, challenged: bool) -> Iterator[str]:
    """Yield metrics of a case that no run writes."""
    metrics = case.metrics
    counts = [metrics.get(name, 1) for name in _COUNTS]
    odd = [value for value in counts if type(value) is not int or not 0 < value <= _MOST_COUNTED]
    if odd:
        yield f"with a count that is none ({', '.join(_COUNTS)})"
    elif "comparisons" in metrics and counts != sorted(counts, reverse=True):
        yield "with fewer comparisons than samples (comparisons)"
    for name in _ERRORS:
        value = metrics.get(name, 0.0)
        if isinstance(value, str) or value < 0:
            yield f"with an error that is none ({name})"
    if case.outcome is not Outcome.FAIL:
        yield from (
            f"with a metric that is not finite ({name})"
            for name, value in metrics.items()
            if isinstance(value, float) and not math.isfinite(value)
        )
        yield from odd_metrics(case)
        error, largest = metrics.get("max_abs"), _LARGEST.get(str(case.axes.get("dtype")))
        if largest is not None and not isinstance(error, (str, type(None))) and error > _PARTS * largest:
            yield "with an error above the largest number of its dtype (max_abs)"
    if ANSWER in metrics and (not challenged or not _is_answer(str(metrics[ANSWER]))):
        yield f"with an answer to no challenge ({ANSWER})"


def _is_answer(text: str) -> bool:
    try:
        parsed(text)
    except JournalError:
        return False
    return True


def _of_failures(case: CaseRecord) -> Iterator[str]:
    """Yield what a passed case has, although only a failed or skipped one can have it."""
    metrics = case.metrics
    if case.outcome is Outcome.PASS:
        if case.message:
            yield "passed, with the message of a case that did not"
        if case.repro:
            yield "passed, with the command that repeats a failure"
    for name in _RATIOS:
        value = metrics.get(name)
        if value is not None and not _is_within(value):
            yield f"passed, with an error outside the budget ({name})"
    if _PROBE in metrics:
        yield "passed, with the metric of a case that is not claimed (probe)"
    yield from _of_waivers(case)
    yield from (f"passed, with the {name} of a failure" for name in (CALL, SCRIPT) if name in metrics)
    if _HOST_BYTES in metrics and case.reason is Reason.NATIVE:
        yield "passed as native, with bytes that the host computed (host_bytes)"


def _of_waivers(case: CaseRecord) -> Iterator[str]:
    """Yield a passed case's observed reason: only one that a waiver covers has it, and then it is that of a pass."""
    seen = case.metrics.get(OBSERVED)
    if case.reason is Reason.WAIVER_STALE:
        if seen not in _PASSED:
            yield "passed although waived, without the reason of a pass (observed)"
    elif seen is not None:
        yield "passed, with the metric of a waived failure (observed)"


def _is_within(value: Fact) -> bool:
    return not isinstance(value, str) and 0 <= value <= 1


def _says(message: str, probe: str) -> bool:
    """Return whether a sentence says what a probe saw. A finding is said as one, and its kind is the metric."""
    return f": {probe}" in message or ": finding" in message


def _of_other_skips(case: CaseRecord) -> Iterator[str]:
    """Yield what a skipped case has, although only one with another verdict can have it."""
    if case.repro:
        yield "skipped, with the command that repeats a failure"
    probe = case.metrics.get(_PROBE)
    if not case.message.strip():
        yield f"skipped as {case.reason.value}, without a sentence that says why"
    elif probe is not None and case.reason in _SAYS_PROBE and not _says(case.message, str(probe)):
        yield f"skipped as {case.reason.value}, with the sentence of another probe ({_PROBE})"
    if probe is not None and case.reason not in _PROBED and not case.reason.facts.made_by_waiver:
        yield f"skipped as {case.reason.value}, with the metric of a case that is not claimed (probe)"
    numbers = [name for name in _RATIOS if name in case.metrics]
    # A case that is declared unsupported and works was judged like a claimed one, so it has no probe.
    computed = probe in _COMPUTED or case.reason is Reason.UNDER_DECLARED or case.reason.facts.made_by_waiver
    judged = [name for name in _ERRORS if name in case.metrics]
    if judged and not computed:
        yield f"skipped as {case.reason.value}, with errors of a case that was judged ({judged[0]})"
    elif not all(_is_within(case.metrics[name]) for name in numbers):
        yield f"skipped as {case.reason.value}, with an error outside the budget"
    if case.reason is Reason.UNSUPPORTED and probe in ("right", "wrong", "fallback"):
        yield "skipped as unsupported, although the probe got a result (probe)"
    if OBSERVED in case.metrics and not case.reason.facts.made_by_waiver:
        yield f"skipped as {case.reason.value}, with the metric of a waived failure (observed)"


RULES = (
    Rule(
        "G18",
        title="contradicting evidence",
        requirement="No verdict has traces of another one: a passed case has no message, no command that repeats a "
        "failure, and no error above its budget. A skipped case says why, with no command and no error of a failure. "
        "Every number is one that a run can write, and no two contradict each other.",
        why="An edit of a verdict that leaves its evidence in place is the easiest forgery.",
        fix="Send the file as the run wrote it.",
        check=check_traces,
    ),
)
