"""``conformance doctor``: check this machine, and report what is missing and what is skipped without it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from conformance.accelerators.autoload import all_packages
from conformance.base.errors import UsageError
from conformance.cli.checks import (
    Check,
    CheckState,
    cache_check,
    compiler_check,
    extra_checks,
    manifest_check,
    package_checks,
    python_check,
    report_check,
)
from conformance.cli.probing import LoadResult, Probe, probe_all, run_limited
from conformance.process.deaths import how_it_ended

SUMMARY = "Check this machine: packages, tools, accelerators, and what would be skipped."

#: Line of a traceback that names an exception.
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit)\b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="check this accelerator only; a name as for --accelerator"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="timeout for loading one accelerator (default: 60)",
    )
    parser.add_argument(
        "--conformance-report",
        metavar="DIR",
        type=Path,
        default=Path("conformance-report"),
        help="the report folder to check (default: conformance-report)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the checks of software and accelerators, and a conclusion that sets the exit status."""
    if not arguments.time_limit > 0:
        raise UsageError(f"--time-limit {arguments.time_limit:g}: expected a positive number of seconds, such as 60.")
    requested = bool(arguments.name)
    names = [arguments.name] if requested else _names()
    # Not to stdout, which other programs may read. Importing torch from a cold disk has taken half a minute.
    print(f"importing torch, and loading {', '.join(names)}: this can take a minute", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(1) as pool:
        software = pool.submit(lambda: list(_software(arguments.time_limit, arguments.conformance_report)))
        probes = probe_all(names, arguments.time_limit)
        checks = software.result()
    if requested and probes[0].result is LoadResult.UNKNOWN:
        raise UsageError(probes[0].text)
    _print("software", checks)
    accelerators = [accelerator_check(loaded, requested=requested) for loaded in probes]
    _print("accelerators", accelerators)
    usable = any(loaded.result is LoadResult.USABLE for loaded in probes)
    print("\n" + conclusion(checks + accelerators, usable=usable, name=arguments.name or "NAME"))
    return exit_status(checks + accelerators, usable=usable)


def _names() -> Sequence[str]:
    from conformance.accelerators.registry import names

    return list(names())


def _software(time_limit: float, report_folder: Path) -> Iterator[Check]:
    """Yield the checks that need no accelerator. The note on the manifest appears only where it applies."""
    yield python_check()
    yield from package_checks()
    yield torch_check(time_limit)
    yield from extra_checks()
    yield from filter(None, (manifest_check(),))
    yield compiler_check()
    yield cache_check()
    yield report_check(report_folder)


def torch_check(time_limit: float) -> Check:
    """Check in separate processes that torch can be imported, with and without its autoload of vendor packages.

    A run turns autoload off, so an error with autoload is only a note.
    """
    error = _import_error(time_limit, autoload="0")
    if error:
        return Check("import torch", CheckState.PROBLEM, error)
    packages = all_packages()
    error = _import_error(time_limit, autoload="1") if packages else ""
    if error:
        loaded = f"with autoload of {', '.join(packages)} it {error}"
        return Check("import torch", CheckState.NOTE, f"works in a run, which turns autoload off; {loaded}")
    return Check("import torch", CheckState.OK, "works")


def _import_error(time_limit: float, *, autoload: str) -> str:
    """Import torch in a separate process, and return how that fails with the next step, or an empty string."""
    status, _, errors = run_limited([sys.executable, "-c", "import torch"], time_limit, autoload=autoload)
    if status == 0:
        return ""
    if status is None:
        return f"timed out after {time_limit:g} s; try a longer --time-limit"
    lines = errors.strip().splitlines() or [how_it_ended(errors, status)]
    # In a chain of exceptions, the first one is the cause.
    cause = next((line for line in lines if _EXCEPTION.match(line)), lines[-1])
    broken = "reinstall torch" if autoload == "0" else "repair or remove that package"
    return f"fails: {cause}; {broken}"


#: Check states of accelerators that the user did not name: a run can use another accelerator.
_STATES: Final = {
    LoadResult.USABLE: CheckState.OK,
    LoadResult.NO_DEVICE: CheckState.NOTE,
    LoadResult.NOT_BUILT: CheckState.NOTE,
    LoadResult.UNKNOWN: CheckState.NOTE,
    LoadResult.ABSENT: CheckState.MISSING,
    LoadResult.BROKEN: CheckState.NOTE,
    LoadResult.CRASHED: CheckState.NOTE,
    LoadResult.HUNG: CheckState.NOTE,
}


def accelerator_check(loaded: Probe, *, requested: bool) -> Check:
    """Return the check of an accelerator. It is a problem only if the user named it and it is not usable."""
    failed = requested and loaded.result is not LoadResult.USABLE
    state = CheckState.PROBLEM if failed else _STATES[loaded.result]
    return Check(loaded.name, state, f"{loaded.result.value}: {loaded.text}")


def exit_status(checks: Iterable[Check], *, usable: bool) -> int:
    """Return 0 if the suite can run on an accelerator of this machine, else 1."""
    return 0 if usable and not any(check.state is CheckState.PROBLEM for check in checks) else 1


def conclusion(checks: Sequence[Check], *, usable: bool, name: str) -> str:
    """Return the last line of the output."""
    problems = [check.name for check in checks if check.state is CheckState.PROBLEM]
    if problems:
        return f"problems: {', '.join(problems)}"
    return f"ready: pytest --accelerator={name}" if usable else "not ready: no accelerator on this machine is usable"


def _print(title: str, checks: Sequence[Check]) -> None:
    """Print checks as a table, at once, because the next checks may take a minute."""
    from conformance.reports.plain_text import one_line

    width = max((len(check.name) for check in checks), default=0)
    print(title)
    for check in checks:
        print(f"  {check.state.value:<8} {check.name:<{width}}  {one_line(check.text)}")
    sys.stdout.flush()
