"""Imports torch for a package that torch itself imports when it is imported."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from unittest import mock

_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def import_torch() -> ModuleType:
    """torch, without its entry points: one of them is the package that is just being imported."""
    with mock.patch.dict(os.environ, {_VARIABLE: "0"}):
        return importlib.import_module("torch")
