"""Libraries of models and engines: imported only inside a case, within the range of versions that was tested."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

from conformance.judging.finding import environment_lacks
from conformance.numerics.budgets import load_table


def library(name: str) -> ModuleType:
    """Return the imported library; skip the case if it is missing or its version was not tested.

    An installed library that does not load raises its own error.
    """
    row = load_table(__file__, "libraries.toml")[name]
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        environment_lacks(f"{name} is not installed; in the checkout, pip install '.[{row['extra']}]'")
    version = _version(name)
    if not row["from"] <= _number(version) < row["before"]:
        environment_lacks(
            f"{name} {version} is installed, but the cases were tested from {_text(row['from'])} to before "
            f"{_text(row['before'])}; in the checkout, pip install '.[{row['extra']}]'"
        )
    # Every model is built from a configuration, so a download would be a mistake.
    os.environ["HF_HUB_OFFLINE"] = "1"
    return importlib.import_module(name)


def member(name: str, attribute: str) -> Any:
    """Return a class of a library; skip the case if the installed version has none of that name."""
    module = library(name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        environment_lacks(f"{name} {_version(name)} has no {attribute}; install another version")


@functools.cache
def _version(name: str) -> str:
    """Return the installed version. Reading it takes 4 ms, and a case asks for a dozen classes."""
    return metadata.version(name)


@functools.cache
def _number(version: str) -> list[int]:
    """Return major and minor of a version."""
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def _text(version: list[int]) -> str:
    return ".".join(map(str, version))
