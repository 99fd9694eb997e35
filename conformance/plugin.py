"""Entry point of the pytest plugin. Without ``--accelerator`` it registers that option and does nothing else.

pytest loads this module in every project of the environment, so it imports no torch, no suite and no registry.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

#: Fixtures of conformance.fixtures, which exist only in a run with an accelerator.
_FIXTURES = ("accelerator", "device", "declaration", "case", "check", "rank", "world_size", "group", "shared_dir")

#: How the threads of an operator wait for each other: they sleep. If they spin, they take the cores from each other:
#: beside eight busy processes, the trainings of three models on two threads took 174 s in place of 24.
_THREADS_WAIT = ("OMP_WAIT_POLICY", "PASSIVE")
#: Variables of oneDNN and of PyTorch for how many kernels a process keeps for shapes that it has seen, and our number.
#: Cases have many shapes: the usual 1,024 kernels take 300 MB, and few of them run again.
_KERNEL_CACHES, _KERNELS_KEPT = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "64"


def pytest_addoption(parser: pytest.Parser) -> None:
    from conformance.plan.options import add_first_option

    add_first_option(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # pytest before 9 loads the files in a wrapper of its own
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Add the other options where an accelerator is chosen, and keep torch from loading vendor packages."""
    chosen = getattr(early_config.known_args_namespace, "accelerator", None) is not None
    if chosen or not {"-h", "--help"}.isdisjoint(args):
        from conformance.plan.options import add_other_options

        # Not earlier: another project may have a --dtype of its own, and it may run without an accelerator.
        add_other_options(parser)
    elif ours := _ours(args):
        # Only where no other plugin knows the option does pytest print this, below "unrecognized arguments".
        parser.extra_info["conformance"] = f"{ours} needs the device, for example: pytest --accelerator=cpu {ours} …"
    if chosen:
        # An installed but broken vendor package can make `import torch` raise. The chosen accelerator is loaded later,
        # by name. This is set now because a project's conftest may import torch before that.
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        # Operator cells record where they compute, and torch's profiler would print two lines for each recording.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        os.environ.setdefault(*_THREADS_WAIT)
        for name in _KERNEL_CACHES:
            os.environ.setdefault(name, _KERNELS_KEPT)
        _leave_out_tests_of_the_project(early_config)
    return (yield)


def _leave_out_tests_of_the_project(early_config: pytest.Config) -> None:
    """Keep pytest from loading conftest.py of the project's own tests where the bundled suites run, not those.

    pytest would load it from ``testpaths``, or from each folder ``test*`` here. The gate rejects a run with such code.
    One in this folder or above it is loaded, as always.
    """
    from conformance.base.options import runs_the_suite

    known, here = early_config.known_args_namespace, early_config.invocation_params.dir
    typed = map(str, early_config.invocation_params.args)
    if known.file_or_dir or not runs_the_suite(typed, early_config.getini("addopts")):
        return
    above = next((file for folder in (here, *here.parents) if (file := folder / "conftest.py").is_file()), None)
    if above is None:
        known.noconftest = True
    else:
        known.file_or_dir = [str(above)]


def _ours(args: list[str]) -> str:
    """Return the first option of this plugin on a command line without an accelerator, or an empty string."""
    from conformance.base.options import BY_NAME

    return next((word.partition("=")[0] for word in args if word.partition("=")[0] in BY_NAME), "")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Prepare the run before xdist reads its options."""
    if config.getoption("accelerator", None) is not None:
        from conformance.runner.session import prepare

        # Before xdist reads -n: only a worker process lets the run survive a crash or a hang.
        prepare(config)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the hooks of a run where an accelerator is chosen."""
    config.addinivalue_line(
        "markers", "conformance: set by the conformance plugin on every case; -m conformance selects them."
    )
    if config.getoption("accelerator", None) is not None:
        from conformance.runner.session import activate

        activate(config)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what to do if a test without an accelerator asks for one of the fixtures."""
    if config.getoption("accelerator", None):
        return
    missing = (f"fixture '{name}' not found" for name in _FIXTURES)
    errors = [str(report.longrepr) for report in terminalreporter.stats.get("error", ())]
    if found := [text for text in missing if any(text in error for error in errors)]:
        terminalreporter.write_line(
            f"{found[0]}: if it is meant to be the one of accelerator-conformance, name the device, "
            "for example: pytest --accelerator=cpu PATH"
        )
