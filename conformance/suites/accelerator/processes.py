"""Programs that need a process of their own, because they test imports and environment variables."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import time

from conformance.judging.finding import environment_lacks
from conformance.process.machine import slowdown
from conformance.process.python import child_python

#: The garbage collector would take a fifth of torch's import time. These processes live for seconds only.
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
    """Run a Python program in a new process and return the answers that it prints as a dict.

    The program knows ``spec``, the accelerator's specification. It calls ``tell(name=value)`` to answer, or
    ``answer(name, function)`` to tell what the function returns or raises. Keyword arguments set environment
    variables; None removes one. ``timeout`` is in seconds, and extended while the machine is busy. Raises TimeoutError
    if the process has not ended by then.

    The result is cached, so cases that run the same program share one process: importing torch takes seconds.
    """
    variables = {**os.environ, **{name: value for name, value in environment.items() if value is not None}}
    for name in (name for name, value in environment.items() if value is None):
        variables.pop(name, None)
    process = subprocess.Popen(
        child_python(_PREAMBLE + program, spec),
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = _ended(process, timeout)
    answers = [line.removeprefix("ANSWERS") for line in output.splitlines() if line.startswith("ANSWERS")]
    # A process may die at exit, after it has answered. Those answers count, so the exit status is not checked.
    assert answers, f"the process ended with exit status {process.returncode}: {errors.strip()[-800:]}"
    return {name: value for line in answers for name, value in json.loads(line).items()}


def _ended(process: subprocess.Popen, timeout: float) -> tuple[str, str]:
    """Wait for the end of a process and return its output and its errors; kill it when its time is over."""
    started = time.monotonic()
    try:
        while True:
            limit = timeout * slowdown()
            try:
                return process.communicate(timeout=max(0.0, limit - (time.monotonic() - started)))
            except subprocess.TimeoutExpired:
                # The machine may have become busy meanwhile.
                if time.monotonic() - started >= timeout * slowdown():
                    raise TimeoutError(
                        f"a new Python process that loads the accelerator did not end within {limit:.0f} s"
                    ) from None
    finally:
        with process:
            process.kill()


#: A function of a device's name that adds 1 to numbers on the device. The sum of the results is 10.
TOTAL = """
def total(device):
    import torch
    return float((torch.arange(4.0).to(device) + 1).cpu().sum())
"""
#: Program for a process whose accelerator is set by DS_ACCELERATOR. Nothing is loaded before the first answer.
_REPORT = (
    TOTAL
    + """
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
answer("total", lambda: total(get_accelerator().device_name()))
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
)


def answers_of_new_process(spec: str) -> dict:
    """Return the answers of a new process whose accelerator is set by DS_ACCELERATOR.

    ``device``, ``count`` and ``dtypes`` describe the accelerator. ``total`` is what ``TOTAL`` computes on the device.
    ``before`` and ``after`` are torch's modes before and after loading it. ``again``, ``kept`` and ``refused`` are
    results of get_accelerator() and set_accelerator().
    Every key is present; a sentence stands for an answer that is missing.
    """
    answers = run_python(_REPORT, spec, DS_ACCELERATOR=spec)
    names = ("before", "device", "after", "again", "count", "total", "dtypes", "kept", "refused")
    return {name: answers.get(name, "the process ended before this answer") for name in names}


def total_here(device) -> float:
    """Return what ``TOTAL`` gives in this process; skip the case if the device does not add here either."""
    names: dict = {}
    exec(TOTAL, names)
    try:
        return names["total"](device)
    except Exception as error:
        environment_lacks(f"the device does not add 1 to numbers in this process either: {error}")


def spec_of(pytestconfig) -> str:
    """Return the accelerator's specification from the command line."""
    return pytestconfig.getoption("--accelerator")
