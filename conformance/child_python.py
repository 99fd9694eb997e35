"""A child process that finds modules exactly where this one does.

``python -c`` and ``python -m`` look into the current folder first. Started in a checkout, a child would take the
folder ``conformance/`` there for the installed package, which has more in it.
"""

from __future__ import annotations

import json
import sys

_SAME_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"


def child_python(program: str, *arguments: str) -> list[str]:
    """The command of ``program`` with this interpreter and module path; its ``sys.argv[1:]`` are ``arguments``."""
    return [sys.executable, "-c", _SAME_PATH + program, json.dumps(sys.path), *arguments]
