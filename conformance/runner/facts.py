"""Facts about the subject and this machine, from an allow-list: no host names, no user names, no absolute paths."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from conformance.runner.case_runner import Subject

_PACKAGES = ("torch", "numpy", "scipy", "pytest", "pytest-xdist", "scikit-learn", "deepspeed", "triton")


def accelerator_facts(subject: Subject) -> dict[str, Any]:
    """What the accelerator reports of itself, and its merged declaration."""
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
    """What the devices are called, as ``torch.<type>.get_device_name`` says; nothing where nothing says it."""
    import torch

    ask = getattr(getattr(torch, device_type, None), "get_device_name", None)
    return list(dict.fromkeys(str(ask(index)) for index in range(count))) if callable(ask) else []


def environment_facts() -> dict[str, Any]:
    """Versions and machine kind, with a fingerprint over them."""
    facts = {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return {"fingerprint_sha256": digest, "facts": facts}


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts))


def read_facts(path: Path) -> dict[str, Any]:
    """The facts a worker wrote; nothing if it never came so far."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ask(question: Any) -> Any:
    """An answer, or the exception's name: a broken member is a verdict elsewhere, not the end of the report."""
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - any answer is a fact
        return f"{type(error).__name__}: {error}"
