"""Host of the device: a process that loads the accelerator and registers the fixtures and the case runner."""

from __future__ import annotations

import os
from typing import Any

import pytest

from conformance.errors import ConformanceError, SetupError
from conformance.fixtures import cases as fixtures
from conformance.process.lifetime import die_with_parent
from conformance.process.watchdog import Watchdog, stacks_path
from conformance.reports.json_files import collector_paused
from conformance.runner.case_runner import CaseRunner
from conformance.runner.context import UNDER_TEST, AcceleratorUnderTest, RunContext, is_worker, open_journal
from conformance.runner.crashes import DeathWatcher
from conformance.runner.rank_cases import RankCases
from conformance.runner.waivers import for_device, waivers_of

#: Seconds that loading may take. A vendor's stack may compile or probe; a hang there must end as well.
_LOAD_DEADLINE = 300.0


class DeviceHost:
    """Hooks that load the accelerator just before collection, never in a process that only plans."""

    def __init__(self, config: pytest.Config, context: RunContext) -> None:
        self._config, self._context = config, context
        self._failure: str | None = None
        self._death_watcher = DeathWatcher(context)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Load the accelerator under the watchdog, then register fixtures, case runner and ranks."""
        if is_worker(self._config):
            die_with_parent()
        else:
            self._death_watcher.begin()
        # Not earlier: pytest's faulthandler plugin, when it is configured, directs the stacks of a crash to stderr.
        watchdog = Watchdog(stacks_path(self._context.folder.path, os.environ.get("PYTEST_XDIST_WORKER", "main")))
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
            ranks = RankCases(self._context, subject, watchdog)
        except ConformanceError as error:
            self._fail(str(error))
            return
        manager = self._config.pluginmanager
        self._config.stash[UNDER_TEST] = subject
        if self._context.bundled and manager.hasplugin("logging-plugin"):
            # That plugin adds a handler to each of torch's forty loggers six times a case. Our suites read no logs.
            manager.unregister(name="logging-plugin")
        manager.register(fixtures, "conformance-fixtures")
        runner = CaseRunner(self._context, subject, open_journal(self._context), watchdog)
        manager.register(runner, "conformance-runner")
        manager.register(ranks, "conformance-ranks")

    def pytest_unconfigure(self) -> None:
        self._death_watcher.end()

    def _load(self) -> AcceleratorUnderTest:
        """Load accelerator, declaration, device and waivers, and publish the facts for the controller."""
        import torch

        from conformance.runner.facts import accelerator_facts

        if is_worker(self._config):
            # One thread per worker: workers share the cores, and sums are then added in the same order in every run.
            torch.set_num_threads(1)
        accelerator = self._context.accelerator.load()
        declaration = self._context.accelerator.declaration(accelerator, self._context.options.capabilities)
        device = _device(_device_name(accelerator))
        facts = accelerator_facts(AcceleratorUnderTest(accelerator, declaration, device))
        self._publish(facts)
        waivers = for_device(waivers_of(self._context.options.waivers), facts, torch.__version__)
        return AcceleratorUnderTest(accelerator, declaration, device, waivers)

    def _publish(self, facts: dict[str, Any]) -> None:
        """Write facts for the report that only a process with the device knows. The first worker does it."""
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
            return
        from conformance.runner.facts import write_facts

        write_facts(self._context.folder.facts(self._context.run), facts)

    def _fail(self, sentence: str) -> None:
        """Report that the set-up failed: as a usage error here, or through a file from a worker."""
        if not is_worker(self._config):
            raise pytest.UsageError(sentence)
        # A worker cannot end the run: it leaves the sentence for the controller, and collects nothing.
        self._context.folder.setup_error(self._context.run).write_text(sentence)
        self._failure = sentence

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._failure:
            items.clear()


def _device(name: str) -> Any:
    """Return the device as tensors report it: a CPU tensor says ``cpu`` for any index."""
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
    except Exception:  # noqa: BLE001 - cases judge a device that cannot allocate
        return device


def _names_current(accelerator: Any) -> str:
    return str(accelerator.current_device_name())


def _names_itself(accelerator: Any) -> str:
    return str(accelerator.device_name(None))


def _device_name(accelerator: Any) -> str:
    """Return the name of the device on which cases allocate. Raise SetupError if the accelerator cannot say it."""
    # An incomplete accelerator may answer only one of the two; cases report what is missing.
    errors = []
    for ask in (_names_current, _names_itself):
        try:
            return str(ask(accelerator))
        except Exception as error:  # noqa: BLE001, PERF203 - any exception leads to the next way of asking
            errors.append(f"{type(error).__name__}: {error}")
    raise SetupError(
        f"the accelerator cannot say its device's name: current_device_name() ended in {errors[0]}. "
        "Nothing can be allocated without it; implement it first."
    )
