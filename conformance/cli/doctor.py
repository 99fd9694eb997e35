"""``conformance doctor``: what is here, what is missing, and what that would skip."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from conformance.cli.checks import (
    Check,
    State,
    cache_check,
    compiler_check,
    extra_checks,
    forked_check,
    package_checks,
    python_check,
    report_check,
)
from conformance.cli.probing import Found, Probe, probe, run_limited
from conformance.errors import UsageError

SUMMARY = "Check this machine: packages, tools, and what would be skipped."

# Importing torch is mostly one core's work, and so is most of a probe.
_AT_ONCE: Final = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="look at this accelerator only, as --accelerator takes it"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="how long loading one accelerator may take (default: 60)",
    )
    parser.add_argument(
        "--conformance-report",
        metavar="DIR",
        type=Path,
        default=Path("conformance-report"),
        help="the report folder to check (default: conformance-report)",
    )


def run(arguments: argparse.Namespace) -> int:
    if not arguments.time_limit > 0:
        raise UsageError(f"--time-limit {arguments.time_limit:g}: expected a positive number of seconds, such as 60.")
    asked = bool(arguments.name)
    probes = _probes([arguments.name] if asked else _names(), arguments.time_limit)
    if asked and probes[0].found is Found.UNKNOWN:
        raise UsageError(probes[0].text)
    checks = list(_software(arguments.time_limit, arguments.conformance_report))
    _print("software", checks)
    accelerators = [accelerator_check(one, asked=asked) for one in probes]
    _print("accelerators", accelerators)
    usable = any(one.found is Found.USABLE for one in probes)
    print("\n" + conclusion(checks + accelerators, usable=usable))
    return exit_status(checks + accelerators, usable=usable)


def _names() -> Sequence[str]:
    from conformance.accelerators.registry import names

    return list(names())


def _software(time_limit: float, report_folder: Path) -> Iterator[Check]:
    yield python_check()
    yield from package_checks()
    yield torch_check(time_limit)
    yield from extra_checks()
    clash = forked_check()
    if clash:
        yield clash
    yield compiler_check()
    yield cache_check()
    yield report_check(report_folder)


def torch_check(time_limit: float) -> Check:
    """Whether torch can be imported at all, asked in a process of its own."""
    status, _, errors = run_limited([sys.executable, "-c", "import torch"], time_limit)
    if status == 0:
        return Check("import torch", State.OK, "works")
    if status is None:
        return Check("import torch", State.PROBLEM, f"did not end within {time_limit:g} s; try a longer --time-limit")
    last = (errors.strip().splitlines() or [f"the process ended with status {status}"])[-1]
    return Check("import torch", State.PROBLEM, f"fails: {last}; reinstall torch")


def _probes(names: Sequence[str], time_limit: float) -> list[Probe]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda name: probe(name, time_limit), names))


_STATES: Final = {
    Found.USABLE: State.OK,
    Found.NO_DEVICE: State.NOTE,
    Found.UNKNOWN: State.NOTE,
    Found.ABSENT: State.MISSING,
    Found.BROKEN: State.NOTE,
    Found.CRASHED: State.NOTE,
    Found.HUNG: State.NOTE,
}


def accelerator_check(one: Probe, *, asked: bool) -> Check:
    """An accelerator that was asked for has to be usable; of the others the doctor only tells."""
    if asked and one.found is not Found.USABLE:
        return Check(one.name, State.PROBLEM, f"{one.found.value}: {one.text}")
    return Check(one.name, _STATES[one.found], f"{one.found.value}: {one.text}")


def exit_status(checks: Iterable[Check], *, usable: bool) -> int:
    """0 if the suite can run on something, 1 if not."""
    return 0 if usable and not any(check.state is State.PROBLEM for check in checks) else 1


def conclusion(checks: Sequence[Check], *, usable: bool) -> str:
    """The doctor's last line."""
    problems = [check.name for check in checks if check.state is State.PROBLEM]
    if problems:
        return f"problems: {', '.join(problems)}"
    return "ready: pytest --accelerator=NAME" if usable else "no accelerator here has a device"


def _print(title: str, checks: Sequence[Check]) -> None:
    from conformance.reports.plain_text import one_line

    width = max((len(check.name) for check in checks), default=0)
    print(title)
    for check in checks:
        print(f"  {check.state.value:<8} {check.name:<{width}}  {one_line(check.text)}")
    sys.stdout.flush()
