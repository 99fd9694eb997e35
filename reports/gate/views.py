"""Views of the gate's decision: text, JSON and Markdown. Sentences may quote untrusted text; each view escapes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from conformance.reports.breadth import KERNEL_ORIGINS, kernel_sentence
from conformance.reports.gate.finding import Decision, GateFinding, GateSeverity, GateStatus, Rule
from conformance.reports.gate.rules import RULES
from conformance.reports.plain_text import SUMMARY_BYTES, markdown, one_line, within

_IDS_A_FINDING: Final = 1_000
_WORDS: Final = {
    GateStatus.ACCEPTED: "accepted",
    GateStatus.REJECTED: "rejected",
    GateStatus.CANNOT_JUDGE: "cannot judge",
}


def text(decision: Decision) -> str:
    """Return notes, rejections in the order in which to act, facts about the run, and the decision as the last line."""
    notes = [finding for finding in decision.findings if finding.severity is not GateSeverity.REJECT]
    lines = [
        *map(_line, [*notes, *decision.rejections]),
        *_kernels(decision),
        *_not_checked(decision),
        _facts(decision),
        *_next(decision),
        _conclusion(decision),
    ]
    return "\n".join(lines) + "\n"


def _next(decision: Decision) -> list[str]:
    """Return what to do first: the fix of the first rule that rejects. Rules about the file come before its cases."""
    first = decision.rejecting[:1]
    return [f"first: {RULES[rule].fix}" for rule in first if rule in RULES]


def _facts(decision: Decision) -> str:
    """Return who signed which run, when it ended, and how many failures are waived, in one line."""
    signer = f"signed by {one_line(decision.signer, 200)}" if decision.signer else "not signed by an allowed signer"
    ended = one_line(decision.finished, 40) or "at no time"
    waived = f"{decision.waived} {'case' if decision.waived == 1 else 'cases'} waived"
    return f"run {one_line(decision.run, 60) or '(no id)'}, ended {ended}; {signer}; {waived}"


def _kernels(decision: Decision) -> list[str]:
    """Return whose kernels ran in the passed cases, a line for each area with kernels."""
    return [f"kernels of {one_line(area, 60)}: {kernel_sentence({area: n})}" for area, n in decision.kernels.items()]


def _not_checked(decision: Decision) -> list[str]:
    return [f"not checked: {sentence}" for sentence in decision.unchecked]


def _line(finding: GateFinding) -> str:
    mark = "reject" if finding.severity is GateSeverity.REJECT else "note  "
    return f"{finding.rule} {mark} {one_line(finding.sentence)}"


def _conclusion(decision: Decision) -> str:
    """Return the decision in one line. It begins with the decision, and ends with the rules that reject."""
    name, rejected = one_line(decision.accelerator, 100), len(decision.rejections)
    sentence = (
        f"{_WORDS[decision.status]}: {name}, profile {decision.profile} · {decision.breadth}; "
        f"{decision.met:,} of {decision.due:,} due cases passed or are waived"
    )
    reasons = decision.rejecting
    more = (
        f"; {rejected:,} finding{'s' if rejected != 1 else ''} ({', '.join(reasons)}); "
        f"see: conformance gate --explain {reasons[0]}"
        if reasons
        else ""
    )
    return sentence + more


def as_json(decision: Decision) -> str:
    """Return everything as JSON, with the ids of the cases."""
    value = {
        "schema": 1,
        "accelerator": decision.accelerator,
        "profile": decision.profile,
        "decision": _WORDS[decision.status],
        "status": int(decision.status),
        "due": decision.due,
        "met": decision.met,
        "run": {"id": decision.run, "started": decision.started, "finished": decision.finished},
        "signer": decision.signer,
        "waived": decision.waived,
        "breadth": {"claimed": decision.breadth.claimed, "planned": decision.breadth.planned},
        "kernels": {area: dict(counts) for area, counts in decision.kernels.items()},
        "not_checked": list(decision.unchecked),
        "findings": [_plain(finding) for finding in decision.findings],
    }
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


def _plain(finding: GateFinding) -> dict[str, Any]:
    """Return the finding for JSON. A long list of cases is cut, and ``more`` counts the rest."""
    return {
        "id": finding.rule,
        "severity": finding.severity.value,
        "sentence": finding.sentence,
        "cases": list(finding.cases[:_IDS_A_FINDING]),
        "more": max(len(finding.cases) - _IDS_A_FINDING, 0),
    }


def as_markdown(decision: Decision) -> str:
    """Return Markdown for a CI job: the decision, rejections, then notes, cut to the size of a job summary."""
    word = "✅ accepted" if decision.status is GateStatus.ACCEPTED else "❌ rejected"
    head = f"## Gate: {markdown(decision.accelerator)}, profile {decision.profile} · {decision.breadth}: {word}\n\n"
    head += f"{decision.met} of {decision.due} cases that are due passed or are validly waived.\n"
    head += f"{markdown(_facts(decision))}.\n"
    return within(SUMMARY_BYTES, head, _markdown_lines(decision))


def _markdown_lines(decision: Decision) -> Iterator[str]:
    """Yield the tables of kernels and findings, then the cases of each rejection as folded lists."""
    if decision.kernels:
        yield f"\n| kernels of | {' | '.join(KERNEL_ORIGINS)} |\n| --- |{' --: |' * len(KERNEL_ORIGINS)}\n"
    for area, counts in decision.kernels.items():
        yield f"| {markdown(one_line(area, 60))} | {' | '.join(str(counts[origin]) for origin in KERNEL_ORIGINS)} |\n"
    if decision.findings:
        yield "\n| rule | | finding |\n| --- | --- | --- |\n"
    for finding in decision.findings:
        yield f"| {finding.rule} | {finding.severity.value} | {markdown(finding.sentence)} |\n"
    for finding in decision.rejections:
        if finding.cases:
            yield f"\n<details><summary>{finding.rule}: {len(finding.cases)}</summary>\n\n"
            yield from (f"- {markdown(one_line(id, 300))}\n" for id in finding.cases[:_IDS_A_FINDING])
            yield "\n</details>\n"
    if decision.unchecked:
        yield "\nNot checked:\n\n"
        yield from (f"- {markdown(sentence)}\n" for sentence in decision.unchecked)


FORMATS: Final[Mapping[str, Callable[[Decision], str]]] = {"text": text, "json": as_json, "markdown": as_markdown}


def explanation(rule: Rule) -> str:
    """Return the text of ``--explain`` for one rule."""
    return f"{rule.id}  {rule.requirement}\n\n  why  {rule.why}\n  fix  {rule.fix}\n"


def explanations() -> str:
    """Return the texts of all rules."""
    return "\n".join(explanation(rule) for rule in RULES.values())
