"""Facts about the accelerator and this machine, from an allow-list: no host names, user names or absolute paths."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from conformance.runner.context import AcceleratorUnderTest

_PACKAGES = ("torch", "numpy", "scipy", "pytest", "pytest-xdist", "scikit-learn", "deepspeed", "triton")


def accelerator_facts(subject: AcceleratorUnderTest) -> dict[str, Any]:
    """Return what the accelerator reports about itself, and its merged declaration."""
    claims = subject.declaration.cells
    return {
        "device": str(subject.device),
        "devices": _ask(lambda: int(subject.accelerator.device_count())),
        "device_names": _ask(lambda: product_names(subject.device.type, int(subject.accelerator.device_count()))),
        "communication_backend": _ask(lambda: subject.accelerator.communication_backend_name()),
        "declaration": {
            "sha256": subject.declaration.sha256,
            "cells": [
                [str(cell), claim.state.value, claim.detail and claim.detail.value, claim.reason]
                for cell, claim in claims.items()
            ],
        },
    }


def product_names(device_type: str, count: int) -> list[str]:
    """Return the devices' product names, as ``torch.<type>.get_device_name`` says, or an empty list."""
    import torch

    get_name = getattr(getattr(torch, device_type, None), "get_device_name", None)
    return list(dict.fromkeys(str(get_name(index)) for index in range(count))) if callable(get_name) else []


def environment_facts() -> dict[str, Any]:
    """Return versions and the kind of machine, with a SHA-256 fingerprint of them."""
    facts = {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return {"fingerprint_sha256": digest, "facts": facts}


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
