"""The same faults by other ways to find an operator: ``python -m tests.blame.peers --seed TEXT``.

Every fault moves the end of a program. Each way names an operator, and takes time and bytes:

* ``blame`` is this project's.
* ``off`` switches operators off one by one: each runs on the host instead, until the end is close to the host's.
* ``debug`` is PyTorch's DebugMode with its default hashes on both devices, after a ``diff`` of the operators' names:
  the first line whose hash differs by more than rounding.
* ``msprobe`` judges each API that the program calls on the device's inputs, forward and backward, with the comparison
  and the thresholds of mindstudio-probe against the CPU in the next wider dtype. Its command ``msprobe acc_check`` runs
  on the devices npu and cuda alone. The first API with an error counts; it is right if the broken kernel ran in it.
  Without the package, this way is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import difflib
import functools
import importlib
import importlib.util
import itertools
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.blame.local import Before
from conformance.blame.program import Program
from conformance.blame.recording import Recorder, Step
from conformance.blame.runs import LocalRuns, Seen, ends_of
from conformance.blame.verdict import Answer, blame
from conformance.blame.watching import returned_by_host
from conformance.numerics.trees import leaves, mapped, tensors
from conformance.suites.calls.kernels import base_name, named
from tests.defects import bench
from tests.faults import forks
from tests.faults.fault import Hits
from tests.faults.overriding import overridden
from tests.faults.population import KINDS

from . import programs
from . import run as instrument
from .programs import PROGRAMS

HOST = torch.device("cpu")
#: Relative difference up to which two norms are equal.
_SAME_HASH = 1e-5
#: Seconds of a processor for all ways on one fault.
_LIMIT = 240


@dataclass
class Way:
    """What one way has said: the operators that it names, or why it names none; and whether the first is right."""

    named: list[str] = field(default_factory=list)
    why: str = ""
    right: bool = False
    size: int = 0
    seconds: float = 0.0


@dataclass
class Outcome:
    """What all ways have said of one fault."""

    program: str
    fault: str
    moved: bool = False
    ways: dict[str, Way] = field(default_factory=dict)


# --- this project's ---------------------------------------------------------------------------------------------------


@dataclass
class _Counted(LocalRuns):
    size: int = 0

    def watched(self, *, mended: bool = False) -> Seen:
        found = super().watched(mended=mended)
        self.size += len(pickle.dumps((found.traces, [local.before for local in found.judged])))
        return found


def by_blame(program: Program, device: torch.device, hits: Hits) -> tuple[Way, bool]:
    """Ask blame; also return whether the end has moved."""
    del hits
    runs = _Counted(program, device)
    found = blame(runs)
    worst = found.worst_end
    moved = (worst is not None and worst.budgets > 1) or found.answer in (Answer.OTHER_CALLS, Answer.RAISED)
    moved = moved or any("raised" in culprit.worst.finding for culprit in found.culprits)
    return Way([culprit.name for culprit in found.culprits], found.answer.value, size=runs.size), moved


# --- one operator after the other on the host -------------------------------------------------------------------------


class _Off(TorchDispatchMode):
    """Make the calls of one operator on the host, and bring the results back."""

    def __init__(self, name: str, device_type: str) -> None:
        super().__init__()
        self._name, self._type = name, device_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_device = any(tensor.device.type == self._type for tensor in tensors((args, kwargs)))
        if str(func) != self._name or not on_device:
            return func(*args, **kwargs)
        return returned_by_host(Step(0, func, (), {}), Before.of(args, kwargs), args, kwargs)


def by_switching_off(program: Program, device: torch.device, hits: Hits) -> Way:
    """Switch each operator off by itself, in the order of their first calls, until the end is the host's."""
    del hits
    host = ends_of(program, HOST, 0)
    if _are_close(ends_of(program, device, 0), host):
        return Way([], "the end is close to the host's")
    with Recorder(device.type) as recorder, contextlib.suppress(Exception):
        program.run(device)
    steps = (step for step in recorder.trace.steps if not step.is_view and step.number_result is None)
    names = dict.fromkeys(step.name for step in steps if base_name(step.function) not in named("uninitialised"))
    for name in names:
        with _Off(name, device.type):
            if _are_close(ends_of(program, device, 0), host):
                return Way([name], "the end is right without it")
    return Way([], f"none of {len(names)} operators alone")


def _are_close(left: Any, right: Any) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return False
    values = dict(right)
    try:
        for name, value in left:
            torch.testing.assert_close(value, values[name], equal_nan=True)
    except (AssertionError, KeyError):
        return False
    return True


# --- PyTorch's DebugMode ----------------------------------------------------------------------------------------------


def by_debug_mode(program: Program, device: torch.device, hits: Hits) -> Way:
    """Hash every dispatched result on the device and on the host, and take the first line that differs.

    The two runs have other lines, so their operators are brought together as ``diff`` does. Hashes are norms.
    """
    from torch.utils._debug_mode import DebugMode

    del hits
    logs, size, raised = [], 0, ""
    for where in (device, HOST):
        with DebugMode() as mode, DebugMode.log_tensor_hashes():
            try:
                program.run(where)
            except Exception as error:  # what the program raises is a result
                raised = f"raised {type(error).__name__}"
        logs.append([line for line in mode.logs if hasattr(line, "op")])
        size += len(mode.debug_string())
    names = [[str(line.op) for line in lines] for lines in logs]
    for begin, other, length in difflib.SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
        for step in range(length):
            ours, theirs = logs[0][begin + step], logs[1][other + step]
            if _hashes_differ(_hashes(ours), _hashes(theirs)):
                return Way([str(ours.op)], "another hash", size=size)
    last = [names[0][-1]] if raised and names[0] else []
    return Way(last, raised or "no line differs", size=size)


def _hashes(line: Any) -> list[float]:
    return [leaf for leaf in leaves((line.log or {}).get("hash")) if isinstance(leaf, float)]


def _hashes_differ(left: Sequence[float], right: Sequence[float]) -> bool:
    pairs = zip(left, right, strict=False)
    return any(abs(a - b) > _SAME_HASH * max(abs(a), abs(b)) or (a != a) != (b != b) for a, b in pairs)


# --- mindstudio-probe's comparison ------------------------------------------------------------------------------------


class _Apis(TorchFunctionMode):
    """Judge each API call on a device with mindstudio-probe: on the same inputs on the CPU, in the next wider dtype."""

    def __init__(self, device: torch.device, folder: Path, hits: Hits) -> None:
        super().__init__()
        import yaml
        from msprobe.pytorch.api_accuracy_checker.compare.compare import Comparator
        from msprobe.pytorch.dump import api_dump

        lists = yaml.safe_load((Path(api_dump.__file__).parent / "support_wrap_ops.yaml").read_text(encoding="utf-8"))
        self._known = {
            getattr(space, name, None): f"{prefix}.{name}"
            for prefix, space in (("Functional", torch.nn.functional), ("Tensor", torch.Tensor), ("Torch", torch))
            for name in lists[prefix.lower()]
        }
        self._known.pop(None, None)
        self._device, self._hits, self._numbers = device, hits, itertools.count()
        self._compare = Comparator(str(folder / "result.csv"), str(folder / "details.csv"), False)
        self.size, self.hit = 0, set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        name = self._known.get(func)
        if name is not None and any(tensor.device.type == self._device.type for tensor in given):
            self.size += sum(tensor.numel() * tensor.element_size() for tensor in given)
            with contextlib.suppress(Exception):  # what cannot be made again is skipped, as by its own checker
                self._judge(f"{name}.{next(self._numbers)}", func, args, kwargs)
        return func(*args, **kwargs)

    def _judge(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        from msprobe.pytorch.api_accuracy_checker.acc_check.acc_check_utils import UtDataInfo, generate_cpu_params

        needs = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors((args, kwargs)))
        on_host = mapped((args, kwargs), functools.partial(_leaf, device=HOST))
        params = generate_cpu_params(*on_host, needs, name.split(".")[1])
        own_args, own_kwargs = mapped((args, kwargs), functools.partial(_leaf, device=self._device))
        before = self._hits.count
        due = func(*params.cpu_args, **params.cpu_kwargs)
        found = func(*own_args, **own_kwargs)
        gradients: list[Any] = [None, None]
        if needs and isinstance(found, torch.Tensor) and found.requires_grad:
            seed = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
            gradients = [
                _gradients(due, params.cpu_args, seed.to(due.dtype)),
                _gradients(found, own_args, seed.to(found.dtype).to(self._device)),
            ]
        if self._hits.count > before:
            self.hit.add(name)
        self._compare.compare_output(name, UtDataInfo(*gradients, _home(found), due, None, None, "", 0, False))


def _leaf(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.device):
        return device
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().to(device, copy=True).requires_grad_(leaf.requires_grad)


def _gradients(result: torch.Tensor, args: Any, seed: torch.Tensor) -> list[torch.Tensor]:
    asked = [tensor for tensor in tensors(args) if tensor.requires_grad]
    return [_home(one) for one in torch.autograd.grad(result, asked, seed, allow_unused=True) if one is not None]


def _home(value: Any) -> Any:
    return mapped(value, lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf)


def by_msprobe(program: Program, device: torch.device, hits: Hits) -> Way:
    """Return the first API that mindstudio-probe's comparison calls an error."""
    with tempfile.TemporaryDirectory() as folder:
        apis = _Apis(device, Path(folder), hits)
        with apis, contextlib.suppress(Exception):
            program.run(device)
        rows = list(csv.reader(Path(folder, "result.csv").read_text(encoding="utf-8-sig").splitlines()))[1:]
        size = apis.size + sum(file.stat().st_size for file in Path(folder).iterdir())
    wrong = [row[0] for row in rows if "error" in (row[1], row[2])]
    return Way(wrong, f"{len(wrong)} of {len(rows)} APIs", bool(wrong) and wrong[0] in apis.hit, size)


# --- all --------------------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[Program, torch.device, Hits], Way]] = {
    "off": by_switching_off,
    "debug": by_debug_mode,
    "msprobe": by_msprobe,
}


def _judged(task: Any, send: forks.Send) -> None:
    forks.limit(_LIMIT, patience=8)
    device = torch.device(bench.loaded()[0].current_device_name())
    hits = Hits()
    armed = {fault.target: KINDS[fault.family, fault.kind].behave(fault, hits) for fault in task.faults}
    program = Program(task.program, PROGRAMS[task.program])
    outcome = Outcome(task.program, " ".join(map(str, task.faults)))
    with overridden(armed, "PrivateUse1"):
        begun = time.process_time()
        outcome.ways["blame"], outcome.moved = by_blame(program, device, hits)
        outcome.ways["blame"].seconds = time.process_time() - begun
        outcome.moved = outcome.moved and (hits.count > 0 or not task.faults)
        for name in _here() if outcome.moved or not task.faults else ():
            begun = time.process_time()
            outcome.ways[name] = WAYS[name](program, device, hits)
            outcome.ways[name].seconds = time.process_time() - begun
    for name, way in outcome.ways.items():
        if name != "msprobe" and task.faults:
            way.right = instrument._is_among(task.callers[0], way.named[:1])
    send(outcome)


def _here() -> list[str]:
    return [name for name in WAYS if name != "msprobe" or importlib.util.find_spec("msprobe") is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the ways, and what each says of the healthy device."""
    parser = argparse.ArgumentParser(prog="python -m tests.blame.peers", description=__doc__)
    parser.add_argument("--faults", type=int, default=40, help="faults that move the end of a program")
    parser.add_argument("--seed", default="0", help="any text; the same seed draws the same faults")
    parser.add_argument("--program", action="append", choices=sorted(PROGRAMS), help="only this program; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--out", type=Path, default=Path("blame-report"), help="folder for peers.jsonl")
    options = parser.parse_args(arguments)
    bench.loaded()
    programs.load()
    if "msprobe" in _here():  # it takes seconds, which are no part of its answers
        importlib.import_module("msprobe.pytorch.api_accuracy_checker.acc_check.acc_check_utils")
        importlib.import_module("msprobe.pytorch.api_accuracy_checker.compare.compare")
    forks.prepare()
    flags = {
        copy.task.program: copy.messages[0]
        for copy in forks.run(
            map(instrument._Task, options.program or sorted(PROGRAMS)), instrument._kernels, options.jobs
        )
    }
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[Outcome] = []
    with (options.out / "peers.jsonl").open("w", encoding="utf-8") as file:
        healthy = [instrument._Task(name) for name in sorted(flags)]
        drawn = instrument.drawn(flags, 20 * options.faults, options.seed)
        for copy in forks.run(itertools.chain(healthy, drawn), _judged, options.jobs):
            for outcome in copy.messages:
                if outcome.moved or not outcome.fault:
                    found.append(outcome)
                    file.write(json.dumps(outcome, default=vars) + "\n")
                    file.flush()
            if sum(bool(outcome.fault) for outcome in found) >= options.faults:
                break
    print(table(found))
    return 0


def table(found: Sequence[Outcome]) -> str:
    """Return the table: right answers, minutes and bytes of all faults, and healthy programs that are accused."""
    rows = []
    broken, healthy = ([one for one in found if bool(one.fault) is is_broken] for is_broken in (True, False))
    for name in ("blame", *_here()):
        ways = [one.ways[name] for one in broken]
        answers = sum(bool(way.named) for way in ways)
        right = sum(way.right for way in ways)
        false = sum(bool(one.ways[name].named) for one in healthy if name != "off")
        minutes = sum(way.seconds for way in ways) / 60
        size = sum(way.size for way in ways) / max(1, len(ways)) / 1e6
        rows.append([name, f"{right} of {len(ways)}", answers - right, false, f"{minutes:.1f}", f"{size:.2f}"])
    header = ("way", "right", "wrong operator", f"accused of {len(healthy)} healthy", "minutes", "MB of each")
    return tabulate(rows, headers=header, tablefmt="github")


if __name__ == "__main__":
    sys.exit(main())
