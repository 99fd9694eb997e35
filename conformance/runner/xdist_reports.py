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

#: Where those are written who listen to reports and do without a tear-down that passed: pytest's own but one.
_CONTENT, _WAITING = ("_pytest.", "xdist.", "conformance."), "_pytest.junitxml"


def tear_downs_matter(config: pytest.Config) -> bool:
    """Whether somebody on the controller waits for tear-downs that passed: writers of reports, and ``-rP``."""
    listeners = config.hook.pytest_runtest_logreport.get_hookimpls()
    homes = [_home(one.plugin) for one in listeners]
    others = any(not home.startswith(_CONTENT) or home == _WAITING for home in homes)
    return others or bool(set("PA") & set(config.option.reportchars))


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
