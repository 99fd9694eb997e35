"""``conformance upstream``: write, read and check what PyTorch's own device tests skip on an accelerator."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.base.errors import UsageError

if TYPE_CHECKING:
    from conformance.reports.model import Report
    from conformance.upstream.audit import Audited
    from conformance.upstream.export import Plan
    from conformance.upstream.running import FileRun, Setting

SUMMARY = "Write, audit and check what PyTorch's own device tests skip."
#: The word for the installed torch's own entries.
DATABASE = "op_db"
_MOST_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = actions.add_parser("export", help="write a base class for PyTorch's tests", allow_abbrev=False)
    export.add_argument("accelerator", metavar="ACCELERATOR", help="whose declaration is exported")
    _add_common(export)
    audit = actions.add_parser("audit", help="say what skip lists hide, and what is stale", allow_abbrev=False)
    audit.add_argument("files", metavar="FILE", nargs="+", help=f"skip lists: Python, YAML, or the word {DATABASE}")
    audit.add_argument("--accelerator", metavar="NAME", required=True, help="the device whose tests the lists skip")
    audit.add_argument("--report", metavar="REPORT", type=Path, help="our results: a report folder or report.json")
    audit.add_argument("--device-type", metavar="TYPE", help="the device in the names of tests, if it is another")
    audit.add_argument("--names", metavar="FILE", type=Path, help="names of PyTorch's tests, from run --list")
    audit.add_argument("--format", metavar="FORMAT", default="text", help="text (default) or json")
    audit.add_argument("--only", metavar="CLASS", action="append", default=[], help="only entries of this class")
    run = actions.add_parser("run", help="run PyTorch's own test files", allow_abbrev=False)
    run.add_argument("files", metavar="FILE", nargs="+", help="test files, as in the checkout's folder test/")
    run.add_argument("--accelerator", metavar="NAME", required=True, help="the accelerator that the tests run on")
    run.add_argument("--checkout", metavar="FOLDER", type=Path, required=True, help="a checkout of the installed torch")
    run.add_argument("--only", metavar="PART", action="append", default=[], help="only tests with this in their name")
    run.add_argument("--timeout", metavar="SECONDS", type=float, default=60.0, help="longest time of a test (60)")
    run.add_argument("--into", metavar="REPORT", type=Path, help="add the results to this report, as foreign rows")
    run.add_argument("--lists", metavar="FILE", type=Path, help="write the three lists as JSON")
    run.add_argument("--list", metavar="FILE", dest="names", type=Path, help="write the names of the tests")
    _add_common(run)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--torch", metavar="VERSION", help="series of torch, by default the installed one")
    parser.add_argument("--report", metavar="REPORT", type=Path, help="our results: a report folder or report.json")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to this file")


def run(arguments: argparse.Namespace) -> int:
    """Do one of the three actions."""
    actions = {"export": _export, "audit": _audit, "run": _run}
    return actions[arguments.action](arguments)


# --- export ---------------------------------------------------------------------------------------------------------


def _export(arguments: argparse.Namespace) -> int:
    from conformance.reports.writer import write_text

    plan, text = _exported(arguments)
    if arguments.output is None:
        sys.stdout.write(text)
        return 0
    write_text(arguments.output, text)
    hidden = sum(map(len, plan.overrides.values()))
    print(
        f"{arguments.output}: {len(plan.allowed or ())} operators allowed, {hidden} skipped in a dtype, "
        f"{len(plan.exclusions)} classes excluded"
    )
    return 0


def _exported(arguments: argparse.Namespace, bare: bool = False) -> tuple[Plan, str]:
    """Return what the exported base hides, and the file; ``bare`` hides nothing."""
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.reports.loading import load
    from conformance.upstream import export
    from conformance.upstream.evidence import evidence_of
    from conformance.upstream.series import adapter_for

    adapter = adapter_for(arguments.torch or torch.__version__)
    subject = resolve(arguments.accelerator)
    device_type, package = _device(subject)
    base = export.base_name(adapter, device_type, package)
    report = load(arguments.report) if arguments.report else None
    _require_same_accelerator(report, subject.name)
    evidence = evidence_of(report) if report else None
    if evidence is not None and not evidence:
        raise UsageError(f"{arguments.report} has no case of an operator. Run them: pytest --area operators.")
    plan = export.Plan() if bare else export.plan_of(subject.static_declaration, evidence)
    source = f"report {report.run.id}" if report else "the declaration alone: nothing was verified"
    origin = f"Written by conformance upstream export {subject.name}, from {source}."
    return plan, export.python_file(plan, adapter, device_type, base, origin)


def _device(subject: Any) -> tuple[str, str]:
    """Return the device type of an accelerator, and the package that drives it out of torch's tree."""
    unloaded = subject.unloaded()
    device_type = getattr(unloaded, "device_type", "") or getattr(unloaded, "name", "") or subject.name
    return str(device_type), str(getattr(unloaded, "package", "") or "")


def _require_same_accelerator(report: Report | None, name: str) -> None:
    if report is not None and report.accelerator.name != name:
        raise UsageError(
            f"the report is of {report.accelerator.name}, and the accelerator is {name}. Name a report of {name}."
        )


# --- audit ----------------------------------------------------------------------------------------------------------


def _audit(arguments: argparse.Namespace) -> int:
    from conformance.accelerators.registry import resolve
    from conformance.cli.main import known_name
    from conformance.reports.loading import load
    from conformance.upstream import audit, skip_lists
    from conformance.upstream.evidence import evidence_of

    known_name("format", arguments.format, ("text", "json"))
    only = [audit.State(known_name("class", name, [state.value for state in audit.State])) for name in arguments.only]
    subject = resolve(arguments.accelerator)
    device_type = arguments.device_type or _device(subject)[0]
    report = load(arguments.report) if arguments.report else None
    _require_same_accelerator(report, subject.name)
    entries = [
        entry
        for file in arguments.files
        for entry in (skip_lists.of_database(device_type) if file == DATABASE else skip_lists.read(Path(file)))
    ]
    names = _names(arguments.names)
    found = audit.audit(entries, evidence_of(report) if report else {}, device_type, names)
    shown = [audited for audited in found if not only or audited.state in only]
    sys.stdout.write(_json(shown) if arguments.format == "json" else _text(found, shown, bool(names)))
    return 0


def _names(path: Path | None) -> list[str]:
    from conformance.cli.gate import require

    require(path)
    return path.read_text(encoding="utf-8").split() if path else []


def _text(found: Sequence[Audited], shown: Sequence[Audited], named: bool) -> str:
    from conformance.upstream.audit import MEANING, State, counts

    unit = "tests" if named else "operators in a dtype"
    lines = [
        f"{entry.state.value:9} {entry.hides:5} {entry.entry.where} {entry.entry.text}{_why(entry)}" for entry in shown
    ]
    number = counts(found)
    lines += ["", f"{len(found)} entries; the number is what each hides, in {unit}"]
    lines += [f"{state.value:9} {number[state]:5}  {MEANING[state]}" for state in State]
    return "\n".join(lines) + "\n"


def _why(audited: Audited) -> str:
    return "".join(f" · {text}" for text in (audited.why, audited.entry.comment) if text)


def _json(shown: Sequence[Audited]) -> str:
    rows = [
        {
            "where": audited.entry.where,
            "entry": audited.entry.text,
            "class": audited.state.value,
            "hides": audited.hides,
            "why": audited.why,
            "comment": audited.entry.comment,
        }
        for audited in shown
    ]
    return json.dumps(rows, indent=1) + "\n"


# --- run ------------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.upstream import running

    require(arguments.into)
    if arguments.into and not arguments.output:
        raise UsageError("--into needs -o FILE: the report with the foreign rows is written there.")
    if not arguments.timeout > 0:
        raise UsageError(f"--timeout {arguments.timeout:g} is no time. Give seconds above 0.")
    running.check_checkout(arguments.checkout)
    files = running.find_files(arguments.checkout, arguments.files)
    _require_new_files(arguments.into, files)
    with tempfile.TemporaryDirectory(prefix="conformance-upstream-") as folder:
        setting = _setting(arguments, Path(folder))
        runs = []
        for file in files:
            runs.append(running.run_file(file, setting))
            print(_line(runs[-1]), flush=True)
    _write(arguments, runs)
    found = running.lists(runs)
    for title, tests in found.items():
        print(f"{title}: {len(tests)}")
        if title != "agree":
            print("".join(f"  {test}\n" for test in tests[:_MOST_SHOWN]), end="")
            print(
                f"  … and {len(tests) - _MOST_SHOWN} more: --lists FILE\n" if len(tests) > _MOST_SHOWN else "", end=""
            )
    wrong = any(run.broken or run.hidden != run.predicted for run in runs)
    return 1 if wrong or found["not hidden and fail"] else 0


def _require_new_files(into: Path | None, files: Sequence[Path]) -> None:
    """Raise UsageError before anything runs if the report has results of one of the files."""
    from conformance.reports.loading import load
    from conformance.upstream.running import area_of

    known = {case.area for case in load(into).cases} if into else set()
    if twice := [file.name for file in files if area_of(file.name) in known]:
        raise UsageError(
            f"{into} has results of {twice[0]} already. Name a report without them, or leave the file out."
        )


def _setting(arguments: argparse.Namespace, folder: Path) -> Setting:
    """Write both bases into the folder, and return what all files of the run share."""
    from conformance.accelerators.registry import resolve
    from conformance.upstream.running import Setting

    plan, text = _exported(arguments)
    exported, bare = folder / "exported.py", folder / "bare.py"
    exported.write_text(text, encoding="utf-8")
    bare.write_text(_exported(arguments, bare=True)[1], encoding="utf-8")
    device_type = _device(resolve(arguments.accelerator))[0]
    return Setting(arguments.accelerator, device_type, exported, bare, plan, arguments.timeout, tuple(arguments.only))


def _line(run: FileRun) -> str:
    """Return what one file gave, in one line."""
    from conformance.reports.plain_text import one_line

    if run.broken:
        return f"{run.file}: it cannot be imported: {one_line(run.broken, 300)}"
    outcomes = dict.fromkeys(("pass", "skip", "fail", "error", "crash", "hang"), 0)
    for result in run.results.values():
        outcomes[result.outcome] += 1
    counted = (
        ", ".join(f"{name} {number}" for name, number in outcomes.items() if number) or "no test is for the device"
    )
    return f"{run.file}: {counted}; hidden: {len(run.predicted)} predicted, {len(run.hidden)} counted"


def _write(arguments: argparse.Namespace, runs: Sequence[FileRun]) -> None:
    """Write the lists, the names and the report that were asked for."""
    from conformance.reports.writer import write_text
    from conformance.upstream import running

    if arguments.lists:
        write_text(arguments.lists, json.dumps(running.lists(runs), indent=1) + "\n")
    if arguments.names:
        write_text(arguments.names, "".join(f"{name}\n" for run in runs for name in run.tests))
    if arguments.output:
        from conformance.reports.report_json import to_json

        write_text(arguments.output, to_json(_report(arguments, runs)))
        print(f"{arguments.output}: the results are foreign rows, which count in no percentage")


def _report(arguments: argparse.Namespace, runs: Sequence[FileRun]) -> Report:
    """Return the report with the foreign rows."""
    from conformance.reports.junit_import import IMPORTED, add_rows
    from conformance.reports.loading import load
    from conformance.reports.model import AcceleratorRecord, Accounting, Report, Run, Suite, count_cases
    from conformance.upstream.running import records

    cases = tuple(records(runs))
    files = ", ".join(run.file for run in runs)
    note = f"{len(cases)} tests of PyTorch were run from {files}; PyTorch judged them."
    run = Run(f"{IMPORTED}-upstream", "", Suite(IMPORTED, "", len(cases)))
    foreign = Report(run, AcceleratorRecord(arguments.accelerator, arguments.accelerator), notes=(note,), cases=cases)
    foreign = replace(foreign, totals=count_cases(cases, Accounting()))
    return add_rows(load(arguments.into), foreign) if arguments.into else foreign
