"""Runs, gates and publishes the accelerators that need no device, as docs/recipes/conformance.sh does in anybody's CI.

``python -m tests.recipe.published`` takes minutes and renews reports/published; ``--profile core`` with another folder
tries the same in seconds. What is written is made of the reports beside it, so that it can be made again from them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from conformance.reports.loading import load
from conformance.reports.model import Report
from conformance.reports.page.columns import PublishedReport, ReportOrigin
from conformance.reports.page.publish import publish
from conformance.reports.views.packed import render as pack

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "docs" / "recipes" / "conformance.sh"
PUBLISHED: Final = ROOT / "reports" / "published"


@dataclass(frozen=True)
class Subject:
    """An accelerator of this repository's own CI. ``title`` is its column's; ``path`` is what Python has to find.

    ``variables`` of the environment are for its stack.
    """

    name: str
    title: str
    path: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


SUBJECTS: Final = (
    Subject("cpu", "cpu"),
    Subject("sim", "sim"),
    # No device of this vendor was at hand: the column says so wherever it is seen. Four devices, because ranks of a
    # vendor's stack do not share one, and cases of comm have up to four.
    Subject("supa", "supa stand-in", ROOT / "tests" / "standin", (("SUPA_DEVICES", "4"),)),
)


def run(subject: Subject, folder: Path, profile: str, options: list[str]) -> int:
    """The recipe as it is documented; its status."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    more = {"PROFILE": profile, "REPORTS": str(folder / "reports"), "PAGE": str(folder / "page")}
    more.update(subject.variables)
    if subject.path:
        more["PYTHONPATH"] = str(subject.path)
    command = ["bash", str(SCRIPT), subject.name, *options]
    return subprocess.run(command, env={**found, **more}, cwd=folder, check=False).returncode


def keep(report: Report, subject: Subject, folder: Path) -> Path:
    """Write the report under the name of its column; the same bytes for the same report."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{subject.name}.json.gz"
    named = replace(report, accelerator=replace(report.accelerator, name=subject.title))
    path.write_bytes(gzip.compress(pack(named).encode("utf-8", errors="replace"), 9, mtime=0))
    return path


def write_page(folder: Path, runs: Path) -> tuple[Path, ...]:
    """The page of the kept reports: the maintainers' own runs."""
    return publish(
        [PublishedReport(load(path), ReportOrigin.UPSTREAM) for path in sorted(runs.glob("*.json.gz"))], folder
    )


def main() -> int:
    """Publish if the gate accepts all of them; 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PUBLISHED, help="where to write (default: reports/published)")
    parser.add_argument("--profile", default="full", help="run and judge by this profile (default: full)")
    parser.add_argument("--accelerator", action="append", choices=[one.name for one in SUBJECTS], help="only these")
    parser.add_argument(
        "--again", action="store_true", help="run nothing: only make the page of the kept reports again"
    )
    parser.add_argument("options", nargs="*", help="more options of pytest, after --")
    arguments = parser.parse_args()
    out, runs = arguments.out.absolute(), arguments.out.absolute() / "runs"
    if not arguments.again and not renew(runs, arguments):
        return 1
    for path in write_page(out, runs):
        print(path)
    return 0


def renew(runs: Path, arguments: argparse.Namespace) -> bool:
    """Run the recipe, and keep the reports if the gate accepts all of them."""
    chosen = [one for one in SUBJECTS if not arguments.accelerator or one.name in arguments.accelerator]
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        options = [f"--profile={arguments.profile}", *arguments.options]
        rejected = [one.name for one in chosen if run(one, here, arguments.profile, options)]
        if rejected:
            sys.stderr.write(f"nothing is published: the gate has not accepted {', '.join(rejected)}\n")
            return False
        for one in chosen:
            keep(load(here / "reports" / one.name / "report.json"), one, runs)
    return True


if __name__ == "__main__":
    sys.exit(main())
