"""Numbers as data: the TOML file beside the module that judges by it."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.cache
def table_beside(module_file: str, name: str) -> dict[str, Any]:
    """The file ``name`` in the folder of ``module_file``, which is a module's ``__file__``."""
    table: dict[str, Any] = tomllib.loads(Path(module_file).with_name(name).read_text(encoding="utf-8"))
    return table
