"""Ask who is to blame on devices that are right: ``python -m tests.blame.healthy``.

The devices are the simulated accelerator, the same with CUDA's habits, and a backend in Python. Every program runs in
float32, in 16 bits and under autocast, with several seeds. Nobody may be blamed. A device that computes every call of
16 bits in float64 and rounds once differs from the host by honest rounding alone: where its end is not close to the
host's, the answer has to be rounding.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.registry import resolve
from conformance.blame.local import Before, evaluate_wide
from conformance.blame.program import Program
from conformance.blame.recording import Step
from conformance.blame.runs import LocalRuns, ends_of
from conformance.blame.verdict import Answer, blame
from conformance.numerics.trees import tensors
from conformance.suites.calls.kernels import outputs_of

from .programs import PROGRAMS

_HERE = Path(__file__).parent
#: Devices, and what the interpreter needs to find them.
DEVICES = {
    "sim": "sim",
    "like-cuda": "tests.like_cuda.accelerator:LIKE_CUDA",
    "heron": "heron_accelerator:HERON",
}
_HALVES = (torch.bfloat16, torch.float16)
#: How a program is run. ``wide`` is bfloat16 on a device that rounds each result once.
VARIANTS = ("float32", "bfloat16", "float16", "autocast")
WIDE = "wide"
#: Programs whose operators PyTorch has in no 16 bits, and variants that a device does not claim.
_NOT_IN_16_BITS = frozenset({"physics"})
_LACKS = {"heron": frozenset({"float16", "autocast"})}
#: A program that a device refuses: PyTorch makes what a group norm gets contiguous for CUDA, and not for others.
_REFUSED = frozenset({("like-cuda", "resnet")})
#: Programs of more than a thousand calls: two variants, and one seed.
_LARGE = frozenset({"llama", "llama_generates", "t5", "mixtral", "mamba", "whisper"})
#: Answers that accuse nobody.
_INNOCENT = (Answer.RIGHT, Answer.ROUNDING, Answer.RANDOM)


@dataclass(frozen=True)
class Task:
    """A program on a device, in a variant and with a seed of its weights."""

    device: str
    program: str
    variant: str
    seed: int


@dataclass
class Ran:
    """What blame said of a task. ``close``: the device's end is within torch.testing's tolerances of the host's."""

    task: Task
    answer: str = ""
    detail: str = ""
    named: tuple[str, ...] = ()
    judged: int = 0
    close: bool = True
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Return whether nobody is blamed, and rounding is told where it shows."""
        if self.task.variant == WIDE and not self.close:
            return self.answer == Answer.ROUNDING.name
        return self.answer in [answer.name for answer in _INNOCENT] and self.judged > 0


class Wide(TorchDispatchMode):
    """Compute the calls of 16 bits on a device in float64, and round each result once."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._type = device.type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        if func.is_view or not any(one.device.type == self._type and one.dtype in _HALVES for one in given):
            return func(*args, **kwargs)
        before = Before.of(args, kwargs)
        result = func(*args, **kwargs)
        outputs = outputs_of(func, args, kwargs, result)
        for output, exact in zip(outputs, evaluate_wide(Step(0, func, (), {}), before), strict=False):
            if output.is_floating_point() and output.shape == exact.shape:
                output.copy_(exact.to(output.dtype))
        return result


def tasks(runs: int) -> list[Task]:
    """Return so many runs: every device, program and variant once, then the smaller programs with other seeds."""
    every = [
        (device, program, variant)
        for device in DEVICES
        for program in PROGRAMS
        for variant in VARIANTS
        if variant not in _LACKS.get(device, ())
        and (device, program) not in _REFUSED
        and (variant == "float32" or program not in _NOT_IN_16_BITS)
        and (variant in ("float32", "bfloat16") or program not in _LARGE)
    ]
    small = [one for one in every if one[1] not in _LARGE]
    again = (Task(*one, seed=seed) for seed in itertools.count(1) for one in small)
    return [Task(*one, seed=0) for one in every[:runs]] + list(itertools.islice(again, max(0, runs - len(every))))


def judged(task: Task, live: Any) -> Ran:
    """Run a program and ask who is to blame."""
    device = torch.device(live.current_device_name())
    program = Program(task.program, PROGRAMS[task.program])
    begun = time.process_time()
    with _in_variant(task.variant, device):
        found = blame(LocalRuns(program, device, task.seed))
        close = True
        if task.variant == WIDE:
            close = _are_close(ends_of(program, device, task.seed), ends_of(program, torch.device("cpu"), task.seed))
    named = tuple(culprit.name for culprit in found.culprits)
    seconds = round(time.process_time() - begun, 2)
    return Ran(task, found.answer.name, found.detail, named, found.judged, close, seconds)


@contextlib.contextmanager
def _in_variant(variant: str, device: torch.device) -> Iterator[None]:
    dtype = {"float16": torch.float16, "float32": torch.float32, "autocast": torch.float32}.get(variant, torch.bfloat16)
    usual, casting = torch.get_default_dtype(), nullcontext()
    if variant == "autocast":
        casting = _autocast(device)
    torch.set_default_dtype(dtype)
    try:
        with casting, Wide(device) if variant == WIDE else nullcontext():
            yield
    finally:
        torch.set_default_dtype(usual)


@contextlib.contextmanager
def _autocast(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
        yield


def _are_close(left: Any, right: Any) -> bool:
    values = dict(right)
    try:
        for name, value in left:
            torch.testing.assert_close(value, values[name], equal_nan=True)
    except AssertionError:
        return False
    return True


def _of_device(name: str, runs: int, rounding: int) -> Iterator[Ran]:
    """Yield the runs of one device; on the simulated one also those that only round, until there are enough."""
    live = resolve(DEVICES[name]).load()
    torch.set_num_threads(1)
    for task in tasks(runs):
        if task.device == name:
            yield judged(task, live)
    if name != "sim":
        return
    programs = sorted(set(PROGRAMS) - _NOT_IN_16_BITS - _LARGE)
    for number in itertools.count():
        if rounding <= 0 or number > 10 * len(programs):
            return
        ran = judged(Task(name, programs[number % len(programs)], WIDE, number // len(programs)), live)
        rounding -= not ran.close
        yield ran


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was said of devices that are right. Return 1 if somebody is blamed."""
    options = _options(arguments)
    if options.device:
        for ran in _of_device(options.device, options.runs, options.rounding):
            print("RAN " + json.dumps(asdict(ran)), flush=True)
        return 0
    every: list[Ran] = []
    for name in DEVICES:
        words = ["-m", "tests.blame.healthy", "--device", name, "--runs", str(options.runs)]
        path = ":".join([str(_HERE.parent / "strangers"), *sys.path])
        ended = subprocess.run(
            [sys.executable, *words, "--rounding", str(options.rounding)],
            env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        rows = [json.loads(line[4:]) for line in ended.stdout.splitlines() if line.startswith("RAN ")]
        every += [Ran(**{**row, "task": Task(**row["task"])}) for row in rows]
        if ended.returncode:
            print(f"{name} ended with status {ended.returncode}: {ended.stderr[-500:]}")
            return 1
    return _say(every, options.rounding)


def _say(every: Sequence[Ran], rounding: int) -> int:
    plain = [ran for ran in every if ran.task.variant != WIDE]
    far = [ran for ran in every if ran.task.variant == WIDE and not ran.close]
    told = [ran for ran in far if ran.is_right]
    answers = collections.Counter(ran.answer for ran in plain)
    wrong = [ran for ran in every if not ran.is_right]
    blamed = sum(ran.task.variant != WIDE for ran in wrong)
    print(f"{len(plain)} runs of {len({ran.task.program for ran in plain})} programs on {len(DEVICES)} right devices:")
    print(f"  blamed: {blamed}; answers: {dict(answers)}; {sum(ran.judged for ran in plain):,} calls judged")
    print(f"{len(far)} runs that are far from the host by rounding alone: {len(told)} times the answer is rounding")
    for ran in wrong:
        print(f"  WRONG {ran.task}: {ran.answer} {ran.detail} {ran.named} {ran.judged}")
    print(f"processor seconds: {sum(ran.seconds for ran in every):.0f}")
    return int(bool(wrong) or len(far) < rounding)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.blame.healthy", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="runs in which nobody may be blamed")
    parser.add_argument("--rounding", type=int, default=20, help="runs that differ from the host by rounding alone")
    parser.add_argument("--device", choices=sorted(DEVICES), help="only this device, one line of JSON for each run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
