"""A process that holds the device: loads the accelerator, registers fixtures and the case runner."""

from __future__ import annotations

import os
from typing import Any

import pytest

from conformance.errors import ConformanceError, SetupError
from conformance.fixtures import accelerator as fixtures
from conformance.fixtures import ranks as rank_fixtures
from conformance.process.lifetime import die_with_parent
from conformance.process.watchdog import Watchdog, stacks_path
from conformance.reports.json_files import collector_paused
from conformance.runner.case_runner import SUBJECT, CaseRunner, Subject
from conformance.runner.context import Settings, is_worker, open_journal
from conformance.runner.last_words import LastWords
from conformance.runner.rank_cases import RankCases
from conformance.runner.waivers import for_device, waivers_of
from conformance.runner.xdist_reports import BriefWorker

#: Loading a vendor's stack may compile or probe; a hang there must end as well.
_LOAD_DEADLINE = 300.0


class Host:
    """Loads the accelerator once collection is about to begin, and never in a process that only plans."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config, self._settings = config, settings
        self._failure: str | None = None
        self._last_words = LastWords(settings)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if is_worker(self._config):
            die_with_parent()
        else:
            self._last_words.begin()
        # Not earlier: pytest's own faulthandler plugin sends the stacks of a crash to stderr when it is configured.
        watchdog = Watchdog(stacks_path(self._settings.folder.path, os.environ.get("PYTEST_XDIST_WORKER", "main")))
        watchdog.arm(_LOAD_DEADLINE)
        try:
            with collector_paused():
                subject = self._load()
        except ConformanceError as error:
            self._fail(str(error))
            return
        finally:
            watchdog.disarm()
        try:
            ranks = RankCases(self._settings, subject, watchdog)
        except ConformanceError as error:
            self._fail(str(error))
            return
        manager = self._config.pluginmanager
        self._config.stash[SUBJECT] = subject
        if self._settings.bundled and manager.hasplugin("logging-plugin"):
            # It adds a handler to each of torch's forty loggers six times a case; the bundled suites read no logs.
            manager.unregister(name="logging-plugin")
        manager.register(fixtures, "conformance-fixtures")
        manager.register(rank_fixtures, "conformance-rank-fixtures")
        runner = CaseRunner(self._settings, subject, open_journal(self._settings), watchdog)
        manager.register(runner, "conformance-runner")
        if is_worker(self._config) and BriefWorker.suits(self._config):
            told = self._config.workerinput["conformance"]  # type: ignore[attr-defined]
            manager.register(BriefWorker(told["tear_downs"]), "conformance-brief-worker")
        manager.register(ranks, "conformance-ranks")

    def pytest_unconfigure(self) -> None:
        self._last_words.end()

    def _load(self) -> Subject:
        import torch

        from conformance.runner.facts import accelerator_facts

        if is_worker(self._config):
            # One thread a worker: the workers share the cores, and sums then come out in the same order every time.
            torch.set_num_threads(1)
        accelerator = self._settings.subject.load()
        declaration = self._settings.subject.declaration(accelerator, self._settings.options.capabilities)
        device = _device(_device_name(accelerator))
        facts = accelerator_facts(Subject(accelerator, declaration, device))
        self._publish(facts)
        waivers = for_device(waivers_of(self._settings.options.waivers), facts, torch.__version__)
        return Subject(accelerator, declaration, device, waivers)

    def _publish(self, facts: dict[str, Any]) -> None:
        """Facts for the report that only a process with the device knows. The first worker says them."""
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
            return
        from conformance.runner.facts import write_facts

        write_facts(self._settings.folder.path / f"facts.{self._settings.run}.json", facts)

    def _fail(self, sentence: str) -> None:
        if not is_worker(self._config):
            raise pytest.UsageError(sentence)
        # A worker cannot end the run with a sentence: it leaves the sentence to the controller and collects nothing.
        self._settings.folder.setup_error(self._settings.run).write_text(sentence)
        self._failure = sentence

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._failure:
            items.clear()


def _device(name: str) -> Any:
    """The device as tensors report it: a CPU tensor says ``cpu`` however it was asked for."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SetupError(
            f"the accelerator names its device '{name}', which torch does not know: {str(error).splitlines()[0]}. "
            "Import the package that registers the device type when the accelerator is constructed."
        ) from error
    try:
        return torch.empty(0, device=device).device
    except Exception:  # noqa: BLE001 - a device that cannot allocate is for the cases to judge
        return device


def _names_current(accelerator: Any) -> str:
    return str(accelerator.current_device_name())


def _names_itself(accelerator: Any) -> str:
    return str(accelerator.device_name(None))


def _device_name(accelerator: Any) -> str:
    """Where cases allocate. An incomplete subject is asked in more than one way; its gaps are verdicts later."""
    errors = []
    for ask in (_names_current, _names_itself):
        try:
            return str(ask(accelerator))
        except Exception as error:  # noqa: BLE001, PERF203 - any answer but a name moves on to the next way of asking
            errors.append(f"{type(error).__name__}: {error}")
    raise SetupError(
        f"the accelerator cannot say its device's name: current_device_name() ended in {errors[0]}. "
        "Nothing can be allocated without it; implement it first."
    )
