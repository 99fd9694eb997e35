"""A conformance run inside a pytest session: who plays which part.

One *controller* owns the report. *Workers* run cases: xdist processes, or with ``-n0`` the controller itself.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.registry import resolve
from conformance.errors import ConformanceError
from conformance.plan import SUITES, area_names
from conformance.run_options import read_options
from conformance.runner.collection import Collection
from conformance.runner.context import SETTINGS, Settings, is_worker
from conformance.runner.layout import ReportFolder
from conformance.runner.waivers import waivers_of
from conformance.selection import areas_of


def prepare(config: pytest.Config) -> None:
    """Before xdist reads its options: validate ours, and give every run worker processes unless told otherwise."""
    if is_worker(config):
        return  # a worker that started workers of its own would never end doing so
    try:
        settings = _settle(config)
    except ConformanceError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SETTINGS] = settings
    option = config.option
    if settings.options.ranks_from and option.numprocesses is None:
        option.numprocesses = 0  # torchrun's ranks serve one process
    wants_this_process = option.collectonly or option.usepdb or getattr(option, "trace", False)
    if option.numprocesses is None and option.dist == "no" and not option.tx and not wants_this_process:
        option.numprocesses = settings.subject.default_workers
    if option.numprocesses:
        option.dist = "load"  # the group schedulers of xdist hang or multiply failures when a worker crashes
        option.maxworkerrestart = option.maxworkerrestart or "100000"


def activate(config: pytest.Config) -> None:
    """Register what this process needs."""
    settings = config.stash[SETTINGS] = config.stash.get(SETTINGS, None) or _settle_worker(config)
    pytest.register_assert_rewrite("conformance.suites")
    if settings.bundled:
        config.args[:] = [str(SUITES / area) for area in areas_of(settings.options, area_names())]
    collection = Collection(
        settings.options,
        settings.subject.static_declaration,
        settings.done,
        None if config.option.collectonly else settings.folder.new_manifest(settings.run),
    )
    config.pluginmanager.register(collection, "conformance-collection")
    if config.option.collectonly:
        return
    runs_here = is_worker(config) or not config.option.numprocesses
    if not is_worker(config):
        _register_controller(config, settings, collection)
    if runs_here:
        from conformance.runner.device_host import Host

        config.pluginmanager.register(Host(config, settings), "conformance-host")


def _register_controller(config: pytest.Config, settings: Settings, collection: Collection) -> None:
    from conformance.runner.controller import Controller
    from conformance.runner.crashes import Crashes

    controller = Controller(config, settings, collection)
    config.pluginmanager.register(controller, "conformance-controller")
    if config.option.numprocesses:
        config.pluginmanager.register(Crashes(config, settings, controller.case_ids), "conformance-crashes")


def _settle(config: pytest.Config) -> Settings:
    options = read_options(config)
    waivers_of(options.waivers)  # what is wrong with the file is said before anything runs
    subject = resolve(options.accelerator)
    if not config.option.collectonly:
        subject.preflight()
    folder = ReportFolder(options.report / subject.name)
    if not config.option.collectonly:
        folder.create()
    paths = tuple(config.args) if config.args_source is pytest.Config.ArgsSource.ARGS else ()
    run = uuid.uuid4().hex[:12]
    settings = Settings(options, subject, folder, run, _size(folder.journal), paths, _typed(config))
    _ = settings.claimed_answers  # as with waivers: what is wrong with the file is said before anything runs
    return settings


def _settle_worker(config: pytest.Config) -> Settings:
    """A worker reads the same command line and is told the rest by the controller."""
    options = read_options(config)
    told: dict[str, Any] = config.workerinput["conformance"]  # type: ignore[attr-defined]
    subject = resolve(told["spec"])
    folder = ReportFolder(Path(told["folder"]))
    return Settings(options, subject, folder, told["run"], told["journal_limit"], tuple(told["paths"]), _typed(config))


def _typed(config: pytest.Config) -> tuple[str, ...]:
    return tuple(str(word) for word in config.invocation_params.args)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
