"""What a worker of pytest-xdist tells its controller of a case: how it ended, and no more than that.

Of the six messages that pytest-xdist sends for a test, three say that it began, that its set-up passed and that it is
over. With fifteen thousand cases of ten milliseconds, the controller would take a tenth of the run to take them in.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from conformance.running.collection import case_of


class BriefWorker:
    """Runs cases as pytest does, and passes on the reports of body and tear-down, and of a set-up that failed."""

    @staticmethod
    def suits(config: pytest.Config) -> bool:
        """Whether nobody asked for more: ``-v`` names tests as they begin, ``--durations`` lists set-ups."""
        option = config.option
        return not (option.verbose > 0 or option.durations or getattr(option, "forked", False))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        if case_of(item) is None:
            return None
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when != "setup" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True
