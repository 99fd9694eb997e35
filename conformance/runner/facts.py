"""Facts about the accelerator and this machine, from an allow-list: no host names, user names or absolute paths."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from conformance.runner.context import AcceleratorUnderTest

_PACKAGES = ("torch", "numpy", "scipy", "pytest", "pytest-xdist", "scikit-learn", "deepspeed", "triton")
#: Environment variables that change results, or that load code, and the numbers of kernels that a process keeps. Those
#: that choose one of several equal devices are not among them: the shards of a run have different ones. Nor is how
#: threads wait for each other: it changes no result.
_VARIABLES: Final = re.compile(
    r"(PYTEST|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|ATEN|CUDA|CUBLAS|CUDNN|NCCL|OMP|MKL|ONEDNN|DNNL|OPENBLAS|DS)_"
    r"(?!.*(?:VISIBLE_DEVICES|WAIT_POLICY|CACHE(?!_CAPACITY)|XDIST|CURRENT_TEST|VERSION))[A-Z0-9_]+|LRU_CACHE_CAPACITY|"
    r"PYTHON(PATH|OPTIMIZE|STARTUP|HASHSEED)|LD_PRELOAD|LD_LIBRARY_PATH"
)
_PRIVATE: Final = re.compile("TOKEN|KEY|SECRET|PASSW")
#: Modules of pytest and of this project. Plugins that these load themselves are no news.
_OWN: Final = frozenset({"_pytest", "pytest", "conformance", "pluggy"})


def accelerator_facts(subject: AcceleratorUnderTest) -> dict[str, Any]:
    """Return what the accelerator reports about itself, and its merged declaration."""
    claims = subject.declaration.cells
    return {
        "device": str(subject.device),
        "devices": _ask(lambda: int(subject.accelerator.device_count())),
        "device_names": _ask(lambda: product_names(subject.device.type, int(subject.accelerator.device_count()))),
        "communication_backend": _ask(lambda: subject.accelerator.communication_backend_name()),
        **versions(subject.device.type),
        "declaration": {
            "sha256": subject.declaration.sha256,
            "cells": [
                [str(cell), claim.state.value, claim.detail and claim.detail.value, claim.reason]
                for cell, claim in claims.items()
            ],
        },
    }


#: Name under which a worker tells the controller what loading the accelerator has changed in its process.
CHANGED = "changed_by_loading"


def product_names(device_type: str, count: int) -> list[str]:
    """Return the devices' product names, as ``torch.<type>.get_device_name`` says, or an empty list."""
    import torch

    get_name = getattr(getattr(torch, device_type, None), "get_device_name", None)
    return list(dict.fromkeys(str(get_name(index)) for index in range(count))) if callable(get_name) else []


def versions(device_type: str) -> dict[str, Any]:
    """Return the versions of driver and runtime, and the build of torch, as torch tells them. An unknown one is empty.

    A vendor's package answers ``torch.<type>.driver_version()`` and ``runtime_version()``; torch itself knows some.
    """
    import torch

    module = getattr(torch, device_type, None)
    ask = {
        "driver": [
            (module, "driver_version"),
            (torch._C, f"_{device_type}_getDriverVersion"),
        ],
        "runtime": [(module, "runtime_version"), (torch.version, device_type)],
    }
    known = {name: next(filter(None, (_version_at(*place) for place in places)), "") for name, places in ask.items()}
    parts = [str(torch.version.git_version)[:12], "debug" if torch.version.debug else ""]
    parts += [f"{name} {value}" for name in ("cuda", "hip", "xpu") if (value := getattr(torch.version, name, None))]
    return {**known, "torch_build": " ".join(filter(None, parts))}


def _version_at(holder: Any, name: str) -> str:
    """Return the version that an attribute holds, or that a function returns; empty if there is none."""
    found = getattr(holder, name, None)
    if callable(found):
        found = _ask(found)
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) else ""


def environment_facts() -> dict[str, Any]:
    """Return versions and the kind of machine."""
    facts = {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }
    return {"facts": facts}


def software_facts(config: pytest.Config) -> dict[str, Any]:
    """Return what changes results besides versions: the plugins that were loaded, and environment variables."""
    known = sorted((name, value) for name, value in os.environ.items() if value and _VARIABLES.fullmatch(name))
    variables = {name: value for name, value in known if not _PRIVATE.search(name)}
    if added := config.getini("addopts"):
        variables["addopts"] = " ".join(added)
    return {"plugins": loaded_plugins(config), "variables": variables}


def loaded_plugins(config: pytest.Config) -> list[str]:
    """Return the loaded plugins besides pytest's own: ``NAME VERSION`` of packages, and names of other modules."""
    listed = config.pluginmanager.list_plugin_distinfo()
    found = {f"{dist.project_name} {dist.version}" for _, dist in listed}
    # A package's plugin loads further modules of the package.
    known = _OWN | {_module_of(plugin).partition(".")[0] for plugin, _ in listed}
    for name, plugin in config.pluginmanager.list_name_plugin():
        module = _module_of(plugin)
        if module and module.partition(".")[0] not in known:
            found.add("conftest.py" if Path(str(name)).name == "conftest.py" else module)
    return sorted(found)


def _module_of(plugin: object) -> str:
    """Return the name of a plugin's module; empty for a plugin that is blocked."""
    if plugin is None:
        return ""
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return str((plugin if isinstance(plugin, type) else type(plugin)).__module__)


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts that a worker has written, or an empty dict if it died before."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return facts


def _version(package: str) -> str | None:
    """Return the installed version of ``package``, or ``None``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ask(question: Any) -> Any:
    """Return an answer, or the exception's name. Cases judge a broken member; the report must not end because of it."""
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - any answer is a fact
        return f"{type(error).__name__}: {error}"
