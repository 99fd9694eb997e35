"""Programs that need a process of their own: what importing does, and what the environment decides."""

from __future__ import annotations

import json
import os
import subprocess

from conformance.child_python import child_python

_PREAMBLE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
spec = sys.argv[1]
def tell(**answers): print("ANSWERS" + json.dumps(answers), flush=True)
"""


def run_python(program: str, spec: str, timeout: float = 100.0, **environment: str | None) -> dict:
    """Run a program that knows ``spec`` and answers with ``tell(name=value)``; None removes a variable."""
    variables = {**os.environ, **{k: v for k, v in environment.items() if v is not None}}
    for name in (k for k, v in environment.items() if v is None):
        variables.pop(name, None)
    done = subprocess.run(
        child_python(_PREAMBLE + program, spec),
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    answers = [line.removeprefix("ANSWERS") for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    # A process may die at its exit, after it has answered; what it answered counts.
    assert answers, f"the process ended with status {done.returncode}: {done.stderr.strip()[-800:]}"
    return json.loads(answers[-1])
