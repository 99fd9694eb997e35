"""What a worker of pytest-xdist tells its controller of a case: how it ended, and no more than that.

Of the six messages that pytest-xdist sends for a test, four say that it began, that its set-up passed, that its
tear-down passed and that it is over. With fifteen thousand cases of ten milliseconds, the controller would take a tenth
of the run to take them in, and on a small machine each takes the core from a worker.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from conformance.runner.collection import case_of

#: Modules of plugins that listen to reports and do without most of them; the JUnit writer needs each tear-down.
_CONTENT, _WAITING = ("_pytest.", "xdist.", "conformance."), "_pytest.junitxml"


#: The hooks of pytest by which a plugin hears of tests on the controller.
_HOOKS = ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish")


def other_plugins_listen(config: pytest.Config) -> bool:
    """Return whether a plugin that is not part of pytest, pytest-xdist or this package hears of tests.

    Such a plugin hears of each step of each case, as it would without this package.
    """
    listeners = [implementation for hook in _HOOKS for implementation in getattr(config.hook, hook).get_hookimpls()]
    return any(not _home(listener.plugin).startswith(_CONTENT) for listener in listeners)


def tear_downs_matter(config: pytest.Config) -> bool:
    """Return whether pytest on the controller waits for tear-downs that passed: its JUnit writer does, and ``-rP``."""
    listeners = config.hook.pytest_runtest_logreport.get_hookimpls()
    waiting = any(_home(listener.plugin) == _WAITING for listener in listeners)
    return waiting or bool(set("PA") & set(config.option.reportchars))


def _home(plugin: object) -> str:
    """The module that a plugin is, or is an object of."""
    return getattr(plugin, "__name__", None) or type(plugin).__module__


class BriefWorker:
    """Runs cases as pytest does, and passes on what is not as usual, and how the body ended."""

    def __init__(self, with_tear_downs: bool) -> None:
        self._with_tear_downs = with_tear_downs
        #: File and line of a function, which has thousands of cases.
        self._places: dict[Any, tuple[str, int | None]] = {}

    @staticmethod
    def suits(config: pytest.Config) -> bool:
        """Whether nobody asked for more: ``-v`` names tests as they begin, ``--durations`` lists set-ups."""
        option = config.option
        return not (option.verbose > 0 or option.durations or getattr(option, "forked", False))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        if case_of(item) is None:
            return None
        self._locate(item)
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if self._says_something(report):
                item.ihook.pytest_runtest_logreport(report=report)
        return True

    def _locate(self, item: Any) -> None:
        """Tell the item where it stands: looked for in its source, that takes longer than some cases do."""
        place = self._places.get(item.function)
        if place is None:
            self._places[item.function] = item.location[:2]
        else:
            item.location = (*place, item.getmodpath())

    def _says_something(self, report: pytest.TestReport) -> bool:
        if not report.passed or report.when == "call":
            return True
        return report.when == "teardown" and self._with_tear_downs
