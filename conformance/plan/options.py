"""Registration of the options at pytest's parser.

pytest loads this module at every start in every project, so it imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.base.options import OPTIONS, Option, Value

if TYPE_CHECKING:
    import pytest


def add_first_option(parser: pytest.Parser) -> None:
    """Add ``--accelerator``, which exists in every pytest run."""
    _add(parser, *OPTIONS[:1])


def add_other_options(parser: pytest.Parser) -> None:
    """Add the options that have a meaning only with ``--accelerator``."""
    _add(parser, *OPTIONS[1:])


def _add(parser: pytest.Parser, *options: Option) -> None:
    group = parser.getgroup("conformance", "accelerator conformance")
    for option in options:
        group.addoption(option.name, **_settings(option))


def _settings(option: Option) -> dict[str, Any]:
    """Return the arguments of argparse for an option."""
    if option.value is Value.FLAG:
        return {"action": "store_true", "default": False, "help": option.help}
    action = {"action": "append"} if option.repeats else {}
    return {"metavar": option.metavar, "default": option.default, "help": option.help, **action}
