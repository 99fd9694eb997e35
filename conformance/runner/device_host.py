"""Host of the device: a process that loads the accelerator and registers the fixtures and the case runner."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators import autoload
from conformance.base.errors import ConformanceError, SetupError
from conformance.fixtures import cases as fixtures
from conformance.process.deaths import evidence, load_seconds, output_kept, output_path, read_text
from conformance.process.last_call import call_path, keep_calls
from conformance.process.lifetime import die_with_parent
from conformance.process.state import ProcessState
from conformance.process.time_limits import MOST_BUILD_SECONDS
from conformance.process.watchdog import Watchdog, stacks_path
from conformance.reports.json_files import collector_paused, write_json
from conformance.runner.case_runner import CaseRunner
from conformance.runner.context import (
    UNDER_TEST,
    AcceleratorUnderTest,
    RunContext,
    is_worker,
    open_journal,
    worker_name,
)
from conformance.runner.crashes import DeathWatcher
from conformance.runner.rank_cases import RankCases
from conformance.runner.waivers import for_device, waivers_of

#: Seconds that importing torch may take, from a slow disk as well. Then ``load_seconds`` holds for the vendor's code.
_TORCH_DEADLINE = 300.0


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
        watchdog = Watchdog(stacks_path(self._context.folder.path, worker_name()))
        keep_calls(call_path(self._context.folder.path, worker_name()))
        loaded = self._loaded(watchdog)
        if loaded is None:
            return
        subject, runner = loaded
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
        manager.register(runner, "conformance-runner")
        manager.register(ranks, "conformance-ranks")

    def _loaded(self, watchdog: Watchdog) -> tuple[AcceleratorUnderTest, CaseRunner] | None:
        """Load the accelerator and run its first operation, both before a deadline. Return None after a failure."""
        output = output_path(self._context.folder.path, worker_name())
        watchdog.arm(_TORCH_DEADLINE)
        try:
            with collector_paused(), output_kept(output):
                autoload.import_torch(self._context.accelerator.name)
                watchdog.arm(MOST_BUILD_SECONDS)
                self._context.accelerator.build()
                watchdog.arm(load_seconds())
                subject = self._load()
                # The runner's health check is the device's first operation.
                return subject, CaseRunner(self._context, subject, open_journal(self._context), watchdog)
        except ConformanceError as error:
            self._fail(str(error) + evidence("", read_text(output)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a vendor's code may raise anything
            self._fail(_sentence(self._context.accelerator.text, error) + evidence("", read_text(output)))
        finally:
            watchdog.disarm()
            self._replay(output)
        return None

    def _replay(self, output: Path) -> None:
        """Print what the accelerator has printed while it was loaded, as if it had not been kept in a file."""
        sys.stdout.write(read_text(output))
        output.unlink(missing_ok=True)

    def pytest_unconfigure(self) -> None:
        self._death_watcher.end()

    def _load(self) -> AcceleratorUnderTest:
        """Load accelerator, declaration, device and waivers, and publish the facts for the controller."""
        import torch

        from conformance.runner.facts import CHANGED, accelerator_facts

        if is_worker(self._config):
            # One thread per worker: workers share the cores, and sums are then added in the same order in every run.
            torch.set_num_threads(1)
            # The same for compilers: each worker would start a pool of processes that import torch.
            os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        before = ProcessState.take()
        accelerator = self._context.accelerator.load()
        declaration = self._context.accelerator.declaration(accelerator, self._context.options.capabilities)
        device = _device(_device_name(accelerator))
        facts = accelerator_facts(AcceleratorUnderTest(accelerator, declaration, device))
        self._publish({**facts, CHANGED: before.changes()})
        waivers = for_device(waivers_of(self._context.options.waivers), facts, torch.__version__)
        return AcceleratorUnderTest(accelerator, declaration, device, waivers)

    def _publish(self, facts: dict[str, Any]) -> None:
        """Write facts for the report that only a process with the device knows. The first worker to load does it."""
        path = self._context.folder.facts(self._context.run)
        if path.exists():
            return
        write_json(path, facts)

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


def _sentence(name: str, error: BaseException) -> str:
    """Return the sentence for an exception that a vendor's code has raised, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    return (
        f"accelerator '{name}' cannot be used: loading it fails: {autoload.describe(error)}{where}\n"
        f"  to find the cause: conformance doctor {shlex.quote(name)}"
    )


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
