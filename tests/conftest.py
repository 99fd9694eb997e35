"""What all tests of a process share: the part that runs, the order, and the simulated device."""

from __future__ import annotations

import functools
import importlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

#: Folders with tests that use the simulated device in their own process.
ON_THE_DEVICE = {"simulated", "suites"}
#: Files that take longest, in folders of ``tests``. They run first: at the end, one worker would wait for another.
LONGEST = (
    "suites/test_unlike_the_cpu.py", "blame/test_blame.py", "calls/test_calls.py", "acceptance/test_report_folder.py",
    "acceptance/test_lies.py", "acceptance/test_standin.py", "reports/test_hostile.py",
    "suites/test_fallback_detects.py", "acceptance/test_pytest_habits.py", "acceptance/test_bad_input.py",
    "upstream/test_running.py", "acceptance/test_last_call.py", "recipe/test_recipes.py", "defects/test_defects.py",
    "faults/test_faults.py", "acceptance/test_interrupts.py", "suites/test_scripts.py", "strangers/test_heron.py",
    "exact/test_exact_device.py", "acceptance/test_mistakes.py", "cli/test_coverage.py", "acceptance/test_waivers.py",
    "acceptance/test_like_cuda.py", "acceptance/test_chaos.py", "ranks/test_kills.py", "cli/test_doctor.py",
    "simulated/test_starting.py", "acceptance/test_death_watcher.py", "acceptance/test_second_chance.py",
    "exact/test_right_formulas.py", "suites/test_workloads_red.py", "acceptance/test_truth.py",
)  # fmt: skip
#: Tests that are long because they are dear, and the seconds of each, as ``python -m tests.layers`` has chosen them.
DEAR = Path(__file__).with_name("dear.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for a part of the tests, and for their seconds."""
    parser.addoption("--part", metavar="K/N", help="every N-th of the chosen tests, from the K-th: parts are disjoint")
    parser.addoption("--turn", metavar="K/N", help="the same for those of them that repeat another with other values")
    parser.addoption("--seconds", metavar="FILE", help="write the seconds of each test; see tests/layers.py")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that take turns, and what measures tests."""
    config.addinivalue_line("markers", "repeats: does with other values what another long test does; see --turn")
    if config.getoption("--seconds"):
        config.pluginmanager.register(Seconds(config))


@functools.cache
def dear() -> frozenset[str]:
    """Return the tests that are long because they are dear."""
    return frozenset(json.loads(DEAR.read_text(encoding="utf-8"))) if DEAR.exists() else frozenset()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a dear test as long."""
    if name_of(item.path, item.nodeid) in dear():
        item.add_marker(pytest.mark.long)


def name_of(path: Path, nodeid: str) -> str:
    """Return a test's name that does not depend on where pytest was started."""
    home = DEAR.parent
    file = path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name
    return f"{file}::{nodeid.partition('::')[2]}"


class Seconds:
    """What the tests take, each with the run that it shares. Workers send the names with their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = Path(config.getoption("--seconds")) if not hasattr(config, "workerinput") else None
        self._found: dict[str, tuple[float, str]] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        item.user_properties.append(("test", (name_of(item.path, item.nodeid), run_of(item))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, shared = dict(report.user_properties).get("test", (report.nodeid, ""))  # type: ignore[misc]
        self._found[name] = (self._found.get(name, (0.0, ""))[0] + report.duration, shared)

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            self._file.write_text(json.dumps(self._found, indent=1) + "\n", encoding="utf-8")


class RunsTogether(LoadScopeScheduling):
    """Scheduling of ``--dist loadgroup``: a file whose fixtures make a run stays in a process, other tests do not."""

    def _split_scope(self, nodeid: str) -> str:
        return kept_together(self.config.rootpath, nodeid)


def kept_together(root: Path, nodeid: str) -> str:
    """Return what one process runs: the test's file if that has fixtures of its module, or else the test."""
    file = nodeid.partition("::")[0]
    return file if 'scope="module"' in (root / file).read_text(encoding="utf-8") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return our own scheduling: with pytest 9.2, that of xdist 3.8 does not know the groups."""
    return RunsTogether(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one part, and put the tests of the longest files first, after pytest-randomly has drawn an order."""
    kept = sorted(items, key=lambda item: item.nodeid)
    if turn := config.getoption("--turn"):
        having_turn = part_of([item for item in kept if item.get_closest_marker("repeats")], turn)
        kept = [item for item in kept if item in having_turn or not item.get_closest_marker("repeats")]
    if part := config.getoption("--part"):
        kept = part_of(kept, part, lambda item: run_of(item) or item)
    if left := set(items) - set(kept):
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(order)))


def part_of(
    items: list[pytest.Item], part: str, together: Callable[[pytest.Item], object] = lambda item: item
) -> list[pytest.Item]:
    """Return the part K/N of the items: neighbours are alike, so that each part has some of every kind.

    Items for which ``together`` returns the same are in the same part.
    """
    number, _, count = part.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part {part}: expected K/N, such as 1/5")
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(together(item), []).append(item)
    return [item for group in list(groups.values())[int(number) - 1 :: int(count)] for item in group]


def run_of(item: pytest.Item) -> str:
    """Return a name for the run that a test shares with others of its file, or "". Fixtures of the module make it."""
    known: dict[str, Any] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest has no public name
    wide = sorted(name for name, found in known.items() if found[-1].scope == "module")
    given: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    shared = repr([(name, given.get(name)) for name in wide])
    return f"{item.path.stem}-{zlib.crc32(shared.encode()):x}" if wide else ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the random numbers of a test by its name: they would else depend on the tests before it."""
    torch.default_generator.manual_seed(zlib.crc32(name_of(item.path, item.nodeid).encode()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Register the simulated device before any test runs a backward pass: autograd counts devices once a process."""
    if any(item.path.parent.name in ON_THE_DEVICE for item in session.items):
        importlib.import_module("conformance.accelerators.simulated.torch_sim")
