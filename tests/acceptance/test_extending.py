"""Extending the project: each kind of addition touches the files that CONTRIBUTING lists, and then works.

The rooms are copied into a folder as a wheel lays them out. Toy additions write their files there, and nothing else.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"accelerators": "conformance/accelerators", "kernels": "conformance/kernels", "reports": "conformance/reports"}
BACKEND = """\
from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import TORCH_BASE, dtypes
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

TOY = TorchAccelerator(
    name="toy", vendor="Toys", module="torch.cpu", device_type="cpu",
    is_host=True, synchronized=True, host_timers=True, ordered=True, backpressure=True,
    streams=False, events=False, pins=False, memory=ProcessMemory(), randomness=HostGenerator(),
    capabilities=TORCH_BASE | dtypes("float32", "int64", "bool"),
)
"""
AREA = """\
from conformance.accelerators.capabilities import DEVICE
from conformance.plan.case import case
from conformance.judging.finding import report
from conformance.reports.verdict import Reason


@case("toy.sum", requires=[DEVICE], axes={"n": ("1", "2")})
def test_sum(check, device, n):
    \"\"\"Ones add up to their number.\"\"\"
    import torch

    check.equal(float(torch.ones(int(n), device=device).sum()), float(n), "the sum")


@case("toy.reason", requires=[DEVICE])
def test_reason():
    \"\"\"A case can fail for a new reason.\"\"\"
    report(Reason.TOYED, "on purpose")
"""
RULE = """\
from conformance.reports.gate.finding import Rule, reject


def check_toys(evidence):
    toys = [case.id for case in evidence.report.cases if case.area == "toy"]
    if toys:
        yield reject("G99", f"{len(toys)} toys are in the report.", toys)


RULES = (Rule("G99", requirement="A report has no toys.", why="Toys are not for work.", fix="Leave them out.",
              check=check_toys),)
"""
COMMAND = """\
SUMMARY = "Say that toys work."


def add_arguments(parser):
    parser.add_argument("--loud", action="store_true", help="in capitals")


def run(arguments):
    print("TOYS WORK" if arguments.loud else "toys work")
    return 0
"""
REASON = """\
    TOYED = (
        "toyed",
        ReasonFacts(_FAIL, "A toy was found where a device is due.", "Take the toy out."),
    )

"""
VIEW = """\
SUMMARY = "the number of cases"


def render(report, width):
    return f"{len(report.cases)} cases, {width} columns\\n"
"""
KERNEL = """\
import torch

from conformance.accelerators.capabilities import Mode
from conformance.kernels.specification import ErrorBudget, Expected, KernelSample, KernelSpecification


def double(tensor):
    return tensor + tensor


def _sample(generator, dtype):
    return {"tensor": torch.randn(33, generator=generator, dtype=dtype)}


SPECIFICATIONS = (
    KernelSpecification(
        name="toy_double", builder="ToyBuilder", mode=Mode.INFERENCE, dtypes=("float32",),
        budget=ErrorBudget(rounding=0.0, conditioning=0.0, source="doubling is exact"),
        samples=(KernelSample("33", _sample),), reference=double, validate=lambda given: None,
        oracle=lambda given: {"result": Expected(2 * given["tensor"].double())},
    ),
)
"""


@dataclass(frozen=True)
class Addition:
    """Files that one addition writes, by their paths in a checkout. A text with a marker is inserted before it."""

    files: dict[str, str]
    before: str = ""


ADDITIONS = {
    "backend": Addition({"accelerators/backends/toy.py": BACKEND}),
    "area": Addition(
        {"conformance/suites/toy/__init__.py": '"""Toys."""\n', "conformance/suites/toy/test_toy.py": AREA}
    ),
    "gate rule": Addition({"reports/gate/rules/toy.py": RULE}),
    "command": Addition({"conformance/cli/toy.py": COMMAND}),
    "reason": Addition({"reports/verdict.py": REASON}, before="    STUB = (\n"),
    "view": Addition({"reports/views/toys.py": VIEW}),
    "kernel": Addition({"kernels/specifications/toy.py": KERNEL}),
}


@dataclass(frozen=True)
class Extended:
    """The project with all additions, and a folder in which it runs."""

    site: Path
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{self.site}{os.pathsep}{ROOT}", "COLUMNS": "120"}
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def conformance(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("conformance.cli.main", *words)


def installed(path: str) -> str:
    """Return where a wheel puts a file of the checkout."""
    room, _, inside = path.partition("/")
    return f"{ROOMS[room]}/{inside}" if room in ROOMS else path


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Extended:
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("run")
    ignore = shutil.ignore_patterns("__pycache__", "published")
    shutil.copytree(ROOT / "conformance", site / "conformance", ignore=ignore)
    for room, place in ROOMS.items():
        shutil.copytree(ROOT / room, site / place, ignore=ignore)
    for addition in ADDITIONS.values():
        for path, text in addition.files.items():
            file = site / installed(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            if addition.before:
                old = file.read_text(encoding="utf-8")
                assert addition.before in old
                text = old.replace(addition.before, text + addition.before, 1)
            file.write_text(text, encoding="utf-8")
    project = Extended(site, folder)
    cases = ("--case=toy.*", "--case=ops.toy_double*", "--case=accelerator.device.*")
    done = project.run("pytest", "--accelerator=toy", *cases, "-n0", "-p", "no:randomly", "-q")
    assert done.returncode == 1, done.stdout + done.stderr  # one case fails on purpose
    return project


@functools.cache
def verdicts(project: Extended) -> dict[str, tuple[str, str]]:
    done = project.conformance("report", "conformance-report/toy", "--format", "json")
    cases = json.loads(done.stdout)["cases"]
    # A report leaves out what is usual: the outcome pass, and the reason native.
    return {case["id"]: (case.get("outcome", "pass"), case.get("reason", "native")) for case in cases}


def test_a_new_backend_runs(extended: Extended) -> None:
    device = {id: verdict for id, verdict in verdicts(extended).items() if id.startswith("accelerator.device.")}

    assert device
    assert all(verdict[0] in ("pass", "skip") for verdict in device.values()), device
    assert ("pass", "native") in device.values()


def test_a_new_area_is_planned_and_runs(extended: Extended) -> None:
    found = verdicts(extended)

    assert {id: found[id] for id in ("toy.sum[1]", "toy.sum[2]")} == dict.fromkeys(
        ("toy.sum[1]", "toy.sum[2]"), ("pass", "native")
    )
    assert "toy.sum[1]" in extended.conformance("list", "--area", "toy").stdout


def test_a_new_reason_is_a_verdict_and_explains_itself(extended: Extended) -> None:
    assert verdicts(extended)["toy.reason"] == ("fail", "toyed")
    table = extended.run("tests.docs.explained").stdout
    assert "| fail | `toyed` | A toy was found where a device is due. | Take the toy out. |" in table


def test_a_new_kernel_is_specified_and_judged(extended: Extended) -> None:
    kernel = {id: verdict for id, verdict in verdicts(extended).items() if id.startswith("ops.toy_double")}

    assert kernel
    assert "fail" not in {outcome for outcome, _ in kernel.values()}, kernel


def test_a_new_command_is_listed_and_runs(extended: Extended) -> None:
    assert extended.conformance("toy", "--loud").stdout == "TOYS WORK\n"
    assert "Say that toys work." in extended.conformance("--help").stdout


def test_a_new_view_is_a_format(extended: Extended) -> None:
    done = extended.conformance("report", "conformance-report/toy", "--format", "toys")

    assert re.fullmatch(r"\d+ cases, \d+ columns\n", done.stdout), done.stdout + done.stderr


@pytest.mark.long
def test_a_new_gate_rule_judges_and_explains_itself(extended: Extended) -> None:
    released = extended.conformance("manifest", "--release")
    assert released.returncode == 0, released.stderr

    done = extended.conformance("gate", "conformance-report/toy/report.json", "--profile", "core")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "G99" in done.stdout
    assert "3 toys are in the report." in done.stdout
    assert "A report has no toys." in extended.conformance("gate", "--explain", "G99").stdout


def test_contributing_lists_these_files() -> None:
    """The table in CONTRIBUTING names each kind of addition, and the folder or file of every path written here."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| *([a-z][a-z ]+?) *\| *(.+?) *\|", text, flags=re.MULTILINE))

    for kind, addition in ADDITIONS.items():
        row = next((cells for name, cells in rows.items() if name.startswith(kind)), None)
        assert row is not None, f"CONTRIBUTING has no row for {kind}: {sorted(rows)}"
        for path in addition.files:
            assert path.rpartition("/")[0].removesuffix("/toy") in row or path in row, f"{kind}: {path} is not in {row}"
