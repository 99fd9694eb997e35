"""The pytest plugin's doorstep: options, and nothing else until ``--accelerator`` is given.

Installed but unused it must cost nothing: no torch, no suite, no registry is imported here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_addoption(parser: pytest.Parser) -> None:
    from conformance.options import add_first_option

    add_first_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    chosen = getattr(early_config.known_args_namespace, "accelerator", None) is not None
    if chosen or not {"-h", "--help"}.isdisjoint(args):
        from conformance.options import add_other_options

        # Only now: names like --dtype may be another project's own, and that project may run without an accelerator.
        add_other_options(parser)
    if chosen:
        # An installed but broken vendor wheel can make a plain `import torch` raise. The chosen accelerator's own
        # entry point is loaded later, by name; a project's conftest may import torch before that.
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        # Operator cells record where they computed; torch's profiler would print two lines for each of them.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    if config.getoption("accelerator", None):
        from conformance.runner.session import prepare

        # Runs before xdist reads -n: a crash or a hang needs a process of its own to be survived.
        prepare(config)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "conformance: set by the conformance plugin on every case it runs.")
    if config.getoption("accelerator", None):
        from conformance.runner.session import activate

        activate(config)
