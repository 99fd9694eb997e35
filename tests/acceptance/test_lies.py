"""Twenty random false claims are named, no more and no fewer, and what ``conformance suggest`` writes is clean.

``tox run -e instrument -- lies`` takes twenty seeds (``CONFORMANCE_LIE_SEEDS``) and prints the table.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.accelerators.declaration import Declaration
from conformance.accelerators.declaration_file import dump, read_declaration
from conformance.accelerators.registry import resolve
from conformance.cli.main import main
from conformance.errors import ConformanceError
from conformance.reports.model import Report
from conformance.reports.report_json import read_report
from conformance.reports.verdict import Reason
from tests.layers import longer

from . import lies
from .lies import Candidate, Kind, Lie
from .running import HERE, environment

SEEDS = int(os.environ.get("CONFORMANCE_LIE_SEEDS", "1"))
SUBJECTS = {"cpu": "lying_subjects:StubbedCpu", "sim": "lying_subjects:StubbedSim"}
#: Seconds each, for a compiler, a process group or another process.
EXPENSIVE = ("capabilities.compile", "capabilities.comm", "capabilities.triton", "capabilities.device.visibility")


class Preloaded:
    """A process that runs pytest again and again; see preloaded.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "preloaded.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=str(HERE), TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def run(self, *arguments: str, cwd: Path) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A traceback through PyTorch's operator database takes pytest most of a second to write.
        words = ["-p", "no:cacheprovider", "-p", "no:randomly", "-n0", "-q", "--tb=no", *arguments]
        task = {"arguments": words, "cwd": str(cwd), "log": str(cwd / "log"), "bytecode": str(cwd.parent / "bytecode")}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


@dataclass
class Bench:
    """One subject: its truth, the cells whose truth was seen, and where runs are made."""

    name: str
    folder: Path
    preloaded: Preloaded
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
        status = self.preloaded.run(*where, "--conformance-report=out", *options, cwd=cwd)
        reports = list(cwd.glob("out/*/report.json"))
        assert reports, (cwd / "log").read_text()
        return status, read_report(reports[0])


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
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    name, _, few = str(request.param).partition(" ")
    size = lies.FEW if few else lies.POOL
    try:
        resolve(name).preflight()
    except ConformanceError as error:
        pytest.skip(str(error))
    cases = [case.id for case in lies.pool(name, random.Random(0), size) if case.id not in EXPENSIVE]
    with Preloaded() as preloaded:
        one = Bench(name, tmp_path_factory.mktemp(name), preloaded, lies.truth(name), [], size)
        _, report = one.run(one.truth, cases, "truth")
        one.found = lies.candidates(report)
        yield one


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
