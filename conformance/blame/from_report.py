"""Answer without the device: which failing operators of a report a failing workload calls."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.base.errors import UsageError
from conformance.process.python import child_pytest

if TYPE_CHECKING:
    from conformance.reports.model import CaseRecord, Report

#: Seconds that the workloads may take on the host.
_LIMIT = 600
#: Samples of an operator from which its calls are found.
_SAMPLES = 3
#: Operators with which every program moves and makes tensors; that two programs share one says nothing.
_COMMON = frozenset(
    f"aten.{name}"
    for name in ("clone", "copy", "_to_copy", "empty", "empty_like", "zeros", "zeros_like", "ones_like", "fill", "sum")
)


@dataclass(frozen=True)
class Suspects:
    """A failing workload, and the failing cells of operators that it calls; ``unseen`` says why none can be named."""

    workload: CaseRecord
    cells: tuple[CaseRecord, ...]
    unseen: str = ""


def suspects(report: Report, only: str = "") -> Iterator[Suspects]:
    """Yield each failing workload of a report, or the one with the id ``only``, with its suspects.

    The workload runs on the host, and its calls are compared with those of each failing operator. Raises UsageError.
    """
    failing = [case for case in report.cases if case.outcome.value == "fail"]
    workloads = [case for case in failing if case.tier == "workload" and only in ("", case.id)]
    if not workloads:
        what = f"{only} does not fail in this report, or is no workload" if only else "no workload fails in this report"
        raise UsageError(f"{what}. See: conformance report PATH")
    cells = [case for case in failing if case.area == "operators"]
    called = {cell.id: operators_of(name) for cell in cells if (name := operator_name(cell.id))}
    touched, why = touched_by([workload.id for workload in workloads])
    for workload in workloads:
        own = touched.get(workload.id, frozenset())
        found = tuple(cell for cell in cells if (called.get(cell.id, frozenset()) - _COMMON) & own)
        unseen = "" if own else why or "it runs on ranks, where its calls are not seen"
        yield Suspects(workload, found, unseen)


def operator_name(case: str) -> str:
    """Return the operator's full name in PyTorch's database: ``add`` of ``operators.add[float32-inference]``."""
    return re.sub(r"\[.*", "", case.removeprefix("operators."))


def operators_of(full_name: str) -> frozenset[str]:
    """Return what an operator of PyTorch's database calls on the host, forward and backward."""
    import torch

    from conformance.suites.operators.calls.database import database

    from .touching import Names

    info = database().get(full_name)
    names = Names()
    if info is None:
        return frozenset()
    for sample in _samples(info, torch.float32):
        with contextlib.suppress(Exception), names:
            _differentiate(info.op(sample.input, *sample.args, **sample.kwargs))
    return frozenset(names.found)


def _samples(info: Any, dtype: Any) -> Iterable[Any]:
    dtypes = info.supported_dtypes("cpu")
    chosen = dtype if dtype in dtypes else next(iter(dtypes))
    differentiable = chosen.is_floating_point and info.supports_autograd
    with contextlib.suppress(Exception):
        yield from itertools.islice(info.sample_inputs("cpu", chosen, requires_grad=differentiable), _SAMPLES)


def _differentiate(result: Any) -> None:
    import torch

    from conformance.numerics.trees import tensors

    outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def touched_by(cases: Sequence[str]) -> tuple[dict[str, frozenset[str]], str]:
    """Return the operators that each case calls on the host, and a sentence if the run has not ended as it should."""
    from .touching import VARIABLE

    with tempfile.TemporaryDirectory(prefix="conformance-blame-") as folder:
        file = Path(folder, "touched.jsonl")
        options = ["-n0", "--accelerator=cpu", "-p", "conformance.blame.touching", "-q"]
        options += [word for case in cases for word in ("--case", case)]
        command = child_pytest(*options, "--conformance-report", str(Path(folder, "report")))
        environment, why = {**os.environ, VARIABLE: str(file)}, ""
        try:
            ended = subprocess.run(  # noqa: S603 - this interpreter with our own plugin
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False
            )
            if not file.exists():
                why = ((ended.stdout + ended.stderr).strip().splitlines() or ["it wrote nothing"])[-1]
        except subprocess.TimeoutExpired:
            why = f"the workloads did not end within {_LIMIT} s on the host"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {case: frozenset(names) for case, names in map(json.loads, lines)}, why


def text(found: Suspects) -> Iterator[str]:
    """Yield the answer for one workload."""
    yield f"{found.workload.id}: {found.workload.message.splitlines()[0] if found.workload.message else 'fails'}"
    if found.unseen:
        yield f"  not known: {found.unseen}"
    elif not found.cells:
        yield "  it calls no failing operator of this report. With the device: conformance blame FILE.py:FUNCTION"
    by_operator: dict[str, list[CaseRecord]] = {}
    for cell in found.cells:
        by_operator.setdefault(operator_name(cell.id), []).append(cell)
    for name, cells in sorted(by_operator.items(), key=lambda item: -len(item[1])):
        first = cells[0].message.splitlines()[0] if cells[0].message else ""
        yield f"  calls {name}, of which {len(cells)} cells fail: {cells[0].id}: {first}"
