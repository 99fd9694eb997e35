"""``conformance onboard``: probe a device, and write a first declaration of it.

The probes are cases of the suite, which pytest runs in worker processes. A crash or a hang loses only its own probe.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.base.errors import ConformanceError, SetupError, UsageError
from conformance.process.time_limits import VARIABLE

if TYPE_CHECKING:
    from conformance.plan.case import Case
    from conformance.reports.declaration.onboarding import FirstDeclaration, OperatorColumn
    from conformance.reports.model import Report

SUMMARY = "Probe a device, and print a first declaration of it."

_CELLS: Final = 30
_TIME_BUDGET: Final = 240.0
#: Seconds after which a probe counts as hung.
_HANG: Final = 60.0
#: Lines of pytest that say how far it is.
_PLANNED: Final = re.compile(r"conformance: \d+ cases to run")
_PROGRESS: Final = re.compile(r"\[ *\d+%\] |conformance: workers ")
#: Seconds. A vendor's software may compile code when it is loaded.
_LOADING_TIMEOUT: Final = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the accelerator to probe; a name as for --accelerator")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--cells",
        metavar="N",
        type=int,
        default=_CELLS,
        help=f"number of operators to probe in each dtype and mode (default: {_CELLS})",
    )
    parser.add_argument(
        "--time-budget",
        metavar="SECONDS",
        type=float,
        default=_TIME_BUDGET,
        help=f"stop probing undeclared cells after this time (default: {_TIME_BUDGET:g})",
    )
    parser.add_argument("--conformance-report", metavar="DIR", type=Path, help="keep the report of the probes in DIR")


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.claims_text import check_target
    from conformance.reports.declaration.onboarding import first_declaration
    from conformance.reports.writer import write_text

    _check_numbers(arguments)
    check_target(arguments.output, force=arguments.force)
    _check_that_it_loads(arguments.name)
    cases, totals = chosen_cases(arguments.cells)
    started = time.monotonic()
    _say(f"probing {arguments.name}: {len(cases)} cases in worker processes; this takes some minutes")
    report = _probe(arguments, cases)
    found = first_declaration(report)
    if not found.probes:
        raise SetupError(
            f"no probe of {arguments.name} gave an answer. To find the cause: conformance doctor {arguments.name}"
        )
    _say(f"{found.probes} of {len(cases)} probes answered in {time.monotonic() - started:.0f} s")
    for line in broken(report, found):
        _say(line)
    backend = _backend(arguments.name, report, found)
    following = _next_command(arguments.name, arguments.output)
    text = declaration_text(report, found, totals, following)
    if arguments.output is None:
        sys.stdout.write(text + "".join(f"# {line}\n" if line else "#\n" for line in backend))
        return 0
    write_text(arguments.output, text)
    print("\n".join([f"{arguments.output}: a first declaration; review every claim before you commit it", *backend]))
    print(f"next: {following}")
    return 0


def broken(report: Report, found: FirstDeclaration) -> Iterator[str]:
    """Yield what the probes found that no claim can express, with the first case of each kind and what to do."""
    from conformance.reports.declaration.corrections import PROBE

    kinds: dict[str, list[str]] = {}
    cases = {case.id: case for case in report.cases}
    for defect in found.defects:
        kind = cases[defect.case].metrics.get(PROBE) or defect.reason.value
        kinds.setdefault(str(kind), []).append(defect.case)
    if kinds:
        said = ", ".join(f"{kind} {len(ids)} (such as {ids[0]})" for kind, ids in kinds.items())
        yield f"{len(found.defects)} of them are bugs, which are listed with their messages in the declaration: {said}"
    if dead := sum(len(kinds.get(kind, ())) for kind in ("crash", "hang")):
        yield (
            f"{dead} probes ended a worker process, which costs seconds each. Often one bug is behind many: repair "
            "one, and repeat this command"
        )


def _check_numbers(arguments: argparse.Namespace) -> None:
    """Raise ``UsageError`` for numbers that would probe nothing."""
    if arguments.cells < 1:
        raise UsageError(f"--cells {arguments.cells}: expected a positive number of operators, such as {_CELLS}.")
    if not arguments.time_budget > 0:
        raise UsageError(f"--time-budget {arguments.time_budget:g}: expected a positive number of seconds, such as 60.")


def _check_that_it_loads(name: str) -> None:
    """Raise an error if the accelerator cannot be used. It loads in a separate process, because loading may crash."""
    from conformance.cli.probing import LoadResult, probe_all

    (loaded,) = probe_all([name], _LOADING_TIMEOUT)
    if loaded.result is LoadResult.UNKNOWN:
        raise UsageError(loaded.text)
    if loaded.result is not LoadResult.USABLE:
        raise SetupError(f"{name} cannot be probed: {loaded.text}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- the probes -----------------------------------------------------------------------------------------------------


def chosen_cases(cells: int) -> tuple[list[str], Counter[str]]:
    """Return the ids of the probes, and the number of operators that could be probed in each dtype and mode.

    The probes are those of all capabilities, and of ``cells`` operators in each dtype and mode.
    """
    from conformance.plan.bundled import bundled_cases

    probes = [planned.case for planned in bundled_cases(["capabilities"]) if planned.case.adaptive]
    columns: dict[str, list[Case]] = {}
    for planned in bundled_cases(["operators"]):
        # A pattern claims only operators that PyTorch's own CPU has, so only those are sampled.
        if planned.case.adaptive and planned.case.in_reference:
            columns.setdefault(_axes(planned.case), []).append(planned.case)
    sampled = [case for cases in columns.values() for case in sorted(cases, key=_sampling_key)[:cells]]
    totals = Counter({axes: len(cases) for axes, cases in columns.items()})
    return [case.id for case in (*probes, *sampled)], totals


def _axes(case: Case) -> str:
    return f"{case.dtype}-{case.mode}"


def _sampling_key(case: Case) -> bytes:
    """Return a sort key that selects the same operators in every dtype and on every machine."""
    return hashlib.sha256(case.subject.encode()).digest()


def _probe(arguments: argparse.Namespace, cases: Sequence[str]) -> Report:
    """Run the probes with pytest in a process of its own, and return their report."""
    from conformance.process.python import death_of_pytest, last_written
    from conformance.reports.loading import load

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-onboard-")))
        case_file = scratch / "cases.txt"
        case_file.write_text("\n".join(cases), encoding="utf-8")
        folder = (arguments.conformance_report or scratch / "report").absolute()
        before = last_written(folder)
        # In another process, because a probe may crash or hang and must not take this command with it.
        status, output = _pytest(
            arguments.time_budget,
            f"--accelerator={arguments.name}",
            f"--case-file={case_file}",
            f"--time-budget={arguments.time_budget:g}",
            f"--conformance-report={folder}",
        )
        name = arguments.name
        death = death_of_pytest(status, output, folder, run=f"probing {name}", accelerator=name, written_before=before)
        if not death:
            return load(folder)
        # A run that dies at its start leaves the report of an earlier one.
        report = _partial(folder) if last_written(folder) > before else None
        if report is None:
            raise SetupError(death)
        _say(f"the probes ended early, with status {status}: the declaration is made of those with an answer")
        return report


def _partial(folder: Path) -> Report | None:
    """Return the report of a run that ended early, or None if no case of it has a verdict."""
    from conformance.reports.loading import load

    try:
        report = load(folder)
    except ConformanceError:
        return None
    return report if len(report.cases) else None


def _pytest(time_budget: float, *arguments: str) -> tuple[int, str]:
    """Run pytest, print its lines about progress, and return its exit status and its output.

    Ctrl-C and SIGTERM end the probes. What they have found so far is kept.
    """
    from conformance.process.python import child_pytest

    # A shell starts its background jobs with SIGINT ignored, which children inherit: then nothing would end the probes.
    answering = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    # Formatting a traceback for every refusal would take longer than the probes.
    command = child_pytest("-p", "no:cacheprovider", "-q", "--tb=no", *arguments, before=answering)
    # A hang must not take the whole budget, nor one that begins at its end as long again.
    limit = {VARIABLE: f"{min(time_budget, _HANG):g}", **os.environ}
    lines: list[str] = []
    # This interpreter and our own options; only the accelerator's name comes from the user.
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=limit
    ) as process:
        # Cells that are declared already have no budget in pytest, and a probe may begin at its end.
        out_of_time = threading.Timer(time_budget + _HANG, process.send_signal, [signal.SIGINT])
        with _ended_by_a_signal(process):
            for line in process.stdout or ():
                lines.append(line)
                if _PLANNED.match(line):
                    out_of_time.start()
                if _PROGRESS.match(line):
                    _say(line.rstrip())
        out_of_time.cancel()
        return process.wait(), "".join(lines)


@contextlib.contextmanager
def _ended_by_a_signal(process: subprocess.Popen[str]) -> Iterator[None]:
    """Interrupt pytest where this process is asked to end. It then writes its report, of which claims can be made."""

    def interrupt(*_: object) -> None:
        process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the text -------------------------------------------------------------------------------------------------------


def declaration_text(report: Report, found: FirstDeclaration, totals: Counter[str], following: str) -> str:
    """Return the text of a first declaration, with its evidence in comments above it and the next command below."""
    from conformance.cli.claims_text import comment, toml

    accelerator = report.accelerator
    torch = f", torch {accelerator.torch}" if accelerator.torch else ""
    lines = [
        comment(f"{accelerator.name}: a first declaration, from {found.probes} probes of {report.run.started}{torch}."),
        comment("The vendor is responsible for every claim: review and correct them before you commit this file."),
        comment("The core (device, memory, copy, rng, checkpoint, synchronize) always runs and needs no claim."),
        *_column_lines(found.columns, totals),
        *_left_out(found),
        *_not_run(report),
        "",
        toml(found.cells),
        comment("Workloads run only if they are claimed, for example:"),
        comment("[workloads]"),
        comment('"*" = { inference = ["float32"], training = ["float32"] }'),
        "",
        comment(f"next: {following}"),
    ]
    return "\n".join(lines) + "\n"


def _column_lines(columns: Sequence[OperatorColumn], totals: Counter[str]) -> Iterator[str]:
    """Yield comments on the operators: the sample's result in each dtype and mode, and what is claimed from it."""
    from conformance.cli.claims_text import comment, indented

    yield comment()
    yield comment("operators: results of the sample in each dtype and mode, and the patterns that are claimed")
    order = list(totals)
    for column in sorted(columns, key=lambda found: order.index(found.axes) if found.axes in totals else len(order)):
        probed = column.works + column.missing + column.broken
        bugs = f", {column.broken} are broken" if column.broken else ""
        sample = f"{column.works} of {probed} work{bugs}; PyTorch's CPU has {totals[column.axes]}"
        claims = (
            ", ".join(column.claims) or f"nothing, because {_why_unclaimed(column)}; claim by name what you promise"
        )
        yield indented(f"{column.axes}: {sample}; claimed: {claims}")


def _why_unclaimed(column: OperatorColumn) -> str:
    """Return why no pattern is claimed for a dtype and mode."""
    from conformance.reports.declaration.onboarding import FEWEST_FOR_A_PATTERN

    answers = column.works + column.missing
    if not answers:
        return "every one of them is broken" if column.broken else "no probe gave an answer"
    if answers < FEWEST_FOR_A_PATTERN:
        return f"a pattern needs {FEWEST_FOR_A_PATTERN} probes with an answer"
    broken = f" and {column.broken} are broken" if column.broken else ""
    return "none works" if not column.works else f"{column.missing} are missing{broken}"


def _left_out(found: FirstDeclaration) -> Iterator[str]:
    """Yield comments on defects and on cells that were not probed. The file claims neither."""
    from conformance.cli.claims_text import comment, indented

    if found.defects:
        yield comment()
        yield comment("neither claimed nor denied, because a bug is not a capability:")
        yield from (indented(f"{defect.case}: {defect.reason.value}: {defect.message}") for defect in found.defects)
    if found.unknown:
        yield comment()
        yield comment(f"not probed, because of this machine or the time budget: {', '.join(found.unknown)}")


def _not_run(report: Report) -> Iterator[str]:
    """Yield a comment on probes that have no verdict, because the run ended early."""
    from conformance.cli.claims_text import comment

    if count := len(report.accounting.unaccounted):
        yield comment()
        yield comment(f"without an answer, because the probes ended early: {count} of {count + len(report.cases)}")


def _next_command(name: str, output: Path | None) -> str:
    if output is None:
        return shlex.join(["conformance", "onboard", name, "-o", "capabilities.toml"])
    return shlex.join(["pytest", f"--accelerator={name}", f"--capabilities={output}"])


def _backend(text: str, report: Report, found: FirstDeclaration) -> list[str]:
    """Return the lines of a backend file; empty if the device has a built-in backend."""
    from conformance.accelerators.backends import builtin_names
    from conformance.accelerators.registry import resolve
    from conformance.cli.backend_text import backend_lines

    name = report.accelerator.device.partition(":")[0]
    known = report.accelerator.name in builtin_names() or name in builtin_names()
    if known or not name.isidentifier():
        return []
    # The declaration that was probed names its package; only for a device type of torch it has to be found.
    with contextlib.suppress(ConformanceError):
        package = str(getattr(resolve(text).unloaded(), "package", "") or "")
        return backend_lines(name, report, found.cells, package)
    return backend_lines(name, report, found.cells)
