"""Run, gate and publish of the accelerators that need no device, with docs/recipes/conformance.sh.

``python -m tests.recipe.published`` takes minutes and renews reports/published: the reports, and tables of them.
``--profile core`` with another folder does the same in seconds. The tables are made from the reports beside them, so
``--again`` can make them without a run. ``--page FOLDER`` makes the page too, which is not kept.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from conformance.reports.gate.admission import judge
from conformance.reports.loading import load
from conformance.reports.model import Report
from conformance.reports.page.columns import PublishedReport, ReportOrigin
from conformance.reports.page.publish import publish, write_tables
from conformance.reports.stack import with_fingerprint
from conformance.reports.views.packed import render as pack
from conformance.reports.waivers.file import read_waivers

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "docs" / "recipes" / "conformance.sh"
#: Agreed waivers of accelerators that have known failures, one file for each.
WAIVERS: Final = ROOT / "accelerators" / "waivers"
PUBLISHED: Final = ROOT / "reports" / "published"


@dataclass(frozen=True)
class Subject:
    """Accelerator in this repository's own CI. ``title`` is the title of its column on the page.

    ``path`` is added to PYTHONPATH; ``variables`` are environment variables of its stack.
    """

    name: str
    title: str
    path: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


SUBJECTS: Final = (
    Subject("cpu", "cpu"),
    Subject("sim", "sim"),
    # The title says that this is not the vendor's device. Four devices, because ranks of a vendor's stack do not share
    # one, and cases of comm have up to four ranks.
    Subject("supa", "supa stand-in", ROOT / "tests" / "standin", (("SUPA_DEVICES", "4"),)),
)


def run(subject: Subject, folder: Path, profile: str, options: list[str]) -> int:
    """Run the documented recipe, and return its exit status."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    more = {"PROFILE": profile, "REPORTS": str(folder / "reports"), "PAGE": str(folder / "page")}
    # The gate rejects waivers that match no case of the profile.
    if profile == "full":
        more["WAIVERS"] = str(WAIVERS / f"{subject.name}.toml")
    more.update(subject.variables)
    if subject.path:
        more["PYTHONPATH"] = str(subject.path)
    command = ["bash", str(SCRIPT), subject.name, *options]
    return subprocess.run(command, env={**found, **more}, cwd=folder, check=False).returncode


def keep(report: Report, subject: Subject, folder: Path) -> Path:
    """Write the report under the name of its accelerator, with the title of its column; return the path.

    The same report gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{subject.name}.json.gz"
    named = with_fingerprint(replace(report, accelerator=replace(report.accelerator, name=subject.title)))
    path.write_bytes(gzip.compress(pack(named).encode("utf-8", errors="replace"), 9, mtime=0))
    return path


def kept(runs: Path) -> list[PublishedReport]:
    """Return the kept reports, as runs of the maintainers."""
    return [judged(load(path), path.name.partition(".")[0]) for path in sorted(runs.glob("*.json.gz"))]


def judged(report: Report, name: str) -> PublishedReport:
    """Return the report with the gate's decision at the end of its run, so that the page has the same bytes later."""
    agreed = WAIVERS / f"{name}.toml"
    waivers = tuple(read_waivers(agreed)) if agreed.exists() and report.run.profile in (None, "full") else ()
    decision = judge(report, datetime.fromisoformat(report.run.finished), "", waivers)
    return PublishedReport(report, ReportOrigin.UPSTREAM, decision=decision)


def main() -> int:
    """Publish if the gate accepts all reports; return 1 if it does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PUBLISHED, help="where to write (default: reports/published)")
    parser.add_argument("--profile", default="full", help="run and judge by this profile (default: full)")
    parser.add_argument(
        "--accelerator", action="append", choices=[subject.name for subject in SUBJECTS], help="only these"
    )
    parser.add_argument(
        "--again", action="store_true", help="run nothing, and make the tables of the kept reports again"
    )
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="make the page of the reports, too")
    parser.add_argument("options", nargs="*", help="more options of pytest, after --")
    arguments = parser.parse_args()
    out, runs = arguments.out.absolute(), arguments.out.absolute() / "runs"
    if not arguments.again and not renew(runs, arguments):
        return 1
    reports = kept(runs)
    for path in (*write_tables(reports, out), *(publish(reports, arguments.page) if arguments.page else ())):
        print(path)
    return 0


def renew(runs: Path, arguments: argparse.Namespace) -> bool:
    """Run the recipe, and keep the reports if the gate accepts all of them; return whether it does.

    A rejected run keeps its own folder, which the message names.
    """
    chosen = [subject for subject in SUBJECTS if subject.name in (arguments.accelerator or [subject.name])]
    here = Path(tempfile.mkdtemp(prefix="conformance-published-"))
    options = [f"--profile={arguments.profile}", *arguments.options]
    rejected = [subject.name for subject in chosen if run(subject, here, arguments.profile, options)]
    if rejected:
        names = ", ".join(rejected)
        sys.stderr.write(f"nothing is published: the gate has not accepted {names}; see {here / 'reports'}\n")
        return False
    for subject in chosen:
        keep(load(here / "reports" / subject.name / "report.json"), subject, runs)
    shutil.rmtree(here)
    return True


if __name__ == "__main__":
    sys.exit(main())
