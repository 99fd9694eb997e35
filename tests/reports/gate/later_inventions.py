"""More forgeries that were invented before the rules were read: numbers that contradict each other, their names or the
plan, and texts that nothing can be.

They are edits like those of inventions.py. ``ALSO_UNSEEN`` are those that one file cannot show, each with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from conformance.reports.model import CaseRecord, DeclaredCell, Fact, Report
from conformance.reports.verdict import Outcome, Reason

from .edits import Change, accelerator, facts, in_turn, invocation, is_operator, run
from .honest import published
from .inventions import claims, durations, each, environment, variable

ALSO_UNSEEN: Final = {
    "a leak of nothing known": "a text for people; no rule reads it",
    "numbers of other operators": "only this suite with this torch says how much a case compares; a challenge compares",
    "errors that are drawn": "a device may have any error within its budget; a challenge compares",
    "an unknown number": "no rule reads it",
    "an unknown text that accepts": "no rule reads it",
    "durations of another accelerator": "only --baseline recognises a run by its durations",
    "durations of a formula": "no rule knows how long a case takes on this device",
    "each worker runs all": "the run distributes the cases itself, whatever is typed",
    "an isolation of nobody": "the run refuses it, and no verdict depends on it",
    "coverage of another project": "it measures lines, and judges nothing",
    "a challenge without letters": "it asks for none",
    "the plugin of warnings is off": "warnings are no verdicts",
    "64 processes on 2 cores": "processes may share cores",
    "failures could be run again": "--reruns is refused; a plugin that nobody uses changes nothing",
    "the id of another accelerator's run": "only --baseline knows another run",
    "a month of running": "a run may be resumed",
    "torch falls back by a variable": "a note says so",
    "a path of patches": "--fingerprint compares it",
    "one core and four ranks": "processes may share cores",
    "torch of CUDA": "such a build can have a device of a vendor",
    "torch of tomorrow night": "what the accelerator says of itself; --fingerprint compares it",
    "torch with a patch in its name": "what the accelerator says of itself; --fingerprint compares it",
    "collectives of NCCL": "a backend may have any name",
    "a machine that is none": "names of processors are many",
}


def passed(*needed: str, **metrics: Any) -> Change:
    """Change metrics of the passed cases that have the needed ones."""
    return each(
        lambda c: (
            replace(c, metrics={**c.metrics, **metrics})
            if c.outcome is Outcome.PASS and {*needed} <= {*c.metrics}
            else c
        )
    )


def wherever(test: Callable[[CaseRecord], bool], **changes: Any) -> Change:
    """Change the cases that pass a test; a function computes the new member from the case."""
    return each(
        lambda c: (
            replace(c, **{name: value(c) if callable(value) else value for name, value in changes.items()})
            if test(c)
            else c
        )
    )


def adding(**metrics: Fact) -> Callable[[CaseRecord], dict[str, Fact]]:
    return lambda case: {**case.metrics, **metrics}


def skipped(reason: Reason, **changes: Any) -> Change:
    return wherever(lambda case: case.reason is reason, **changes)


def argv(*words: str) -> Change:
    return invocation(argv=("--accelerator=sim", "--profile=full", "-n2", *words))


def earlier_start(**time: int) -> Change:
    def change(report: Report) -> Report:
        started = datetime.fromisoformat(report.run.started) - timedelta(**time)
        return run(started=started.isoformat())(report)

    return change


def durations_of_cpu(report: Report) -> Report:
    known = {case.id: case.seconds for case in published("cpu").cases}
    return each(lambda case: replace(case, seconds=known.get(case.id, case.seconds)))(report)


def promoted(report: Report) -> Report:
    """Turn everything that is emulated into native, the claims too."""
    native = wherever(lambda case: case.reason is Reason.EMULATED, reason=Reason.NATIVE)(report)
    return claims(
        lambda cells: tuple(replace(c, detail="native") if c.detail in ("emulated", "host") else c for c in cells)
    )(native)


def shuffled(report: Report) -> Report:
    """Give each passed operator the numbers of another one."""
    numbers = [case.metrics for case in report.cases if is_operator(case)]
    mixed = iter(random.Random(1).sample(numbers, len(numbers)))
    return wherever(is_operator, metrics=lambda _: next(mixed))(report)


def drawn(report: Report) -> Report:
    chance = random.Random(2)
    return wherever(is_operator, metrics=lambda c: {**c.metrics, "max_budget_ratio": round(chance.random(), 4)})(report)


def _on_ranks(case: CaseRecord) -> bool:
    return case.ranks > 1 and case.outcome is Outcome.PASS


def _of_invariance(case: CaseRecord) -> bool:
    return case.area == "invariance" and case.outcome is Outcome.PASS


WRONG: Final = "3 of 8 elements differ: 2.0 is not 3.0"
#: Edits by name. The failures are made passes first.
LATER_INVENTIONS: Final[dict[str, Change]] = {
    # Numbers of workloads, collectives, kernels and invariance.
    "a sum of more bits than are exact": passed("exact_bits", largest_sum_bits=63.0, exact_bits=24),
    "sums of 99 exact bits": passed("exact_bits", largest_sum_bits=60.0, exact_bits=99),
    "numbers of other operators": shuffled,
    "errors that are drawn": drawn,
    "nothing was compared": passed("compared", compared=0),
    "a loss that is wrong by 1e30": passed("loss_error", loss_error=1e30),
    "a gradient error in words": passed("gradient_error", gradient_error="nan"),
    "a gradient error of 5": passed("gradient_error", gradient_error=5.0),
    "an error of 1.7 bounds": passed("error_of_bound", error_of_bound=1.7),
    "a negative error of logits": passed("logit_error", logit_error=-1.0),
    "an error of 50 in logits": passed("logit_error", logit_error=50.0),
    "an error of 12 in collectives": passed("error", "processes", error=12.0),
    "an error of 3 in weights": passed("weight_error", weight_error=3.0),
    "fewer than no near ties": passed("near_ties", near_ties=-3),
    "a million other tokens": passed("different_tokens", different_tokens=10**6),
    "more operators change than there are": passed("changed", changed=5, operators=4),
    "bits change in a pass": passed("changed", changed=1, **{"smallest.prod": 3}),
    "a place of a change where nothing changes": wherever(_of_invariance, metrics=adding(**{"smallest.prod": 31})),
    "a pass that a probe saw refused": wherever(is_operator, metrics=adding(probe="refused")),
    "a pass that was seen wrong": wherever(is_operator, metrics=adding(observed="wrong")),
    "native kernels of PyTorch": passed(
        "implementation", implementation="native", implementation_reason="PyTorch's operators"
    ),
    "native kernels of no reason": passed("implementation", implementation="native", implementation_reason=""),
    "a median above the ninetieth percentile": passed("step_ms_p90", step_ms_median=50.0, step_ms_p90=1.0),
    "a step in no time": passed("step_ms_median", step_ms_median=0.0, step_ms_p90=0.0),
    "a share of seven": passed("matmul_share", matmul_share=7.0),
    "a share below zero": passed("matmul_share", matmul_share=-0.5),
    "no graph": passed("graphs", graphs=0),
    "less than no graph": passed("graphs", graphs=-1),
    "counts with a point": passed("comparisons", comparisons=12.0, samples=12.0),
    "an error beyond the dtype": wherever(
        lambda c: is_operator(c) and c.axes.get("dtype") == "float16", metrics=adding(max_abs=1e300)
    ),
    "answers that nobody asked for": wherever(is_operator, metrics=adding(answer="1,2,3")),
    "a leak of a book": passed("leaked", leaked="x" * 100_000),
    "a leak in colours": passed("leaked", leaked="\x1b[32mnone"),
    "a leak in numbers": passed("leaked", leaked=3),
    "a leak of nothing known": passed("leaked", leaked="everything"),
    "an unknown number": wherever(is_operator, metrics=adding(reviewed=1)),
    "an unknown text that accepts": wherever(is_operator, metrics=adding(accepted="by the maintainers")),
    # Sentences of skips.
    "an unsupported cell that is right": skipped(Reason.UNSUPPORTED, metrics=adding(probe="right")),
    "an unsupported cell that is wrong": skipped(Reason.UNSUPPORTED, metrics=adding(probe="wrong")),
    "an unsupported cell whose sentence says right": skipped(Reason.UNSUPPORTED, message="confirmed: right"),
    "an undeclared cell with the sentence of a failure": skipped(Reason.UNDECLARED, message=WRONG),
    "an undeclared cell without a sentence": skipped(Reason.UNDECLARED, message=""),
    "an environment without a sentence": skipped(Reason.ENVIRONMENT, message=" "),
    "an area lacks its network": wherever(
        lambda c: c.area == "comm" and c.outcome is Outcome.PASS and c.level != "core",
        outcome=Outcome.SKIP,
        reason=Reason.ENVIRONMENT,
        message="no network",
        metrics={},
    ),
    "waived without a file": wherever(
        lambda c: is_operator(c) and c.axes.get("dtype") == "float16",
        outcome=Outcome.SKIP,
        reason=Reason.WAIVED,
        message="known",
        metrics={"observed": "wrong"},
    ),
    # Durations.
    "durations with more digits than a journal has": durations(
        lambda values: [s * 0.98765432101234567 for s in values]
    ),
    "collectives with more digits than a journal has": wherever(_on_ranks, seconds=lambda c: 0.005 + len(c.id) / 7e6),
    "a case of 25 minutes in an hour": wherever(
        lambda c: c.id.startswith("operators.a"), seconds=lambda c: 1500.0 + len(c.id)
    ),
    "durations of another accelerator": durations_of_cpu,
    "durations of a formula": durations(lambda values: [round(0.1 * s**0.5 + 1e-5, 6) for s in values]),
    # Claims.
    "emulated becomes native, the claims too": promoted,
    "emulated becomes native alone": wherever(lambda case: case.reason is Reason.EMULATED, reason=Reason.NATIVE),
    "a claim and its denial": claims(
        lambda cells: (
            *cells,
            *(DeclaredCell(c.cell, "unsupported", "hardware", "x") for c in cells if c.cell == "stream"),
        )
    ),
    "denials without a reason": claims(lambda cells: tuple(replace(cell, reason="") for cell in cells)),
    "a reason that is read backwards": claims(lambda cells: (replace(cells[0], reason="\u202edetpecca"), *cells[1:])),
    "a claim in a dtype of nobody": claims(
        lambda cells: (*cells, DeclaredCell("operators.add[float3-inference]", "supported", "native"))
    ),
    "a claim in a mode of nobody": claims(
        lambda cells: (*cells, DeclaredCell("operators.add[float32-fast]", "supported", "native"))
    ),
    # The command line.
    "strict by the word alone": argv("--strictness=certify"),
    "two profiles": argv("--profile=core"),
    "a Python of its own": argv("--tx=popen//python=evil"),
    "tests are forked": argv("--forked"),
    "a debugger": argv("--pdb"),
    "a trace": argv("--trace"),
    "a plan of fixtures": argv("--setup-plan"),
    "fixtures alone": argv("--setup-only"),
    "step by step": argv("--sw"),
    "expected failures run": argv("--runxfail"),
    "a folder is ignored": argv("--ignore=suites/comm"),
    "a keyword without a blank": argv("-kadd"),
    "a marker without a blank": argv("-mnot slow"),
    "one test of a file": argv("suites/x.py::test_y"),
    "a long dash": argv("\u2014collect-only"),
    "plain assertions": argv("--assert=plain"),
    "another cache": argv("-o", "cache_dir=/x"),
    "this plugin is off": argv("-p", "no:conformance"),
    "the first failure ends it": argv("--maxfail=1"),
    "each worker runs all": argv("--dist=each"),
    "an isolation of nobody": argv("--rank-isolation=none"),
    "coverage of another project": argv("--cov=x"),
    "a challenge without letters": argv("--challenge="),
    "the plugin of warnings is off": argv("-p", "no:warnings"),
    "64 processes on 2 cores": in_turn(
        invocation(argv=("--accelerator=sim", "--profile=full", "-n64")), invocation(workers=64)
    ),
    "no profile": run(profile=None),
    "a start in small letters": lambda report: run(started=report.run.started.replace("T", "t"))(report),
    "a start with a blank": lambda report: run(started=f"{report.run.started} ")(report),
    "the id of another accelerator's run": lambda report: run(id=published("cpu").run.id)(report),
    "a month of running": earlier_start(days=31),
    # The stack.
    "no plugin for workers": environment(plugins=("accelerator-conformance 0.1.0",)),
    "failures could be run again": lambda r: environment(plugins=(*r.environment.plugins, "pytest-rerunfailures 14.0"))(
        r
    ),
    "torch falls back by a variable": variable("PYTORCH_ENABLE_MPS_FALLBACK", "1"),
    "a plugin in pytest's settings": variable("addopts", "--strict-markers -p evil"),
    "a path of patches": variable("PYTHONPATH", "/patched"),
    "a variable of a book": variable("OMP_NUM_THREADS", "1" * 10**5),
    "a variable with an invisible letter": variable("OMP\u200b", "1"),
    "a variable of two lines": variable("OMP_NUM_THREADS", "1\n2"),
    "a variable of no name": variable("1 OMP", "1"),
    "a run without assertions": variable("PYTHONOPTIMIZE", "1"),
    "a plugin twice": lambda r: environment(plugins=(*r.environment.plugins, r.environment.plugins[0]))(r),
    "no core": facts(cores=0),
    "one core and four ranks": facts(cores=1),
    "a chip without a name": accelerator(device_names=("",)),
    "one chip twice": accelerator(device_names=("A", "A")),
    "a chip in colours": accelerator(device_names=("\x1b[32mok",)),
    "a device 00": accelerator(device="sim:00"),
    "a device in capitals": accelerator(device="SIM:0"),
    "a device below zero": accelerator(device="sim:-1"),
    "a driver in colours": accelerator(driver="\x1b[31m"),
    "a runtime of blanks": accelerator(runtime="   "),
    "torch of CUDA": in_turn(accelerator(torch="2.13.0+cu130"), facts(torch="2.13.0+cu130")),
    "torch of tomorrow night": in_turn(accelerator(torch="2.13.0.dev20990101"), facts(torch="2.13.0.dev20990101")),
    "torch with a patch in its name": in_turn(accelerator(torch="2.13.0+patched"), facts(torch="2.13.0+patched")),
    "DeepSpeed's accelerator of this name": in_turn(
        accelerator(spec="deepspeed:sim"), invocation(argv=("--accelerator=deepspeed:sim", "--profile=full", "-n2"))
    ),
    "collectives of NCCL": accelerator(communication_backend="nccl"),
    "the first numpy": facts(numpy="0.1"),
    "a system without torch": facts(system="TempleOS"),
    "a machine that is none": facts(machine="abacus"),
}
