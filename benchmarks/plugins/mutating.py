"""A pytest plugin that runs the collected tests once per mutant: ``-p mutating``, with this folder on PYTHONPATH.

Collecting another suite may take minutes, so it happens once. Each mutant gets a forked copy of the process, which
arms its fault and runs the tests up to the first that fails. A copy without a fault runs everything twice before: what
fails there says nothing about a mutant. MUTANTS_FILE takes the result as JSON: name → the tests that noticed.
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

#: Seconds for all tests of one mutant; a copy that needs longer hangs, and somebody would notice.
DEADLINE = 240
HEALTHY = "healthy"
DIED = "the process ended"
DTYPES = re.compile(r"-torch\.(?:float32|bfloat16|int64)\]$")


class Failures:
    """Ids of the tests that failed."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.ids.add(report.nodeid)


class Mutating:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of the tests that are made from PyTorch's operator database, keep those of three dtypes."""
        items[:] = [item for item in items if "opinfo/" not in item.nodeid or DTYPES.search(item.nodeid)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from tests.defects.catalogue import MUTANTS
        from tests.defects.mutant import How

        asked = os.environ.get("MUTANTS_NAMES", "").splitlines()
        chosen = [one for one in MUTANTS if one.how is How.FORK and (not asked or one.name in asked)]
        healthy = _in_copy(session, None, set())
        found: dict[str, list[str]] = {HEALTHY: healthy}
        for mutant in chosen:
            found[mutant.name] = _in_copy(session, mutant, set(healthy))
            sys.stderr.write(f"{mutant.name}: {found[mutant.name] or 'unnoticed'}\n")
            Path(os.environ["MUTANTS_FILE"]).write_text(json.dumps(found), encoding="utf-8")
        return True


def _in_copy(session: pytest.Session, mutant: Any, known: set[str]) -> list[str]:
    """Ids of failed tests beyond the known ones; a copy that dies or hangs is a failure as well."""
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
        from conformance.accelerators.simulated.faults import armed

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
    """Every test with the one after it, as pytest wants them."""
    return list(zip(items, [*items[1:], None], strict=True)) * times


def pytest_configure(config: pytest.Config) -> None:
    _keep_operators(set(os.environ.get("MUTANTS_OPERATORS", "").split()))
    config.pluginmanager.register(Mutating(), "mutating-itself")


def _keep_operators(asked: set[str]) -> None:
    """Only these stay in PyTorch's database: TorchCTS computes samples of every operator while it collects."""
    from torch.testing._internal import common_methods_invocations, common_utils
    from torch.testing._internal.opinfo import core

    # The database looks for the calling test on the stack at every sample, which takes longer than the sample.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    operators = common_methods_invocations.op_db
    operators[:] = [one for one in operators if one.name in asked]
