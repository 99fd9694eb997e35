"""The command that repeats one case."""

from __future__ import annotations

import shlex

from conformance.run_options import RunOptions


def repro(options: RunOptions, case_id: str, path: str | None = None) -> str:
    """A command line that runs this case alone, in this process."""
    words = ["pytest", *([path] if path else []), f"--accelerator={options.accelerator}", "--case", case_id, "-n0"]
    if options.capabilities:
        words.append(f"--capabilities={options.capabilities}")
    if options.seed:
        words.append(f"--conformance-seed={options.seed}")
    return shlex.join(words)
