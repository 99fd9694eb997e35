"""Runs the suite on backends of other people, and prints failures, their distinct causes and a sample to judge.

    python -m tests.strangers.run                     # all, in conformance-report/strangers
    python -m tests.strangers.run rgpu torchvulkan    # some

The sample is drawn with a fixed seed. Somebody reads its failures and writes a line for each into
``judged.toml``: whose fault it is. ``docs/detection.md`` has the shares.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib
from tabulate import tabulate

from tests.strangers.backends import BACKENDS, HERE, Backend, NotHere

#: Each run has options of its own and a time limit of its own, in seconds.
RUNS = {
    "interface": (["--area", "accelerator", "--area", "capabilities", "--area", "linear", "--area", "v1"], 900),
    "operators": (["--area", "operators", "--dtype", "float32"], 1500),
    "workloads": (["--area", "workloads", "--dtype", "float32"], 600),
}
SAMPLE, SEED = 100, 14
#: Exit statuses of runs that came to their end, without and with failures.
ENDED = (0, 1)


@dataclass
class Found:
    """What the runs on one backend found."""

    backend: str
    note: str = ""
    cases: int = 0
    cut: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def causes(self) -> dict[str, list[str]]:
        """Return the ids of the failures by their message, with numbers and shapes left out."""
        causes: dict[str, list[str]] = defaultdict(list)
        for failure in self.failures:
            causes[f"{failure['reason']}: {cause_of(failure['message'])}"].append(failure["id"])
        return dict(sorted(causes.items(), key=lambda item: -len(item[1])))

    def sample(self) -> list[dict[str, Any]]:
        """Return the failures to be judged: all, or as many as ``SAMPLE``, drawn with a fixed seed."""
        ordered = sorted(self.failures, key=lambda failure: failure["id"])
        return ordered if len(ordered) <= SAMPLE else random.Random(SEED).sample(ordered, SAMPLE)


def cause_of(message: str) -> str:
    """Return the first line of a message without the numbers, so that equal causes have equal texts.

    >>> cause_of("sample 3 (shape (2, 5)): 7/10 elements differ, worst 1.5e-07 at [0, 3]")
    'sample: N/N elements differ, worst N at [N]'
    """
    line = message.split("\n", 1)[0]
    line = re.sub(r"sample \d+ \(shape.*?\)(?=[:,] ?[a-z\d])", "sample", line)
    line = re.sub(r"-?\d[\d.]*(e[+-]?\d+)?", "N", line)
    return re.sub(r"N(, N)+,?", "N", line)[:160]


def run(backend: Backend, out: Path, names: Sequence[str] = tuple(RUNS)) -> Found:
    """Install one backend, run the areas, and read the reports."""
    found = Found(backend.name)
    try:
        environment = backend.install(out / "packages" / backend.name)
        with backend.serving(environment):
            for name in names:
                options, limit = RUNS[name]
                sampled = _sampled(backend, options, out) if name == "operators" else []
                _run_areas(found, backend, name, [*options, *sampled], limit, environment, out)
    except NotHere as reason:
        found.note = str(reason)
    return found


def _sampled(backend: Backend, options: list[str], out: Path) -> list[str]:
    """Return the option that selects a seeded sample of the operator cells, or none if the backend runs all."""
    if backend.cells is None:
        return []
    listed = subprocess.run(["conformance", "list", *options], capture_output=True, text=True, check=True)
    chosen = sorted(random.Random(SEED).sample(sorted(listed.stdout.split()), backend.cells))
    file = out / backend.name / "cells.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(chosen))
    return [f"--case-file={file}"]


def _run_areas(
    found: Found, backend: Backend, name: str, options: list[str], limit: int, environment: dict[str, str], out: Path
) -> None:
    folder = out / backend.name / name
    words = [
        *(sys.executable, "-m", "pytest", "-q", "-n1", f"--accelerator={backend.accelerator}"),
        *("-p", "no:cacheprovider", f"--conformance-report={folder}", *options),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    # A project of its own: the settings of this checkout turn warnings of other people's packages into errors.
    (folder / "pytest.ini").write_text("[pytest]\n")
    with (folder / "output.txt").open("w") as output:
        try:
            ran = subprocess.run(
                words, env=environment, cwd=folder, stdout=output, stderr=output, timeout=limit, check=False
            )
            if ran.returncode not in ENDED:
                found.cut.append(f"{name} with exit status {ran.returncode}: see {folder / 'output.txt'}")
        except subprocess.TimeoutExpired:
            found.cut.append(f"{name} after {limit} s")
    for journal in folder.glob("*/journal.jsonl"):
        _read(found, journal)


def _read(found: Found, journal: Path) -> None:
    ends = {}
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("kind") == "end":
            ends[entry["id"]] = entry
    found.cases += len(ends)
    found.failures += [entry for entry in ends.values() if entry["outcome"] == "fail"]


def judged() -> dict[str, dict[str, str]]:
    """Return whose fault each judged failure is: "device" or "suite", by backend and id."""
    path = HERE / "judged.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def table(all_found: list[Found]) -> str:
    """Return the table for docs/detection.md."""
    rows = []
    for found in all_found:
        if found.note:
            rows.append([found.backend, "not run", "–", "–", "–", found.note])
            continue
        known = judged().get(found.backend, {})
        sample = [known[failure["id"]] for failure in found.sample() if failure["id"] in known]
        false = sum(verdict == "suite" for verdict in sample)
        share = f"{false / len(sample):.0%}" if sample else ("0%" if not found.failures else "–")
        rows.append([found.backend, len(found.failures), len(found.causes()), len(sample), share, _cases(found)])
    headers = ["backend", "failures", "distinct causes", "sampled and judged", "false", "cases"]
    return tabulate(rows, headers, tablefmt="github")


def _cases(found: Found) -> str:
    return f"{found.cases}{'; cut off: ' + ', '.join(found.cut) if found.cut else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help="names; default: all")
    parser.add_argument("--only", action="append", choices=RUNS, help="only this run of each backend; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("conformance-report/strangers"))
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    chosen = [one for one in BACKENDS if not arguments.backends or one.name in arguments.backends]
    all_found = []
    for backend in chosen:
        found = run(backend, out, arguments.only or tuple(RUNS))
        all_found.append(found)
        _write(found, out)
        print(f"\n{backend.name}: {found.note or f'{len(found.failures)} failures in {_cases(found)} cases'}")
        for cause, ids in list(found.causes().items())[:15]:
            print(f"  {len(ids):4d}  {cause}  ({ids[0]})")
    print(f"\n{table(all_found)}")
    return 0


def _write(found: Found, out: Path) -> None:
    folder = out / found.backend
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "causes.json").write_text(json.dumps(found.causes(), indent=1))
    chosen = [{key: failure[key] for key in ("id", "reason", "message")} for failure in found.sample()]
    (folder / "sample.json").write_text(json.dumps(chosen, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
