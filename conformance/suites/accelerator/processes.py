"""Programs that need a process of their own: what importing does, and what the environment decides."""

from __future__ import annotations

import functools
import json
import os
import subprocess

from conformance.process.python import child_python

#: The collector would take a fifth of the time that torch needs to be imported, and these processes live for seconds.
_PREAMBLE = """
import gc; gc.disable()
import json, os, sys, warnings
warnings.simplefilter("ignore")
spec = sys.argv[1]
def tell(**answers): print("ANSWERS" + json.dumps(answers), flush=True)
def answer(name, question):
    try: tell(**{name: question()})
    except Exception as error: tell(**{name: f"{type(error).__name__}: {error}"})
"""


@functools.cache
def run_python(program: str, spec: str, timeout: float = 100.0, **environment: str | None) -> dict:
    """Run a program that knows ``spec`` and answers with ``tell(name=value)``; None removes a variable.

    ``answer(name, question)`` tells what a function returns, or what it raises. Cases that ask the same program get
    the answers of one process: importing torch takes seconds.
    """
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
    return {name: value for line in answers for name, value in json.loads(line).items()}


#: What a process that is told its accelerator by DS_ACCELERATOR finds; nothing is loaded before the first answer.
_FINDS = """
import torch
def modes():
    return [torch.are_deterministic_algorithms_enabled(), str(torch.get_default_dtype()), torch.is_grad_enabled()]
answer("before", modes)
from conformance.accelerators import get_accelerator, set_accelerator
from conformance.accelerators.registry import resolve
answer("device", lambda: get_accelerator().device_name())
answer("after", modes)
answer("again", lambda: get_accelerator() is get_accelerator())
answer("count", lambda: get_accelerator().device_count())
answer("dtypes", lambda: sorted(map(str, get_accelerator().supported_dtypes())))
def kept():
    mine = resolve(spec).load()
    set_accelerator(mine)
    return get_accelerator() is mine
def refused(wrong):
    try: set_accelerator(wrong)
    except (TypeError, ValueError): return True
    return False
answer("kept", kept)
answer("refused", lambda: [refused(wrong) for wrong in (None, object(), "name")])
"""


def told_by_another(spec: str) -> dict:
    """What a new process finds: ``device``, ``again``, ``count``, ``dtypes``; modes ``before`` and ``after``; and more.

    Every name is there, with a sentence where there is no answer.
    """
    found = run_python(_FINDS, spec, DS_ACCELERATOR=spec)
    names = ("before", "device", "after", "again", "count", "dtypes", "kept", "refused")
    return {name: found.get(name, "the process had ended by then") for name in names}


def spec_of(pytestconfig) -> str:
    return pytestconfig.getoption("--accelerator")
