"""Command lines of child interpreters that import the same modules as this process.

``python -c`` and ``python -m`` look into the current folder first. In a checkout a child would take the folder
``conformance/`` for the installed package, which has more in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_SAME_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"


def child_python(program: str, *arguments: str) -> list[str]:
    """Return the command that runs ``program`` with this module path; its ``sys.argv[1:]`` are ``arguments``."""
    return [sys.executable, "-c", _SAME_PATH + program, json.dumps(module_path()), *arguments]


def module_path() -> list[str]:
    """Return ``sys.path`` with folders last that hold another package of our name, so that they hide nothing."""
    return sorted(sys.path, key=_hides_us)


def _hides_us(folder: str) -> bool:
    namesake = Path(folder or ".") / _PACKAGE.name
    return namesake.is_dir() and namesake.resolve() != _PACKAGE
