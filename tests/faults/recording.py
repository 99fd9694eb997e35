"""The map: which kernels each case reaches, with which arguments, and whether the case's own operator called them.

Kernels are recorded on the device's dispatch key, below autograd. What the case itself calls is recorded under a
dispatch mode: an operator's case inside its calls on the device, another case in its whole body. A kernel is *direct*
for a case when the case itself calls one of the kernel's operator.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.capabilities import COMPILE
from conformance.coverage import backward, databases
from conformance.coverage.flags import flags_of
from conformance.numerics.modes import with_memory
from conformance.suites.operators.calls import execution
from tests.defects import bench

from . import corpus, encoding, forks
from .conditions import OTHER_THREAD, THREADS, on_another_thread
from .overloads import kernels_of_a_device, operator_of, overload
from .overriding import Call, overridden

#: Git does not know this folder.
FOLDER = Path(__file__).parent / ".cache"
#: A body that calls more operators than this has no operator of its own.
_OWN = 8
#: Operators that copy tensors or make them.
_COPIES = frozenset(f"aten::{name}" for name in ("_to_copy", "copy", "clone", "contiguous", "empty_like", "zeros_like"))
#: Cases of a copy; a new one starts with clean memory.
_BATCH = 120
_DEADLINE = 300.0

#: Kernel -> place of an argument ("r" for results) -> flags.
Reached = dict[str, dict[str, list[str]]]


@dataclass
class Record:
    """What one case reached. ``own``: its own operators. ``nodes``: derivative rules with asked inputs."""

    reached: Reached = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    nodes: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0
    red: str = ""


@dataclass
class Map:
    """Records by case id. ``public``: by kernel, the public overloads of torch's databases that reach it on the device.
    ``flags``: what the databases give to the kernels."""

    cases: dict[str, Record] = field(default_factory=dict)
    public: dict[str, list[str]] = field(default_factory=dict)
    flags: Reached = field(default_factory=dict)

    def callers(self, kernel: str) -> set[str]:
        """Return the operators whose direct call reaches a kernel: its own, or else the public ones before it.

        A kernel such as ``_cholesky_solve_helper`` has no public name. Then ``cholesky_solve`` calls it directly.
        """
        own, public = operator_of(kernel), {operator_of(name) for name in self.public.get(kernel, ())}
        # The databases may reach a kernel through lists alone, and a case calls its own operator.
        return {own} if own in public or not public else {own, *public}


class Recorder:
    """Records kernels, their arguments, and the public overloads through which they are called."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.kernels: dict[str, dict[str, set[str]]] = {}
        self.public: set[str] = set()
        self.behaviours = {name: self._behaviour(name) for name in kernels_of_a_device()}
        self.watching = True
        self._lock = threading.Lock()

    def _behaviour(self, name: str) -> Callable[[Call], Any]:
        def behaviour(call: Call) -> Any:
            before = [list(flags_of(value)) for value in call.values]
            result = call.run()
            with self._lock:
                places = self.kernels.setdefault(name, defaultdict(set))
                for place, flags in enumerate(before):
                    places[str(place)].update(flags)
                places["r"].update(flags_of(result))
                if on_another_thread():
                    places[THREADS].add(OTHER_THREAD)
            return result

        return behaviour

    def start(self) -> None:
        self.kernels, self.public = {}, set()

    def mode(self) -> TorchDispatchMode:
        return _Mode(self.public, self._device.type)


class _Mode(TorchDispatchMode):
    def __init__(self, names: set[str], device_type: str) -> None:
        super().__init__()
        self._names, self._device_type = names, device_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(map(with_memory, args))
        # What a case computes on the host, such as its reference, is not what it is about.
        self._keep(func, [*args, *(kwargs or {}).values()])
        result = func(*args, **(kwargs or {}))
        self._keep(func, result)
        return result

    def _keep(self, func: Any, values: Any) -> None:
        if any(tensor.device.type == self._device_type for tensor in databases.tensors_of(values)):
            self._names.add(func.name())


def _arranges(operator: str) -> bool:
    """Return whether an operator gives access to memory, or copies it. Every case uses some of these."""
    forms = [getattr(torch.ops.aten, operator.removeprefix("aten::"), None)] if operator.startswith("aten::") else []
    views = any(getattr(form, name).is_view for form in forms if form is not None for name in form.overloads())
    return views or operator in _COPIES


@contextlib.contextmanager
def _seams(recorder: Recorder) -> Iterator[None]:
    """Record what an operator's case computes on the device, and nothing else of it."""
    run, differentiate = execution.execute, execution.gradients

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with recorder.mode() if recorder.watching else contextlib.nullcontext():
                return function(*args, **kwargs)

        return called

    execution.execute, execution.gradients = inside(run), inside(differentiate)
    try:
        yield
    finally:
        execution.execute, execution.gradients = run, differentiate


def plan(*, narrow: bool) -> list[str]:
    """Return the cases that a fault armed in one process can reach; ``narrow``: operators in few dtypes, no workloads.

    A workload calls too many operators to have one of its own, so it never counts, and takes a fifth of the time.
    """
    kept = ("float32", "int64", "complex64", "bool", "error-inputs")
    found = []
    for area in sorted({"accelerator", "operators", "utils", "workloads"} | set(bench_areas())):
        if narrow and area == "workloads":
            continue
        for id, entry in bench.plan(area).items():
            if entry.case.world_size is not None or any(id.startswith(start) for start in _ELSEWHERE):
                continue
            if COMPILE.cell in entry.case.requires:
                continue  # graphs cannot hold the calls through which faults act
            if narrow and area == "operators" and dict(entry.case.axes).get("dtype", "error-inputs") not in kept:
                continue
            found.append(id)
    return found


#: Cases that start processes of their own, where no fault is armed.
_ELSEWHERE = (
    "accelerator.selection.",
    "accelerator.environment.",
    "capabilities.",
)


def bench_areas() -> list[str]:
    """Return the areas whose cases compute with torch's operators in this process."""
    from conformance.plan.bundled import area_names

    wanted = {"accelerator", "operators", "utils", "workloads", "modules", "optimizers", "foreach", "derivatives"}
    return [area for area in area_names() if area in wanted]


def recorded(cases: Sequence[str], accelerator: str, processes: int, say: Callable[[str], None]) -> Map:
    """Record these cases in copies, and the calls of the corpus."""
    known = corpus.read()
    if known is None:
        say("reading PyTorch's databases (once for each torch)")
        list(forks.run([None], lambda _, send: corpus.find(), 1))
        known = corpus.read()
    assert known is not None
    found, started = Map(), time.perf_counter()
    batches: list[Any] = [None, *(list(cases[i : i + _BATCH]) for i in range(0, len(cases), _BATCH))]
    left = list(batches)
    while left:
        batches, left = left, []
        for copy in forks.run(batches, lambda batch, send: _record(batch, accelerator, known, send), processes):
            if copy.error:
                raise RuntimeError(copy.error)
            begun = None
            for kind, *what in copy.messages:
                if kind == "public":
                    found.public, found.flags = what
                elif kind == "begin":
                    begun = what[0]
                else:
                    found.cases[what[0]] = Record(**what[1])
                    begun = None
            if begun is not None:
                found.cases[begun] = Record(red=f"the process ended with status {copy.status}")
            if copy.task and (rest := [case for case in copy.task if case not in found.cases]):
                left.append(rest)
        say(f"{len(found.cases)} of {len(cases)} cases recorded in {time.perf_counter() - started:.0f} s")
    return found


def _record(batch: list[str] | None, accelerator: str, known: corpus.Corpus, send: forks.Send) -> None:
    place = bench.Bench(accelerator=accelerator)
    recorder = Recorder(place.device)
    with overridden(recorder.behaviours, key_of(place.device)):
        if batch is None:
            send(("public", *_public(known, recorder, place.device)))
            return
        with backward.recording() as nodes, _seams(recorder):
            for case in batch:
                send(("begin", case))
                signal.setitimer(signal.ITIMER_REAL, _DEADLINE)
                record = _record_case(place, recorder, nodes, case)
                signal.setitimer(signal.ITIMER_REAL, 0)
                send(("end", case, record))


def key_of(device: torch.device) -> str:
    """Return the dispatch key of a device's kernels."""
    return str(torch._C._dispatch_key_for_device(device.type))


def _record_case(place: bench.Bench, recorder: Recorder, nodes: dict[str, set[str]], case: str) -> dict[str, Any]:
    """Run a case under the dispatch mode; again without it if it fails: PyTorch does a few things otherwise."""
    is_operator = bench.area_of(case) == "operators"
    recorder.start()
    nodes.clear()
    started = time.perf_counter()
    with contextlib.nullcontext() if is_operator else recorder.mode():
        verdict = place.run(case)
    if bench.is_red(verdict):
        recorder.watching = False
        started = time.perf_counter()
        verdict = place.run(case)
        recorder.watching = True
    seconds = time.perf_counter() - started
    own = {operator_of(name) for name in recorder.public}
    # A body that calls many operators has none of its own.
    is_own = is_operator or (bool(own) and sum(not _arranges(name) for name in own) <= _OWN)
    return {
        "reached": _sorted(recorder.kernels),
        "own": sorted(own) if is_own else [],
        "nodes": {name: sorted(asked) for name, asked in nodes.items()},
        "seconds": round(seconds, 4),
        "red": verdict.message[:300] if bench.is_red(verdict) else "",
    }


def _public(known: corpus.Corpus, recorder: Recorder, device: torch.device) -> tuple[dict[str, list[str]], Reached]:
    """Return the kernels that the calls of the corpus reach on the device: by which public overloads, with what."""
    found: dict[str, set[str]] = defaultdict(set)
    flags: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, calls in known.calls.items():
        for encoded in calls:
            recorder.start()
            with contextlib.suppress(Exception):
                call(overload(name), encoding.decode(encoded, device))
            for kernel, places in recorder.kernels.items():
                found[kernel].add(name)
                for place, seen in places.items():
                    flags[kernel][place] |= seen
    return {kernel: sorted(names) for kernel, names in found.items()}, _sorted(flags)


def _sorted(kernels: dict[str, dict[str, set[str]]]) -> Reached:
    return {name: {at: sorted(flags) for at, flags in places.items()} for name, places in kernels.items()}


def call(function: Any, values: Sequence[Any]) -> Any:
    """Call an overload with values in the order of its schema."""
    arguments = list(function._schema.arguments)
    args = [value for argument, value in zip(arguments, values, strict=True) if not argument.kwarg_only]
    kwargs = {
        argument.name: value
        for argument, value in zip(arguments, values, strict=True)
        if argument.kwarg_only and value is not None and value is not argument.default_value
    }
    return function(*args, **kwargs)


# --- the file ---------------------------------------------------------------------------------------------------------


def kept(
    *,
    accelerator: str,
    narrow: bool,
    processes: int,
    only_new: bool = False,
    chosen: Callable[[list[str]], list[str]] = list,
    say: Callable[[str], None] = print,
) -> Map:
    """Return the map of this suite, or of the ``chosen`` cases: from its file, or recorded now and kept.

    ``only_new`` records the cases that the newest file lacks, and believes it for the others.
    """
    cases = chosen(plan(narrow=narrow))
    file = FOLDER / f"map-{_key([accelerator, *cases])}.json.gz"
    files = sorted(FOLDER.glob("map-*.json.gz"), key=lambda path: path.stat().st_mtime)
    if file.exists():
        return _read(file)
    old = _read(files[-1]) if only_new and files else Map()
    wanted = set(cases)
    known = {id: record for id, record in old.cases.items() if id in wanted and not record.red}
    found = recorded([id for id in cases if id not in known], accelerator, processes, say)
    found.cases = {**known, **found.cases}
    FOLDER.mkdir(exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=6) as stream:
        plain = {id: record.__dict__ for id, record in found.cases.items()}
        json.dump({"public": found.public, "flags": found.flags, "cases": plain}, stream)
    temporary.replace(file)
    return found


def _read(file: Path) -> Map:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        raw = json.load(stream)
    return Map({id: Record(**record) for id, record in raw["cases"].items()}, raw["public"], raw["flags"])


def _key(cases: Iterable[str]) -> str:
    """Return a hash of the cases, of the code that runs and judges them, and of this recording."""
    import conformance

    root = Path(conformance.__file__).parent
    facts = [torch.__version__, *cases]
    for folder in (root / "suites", root / "numerics", Path(__file__).parent):
        facts += [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")) if _shapes_map(path)]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _shapes_map(path: Path) -> bool:
    own = path.parent == Path(__file__).parent
    return not own or path.name in ("recording.py", "overloads.py", "overriding.py", "corpus.py")
