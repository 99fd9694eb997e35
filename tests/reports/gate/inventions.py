"""Forgeries that were invented from the text of a report alone, before the rules were read.

Each is an edit of a run with failures whose failures were made to look like passes. Counts, lists and hashes are made
to fit afterwards. ``UNSEEN`` are those that one file cannot show, each with what answers them: docs/gate.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from conformance.reports.model import CaseRecord, DeclaredCell, Report
from conformance.reports.verdict import Outcome, Reason

from .edits import Change, accelerator, facts, invocation, run, typed

GOOD: Final = {"comparisons": 12, "samples": 12, "max_abs": 1e-7, "max_budget_ratio": 0.2}
HELD: Final = {"outcome": Outcome.PASS, "reason": Reason.NATIVE, "message": "", "repro": "", "metrics": GOOD}
UNSEEN: Final = {
    "every error is zero": "a device may compute as the CPU does; a challenge compares",
    "an error of a budget and none in numbers": "they may come from two comparisons of a case; a challenge compares",
    "an error of bool": "an operator of bool may return other numbers; a challenge compares",
    "durations of other cases": "no rule knows how long a case takes on this device; --baseline finds a replay",
    "kernels are said to be a vendor's": "only the vendor knows whose kernel ran",
    "cases in another order": "the order says nothing",
    "an unknown cell is claimed": "a declaration may name operators of another torch",
    "what no case tests is denied": "a declaration may deny more than the plan tests",
    "a claim comes from a page": "text for people",
    "notes that decide": "text for people",
    "probes have a second": "less is probed, and nothing more passes",
    "claims of another file": "the report has the claims themselves",
    "warnings are errors": "stricter than without",
    "a variable of Python": "settings of the run; --fingerprint compares them",
    "a library is preloaded": "a note says so",
    "a module of a vendor calls itself sim": "--signers binds names to their vendors",
    "a build of torch in words": "what the accelerator says of itself; --fingerprint compares it",
}


def held(report: Report) -> Report:
    """Return the report with every failure turned into a pass with good numbers."""
    return each(lambda case: replace(case, **HELD) if case.outcome is Outcome.FAIL else case)(report)


def each(change: Callable[[CaseRecord], CaseRecord]) -> Change:
    return lambda report: replace(report, cases=tuple(map(change, report.cases)))


def passes(**changes: Any) -> Change:
    return each(lambda case: replace(case, **changes) if case.outcome is Outcome.PASS else case)


def numbers(*needed: str, **metrics: Any) -> Change:
    """Change metrics of the cases that have the needed ones."""
    return each(lambda c: replace(c, metrics={**c.metrics, **metrics}) if {*needed} <= {*c.metrics} else c)


def named(rename: Callable[[str], str]) -> Change:
    return each(lambda case: replace(case, metrics={rename(name): value for name, value in case.metrics.items()}))


def durations(make: Callable[[list[float]], list[float]]) -> Change:
    def change(report: Report) -> Report:
        made = make([case.seconds for case in report.cases])
        cases = zip(report.cases, made, strict=True)
        return replace(report, cases=tuple(replace(case, seconds=seconds) for case, seconds in cases))

    return change


def claims(make: Callable[[tuple[DeclaredCell, ...]], tuple[DeclaredCell, ...]]) -> Change:
    return lambda r: replace(r, declaration=replace(r.declaration, cells=make(r.declaration.cells)))


def first_claim(**changes: str) -> Change:
    return claims(lambda cells: (replace(cells[0], **changes), *cells[1:]))  # type: ignore[arg-type]


def environment(**changes: Any) -> Change:
    return lambda report: replace(report, environment=replace(report.environment, **changes))


def plugins(change: Callable[[str], str]) -> Change:
    return lambda r: environment(plugins=tuple(filter(None, map(change, r.environment.plugins))))(r)


def variable(name: str, value: str) -> Change:
    return lambda report: environment(variables={**report.environment.variables, name: value})(report)


def accounting(**changes: Any) -> Change:
    return lambda report: replace(report, accounting=replace(report.accounting, **changes))


def schema(number: int) -> Change:
    return lambda report: replace(report, schema=number)


def dated(change: Callable[[str], str], *ends: str) -> Change:
    return lambda r: run(**{end: change(getattr(r.run, end)) for end in ends or ("started", "finished")})(r)


def mixed(values: list[float]) -> list[float]:
    return random.Random(1).sample(values, len(values))


def repeated(values: list[float], block: int) -> list[float]:
    return [values[n - n % block] for n in range(len(values))]


def environment_skips(report: Report) -> Report:
    skip = {"outcome": Outcome.SKIP, "reason": Reason.ENVIRONMENT, "message": "no memory", "metrics": {}}
    cases = enumerate(report.cases)
    return replace(report, cases=tuple(replace(c, **skip) if n % 2 and c.level != "core" else c for n, c in cases))


def other_module(report: Report) -> Report:
    named_so = accelerator(spec="acme:SIM")(report)
    return invocation(argv=("--accelerator=acme:SIM", "--profile=full"))(named_so)


UNKNOWN: Final = DeclaredCell("operators.zzz[float32-inference]", "supported", "native")
UNTESTED: Final = DeclaredCell("operators.zzz.*[float64-inference]", "unsupported", "not-yet", "later")
RATIO: Final = "max_budget_ratio"
#: Edits by name. The failures are made passes first.
INVENTIONS: Final[dict[str, Change]] = {
    # Numbers.
    "one set of numbers for all": passes(metrics=GOOD),
    "every error is zero": numbers(RATIO, max_abs=0.0, max_budget_ratio=0.0),
    "every error is its whole budget": numbers(RATIO, max_budget_ratio=1.0),
    "every error is half of its budget": numbers(RATIO, max_budget_ratio=0.5),
    "an error of a budget and none in numbers": numbers("max_abs", max_abs=0.0),
    "an error of bool": each(
        lambda c: (
            replace(c, metrics={**c.metrics, "max_abs": 0.3})
            if c.axes.get("dtype") == "bool" and c.outcome is Outcome.PASS
            else c
        )
    ),
    "fewer comparisons than samples": numbers("samples", comparisons=1, samples=90),
    "a billion comparisons": numbers("comparisons", comparisons=10**9),
    "more samples than numbers": numbers("samples", samples=10**18),
    "a count that is true": numbers("comparisons", comparisons=True),
    "numbers as text": each(lambda c: replace(c, metrics={name: str(value) for name, value in c.metrics.items()})),
    "names of numbers in capitals": named(str.upper),
    "names of numbers with a blank": named(lambda name: f"{name} "),
    "PyTorch's kernels are said to be a vendor's": numbers("implementation", implementation="vendor"),
    "kernels are said to be a vendor's": numbers(
        "implementation", implementation="vendor", implementation_reason="torch.ops.x"
    ),
    "kernels of an invented kind": numbers("implementation", implementation="own"),
    "processes of one rank": each(
        lambda c: replace(c, metrics={**c.metrics, "processes": 8}) if c.ranks == 1 and c.metrics else c
    ),
    "processes in words": numbers("processes", processes="2"),
    "one process for all ranks": numbers("processes", processes=1),
    # Durations.
    "durations that grow": durations(lambda values: [0.001 + n * 1e-6 for n in range(len(values))]),
    "durations that shrink": durations(lambda values: [0.5 - n * 1e-6 for n in range(len(values))]),
    "durations in pairs": durations(lambda values: repeated(values, 2)),
    "durations in blocks of ten": durations(lambda values: repeated(values, 10)),
    "durations of other cases": durations(mixed),
    "durations in milliseconds": durations(lambda values: [max(round(value, 3), 0.001) for value in values]),
    "durations that fill a day": durations(lambda values: [value * 5_000 for value in values]),
    "durations that are no numbers": durations(lambda values: [float("nan")] * len(values)),
    "one duration without an end": durations(lambda values: [float("inf"), *values[1:]]),
    # Cases.
    "no ranks": passes(ranks=0),
    "a message of blanks": passes(message="  "),
    "a command of a blank": passes(repro=" "),
    "a level that does not count": passes(level="optional"),
    "a tier that does not count": passes(tier="manual"),
    "about the suite": passes(about="suite"),
    "outside the reference": passes(in_reference=False),
    "ids with an invisible letter": each(lambda case: replace(case, id=f"{case.id}\u200b")),
    "another dtype": each(lambda case: replace(case, axes={**case.axes, "dtype": "float8_e4m3fn"})),
    "one case twice": lambda report: replace(report, cases=(*report.cases, report.cases[0])),
    "cases in another order": lambda report: replace(report, cases=tuple(report.cases[::-1])),
    "half of the cases lacked memory": environment_skips,
    "all are emulated": passes(reason=Reason.EMULATED),
    # Claims.
    "a star is claimed": claims(lambda cells: (*cells, DeclaredCell("*", "supported", "native"))),
    "a star is denied": claims(lambda cells: (*cells, DeclaredCell("*", "unsupported", "hardware"))),
    "a claim with a blank": claims(lambda cells: (replace(cells[0], cell=f"{cells[0].cell} "), *cells[1:])),
    "claims in capitals": claims(lambda cells: tuple(replace(cell, cell=cell.cell.upper()) for cell in cells)),
    "an unknown cell is claimed": claims(lambda cells: (*cells, UNKNOWN)),
    "what no case tests is denied": claims(lambda cells: (*cells, UNTESTED)),
    "a reason of a book": first_claim(reason="x" * 10**6),
    "a claim comes from a page": first_claim(source="https://acme.example"),
    # The run.
    "a run of 1970": run(started="1970-01-01T00:00:00+00:00", finished="1970-01-01T00:12:00+00:00"),
    "a zone that is nowhere": dated(lambda text: text.replace("+00:00", "+23:59")),
    "an end in another zone": dated(lambda text: text.replace("+00:00", "-14:00"), "finished"),
    "a start in picoseconds": dated(lambda text: text.replace("+00:00", ".123456789012+00:00"), "started"),
    "a start in weeks": run(started="2026-W48-4T00:21:12+00:00"),
    "an id of two lines": run(id="abc\nG00 accepted"),
    "an id of a page": run(id="a" * 10_000),
    "an id in colours": run(id="\x1b[32mok"),
    "two accelerators": typed("--accelerator=sim", "--accelerator=cpu"),
    "no processes and two": invocation(argv=("--accelerator=sim", "--profile=full", "-n0"), workers=2),
    "64 processes and two": invocation(argv=("--accelerator=sim", "--profile=full", "-n64"), workers=2),
    "a selection that was not typed": invocation(selection=("--area=operators",)),
    "an option in short": typed("--accel=cpu"),
    "paths behind two dashes": typed("--", "tests/x.py"),
    "arguments from a file": typed("@args.txt"),
    "probes have a second": typed("--time-budget=1"),
    "claims of another file": typed("--capabilities=mine.toml"),
    "three tries": typed("--count=3"),
    "another way to import": typed("--import-mode=importlib"),
    "warnings are errors": typed("-Werror::x:mod"),
    "notes that decide": lambda report: replace(report, notes=("G06 waived by the maintainers",)),
    "a note of a book": lambda report: replace(report, notes=("x" * 10**6,)),
    "lines of less than none": accounting(torn_lines=-4),
    "a verdict of a case that never ended": lambda report: accounting(in_flight=(report.cases[0].id,))(report),
    "a verdict that was given twice": lambda report: accounting(duplicates=(report.cases[0].id,))(report),
    "a verdict of no case": accounting(unknown=("x.y",)),
    # The stack.
    "the older format": schema(1),
    "a format before the first": schema(0),
    "plugins without versions": plugins(lambda plugin: plugin.split()[0]),
    "a plugin of another version": plugins(lambda plugin: plugin.replace("conformance 0.1.0", "conformance 9.0.0")),
    "without this plugin": plugins(lambda plugin: "" if "conformance" in plugin else plugin),
    "a plugin that looks like another": lambda r: environment(plugins=(*r.environment.plugins, "pytest-xd\u0456st 3"))(
        r
    ),
    "a plugin in a variable": variable("PYTEST_PLUGINS", "xdist,judge"),
    "a variable of Python": variable("PYTHONSTARTUP", "x.py"),
    "a library is preloaded": variable("LD_PRELOAD", "/evil.so"),
    "the first pytest": facts(pytest="1.0"),
    "an old Python": facts(python="2.7.18"),
    "no pytest": facts(pytest=None),
    "no Python": facts(python=None),
    "another torch in the facts": facts(torch="2.14.0+cpu"),
    "another xdist in the facts": facts(**{"pytest-xdist": "1.0"}),
    "a fact of a book": facts(machine="x" * 10**6),
    "half a core": facts(cores=0.5),
    "a billion devices": accelerator(devices=10**9),
    "less than no device": accelerator(devices=-1),
    "a device and a half": accelerator(devices=1.5),
    "more chips than devices": accelerator(device_names=("A", "B", "C", "D", "E")),
    "a driver of two lines": accelerator(driver="1\n2"),
    "a driver of a book": accelerator(driver="1" * 10**5),
    "collectives with an invisible letter": accelerator(communication_backend="nccl\u200b"),
    "a package that is a path": accelerator(package="../evil"),
    "a module of a vendor calls itself sim": other_module,
    "a torch of tomorrow": accelerator(torch="3.0"),
    "a build of torch in words": accelerator(torch_build="not hexadecimal"),
}
