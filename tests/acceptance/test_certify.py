"""``--strictness=certify`` fails every undeclared planned cell, however its case would have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.accelerators.capabilities import VOCABULARY
from conformance.plan.bundled import bundled_cases
from conformance.plan.case import About, Case
from tests.do_nothing.run import portion

from .running import HERE, run


def needs_a_library(case: Case) -> bool:
    """Return whether a case requires the mandatory core alone, and a library that may be missing here.

    The core is judged as declared, so a missing library is the verdict: nothing is undeclared.
    """
    return case.about is About.LIBRARY and all(
        cell.subject in VOCABULARY and VOCABULARY[cell.subject].core for cell in case.requires
    )


@pytest.mark.long
def test_nothing_that_is_undeclared_is_skipped(tmp_path: Path) -> None:
    planned = [bundled.case for bundled in bundled_cases()]
    # Two operators, some of every other area, and the cells that are probed on more ranks than there are devices.
    ids = [*portion(planned, 2), *(case.id for case in planned if case.adaptive and (case.world_size or 1) > 2)]
    (tmp_path / "cases.txt").write_text("\n".join(ids), encoding="utf-8")

    words = ("--accelerator=silent:SILENT", "--strictness=certify", f"--case-file={tmp_path / 'cases.txt'}", "-n1")
    ended = run(*words, cwd=tmp_path, name="sim", timeout=900, PYTHONPATH=str(HERE))

    cases = {case.id: case for case in ended.report.cases}
    assert set(cases) == set(ids)
    assert sum(verdict == ("fail", "undeclared") for verdict in ended.verdicts.values()) > 100
    libraries = {case.id for case in planned if needs_a_library(case)}
    skipped = {id: verdict for id, verdict in ended.verdicts.items() if verdict[0] == "skip"}
    assert {id: verdict for id, verdict in skipped.items() if id not in libraries} == {}
    assert {verdict for id, verdict in skipped.items() if id in libraries} <= {("skip", "environment")}
