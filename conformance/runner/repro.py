"""The run's header, and the command that repeats one of its cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.reports.repro import repro
from conformance.runner.context import Settings


def header_of(settings: Settings) -> dict[str, Any]:
    """What was asked for, without absolute paths, which tell who and where."""
    options = settings.options
    return {
        "accelerator": settings.subject.name,
        "spec": options.accelerator,
        "paths": [redacted(path) for path in settings.paths],
        "argv": [redacted(word) for word in settings.argv],
        "seed": options.seed,
        "challenge": options.challenge,
        "strictness": options.strictness.value,
        "rank_isolation": options.rank_isolation.value,
        "profile": options.profile,
    }


def redacted(word: str) -> str:
    return "…/" + Path(word).name if word.startswith("/") else word


def repro_of(settings: Settings, case_id: str) -> str:
    """The command line that repeats a case of this run alone."""
    return repro(header_of(settings), case_id)
