"""Table of planted faults that only a model shows: ``python -m tests.workload_faults``.

Plants every fault of tests/suites/test_family_faults.py and of tests/parallel_faults. Prints how many faults a workload
case kills, and for how many faults of a layer the message names that layer. DeepSpeed's faults need DeepSpeed.
The exit status is 1 if a fault survives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: Least number of faults, and share of faults of a layer whose layer the message has to name.
FEWEST, NAMED = 60, 0.9


class Count:
    """Plugin that reads what the tests of faults have recorded."""

    def __init__(self) -> None:
        self.planted: dict[str, bool] = {}
        self.layers: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result of a test that plants a fault."""
        said: dict[str, Any] = dict(report.user_properties)
        if report.when != "call" or "fault" not in said:
            return
        self.planted[said["fault"]] = report.passed or bool(said.get("killed"))
        if "layer" in said:
            self.layers[said["fault"]] = report.passed


def main() -> int:
    """Print the table and return the exit status."""
    count = Count()
    tests = str(ROOT / "tests" / "suites" / "test_family_faults.py")
    pytest.main([tests, "-q", "-n0", "-p", "no:randomly", "--no-header", "--no-summary"], plugins=[count])
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.parallel_faults.run"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    ranks = json.loads(finished.stdout)
    planted = {**count.planted, **{name: name in ranks["killed"] for name in ranks["faults"]}}
    print(report(planted, count.layers))
    return int(not is_enough(planted, count.layers))


def is_enough(planted: dict[str, bool], layers: dict[str, bool]) -> bool:
    """Tell whether enough faults were planted, all are killed, and enough layers are named."""
    return len(planted) >= FEWEST and all(planted.values()) and sum(layers.values()) >= NAMED * len(layers)


def report(planted: dict[str, bool], layers: dict[str, bool]) -> str:
    """Return the table."""
    rows = [
        ("planted faults", len(planted), ""),
        ("killed by a workload case", sum(planted.values()), f"{sum(planted.values()) / len(planted):.0%}"),
        ("faults of one layer", len(layers), ""),
        ("whose layer the message names", sum(layers.values()), f"{sum(layers.values()) / len(layers):.0%}"),
    ]
    survivors = [f"survives: {name}" for name, killed in planted.items() if not killed]
    unnamed = [f"another layer is named: {name}" for name, named in layers.items() if not named]
    return "\n".join([*(f"{name:32}{number:5}  {share}" for name, number, share in rows), *survivors, *unnamed])


if __name__ == "__main__":
    raise SystemExit(main())
