"""Pytest plugin that runs the collected tests once per mutant: ``-p mutating``, with this folder on PYTHONPATH.

Collecting a peer's suite may take minutes, so it happens once. Each mutant gets a fork of the process, which arms the
mutant's fault and runs the tests up to the first failure. Before that, a fork without a fault runs all tests twice; a
test that fails there does not count for any mutant. The environment variable MUTANTS_FILE names the JSON file of the
result: for each mutant, the tests that detected it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

#: Timeout in seconds for all tests of a mutant. A fork that takes longer hangs, which counts as detected.
DEADLINE = 240
HEALTHY = "healthy"
DIED = "the process ended"
DTYPES = re.compile(r"-torch\.(?:float32|bfloat16|int64)\]$")


class Failures:
    """Recorder of the ids of failed tests."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.ids.add(report.nodeid)


class Mutating:
    """Plugin object that selects the tests and runs them once per mutant."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep three dtypes of the tests that PyTorch's operator database generates."""
        items[:] = [item for item in items if "opinfo/" not in item.nodeid or DTYPES.search(item.nodeid)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from tests.defects.catalogue import MUTANTS
        from tests.defects.mutant import How

        names = os.environ.get("MUTANTS_NAMES", "").splitlines()
        chosen = [mutant for mutant in MUTANTS if mutant.how is How.FORK and (not names or mutant.name in names)]
        healthy = _in_copy(session, None, set())
        found: dict[str, list[str]] = {HEALTHY: healthy}
        for mutant in chosen:
            found[mutant.name] = _in_copy(session, mutant, set(healthy))
            sys.stderr.write(f"{mutant.name}: {found[mutant.name] or 'not detected'}\n")
            Path(os.environ["MUTANTS_FILE"]).write_text(json.dumps(found), encoding="utf-8")
        return True


def _in_copy(session: pytest.Session, mutant: Any, known: set[str]) -> list[str]:
    """Return the ids of failed tests without the known ones, and ``DIED`` if the fork died or hung."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        child = os.fork()
        if child == 0:
            _run(session, mutant, known, Path(file.name))
        _, status = os.waitpid(child, 0)
        text = file.read()
    return [*(json.loads(text) if text else []), *([DIED] if status else [])]


def _run(session: pytest.Session, mutant: Any, known: set[str], file: Path) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE)
    status = 1
    try:
        from tests.defects.faults import armed

        failures = Failures()
        session.config.pluginmanager.register(failures)
        with armed(mutant.fault) if mutant else nullcontext():
            for item, following in _pairs(session.items, 1 if mutant else 2):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if mutant and failures.ids - known:
                    break
        file.write_text(json.dumps(sorted(failures.ids - known)), encoding="utf-8")
        status = 0
    finally:
        os._exit(status)


def _pairs(items: list[pytest.Item], times: int) -> list[tuple[pytest.Item, pytest.Item | None]]:
    """Return each test with its successor, which pytest needs, ``times`` times."""
    return list(zip(items, [*items[1:], None], strict=True)) * times


def pytest_configure(config: pytest.Config) -> None:
    _keep_operators(set(os.environ.get("MUTANTS_OPERATORS", "").split()))
    config.pluginmanager.register(Mutating(), "mutating-itself")


def _keep_operators(names: set[str]) -> None:
    """Remove all other operators from PyTorch's database, because TorchCTS makes samples of each while it collects."""
    from torch.testing._internal import common_methods_invocations, common_utils
    from torch.testing._internal.opinfo import core

    # The database looks for the calling test on the stack at every sample, which takes longer than the sample.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None  # type: ignore[attr-defined]
    operators = common_methods_invocations.op_db
    operators[:] = [operator for operator in operators if operator.name in names]
