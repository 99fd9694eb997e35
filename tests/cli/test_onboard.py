"""conformance onboard: probe a device, also one that crashes in a probe, and write a first declaration."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.claims import declaration_of
from conformance.accelerators.declaration import State
from conformance.accelerators.declaration_file import parse_declaration, read_declaration
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.cli.backend_text import backend_lines
from conformance.cli.main import main
from conformance.cli.onboard import broken, chosen_cases, declaration_text
from conformance.reports.declaration.onboarding import FirstDeclaration, ProbedState, first_declaration, what_was_seen
from conformance.reports.model import DeclaredCell
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Reason, Verdict, failed, passed, skipped
from conformance.runner.terminal import probed
from tests.acceptance.running import dying, environment
from tests.reports.gate import world
from tests.reports.samples import REPORTED, report_of

from .test_suggest import NO, YES, operator, probe, unheard

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(*endings: Any, **claims: tuple[str, str, str]) -> FirstDeclaration:
        cells = [[cell, *claim] for cell, claim in claims.items()]
        monkeypatch.setitem(REPORTED, "declaration", {"sha256": "ab" * 32, "cells": cells})
        return first_declaration(report_of(tmp_path, *endings))

    return make


def said(found: FirstDeclaration) -> dict[str, tuple[str, str]]:
    return {claim.cell: (claim.state, claim.detail) for claim in found.cells}


def column(axes: str, works: int, missing: int = 0, prefix: str = "") -> list[Any]:
    there = [(operator(f"{prefix}there{n}[{axes}]"), unheard("right")) for n in range(works)]
    return [*there, *((operator(f"{prefix}gone{n}[{axes}]"), unheard("refused")) for n in range(missing))]


@pytest.mark.parametrize(
    ("verdict", "seen"),
    [
        (passed(), ProbedState.WORKS),
        (unheard("right"), ProbedState.WORKS),
        (unheard("fallback"), ProbedState.WORKS),
        (failed(Reason.FALLBACK, "on the host"), ProbedState.WORKS),
        (skipped(Reason.UNDER_DECLARED, "but works"), ProbedState.WORKS),
        (unheard("refused"), ProbedState.MISSING),
        (unheard("raised"), ProbedState.MISSING),
        (failed(Reason.OVER_DECLARED, "refused"), ProbedState.MISSING),
        (failed(Reason.RAISED, "RuntimeError"), ProbedState.MISSING),
        (failed(Reason.STUB, "no effect"), ProbedState.MISSING),
        (skipped(Reason.UNSUPPORTED, "confirmed: refused", probe="refused"), ProbedState.MISSING),
        (unheard("wrong"), ProbedState.BROKEN),
        (unheard("crash"), ProbedState.BROKEN),
        (failed(Reason.WRONG, "2 is not 3"), ProbedState.BROKEN),
        (failed(Reason.UNSAFE, "answers 3"), ProbedState.BROKEN),
        (failed(Reason.HANG, "no end"), ProbedState.BROKEN),
        (skipped(Reason.ENVIRONMENT, "one device"), ProbedState.UNKNOWN),
        (skipped(Reason.UNDECLARED, "not probed within the time budget"), ProbedState.UNKNOWN),
    ],
)
def test_what_was_seen_does_not_depend_on_what_is_declared(
    first: Any, tmp_path: Path, verdict: Verdict, seen: ProbedState
):
    (case,) = report_of(tmp_path, (probe("stream"), verdict)).cases

    assert what_was_seen(case) is seen


def test_features_are_claimed_denied_or_left_out(first: Any) -> None:
    found = first(
        (probe("stream"), unheard("right")),
        (probe("event"), unheard("refused")),
        (probe("autocast"), unheard("wrong")),
        (probe("device.multiple"), skipped(Reason.ENVIRONMENT, "one device")),
        (probe("copy", level="core"), passed()),
        (probe("rng", level="core"), failed(Reason.CORE_MISSING, "no seed")),
    )

    assert said(found) == {"stream": ("supported", "native"), "event": ("unsupported", "not-yet")}
    assert [defect.case for defect in found.defects] == ["capabilities.autocast", "capabilities.rng"]
    assert (found.unknown, found.probes) == (("device.multiple",), 5)


def test_a_column_without_gaps_is_one_pattern(first: Any) -> None:
    found = first(*column("float32-inference", 12), *column("float32-training", 12))

    assert said(found) == {
        f"operators.*[float32-{mode}]": ("supported", "native") for mode in ("inference", "training")
    }
    assert [(column.axes, column.works, column.claims) for column in found.columns] == [
        ("float32-inference", 12, ("*",)),
        ("float32-training", 12, ("*",)),
    ]


def test_few_gaps_are_exceptions_and_many_leave_the_column_unclaimed(first: Any) -> None:
    found = first(*column("float32-inference", 20, 2), *column("float16-inference", 20, 3))

    assert said(found) == {
        "operators.*[float32-inference]": ("supported", "native"),
        "operators.gone0[float32-inference]": ("unsupported", "not-yet"),
        "operators.gone1[float32-inference]": ("unsupported", "not-yet"),
    }
    assert [(column.works, column.missing, column.claims) for column in found.columns] == [(20, 2, ("*",)), (20, 3, ())]


def test_a_family_without_gaps_is_claimed_where_the_rest_is_missing(first: Any) -> None:
    found = first(*column("float16-inference", 5, 6), *column("float16-inference", 4, prefix="fft."))

    assert said(found) == {"operators.fft.*[float16-inference]": ("supported", "native")}


def test_a_family_that_is_missing_is_denied_as_one(first: Any) -> None:
    found = first(*column("float16-inference", 40), *column("float16-inference", 0, 4, prefix="linalg."))

    assert said(found) == {
        "operators.*[float16-inference]": ("supported", "native"),
        "operators.linalg.*[float16-inference]": ("unsupported", "not-yet"),
    }


def test_a_bug_counts_neither_way(first: Any) -> None:
    broken = [(operator("odd[float32-inference]"), unheard("wrong"))]

    found = first(*column("float32-inference", 10), *broken)

    assert said(found) == {"operators.*[float32-inference]": ("supported", "native")}
    assert (found.columns[0].broken, len(found.defects)) == (1, 1)


def test_bugs_are_counted_by_kind_with_a_case_of_each(tmp_path: Path) -> None:
    seen = {"add": "crash", "mul": "crash", "neg": "wrong", "abs": "right"}
    report = report_of(
        tmp_path, *((operator(f"{name}[float32-inference]"), unheard(saw)) for name, saw in seen.items())
    )

    bugs, deaths = broken(report, first_declaration(report))

    assert bugs.startswith("3 of them are bugs")
    assert "crash 2 (such as operators.add[float32-inference])" in bugs
    assert deaths.startswith("2 probes ended a worker process")


def test_a_run_of_undeclared_cells_alone_shows_what_their_probes_found(tmp_path: Path) -> None:
    report = report_of(tmp_path, (operator("add[float32-inference]"), unheard("crash")))

    counted, shown = probed(report)

    assert counted.endswith("crash 1")
    assert shown.startswith("  operators.add[float32-inference]: ")


def test_no_pattern_is_claimed_where_much_of_the_sample_is_broken(first: Any) -> None:
    """A pattern promises operators that nobody has probed, and 7 of 12 working ones promise nothing."""
    broken = [(operator(f"odd{n}[float64-inference]"), unheard("wrong")) for n in range(5)]

    found = first(*column("float64-inference", 7), *broken)

    assert said(found) == {}
    assert (found.columns[0].broken, len(found.defects)) == (5, 5)


def test_cells_beyond_the_reference_are_no_evidence_for_a_pattern(first: Any) -> None:
    beyond = [(operator(f"odd{n}[float32-inference]", in_reference=False), unheard("refused")) for n in range(9)]

    assert said(first(*column("float32-inference", 5), *beyond)) == {
        "operators.*[float32-inference]": ("supported", "native")
    }


def test_what_runs_on_the_host_is_declared_so(first: Any) -> None:
    on_host = [(operator(f"op{n}[float64-inference]"), unheard("fallback")) for n in range(5)]
    as_declared = (probe("stream"), passed(Reason.EMULATED))

    found = first(*on_host, as_declared, stream=("supported", "emulated", ""))

    assert said(found) == {"operators.*[float64-inference]": ("supported", "host"), "stream": ("supported", "emulated")}


def test_the_sample_has_the_same_operators_in_every_dtype() -> None:
    cases, totals = chosen_cases(10)
    sampled = [case for case in cases if case.startswith("operators.")]

    assert len(sampled) == 10 * len(totals) == 180
    assert totals["float32-inference"] > 500
    assert len({case.partition("[")[0] for case in sampled}) < 60
    assert "capabilities.lazy-call" in cases


CRASHES = """
import os
from conformance.accelerators.registry import resolve

class Crashing:
    '''Torch's CPU with one member that ends the process, one stub, and one missing member.'''

    def __init__(self):
        self._host = resolve("cpu").load()

    def __getattr__(self, member):
        if member == "memory_stats":
            raise AttributeError(member)
        return getattr(self._host, member)

    def range_push(self, message):
        os.abort()

    def lazy_call(self, callback):
        pass
"""


@pytest.mark.long
def test_a_device_that_crashes_in_a_probe_loses_that_probe(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(CRASHES)
    words = ["onboard", "crashing:Crashing", "-o", "claims.toml", "--cells=1", "--conformance-report=kept"]
    command = [sys.executable, "-c", "import sys; from conformance.cli.main import main; sys.exit(main())", *words]

    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: pytest --accelerator=crashing:Crashing --capabilities=claims.toml\n")
    text, claims = (tmp_path / "claims.toml").read_text(), read_declaration(tmp_path / "claims.toml")
    assert "#   capabilities.ranges: " in text
    assert "crash" in text
    assert claims.claim(Cell("ranges")).state is State.UNDECLARED
    assert claims.claim(Cell("lazy-call")).reason.endswith("lazy_call() accepts a callback and does not run it")
    assert claims.claim(Cell("memory.stats")).state is State.UNSUPPORTED
    assert claims.supports(Cell("rng.state"))
    assert claims.supports(Cell("dtype", "bfloat16"))
    assert not claims.supports(Cell("device.multiple"))
    assert (tmp_path / "kept").is_dir()


ALWAYS_CRASHES = """
import os
from torch.utils._python_dispatch import TorchDispatchMode
from conformance.accelerators.registry import resolve

USUAL = ("ones", "add", "sum", "empty", "fill", "_to_copy", "copy", "detach", "zero", "clone", "_local_scalar")

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.__name__.startswith(USUAL):
            os.abort()
        return function(*args, **(kwargs or {}))

class Crashing:
    def __init__(self):
        self._host = resolve("cpu").load()
        Mode().__enter__()

    def __getattr__(self, member):
        return getattr(self._host, member)
"""


@pytest.mark.long
def test_one_time_budget_for_all_workers_and_what_was_found_is_kept(tmp_path: Path) -> None:
    """Each crash takes a new worker, which has no budget of its own. A shell's background job ignores SIGINT."""
    (tmp_path / "crashing.py").write_text(ALWAYS_CRASHES)
    words = ["onboard", "crashing:Crashing", "-o", "claims.toml", "--cells=30", "--time-budget=2"]
    ignoring = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    program = f"{ignoring}; from conformance.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *words]

    began = time.monotonic()
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=500, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "without an answer, because the probes ended early" in (tmp_path / "claims.toml").read_text()
    assert time.monotonic() - began < 400, done.stderr  # a crash costs a worker; all of them would take an hour


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "accelerator 'nothing' is not registered"),
        (["supa"], "needs the package torch_supa"),
        (["cpu", "--cells=0"], "--cells 0: expected a positive number"),
        (["cpu", "--time-budget=0"], "--time-budget 0: expected a positive number"),
        (["cpu", "-o", "there.toml"], "there.toml exists and is not overwritten"),
        (["json:JSONDecoder"], "'json:JSONDecoder' is not an accelerator"),
        (["aborting:Thing"], "aborting:Thing cannot be probed: loading it ended the process with SIGABRT"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.toml").write_text("mine")
    (tmp_path / "aborting.py").write_text("import os\nos.abort()\n")

    assert main(["onboard", *words]) == 4

    captured = capsys.readouterr()
    assert sentence in captured.err
    assert (captured.out, (tmp_path / "there.toml").read_text()) == ("", "mine")


def test_a_run_that_fails_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(
        "conformance.cli.onboard._pytest", lambda *words: (4, "ERROR: the driver is not there\n  do x\n")
    )
    assert main(["onboard", "cpu"]) == 4
    assert capsys.readouterr().err.endswith("\nthe driver is not there\n  do x\n")

    monkeypatch.setattr("conformance.cli.onboard._pytest", lambda *words: (3, "a line\nINTERNALERROR> boom\n"))
    assert main(["onboard", "cpu"]) == 4
    assert "probing cpu ended with status 3: INTERNALERROR> boom" in capsys.readouterr().err


def test_a_run_that_dies_at_its_start_is_not_judged_by_an_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "report.json").write_text(to_json(world.honest()), encoding="utf-8")
    dying(monkeypatch, tmp_path)

    assert main(["onboard", "cpu", "--conformance-report", str(tmp_path)]) == 4

    captured = capsys.readouterr()
    assert re.search(r"probing cpu ended with status 1: .*the plugin is broken", captured.err)
    assert captured.out == ""


#: Capabilities that a backend file declares for single dtypes.
PER_DTYPE = (
    "dtype", "comm.dtype", "precision.accumulate-wide", *(name for name in VOCABULARY if name.startswith("invariance."))
)  # fmt: skip
STREAMS = ("stream", "stream.order", "stream.record", "event", "event.timing")
CLAIMED = [
    *(DeclaredCell(name, *YES) for name in (*STREAMS, "autocast", "lazy-call", "execution.ordered")),
    *(DeclaredCell(name, *NO) for name in ("triton", "execution.synchronous", "memory.pinned")),
    *(DeclaredCell(f"dtype[{name}]", *YES) for name in ("float32", "int64", "bfloat16")),
    DeclaredCell("precision.accumulate-wide[bfloat16]", *YES),
    DeclaredCell("operators.*[float32-inference]", *YES),
    DeclaredCell("operators.*[float32-training]", *YES),
    DeclaredCell("operators.*[int64-inference]", *YES),
    DeclaredCell("operators.*[bfloat16-inference]", *YES),
]


def test_the_lines_of_a_backend_declare_what_was_claimed(first: Any, tmp_path: Path) -> None:
    lines = backend_lines("acme", report_of(tmp_path, (probe("stream"), passed())), CLAIMED)
    module: dict[str, Any] = {}
    exec("\n".join(lines), module)

    acme = module["ACME"]
    declared = declaration_of(acme.statements)
    assert isinstance(acme, TorchAccelerator)
    assert (acme.name, acme.ordered, acme.pins, acme.collectives) == ("acme", True, False, {"linux": "bccl"})
    assert [name for name in (*STREAMS, "autocast", "execution.ordered") if not declared.supports(Cell(name))] == []
    assert [name for name in ("triton", "memory.pinned") if declared.claim(Cell(name)).reason != "no unit"] == []
    assert declared.claim(Cell("memory.oom")).state is State.UNDECLARED
    assert declared.supports(Cell("operators.add", "float32", "training"))
    assert not declared.supports(Cell("operators.add", "bfloat16", "inference"))
    assert declared.supports(Cell("dtype", "bfloat16"))
    assert len(lines) <= 30
    assert "STREAMS" in "\n".join(lines)


@pytest.mark.parametrize("answer", [YES, NO, ("undeclared", "", "")], ids=["supported", "denied", "broken"])
def test_the_backend_file_loads_whatever_was_found(first: Any, tmp_path: Path, answer: tuple[str, str, str]) -> None:
    """Also where a device lacks a part of TORCH_BASE, which the file then must not claim."""
    optional = [name for name, capability in VOCABULARY.items() if not capability.core and name not in PER_DTYPE]
    cells = [DeclaredCell(name, *answer) for name in optional if answer[0] != "undeclared"]
    module: dict[str, Any] = {}

    exec("\n".join(backend_lines("acme", report_of(tmp_path, (probe("stream"), passed())), cells)), module)

    declared = declaration_of(module["ACME"].statements)
    due = dict.fromkeys(optional, answer[0])
    if answer is NO:  # a flag that nobody has set denies nothing
        due |= {name: "undeclared" for name in optional if name.startswith("execution.")}
    assert {name: declared.claim(Cell(name)).state.value for name in optional} == due


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (
            [unheard("right")] * 2,
            "2 of 2 work; PyTorch's CPU has 9; claimed: nothing, because a pattern needs 3 probes",
        ),
        ([unheard("crash")] * 4, "0 of 4 work, 4 are broken; PyTorch's CPU has 9; claimed: nothing, because every one"),
        ([unheard("refused")] * 4, "0 of 4 work; PyTorch's CPU has 9; claimed: nothing, because none works"),
        (
            [skipped(Reason.ENVIRONMENT, "no")] * 4,
            "0 of 0 work; PyTorch's CPU has 9; claimed: nothing, because no probe",
        ),
    ],
)
def test_the_text_says_why_a_column_is_not_claimed(
    first: Any, tmp_path: Path, answers: list[Verdict], words: str
) -> None:
    endings = [(operator(f"op{n}[float32-inference]"), answer) for n, answer in enumerate(answers)]

    text = declaration_text(report_of(tmp_path, *endings), first(*endings), Counter({"float32-inference": 9}), "pytest")

    assert words in text


def test_the_backend_file_names_the_package_or_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(tmp_path, (probe("stream"), passed()))
    unknown = backend_lines("silent", report, CLAIMED)
    (tmp_path / "torchsilent.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = backend_lines("silent", report, CLAIMED)

    assert [line for line in unknown if "package=" in line and "write here the package" in line]
    assert '    package="torchsilent",' in known


def test_the_text_is_a_declaration_with_its_evidence(first: Any, tmp_path: Path) -> None:
    endings = [
        *column("float32-inference", 12),
        *column("float16-inference", 1, 4),
        (probe("stream"), unheard("crash")),
    ]
    found = first(*endings)

    text = declaration_text(report_of(tmp_path, *endings), found, Counter({"float32-inference": 672}), "pytest")

    assert "#   float32-inference: 12 of 12 work; PyTorch's CPU has 672; claimed: *\n" in text
    assert (
        "#   float16-inference: 1 of 5 work; PyTorch's CPU has 0; claimed: nothing, because 4 are missing; "
        "claim by name what you promise\n" in text
    )
    assert "#   capabilities.stream: undeclared: it is not declared; probe: crash" in text
    assert parse_declaration(text).supports(Cell("operators.add", "float32", "inference"))
    assert text.endswith("# next: pytest\n")
