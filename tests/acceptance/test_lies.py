"""Twenty random false claims are named, no more and no fewer, and what ``conformance suggest`` writes is clean.

``tox run -e instrument -- lies`` takes twenty seeds (``CONFORMANCE_LIE_SEEDS``) and prints the table.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.accelerators.declaration import Declaration
from conformance.accelerators.declaration_file import dump, read_declaration
from conformance.accelerators.registry import resolve
from conformance.base.errors import ConformanceError
from conformance.cli.main import main
from conformance.plan.selection import matches
from conformance.reports.model import Report
from conformance.reports.report_json import read_report
from conformance.reports.verdict import Reason
from tests.layers import longer

from . import lies
from .lies import Candidate, Kind, Lie
from .running import DATABASE, HERE, run

SEEDS = int(os.environ.get("CONFORMANCE_LIE_SEEDS", "1"))
SUBJECTS = {"cpu": "lying_subjects:StubbedCpu", "sim": "lying_subjects:StubbedSim"}
#: Seconds each, for a compiler, a process group or another process.
EXPENSIVE = ("capabilities.compile", "capabilities.comm", "capabilities.triton", "capabilities.device.visibility")
#: Those that take most time of the others. A quick look has other capabilities of their kind.
SLOW = ("capabilities.execution.backpressure", "capabilities.execution.host-timers", "operators.fft.fftn[*")


@dataclass
class Bench:
    """One subject: its truth, the cells whose truth was seen, and where runs are made."""

    name: str
    folder: Path
    truth: Declaration
    found: list[Candidate]
    size: int = lies.POOL

    def run(self, declaration: Declaration | Path, cases: list[str], folder: str, *options: str) -> tuple[int, Report]:
        cwd = self.folder / folder
        cwd.mkdir()
        (cwd / "cases.txt").write_text("\n".join(cases))
        if isinstance(declaration, Declaration):
            (cwd / "claims.toml").write_text(dump(declaration))
            declaration = cwd / "claims.toml"
        where = [f"--accelerator={SUBJECTS[self.name]}", f"--capabilities={declaration}", "--case-file=cases.txt"]
        # A traceback through PyTorch's operator database takes pytest most of a second to write.
        words = ("-n0", "-q", "--tb=no", "--conformance-report=out", *options)
        ended = run(*where, *words, cwd=cwd, imported=DATABASE, PYTHONPATH=str(HERE))
        reports = list(cwd.glob("out/*/report.json"))
        assert reports, ended.output
        return ended.status, read_report(reports[0])


@dataclass(frozen=True)
class Row:
    """One seed's line in the table."""

    seed: int
    lies: list[Lie]
    cases: int
    missed: list[str]
    accused: list[str]
    misjudged: list[str]
    changed: list[str]
    next_status: int
    left: dict[str, Reason]
    seconds: float

    @property
    def clean(self) -> bool:
        return not (self.missed or self.accused or self.misjudged or self.changed or self.next_status or self.left)

    def __str__(self) -> str:
        kinds = ", ".join(f"{sum(lie.kind is kind for lie in self.lies):>2} {kind.value}" for kind in Kind)
        numbers = f"{len(self.lies) - len(self.missed)}/{len(self.lies)} named, {len(self.accused)} others"
        return (
            f"{self.seed:>4}  {kinds}  of {self.cases} cases: {numbers}, {len(self.misjudged)} for another reason; "
            f"next run {'clean' if not self.next_status else f'ends with {self.next_status}'}; {self.seconds:.1f} s"
        )


@pytest.fixture(scope="module", params=longer(["cpu of few cells", *SUBJECTS]))
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    name, _, few = str(request.param).partition(" ")
    size = lies.FEW if few else lies.POOL
    try:
        resolve(name).preflight()
    except ConformanceError as error:
        pytest.skip(str(error))
    left_out = (*EXPENSIVE, *(SLOW if few else ()))
    found = [case.id for case in lies.pool(name, random.Random(0), size)]
    cases = [id for id in found if not any(matches(pattern, id) for pattern in left_out)]
    one = Bench(name, tmp_path_factory.mktemp(name), lies.truth(name), [], size)
    _, report = one.run(one.truth, cases, "truth")
    one.found = lies.candidates(report)
    return one


def test_the_truth_is_not_accused(bench: Bench) -> None:
    cases = [one.record.id for one in bench.found if one.works]

    status, report = bench.run(bench.truth, cases, "honest", "--strictness=certify")

    assert (lies.named(report), status) == ({}, 0)
    assert len(cases) > 200 * bench.size // lies.POOL


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_lie_is_named_and_nothing_else(bench: Bench, seed: int) -> None:
    row = judge_seed(bench, seed)

    print(f"{bench.name:<5}{row}")
    assert row.clean, row
    assert len(row.lies) == lies.PER_SEED
    assert {lie.kind for lie in row.lies} == set(Kind) - ({Kind.FALLBACK} if bench.name == "cpu" else set())


def judge_seed(bench: Bench, seed: int) -> Row:
    """Lie, look, take the suggestion, look again."""
    started = time.perf_counter()
    made, honest = lies.invent(seed, bench.found)
    declared = lies.told(bench.truth, made)
    cases = [*(lie.case for lie in made), *honest]
    _, report = bench.run(declared, cases, f"lied{seed}", "--strictness=certify")
    suggested = bench.folder / f"suggested{seed}.toml"
    report_file = next((bench.folder / f"lied{seed}").glob("out/*/report.json"))
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["suggest", str(report_file), "-o", str(suggested)]) == 0
    status, after = bench.run(suggested, cases, f"next{seed}", "--strictness=certify")
    expected, found = {lie.case: lie.reason for lie in made}, lies.named(report)
    wanted, written = lies.corrected(bench.truth, made), lies.states(read_declaration(suggested))
    changed = [str(cell) for cell in {*wanted, *written} if wanted.get(cell) != written.get(cell)]
    return Row(
        seed,
        made,
        len(cases),
        missed=sorted(expected.keys() - found.keys()),
        accused=sorted(found.keys() - expected.keys()),
        misjudged=sorted(id for id in expected.keys() & found.keys() if expected[id] is not found[id]),
        changed=changed,
        next_status=status,
        left=lies.named(after),
        seconds=time.perf_counter() - started,
    )
