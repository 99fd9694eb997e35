"""State of each accelerator, as the first lines of the page: the gate's decision, profile, failures, and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.reports.breadth import kernel_sentence
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.rules import RULES
from conformance.reports.page.changes import ColumnChanges
from conformance.reports.page.columns import PageColumn, ReportOrigin
from conformance.reports.plain_text import one_line
from conformance.reports.times import day

#: Findings in the explanation of a state. The gate's command lists the others.
_FINDINGS = 3


@dataclass(frozen=True)
class StateLine:
    """Line of one accelerator."""

    column: PageColumn
    changes: ColumnChanges | None

    @property
    def decision(self) -> Decision | None:
        return self.column.source.decision

    @property
    def gate(self) -> tuple[str, str, str]:
        """Return the class, the symbol and the words of the gate's decision."""
        decision = self.decision
        if decision is None:
            return "un", "?", "not gated"
        if decision.rejections:
            return "bad", "✕", f"rejected · {', '.join(map(_named_rule, decision.rejecting))}"
        if not self.column.source.signer and self.column.source.origin is ReportOrigin.VENDOR:
            return "un", "?", "unsigned"
        return "good", "✓", "accepted"

    @property
    def failing(self) -> str:
        counts = self.column.own.counts
        lost = f", {counts.lost:,} without a verdict" if counts.lost else ""
        return f"{counts.failed:,}{lost}"

    @property
    def since(self) -> tuple[tuple[str, str], ...]:
        """Return class and words of each change since the run before."""
        changes = self.changes
        if changes is None:
            return (("quiet", "first run"),)
        parts = []
        if changes.broke:
            parts.append(("worse", f"▼ {changes.broke:,} broke"))
        if changes.healed:
            parts.append(("better", f"▲ {changes.healed:,} mended"))
        return tuple(parts) or (("quiet", "nothing broke"),)

    @property
    def day(self) -> str:
        return day(self.column.report.run.started)

    @property
    def answers(self) -> str:
        """Return who answers for the report."""
        if self.column.source.origin is ReportOrigin.UPSTREAM:
            return "the maintainers"
        return one_line(self.column.source.signer, 120) or "nobody: it is not signed"

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return why the line says what it says, in the order in which to act."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        report, decision = self.column.report, self.decision
        if decision is not None:
            for finding in decision.rejections[:_FINDINGS]:
                yield f"{finding.rule}: {one_line(finding.sentence, 300)}"
            if (more := len(decision.rejections) - _FINDINGS) > 0:
                yield f"{more} more {'finding' if more == 1 else 'findings'}. See: conformance gate REPORT"
            if decision.waived:
                yield f"{decision.waived} {'failure is' if decision.waived == 1 else 'failures are'} waived."
        if self.column.aim.lacks:
            lacks = "; ".join(one_line(text, 100) for text in self.column.aim.lacks[:_FINDINGS])
            yield f"Not claimed for profile {self.column.aim.name}: {lacks}."
        yield f"Run {one_line(report.run.id, 60)} of {self.day}, by {self.answers}."
        yield ", ".join(text for text in self._stack() if text)
        if origins := kernel_sentence(report.kernel_origins):
            yield f"Kernels in passed cases: {origins}."
        if decision is not None and decision.unchecked:
            yield f"Not checked: {'; '.join(decision.unchecked)}."

    def _stack(self) -> Iterator[str]:
        """Yield devices and versions."""
        accelerator = self.column.report.accelerator
        yield ", ".join(one_line(name, 60) for name in accelerator.device_names[:3])
        for name in ("driver", "runtime", "torch", "package"):
            if value := one_line(getattr(accelerator, name), 60):
                yield f"{name} {value}"
        yield f"suite {one_line(self.column.report.run.suite.version, 40)}"


def _named_rule(id: str) -> str:
    """Return a rule with the words for what it is about, such as ``G06 failures``."""
    return f"{id} {RULES[id].title}".strip() if id in RULES else id


def summary(lines: Sequence[StateLine]) -> str:
    """Return the state of all accelerators in one or two sentences."""
    kinds = Counter(line.gate[0] for line in lines)
    words = {"good": "accepted", "bad": "rejected", "un": "not judged or unsigned"}
    said = ", ".join(f"{kinds[kind]:,} {word}" for kind, word in words.items() if kinds[kind])
    names = "1 accelerator" if len(lines) == 1 else f"{len(lines):,} columns"
    failing = [line for line in lines if line.column.own.counts.failed]
    worst = sorted(failing, key=lambda line: -line.column.own.counts.failed)[:_FINDINGS]
    listed = ", ".join(f"{one_line(line.column.title, 200)} {line.column.own.counts.failed:,}" for line in worst)
    failures = (
        f"Failing cases: {listed}{' and others' if len(failing) > len(worst) else ''}." if failing else "No case fails."
    )
    broke = sum(line.changes.broke for line in lines if line.changes)
    healed = sum(line.changes.healed for line in lines if line.changes)
    changed = f" Since the runs before, {broke:,} broke and {healed:,} were mended." if broke or healed else ""
    return f"{names}: {said}. {failures}{changed}"
