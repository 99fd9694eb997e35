"""``conformance onboard``: a first declaration of a device, from probes of it.

The probes are the suite's own cases, run by pytest in worker processes: one that crashes or hangs loses that probe.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.errors import SetupError, UsageError

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.reports.declaration.onboarding import FirstDeclaration, OperatorColumn
    from conformance.reports.model import Report

SUMMARY = "Probe a device, and print a first declaration of it."

_CELLS: Final = 30
_TIME_BUDGET: Final = 240.0
#: Seconds; a vendor's stack may compile when it is loaded.
_LONGEST_LOADING: Final = 300.0
#: Exit statuses after which there is a report: all green, failures, nothing verified.
_ENDED: Final = (0, 1, 5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what to probe, as --accelerator takes it")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--cells",
        metavar="N",
        type=int,
        default=_CELLS,
        help=f"how many operators to probe in each dtype and mode (default: {_CELLS})",
    )
    parser.add_argument(
        "--time-budget",
        metavar="SECONDS",
        type=float,
        default=_TIME_BUDGET,
        help=f"stop probing undeclared cells after this long (default: {_TIME_BUDGET:g})",
    )
    parser.add_argument("--conformance-report", metavar="DIR", type=Path, help="keep the probes' report in DIR")


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.claims_text import check_target
    from conformance.reports.declaration.onboarding import first_declaration
    from conformance.reports.writer import write_text

    _check_numbers(arguments)
    check_target(arguments.output, force=arguments.force)
    _check_that_it_loads(arguments.name)
    cases, totals = chosen_cases(arguments.cells)
    started = time.monotonic()
    _say(f"probing {arguments.name}: {len(cases)} cases in worker processes; this takes minutes at most")
    report = _probe(arguments, cases)
    found = first_declaration(report)
    if not found.probes:
        raise SetupError(f"no probe of {arguments.name} ended with an answer. Look first: conformance doctor NAME")
    _say(f"{found.probes} probes answered in {time.monotonic() - started:.0f} s")
    backend = _backend(report, found)
    following = _next_command(arguments.name, arguments.output)
    text = declaration_text(report, found, totals, following)
    if arguments.output is None:
        sys.stdout.write(text + "".join(f"# {line}\n" if line else "#\n" for line in backend))
        return 0
    write_text(arguments.output, text)
    print("\n".join([f"{arguments.output}: a first declaration; a claim is yours, so read it", *backend]))
    print(f"next: {following}")
    return 0


def _check_numbers(arguments: argparse.Namespace) -> None:
    if arguments.cells < 1:
        raise UsageError(f"--cells {arguments.cells}: expected a positive number of operators, such as {_CELLS}.")
    if not arguments.time_budget > 0:
        raise UsageError(f"--time-budget {arguments.time_budget:g}: expected a positive number of seconds, such as 60.")


def _check_that_it_loads(name: str) -> None:
    """Raise the sentence of what is wrong; in a process of its own, because loading a vendor's stack may end it."""
    from conformance.cli.probing import Found, probe

    one = probe(name, _LONGEST_LOADING)
    if one.found is Found.UNKNOWN:
        raise UsageError(one.text)
    if one.found is not Found.USABLE:
        raise SetupError(f"{name} cannot be probed: {one.text}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- the probes -----------------------------------------------------------------------------------------------------


def chosen_cases(cells: int) -> tuple[list[str], Counter[str]]:
    """The probes of all capabilities and of ``cells`` operators in each dtype and mode; and how many there are."""
    from conformance.plan import bundled_cases

    probes = [one.case for one in bundled_cases(["capabilities"]) if one.case.adaptive]
    columns: dict[str, list[Case]] = {}
    for planned in bundled_cases(["operators"]):
        # A pattern never claims more than PyTorch's own CPU has: only that is sampled.
        if planned.case.adaptive and planned.case.in_reference:
            columns.setdefault(_axes(planned.case), []).append(planned.case)
    sampled = [case for cases in columns.values() for case in sorted(cases, key=_lot)[:cells]]
    totals = Counter({axes: len(cases) for axes, cases in columns.items()})
    return [case.id for case in (*probes, *sampled)], totals


def _axes(case: Case) -> str:
    return f"{case.dtype}-{case.mode}"


def _lot(case: Case) -> bytes:
    """The same operators in every dtype, and the same on every machine."""
    return hashlib.sha256(case.subject.encode()).digest()


def _probe(arguments: argparse.Namespace, cases: Sequence[str]) -> Report:
    from conformance.reports.loading import load

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-onboard-")))
        listed = scratch / "cases.txt"
        listed.write_text("\n".join(cases), encoding="utf-8")
        folder = (arguments.conformance_report or scratch / "report").absolute()
        status, output = _pytest(
            f"--accelerator={arguments.name}",
            f"--case-file={listed}",
            f"--time-budget={arguments.time_budget:g}",
            f"--conformance-report={folder}",
        )
        if status not in _ENDED:
            raise SetupError(_complaint(arguments.name, status, output))
        return load(folder)


def _pytest(*arguments: str) -> tuple[int, str]:
    from conformance.process.python import child_python

    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    # A traceback per refusal takes longer than the probe, and nobody reads it.
    command = child_python(program, "-p", "no:cacheprovider", "-q", "--tb=no", *arguments)
    # This interpreter and our own options; only the accelerator's name comes from outside.
    done = subprocess.run(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def _complaint(name: str, status: int, output: str) -> str:
    """Why there is no report, in the words of the run that failed."""
    lines = [line for line in output.splitlines() if line.strip()]
    begins = next((i for i, line in enumerate(lines) if line.startswith("ERROR: ")), None)
    if begins is not None:
        return "\n".join(lines[begins:]).removeprefix("ERROR: ")
    last = lines[-1] if lines else "it said nothing"
    return f"probing {name} ended with status {status}: {last}\n  see what happens: conformance doctor {name}"


# --- the text -------------------------------------------------------------------------------------------------------


def declaration_text(report: Report, found: FirstDeclaration, totals: Counter[str], following: str) -> str:
    """The first declaration, with what each claim rests on in comments above it, and the next command below."""
    from conformance.cli.claims_text import comment, toml

    accelerator = report.accelerator
    torch = f", torch {accelerator.torch}" if accelerator.torch else ""
    lines = [
        comment(f"{accelerator.name}: a first declaration, from {found.probes} probes of {report.run.started}{torch}."),
        comment("A claim is the vendor's act: read it, correct it, and only then commit it."),
        comment("The core (device, memory, copy, rng, checkpoint, synchronize) is run whatever is declared."),
        *_column_lines(found.columns, totals),
        *_left_out(found),
        "",
        toml(found.cells),
        comment("Workloads run once they are claimed:"),
        comment("[workloads]"),
        comment('"*" = { inference = ["float32"], training = ["float32"] }'),
        "",
        comment(f"next: {following}"),
    ]
    return "\n".join(lines) + "\n"


def _column_lines(columns: Sequence[OperatorColumn], totals: Counter[str]) -> Iterator[str]:
    from conformance.cli.claims_text import comment, indented

    yield comment()
    yield comment("operators: how many of those probed work, of how many that PyTorch's CPU has, and what is claimed")
    order = list(totals)
    for one in sorted(columns, key=lambda column: order.index(column.axes) if column.axes in totals else len(order)):
        probed = one.works + one.missing + one.broken
        bugs = f", {one.broken} broken" if one.broken else ""
        claims = ", ".join(one.claims) or "nothing: too many are missing; claim what you promise by name"
        yield indented(f"{one.axes}: {one.works} of {probed}{bugs}, of {totals[one.axes]}; {claims}")


def _left_out(found: FirstDeclaration) -> Iterator[str]:
    from conformance.cli.claims_text import comment, indented

    if found.defects:
        yield comment()
        yield comment("neither claimed nor denied, because a bug is not a capability:")
        yield from (indented(f"{one.case}: {one.reason.value}: {one.message}") for one in found.defects)
    if found.unknown:
        yield comment()
        yield comment(f"not seen, because this machine or the time budget did not reach: {', '.join(found.unknown)}")


def _next_command(name: str, output: Path | None) -> str:
    if output is None:
        return shlex.join(["conformance", "onboard", name, "-o", "capabilities.toml"])
    return shlex.join(["pytest", f"--accelerator={name}", f"--capabilities={output}"])


def _backend(report: Report, found: FirstDeclaration) -> list[str]:
    """The lines of a backend file, for a device that nobody has written one for."""
    from conformance.accelerators.backends import builtin_names
    from conformance.cli.backend_text import backend_lines

    name = report.accelerator.device.partition(":")[0]
    known = report.accelerator.name in builtin_names() or name in builtin_names()
    return [] if known or not name.isidentifier() else backend_lines(name, report, found.cells)
