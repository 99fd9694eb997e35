"""Line coverage of the product's code outside the suites by the tests: ``python -m tests.line_coverage [WORDS]``.

It runs the tests that ``tox run -e tests`` runs, with their child processes, and prints the share of each package. The
exit status is 1 if a test fails or the whole share is below ``LEAST``. Words are further words of pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
ROOMS = ("conformance", "accelerators", "kernels", "reports")
#: Cases judge devices; tests/defects and tests/faults measure what they detect.
LEFT_OUT = "conformance/suites/*"
LEAST = 85.0
CONFIGURATION = """
[run]
branch = false
parallel = true
data_file = {folder}/data
source = {sources}
omit = {root}/{left_out}
patch =
    subprocess
    fork
    _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""


def measured(folder: Path, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Run the tests; return pytest's exit status and what coverage found, by file."""
    file = folder / "coveragerc"
    sources = ",".join(str(ROOT / room) for room in ROOMS)
    file.write_text(CONFIGURATION.format(folder=folder, sources=sources, root=ROOT, left_out=LEFT_OUT))
    coverage = [sys.executable, "-m", "coverage"]
    tests = [
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "-m",
        "not long",
        *(words or [str(ROOT / "tests")]),
    ]
    status = subprocess.run([*coverage, "run", f"--rcfile={file}", *tests], cwd=folder, check=False).returncode
    for command in (["combine", "--quiet"], ["json", "--quiet", "-o", str(folder / "found.json")]):
        subprocess.run([*coverage, command[0], f"--rcfile={file}", *command[1:]], cwd=folder, check=True)
    return status, json.loads((folder / "found.json").read_text())["files"]


def by_package(files: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the lines that ran and all lines of each package of the rooms."""
    ran: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for name, found in files.items():
        path = Path(name)
        inside = path.relative_to(ROOT) if path.is_absolute() else path
        package = "/".join(inside.parts[: 2 if len(inside.parts) > 2 else 1])
        ran[package] += found["summary"]["covered_lines"]
        every[package] += found["summary"]["num_statements"]
    return [(package, ran[package], every[package]) for package in sorted(every)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 for a test that fails or a share that is too small."""
    with tempfile.TemporaryDirectory() as folder:
        status, files = measured(Path(folder), sys.argv[1:] if arguments is None else arguments)
    rows = by_package(files)
    rows.append(("all", sum(ran for _, ran, _ in rows), sum(every for *_, every in rows)))
    table = [(package, every, f"{100 * ran / every:.1f} %") for package, ran, every in rows if every]
    print(tabulate(table, headers=("package", "lines", "covered"), tablefmt="github"))
    never = sorted(name.removeprefix(f"{ROOT}/") for name, found in files.items() if _ran_never(found["summary"]))
    print("no line ran: " + (", ".join(never) or "none"))
    _, ran, every = rows[-1]
    return int(status != 0 or 100 * ran < LEAST * every)


def _ran_never(summary: dict[str, int]) -> bool:
    return summary["num_statements"] > 0 == summary["covered_lines"]


if __name__ == "__main__":
    sys.exit(main())
