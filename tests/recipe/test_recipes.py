"""The recipes for CI name existing options, and the script ends with the right status for every end of a run."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.main import main
from conformance.reports.page.publish import publish, write_tables
from tests.docs.pages import DOCS, text
from tests.docs.test_references import OTHERS, OURS, of_commands
from tests.recipe.published import PUBLISHED, SCRIPT, kept, renew

WORKFLOW = DOCS / "recipes" / "conformance.yml"
#: Double of pytest and of the command: it records its arguments and ends with the given status.
DOUBLE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$(basename "$0") $1" in
  pytest*) mkdir -p conformance-report/acme; exit "$RAN" ;;
  "conformance gate") while [ "$1" != -o ]; do shift; done; echo judged > "$2"; exit "$JUDGED" ;;
esac
"""


def recipe(folder: Path, ran: int = 0, judged: int = 0, *words: str, **more: str) -> tuple[int, list[str]]:
    """Run the script with doubles for the programs that it calls; return its status and the calls."""
    for name in ("pytest", "conformance"):
        (folder / name).write_text(DOUBLE)
        (folder / name).chmod(0o755)
    told = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LOG": str(folder / "log"),
        "RAN": str(ran),
        "JUDGED": str(judged),
    }
    done = subprocess.run(["bash", str(SCRIPT), "acme", *words], cwd=folder, env={**told, **more}, capture_output=True)
    return done.returncode, (folder / "log").read_text().splitlines()


def test_it_runs_gates_and_publishes(tmp_path: Path) -> None:
    report = "conformance-report/acme"

    status, calls = recipe(tmp_path, 0, 0, "-n4", GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))

    assert status == 0
    assert calls == [
        "pytest --accelerator=acme --conformance-report=conformance-report -n4",
        f"conformance gate {report}/report.json --profile training --format markdown -o {report}/gate.md",
        "conformance publish conformance-report/acme/ -o conformance-page",
    ]
    assert (tmp_path / "summary").read_text() == "judged\n"


def test_what_was_accepted_and_what_was_agreed_to_is_held_against_the_report(tmp_path: Path) -> None:
    (tmp_path / "waivers").mkdir()
    (tmp_path / "waivers" / "acme.toml").write_text("")
    (tmp_path / "accepted.json").write_text("{}")

    _, (run, gate, _) = recipe(tmp_path, PROFILE="core")

    assert "--waivers waivers/acme.toml" in run
    assert "--profile core --waivers waivers/acme.toml --baseline accepted.json" in gate


@pytest.mark.parametrize(
    ("ran", "judged", "status", "calls"),
    [(1, 0, 0, 3), (1, 1, 1, 3), (0, 2, 2, 3), (2, 0, 2, 1), (4, 0, 4, 1), (5, 0, 5, 1), (6, 0, 6, 1)],
)
def test_the_gate_decides_wherever_there_is_something_to_judge(
    tmp_path: Path, ran: int, judged: int, status: int, calls: int
) -> None:
    found, seen = recipe(tmp_path, ran, judged)

    assert (found, len(seen)) == (status, calls)


def test_options_of_the_recipes_exist() -> None:
    for file in (SCRIPT, WORKFLOW):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text(file)))
        assert named <= OURS | OTHERS | of_commands(), file.name


def test_the_workflow_is_one_and_calls_the_script() -> None:
    yaml = pytest.importorskip("yaml")

    workflow: dict[Any, Any] = yaml.safe_load(text(WORKFLOW))

    jobs = workflow["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert set(jobs) == {"conformance", "pages"}
    assert {"push", "pull_request", "schedule"} == set(workflow[True])  # YAML reads the word "on" as a truth value
    assert any("bash conformance.sh" in command for command in commands)
    assert all("uses" in step or "run" in step for job in jobs.values() for step in job["steps"])
    assert workflow["permissions"] == {"contents": "read"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_published_is_small_and_made_of_the_reports_beside_it(tmp_path: Path) -> None:
    write_tables(kept(PUBLISHED / "runs"), tmp_path)

    made, there = contents(tmp_path), contents(PUBLISHED)
    stale = [name for name, data in made.items() if there.get(name) != data]
    assert stale == [], "run: python -m tests.recipe.published --again"
    assert {"matrix.md", "matrix.json", "operators.md"} <= made.keys()
    assert {name for name in there if name.partition("/")[0] not in ("runs", "device")} == made.keys(), (
        "the page is not kept"
    )
    assert sum(map(len, there.values())) < 1_500_000


def test_the_page_of_the_kept_reports_is_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = re.findall(
        r"^    conformance (publish reports/published/runs.*) -o page", text(DOCS / "ci.md"), re.MULTILINE
    )
    runs = sorted(map(str, (PUBLISHED / "runs").glob("*.json.gz")))

    assert words == "publish reports/published/runs/*.json.gz"
    assert main(["publish", *runs, "-o", str(tmp_path)]) == 0
    assert "supa stand-in" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "3 accelerators, 3 runs" in capsys.readouterr().out


def test_a_rejected_run_keeps_its_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-n0", "--case=accelerator.device.count"]

    accepted = renew(tmp_path / "runs", argparse.Namespace(accelerator=["cpu"], profile="core", options=options))

    assert not accepted
    reports = Path(capsys.readouterr().err.rpartition("see ")[2].strip())
    assert (reports / "cpu" / "report.json").is_file()
    assert not (tmp_path / "runs").exists()
    shutil.rmtree(reports.parent)


@pytest.mark.long
@pytest.mark.parametrize(("accelerators", "titles"), [(["cpu"], ["cpu"]), (None, ["cpu", "sim", "supa stand-in"])])
def test_this_repository_goes_through_its_own_recipe(
    accelerators: list[str] | None, titles: list[str], tmp_path: Path
) -> None:
    """The gate accepts the mandatory core of the CPU, the simulated accelerator and the stand-in."""
    runs = tmp_path / "runs"

    accepted = renew(runs, argparse.Namespace(accelerator=accelerators, profile="core", options=["-n0"]))

    assert accepted, "the gate rejects an accelerator of this repository"
    page = {path.name: path for path in publish(kept(runs), tmp_path)}
    columns = json.loads(page["matrix.json"].read_text(encoding="utf-8"))["accelerators"]
    assert [column["name"] for column in columns] == titles
