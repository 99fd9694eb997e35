"""Answer of blame: which operators are at fault, how much of the end each one moves, or why none is."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from conformance.numerics.budgets import unit_roundoff
from conformance.numerics.compare import plain, same_bits

from . import compiled
from .local import Local
from .program import Program
from .recording import Recorder, Step, Trace, outputs_of
from .replay import Errors, Replay, Roundings, as_computed, replay
from .watching import Watched, watch

#: Replays with honest roundings. The end of a right device lies within a few times their spread.
_REPLAYS, _SPREADS = 3, 8.0
#: Roundings of an end that are always allowed.
_ALWAYS = 8.0
#: Groups of calls whose effect on the end is computed.
_WEIGHED = 8
#: Growth of an error in one call from which on a place is named as amplifying.
_GROWTH = 8.0
#: Watched runs until a fault that shows only in some of them is met.
_RUNS = 3


class Answer(Enum):
    """Kind of answer."""

    CULPRIT = "an operator is wrong"
    SUM = "no operator alone is wrong; together their errors are too large"
    ROUNDING = "no operator is at fault: rounding"
    RIGHT = "nothing is wrong"
    HOST = "the host is wrong"
    RANDOM = "random numbers differ"
    UNSTEADY = "not reproducible"
    LOOKING = "looking at the run changes it"
    COMPILED = "the compiled code is wrong"
    OTHER_CALLS = "device and host make other calls"
    RAISED = "the program raises on both"


@dataclass
class Culprit:
    """Operator that is wrong: its calls, and the share of the end's error that they cause (None: not known)."""

    name: str
    calls: list[Local]
    total: int
    share: float | None = None

    @property
    def worst(self) -> Local:
        """Return the call with the largest error in budgets; of several, the first."""
        return max(self.calls, key=lambda local: local.ratio)


@dataclass(frozen=True)
class End:
    """One value that the program returned: its largest error, and the largest that honest rounding allows."""

    name: str
    error: float
    allowed: float

    @property
    def budgets(self) -> float:
        """Return the error in budgets."""
        if self.error <= self.allowed:
            return self.error / self.allowed if self.allowed else 0.0
        return self.error / self.allowed if self.allowed else float("inf")


@dataclass
class Blame:
    """All that was found out about a program on a device."""

    answer: Answer
    detail: str = ""
    culprits: list[Culprit] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    explained: float | None = None
    compiled: int = 0  # graphs that PyTorch has compiled for the program
    steps: int = 0
    judged: int = 0
    unjudged: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def worst_end(self) -> End | None:
        """Return the end with the largest error in budgets."""
        return max(self.ends, key=lambda end: end.budgets, default=None)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, what: str, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        try:
            return work()
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.monotonic() - begun


def blame(program: Program, device: torch.device, seed: int = 0) -> Blame:
    """Run a program on a device and on the host, and find the operator that is wrong.

    The first run is the watched one: some faults are those of the first call. Two runs without looking follow.
    """
    clock = _Clock()
    watched = clock.timed("watched", lambda: watch(program, device, seed=seed))
    if watched.error and not watched.wrong:
        return _raised(program, watched, seed, clock)
    compiled.forget()
    before = compiled.graphs()
    runs = [clock.timed("device", lambda: _run(program, device, seed)) for _ in range(2)]
    if not watched.wrong and _differ(watched.ends, runs[0]):
        for _ in range(_RUNS - 1):
            again = clock.timed("watched", lambda: watch(program, device, seed=seed))
            if again.wrong:
                watched = again
                break
    found = _weighed(watched, clock)
    found.compiled = compiled.graphs() - before
    if found.answer is Answer.RIGHT:
        _without_culprit(found, program, device, watched, runs, seed, clock)
    found.steps, found.seconds = len(watched.trace.steps), clock.seconds | {"program": watched.seconds}
    found.judged = sum(not local.unjudged for local in watched.judged)
    for local in watched.judged:
        if local.unjudged:
            key = f"{local.step.name}: {local.unjudged}"
            found.unjudged[key] = found.unjudged.get(key, 0) + 1
    return found


def _run(program: Program, device: torch.device, seed: int) -> list[tuple[str, Any]] | str:
    """Run without looking; return the ends on the host, or what was raised."""
    try:
        return [(name, _on_host(value)) for name, value in program.run(device, seed)]
    except Exception as error:  # noqa: BLE001  what the program raises is a result
        return f"{type(error).__name__}: {error}"


def _on_host(value: Any) -> torch.Tensor:
    return plain(value).clone() if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def _differ(left: Any, right: Any) -> bool:
    """Return whether the ends of two runs have other bits."""
    if isinstance(left, str) or isinstance(right, str):
        return bool(left != right)
    if [name for name, _ in left] != [name for name, _ in right]:
        return True
    return not all(same_bits(_on_host(a), _on_host(b)) for (_, a), (_, b) in zip(left, right, strict=True))


def _raised(program: Program, watched: Watched, seed: int, clock: _Clock) -> Blame:
    """Return the answer for a program that raises although no call of the device is wrong."""
    host = clock.timed("host", lambda: _run(program, torch.device("cpu"), seed))
    if isinstance(host, str):
        return Blame(Answer.RAISED, f"on the device {watched.error}; on the host {host}")
    last = watched.trace.steps[-1] if watched.trace.steps else None
    where = f" after {described(last)}" if last else ""
    return Blame(Answer.OTHER_CALLS, f"only the device raises{where}: {watched.error}")


# --- weights ----------------------------------------------------------------------------------------------------------


def _weighed(watched: Watched, clock: _Clock) -> Blame:
    """Return the ends with what honest rounding allows, and the culprits with their shares."""
    trace = watched.trace
    exact = clock.timed("replays", lambda: replay(trace))
    names = [name for name, _ in trace.ends]
    places = {name: _on_host(value) for name, value in watched.ends}
    actual = [places[name] for name in names]
    spread = clock.timed("replays", lambda: _spread(trace, exact))
    ends = [
        End(name, _distance(value, due), allowed)
        for name, value, due, allowed in zip(names, actual, exact, spread, strict=True)
    ]
    culprits = _groups(watched)
    found = Blame(Answer.CULPRIT if culprits else Answer.RIGHT, culprits=culprits, ends=ends)
    if not culprits:
        return found
    worst = max(range(len(ends)), key=lambda i: ends[i].budgets, default=None)
    if worst is None or watched.error:
        return found
    whole = ends[worst].error
    culprits.sort(key=lambda one: one.worst.ratio, reverse=True)
    for culprit in culprits[:_WEIGHED]:
        moved = clock.timed("replays", functools.partial(replay, trace, Errors(_deltas(culprit.calls))))
        culprit.share = _share(moved[worst], exact[worst], whole)
    together = clock.timed(
        "replays", lambda: replay(trace, Errors(_deltas([local for one in culprits for local in one.calls])))
    )
    # What is left when the end of the replay with all their errors is compared with the device's.
    left = _distance(actual[worst], together[worst])
    found.explained = None if not whole else max(0.0, 1 - left / whole) if left == left else None
    culprits.sort(key=lambda one: (one.share or 0.0, one.worst.ratio), reverse=True)
    return found


def _groups(watched: Watched) -> list[Culprit]:
    """Return the wrong calls by operator."""
    totals: dict[str, int] = {}
    for local in watched.judged:
        totals[local.step.name] = totals.get(local.step.name, 0) + 1
    groups: dict[str, list[Local]] = {}
    for local in watched.wrong:
        groups.setdefault(local.step.name, []).append(local)
    return [Culprit(name, calls, totals[name]) for name, calls in groups.items()]


def _deltas(calls: Sequence[Local]) -> dict[int, list[torch.Tensor | None]]:
    return {local.step.number: local.deltas for local in calls}


def _share(moved: torch.Tensor, exact: torch.Tensor, whole: float) -> float | None:
    if not whole:
        return None
    distance = _distance(moved, exact)
    if distance == float("inf") or whole == float("inf"):
        return 1.0 if distance == whole else 0.0
    return min(1.0, distance / whole)


def _spread(trace: Trace, exact: list[torch.Tensor]) -> list[float]:
    """Return, for each end, the largest error that honest rounding of every call may cause."""
    allowed = [_ALWAYS * _rounding(place, due) for (_, place), due in zip(trace.ends, exact, strict=True)]
    for seed in range(_REPLAYS):
        rounded = replay(trace, Roundings(seed))
        for number, (value, due) in enumerate(zip(rounded, exact, strict=True)):
            distance = _distance(value, due)
            if distance != float("inf"):
                allowed[number] = max(allowed[number], _SPREADS * distance)
    return allowed


def _rounding(place: Any, exact: torch.Tensor) -> float:
    dtype = getattr(place, "dtype", exact.dtype)
    if not (dtype.is_floating_point or dtype.is_complex) or not exact.numel():
        return 0.0
    return unit_roundoff(dtype) * float(exact.abs().nan_to_num(0, 0, 0).max())


def _distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest difference of two tensors; infinite where only one is finite, or with other shapes."""
    if value.shape != exact.shape:
        return float("inf")
    if not value.numel():
        return 0.0
    kind = torch.complex128 if value.is_complex() or exact.is_complex() else torch.float64
    value, exact = value.to(kind), exact.to(kind)
    both = (value == exact) | (value.isnan() & exact.isnan())
    error = torch.where(both, 0.0, (value - exact).abs())
    return float(error.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


# --- no culprit -------------------------------------------------------------------------------------------------------


def _without_culprit(
    found: Blame,
    program: Program,
    device: torch.device,
    watched: Watched,
    runs: list[Any],
    seed: int,
    clock: _Clock,
) -> None:
    """Find out why an end is off, or say that it is not."""
    trace = watched.trace
    limits = {end.name: end for end in found.ends}
    exact = dict(zip((name for name, _ in trace.ends), replay(trace), strict=True))
    if _beyond(runs[0], runs[1], limits):
        found.answer = Answer.UNSTEADY
        found.detail = _first_difference(program, device, seed)
        return
    if isinstance(runs[0], str):
        found.answer, found.detail = Answer.LOOKING, f"without looking, the program raises: {runs[0]}"
        return
    if _beyond(list(exact.items()), runs[0], limits) and not _beyond(list(exact.items()), watched.ends, limits):
        if found.compiled:

            def is_right() -> bool:
                return not _beyond(list(exact.items()), _run(program, device, seed), limits)

            found.answer = Answer.COMPILED
            found.detail = clock.timed("graphs", lambda: compiled.wrong_graph(is_right))
            return
        found.answer, found.detail = Answer.LOOKING, "the watched run is right, and the same run without looking is not"
        return
    worst = found.worst_end
    if worst is not None and worst.budgets > 1:
        found.answer, found.detail = Answer.SUM, _largest_errors(watched)
        return
    host = clock.timed("host", lambda: _run(program, torch.device("cpu"), seed))
    _beside_host(found, trace, host, exact, limits, watched)


def _beside_host(
    found: Blame,
    trace: Trace,
    host: Any,
    exact: dict[str, torch.Tensor],
    limits: dict[str, End],
    watched: Watched,
) -> None:
    """Compare a device that is right with the host's own run of the program."""
    wrong_host = [local for local in watched.judged if local.host_ratio > 1 and local.ratio <= 1 and not local.unjudged]
    if isinstance(host, str):
        found.detail = f"the host's run raises: {host}"
        return
    if not _beyond(list(exact.items()), host, limits):
        if not _are_close(watched.ends, host):
            name, growth = _amplifier(trace)
            found.answer = Answer.ROUNDING
            found.detail = f"amplified ×{growth:,.0f} at {name}" if growth >= _GROWTH else "of many calls in sum"
        return
    if any(
        step.constants is not None and torch.Tag.nondeterministic_seeded in step.function.tags for step in trace.steps
    ):
        drawn = next(step for step in trace.steps if torch.Tag.nondeterministic_seeded in step.function.tags)
        found.answer, found.detail = Answer.RANDOM, f"the first are drawn by {described(drawn)}"
        return
    if wrong_host:
        local = max(wrong_host, key=lambda one: one.host_ratio)
        found.answer = Answer.HOST
        found.detail = f"{described(local.step)}: the host's error is {local.host_ratio:,.0f} budgets"
        return
    found.answer, found.detail = Answer.OTHER_CALLS, "each call of the device is right on its own inputs"


def _beyond(left: Any, right: Any, limits: dict[str, End]) -> bool:
    """Return whether the ends of two runs differ by more than honest rounding allows."""
    if isinstance(left, str) or isinstance(right, str):
        return bool(left != right)
    values = dict(right)
    return any(
        name in values and name in limits and _distance(_on_host(value), _on_host(values[name])) > limits[name].allowed
        for name, value in left
    )


def _are_close(left: Any, right: Any) -> bool:
    """Return whether the ends of two runs are within the tolerances of ``torch.testing``."""
    values = dict(right)
    return all(name not in values or _is_close(_on_host(value), _on_host(values[name])) for name, value in left)


def _is_close(left: torch.Tensor, right: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(left, right, equal_nan=True)
    except AssertionError:
        return False
    return True


def _first_difference(program: Program, device: torch.device, seed: int) -> str:
    """Return where two watched runs of the device differ first."""
    runs = [_outputs(program, device, seed) for _ in range(2)]
    for (step, left), (other, right) in zip(*runs, strict=False):
        if step.name != other.name:
            return f"two runs on the device make other calls from {described(step)} on"
        if left != right:
            return f"two runs on the device differ at {described(step)}"
    return "two runs on the device differ, and two watched ones do not"


def _outputs(program: Program, device: torch.device, seed: int) -> list[tuple[Step, list[bytes]]]:
    """Run once, and return the bytes of the outputs of each call."""
    found: list[tuple[Step, list[bytes]]] = []

    def look(step: Step, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        result = run()
        made = [plain(tensor) for tensor in outputs_of(step.function, args, kwargs, result)]
        found.append((step, [_digest(tensor) for tensor in made]))
        return result

    with Recorder(device.type, look):
        program.run(device, seed)
    return found


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).digest()


def _largest_errors(watched: Watched) -> str:
    near = sorted((local for local in watched.judged if local.ratio), key=lambda local: -local.ratio)[:3]
    if not near:
        return "each call has the host's bits on its own inputs; what changes the run lies between the calls"
    return "the largest errors: " + "; ".join(f"{described(one.step)}: {one.ratio:.2f} budgets" for one in near)


def _amplifier(trace: Trace) -> tuple[str, float]:
    """Return the call in which an honest error grows most, relative to what goes in, and by how much."""
    errors: dict[int, float] = {}
    place, largest = "", 1.0
    exact, rounded = Replay(trace, as_computed), Replay(trace, Roundings(0))
    for (step, due), (_, got) in zip(exact, rounded, strict=True):
        if step.is_view:
            continue
        inside = max((errors.get(place.memory, 0.0) for place in _read(step)), default=0.0)
        for target, a, b in zip(step.results, due, got, strict=True):
            own = unit_roundoff(a.dtype) if a.is_floating_point() or a.is_complex() else 0.0
            scale = float(a.double().abs().nan_to_num(0, 0, 0).max()) if a.numel() and not a.is_complex() else 0.0
            error = _distance(b, a) / scale if scale else 0.0
            if hasattr(target, "memory"):
                errors[target.memory] = error if error != float("inf") else 0.0
            # What a call rounds itself is no growth.
            if inside and error / max(inside, own) > largest:
                place, largest = described(step), error / max(inside, own)
    return place, largest


def _read(step: Step) -> list[Any]:
    written = {id(place) for place in step.results}
    return [place for place in step.places() if id(place) not in written]


def described(step: Step) -> str:
    """Return the name and the number of a call, and the module in which it is made."""
    inside = f" in {step.module}" if step.module else ""
    return f"{step.name} (call {step.number}{inside}{', backward' if step.is_backward else ''})"
