"""Set-up of a run: it gives each process of a pytest session its role.

One *controller* owns the report. *Workers* run cases: processes of pytest-xdist, or with ``-n0`` the controller itself.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.registry import resolve
from conformance.base.errors import ConformanceError, UsageError
from conformance.base.options import runs_the_suite
from conformance.plan.bundled import SUITES
from conformance.plan.known_cases import areas_in, begin_reading_operators
from conformance.plan.run_options import read_options
from conformance.process.compiler_cache import new_compiler_cache
from conformance.process.deaths import evidence, loading_limited, output_path, read_text
from conformance.process.trial import try_module
from conformance.runner.collection import Collection, reject_mistyped_cases
from conformance.runner.context import RUN_CONTEXT, ReportFolder, RunContext, folder_for, is_worker, worker_name
from conformance.runner.waivers import waivers_of


def prepare(config: pytest.Config) -> None:
    """Validate the options, and choose the number of workers before pytest-xdist reads its own options."""
    # Before anything imports a module of the suites: the plan, which names a mistyped case, needs one.
    pytest.register_assert_rewrite("conformance.suites")
    if is_worker(config):
        return  # a worker must not start workers of its own
    if not hasattr(config.option, "numprocesses"):
        raise pytest.UsageError(
            "pytest-xdist is switched off, as by -p no:xdist, and a run needs it, also with -n0. "
            "Leave that option out; with -n0 the cases run in this process."
        )
    try:
        if sys.flags.optimize:
            raise UsageError(
                "Python runs without assertions (-O or PYTHONOPTIMIZE), and some checks are assertions. Run it without."
            )
        _reject_options_of_other_plugins(config)
        context = _make_context(config)
    except ConformanceError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[RUN_CONTEXT] = context
    option = config.option
    if context.options.ranks_from and option.numprocesses is None:
        option.numprocesses = 0  # ranks of torchrun serve one process
    needs_this_process = option.collectonly or option.usepdb or getattr(option, "trace", False)
    if option.numprocesses is None and option.dist == "no" and not option.tx and not needs_this_process:
        # A crash or a hang needs a process of its own, or it ends the whole run.
        option.numprocesses = context.accelerator.default_workers
    if option.numprocesses:
        option.dist = "load"  # the group schedulers of xdist 3.8 hang, or multiply failures, when a worker crashes
        if option.maxschedchunk is None:
            option.maxschedchunk = 1  # xdist's chunks of neighbours give all compiled models to one worker
        # xdist's default would end the run after some crashes, but here each crash is a verdict.
        option.maxworkerrestart = option.maxworkerrestart or "100000"


#: Options of other plugins that a run refuses, each with the reason. Measured for --forked, without the refusal: with
#: pytest-forked 1.7.5 and pytest 9.2, a case that passes, one that is wrong and a crash all end as `raised`.
_REFUSED = {
    "forked": "--forked loses the verdict of a case, which is in the fork. Without it, a crash ends only a worker.",
    "reruns": "--reruns repeats a failed test until it passes, and a case gets one verdict.",
    "force_reruns": "--force-reruns repeats a failed test until it passes, and a case gets one verdict.",
    "count": "--count repeats a test, and a case gets one verdict. Other inputs need another --conformance-seed.",
}


def _reject_options_of_other_plugins(config: pytest.Config) -> None:
    """Raise UsageError for an option of another plugin with which verdicts would be lost or false."""
    for name, reason in _REFUSED.items():
        # --count counts the first time too.
        if config.getoption(name, None) not in (None, False, 0, *([1] if name == "count" else [])):
            raise UsageError(f"{reason} Leave it out, also in addopts.")
    # pytest-rerunfailures reads its number of repeats from the configuration too.
    if _setting(config, "reruns") not in (None, "", "0"):
        raise UsageError(
            "The setting reruns repeats a failed test until it passes, and a case gets one verdict. Remove it."
        )


def _setting(config: pytest.Config, name: str) -> str | None:
    """Return a setting of pytest's configuration file, or None if no plugin knows it."""
    try:
        return str(config.getini(name) or "")
    except ValueError:
        return None


def activate(config: pytest.Config) -> None:
    """Register the plugins of this process's role."""
    context = config.stash[RUN_CONTEXT] = config.stash.get(RUN_CONTEXT, None) or _make_worker_context(config)
    if context.bundled:
        # Of torch's own modules, which the suites import; a reader can do nothing about them.
        config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:torch")
        areas = areas_in(context.options)
        config.args[:] = [str(SUITES / area) for area in areas]
        if not is_worker(config):
            begin_reading_operators(areas)
    collection = Collection(
        context.options,
        context.accelerator.static_declaration,
        context.done,
        None if config.option.collectonly else context.folder.new_manifest(context.run),
        context.folder.setup_error(context.run) if is_worker(config) else None,
    )
    config.pluginmanager.register(collection, "conformance-collection")
    if config.option.collectonly:
        return
    runs_cases = is_worker(config) or not config.option.numprocesses
    if not is_worker(config):
        _register_controller(config, context, collection)
    if runs_cases:
        from conformance.runner.device_host import DeviceHost

        config.pluginmanager.register(DeviceHost(config, context), "conformance-host")


def _register_controller(config: pytest.Config, context: RunContext, collection: Collection) -> None:
    """Register the controller, and with xdist the handler of dead workers."""
    from conformance.runner.controller import Controller
    from conformance.runner.crashes import CrashHandler
    from conformance.runner.terminal import Terminal

    controller = Controller(config, context, collection)
    config.pluginmanager.register(controller, "conformance-controller")
    config.pluginmanager.register(Terminal(config, context, controller), "conformance-terminal")
    if config.option.numprocesses:
        config.pluginmanager.register(CrashHandler(config, context, controller.case_ids), "conformance-crashes")


def _make_context(config: pytest.Config) -> RunContext:
    """Return the context of a new run. Raise ConformanceError for wrong options before anything runs."""
    options = read_options(config)
    paths = _paths(config)
    if not paths:
        reject_mistyped_cases(options.cases)
    waivers_of(options.waivers)  # raises if the file is wrong
    try_module(options.accelerator)
    accelerator = resolve(options.accelerator)
    _ = accelerator.static_declaration  # raises if it is wrong
    if not config.option.collectonly:
        # Before anything runs: a missing package is then one sentence, not the failure of every worker.
        accelerator.preflight()
    folder = folder_for(options, accelerator.name, paths, _typed(config))
    if not config.option.collectonly:
        folder.create()
        config.add_cleanup(folder.lock())
        folder.tidy()
        config.add_cleanup(new_compiler_cache())
    run = uuid.uuid4().hex[:12]
    context = RunContext(options, accelerator, folder, run, _size(folder.journal), paths, _typed(config))
    _ = context.claimed_answers  # raises if the file is wrong
    return context


def _paths(config: pytest.Config) -> tuple[str, ...]:
    """Return the paths whose tests run, or none if the bundled suites run."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return tuple(config.args)
    if runs_the_suite(_typed(config), config.getini("addopts")):
        return ()
    # Relative, because absolute paths would reveal names of people and machines in the report.
    return tuple(os.path.relpath(path, config.invocation_params.dir) for path in config.args)


def _make_worker_context(config: pytest.Config) -> RunContext:
    """Return the context in a worker: it reads the same command line, and the controller sends the rest."""
    sent: dict[str, Any] = config.workerinput["conformance"]  # type: ignore[attr-defined]
    # A --case-file may be the failed.txt of the folder into which this run writes, where it is replaced.
    config.option.case, config.option.case_file = sent["cases"], None
    options = read_options(config)
    folder = ReportFolder(Path(sent["folder"]))
    try:
        with loading_limited(folder.path, worker_name()):
            accelerator = resolve(sent["spec"])
    except ConformanceError as error:
        # The controller finds this sentence when the worker is gone. An exception would print pytest's own frames.
        folder.setup_error(sent["run"]).write_text(f"{error}{evidence('', read_text(_output(folder)))}")
        os._exit(int(pytest.ExitCode.USAGE_ERROR))
    _output(folder).unlink(missing_ok=True)
    paths = tuple(sent["paths"])
    return RunContext(options, accelerator, folder, sent["run"], sent["journal_limit"], paths, _typed(config))


def _output(folder: ReportFolder) -> Path:
    return output_path(folder.path, worker_name())


def _typed(config: pytest.Config) -> tuple[str, ...]:
    return tuple(str(word) for word in config.invocation_params.args)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
