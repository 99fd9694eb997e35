"""Repro line: the command that repeats one case."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.reports import redaction
from conformance.reports.plain_text import plain, without_folders


def repro(header: Mapping[str, Any], id: str) -> str:
    """Return a command line that runs the case alone, in one process.

    ``header`` is a run's header as the journal has it: ``spec``, ``paths`` of a vendor's own cases, ``argv``,
    ``seed``, ``strictness``, ``rank_isolation``; missing members have their defaults.
    """
    spec = plain(str(header.get("spec") or header.get("accelerator") or "auto"))
    words = [
        "pytest",
        *redaction.strings(header.get("paths")),
        f"--accelerator={without_folders(spec)}",
        "--case",
        id,
        "-n0",
    ]
    words += _claims_file(redaction.strings(header.get("argv")))
    if seed := redaction.whole(header.get("seed")):
        words.append(f"--conformance-seed={seed}")
    if (strictness := header.get("strictness", "ci")) != "ci":
        words.append(f"--strictness={plain(str(strictness))}")
    if (isolation := header.get("rank_isolation", "reuse")) != "reuse":
        words.append(f"--rank-isolation={plain(str(isolation))}")
    return shlex.join(words)


def _claims_file(argv: Sequence[str]) -> list[str]:
    """Return the option ``--capabilities`` of a command line, in the form in which it stands there."""
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word.startswith("--capabilities="):
            return [word]
        if word == "--capabilities" and following:
            return [word, following]
    return []
