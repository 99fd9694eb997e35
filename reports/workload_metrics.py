"""The numbers of workloads: which metrics the views show, under which title, and in which unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from conformance.reports.model import CaseRecord, Fact


@dataclass(frozen=True)
class MetricColumn:
    """A metric of a case, and how people read it."""

    metric: str
    title: str
    show: Callable[[float], str]


METRIC_COLUMNS: Final = (
    MetricColumn("tokens_per_s", "tokens/s", "{:,.0f}".format),
    MetricColumn("samples_per_s", "samples/s", "{:,.0f}".format),
    MetricColumn("step_ms_median", "step, ms", "{:,.2f}".format),
    MetricColumn("step_ms_p90", "p90, ms", "{:,.2f}".format),
    MetricColumn("peak_memory_bytes", "peak memory, MiB", lambda size: f"{size / 2**20:,.1f}"),
    MetricColumn("process_peak_bytes", "peak of the process, MiB", lambda size: f"{size / 2**20:,.1f}"),
)


def metric_rows(cases: Iterable[CaseRecord]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Titles and rows of the cases that carry one of these metrics; columns that nobody fills are left out."""
    carrying = [case for case in cases if any(column.metric in case.metrics for column in METRIC_COLUMNS)]
    used = [column for column in METRIC_COLUMNS if any(column.metric in case.metrics for case in carrying)]
    rows = tuple((case.id, *(_shown(column, case.metrics.get(column.metric)) for column in used)) for case in carrying)
    return ("workload", *(column.title for column in used)), rows


def _shown(column: MetricColumn, value: Fact | None) -> str:
    if value is None:
        return "–"
    return column.show(value) if isinstance(value, (int, float)) else value
