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
    from conformance.options import add_options

    add_options(parser)


def pytest_load_initial_conftests(args: list[str]) -> None:
    if any(arg.split("=", 1)[0] == "--accelerator" for arg in args):
        # An installed but broken vendor wheel can make a plain `import torch` raise. The chosen accelerator's own
        # entry point is loaded later, by name; a project's conftest may import torch before that.
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    if config.getoption("accelerator", None):
        from conformance.running.session import prepare

        # Runs before xdist reads -n: a crash or a hang needs a process of its own to be survived.
        prepare(config)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "conformance: set by the conformance plugin on every case it runs.")
    if config.getoption("accelerator", None):
        from conformance.running.session import activate

        activate(config)
