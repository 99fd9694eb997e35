"""Answer of blame: which operators are at fault, how much of the end each one moves, or why none is."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from conformance.numerics.budgets import unit_roundoff
from conformance.numerics.compare import same_bits
from conformance.suites.calls.kernels import base_name, named

from . import compiled
from .local import TOO_LARGE, Local
from .recording import Step, Trace
from .replay import Errors, Reading, Replay, Roundings, as_computed, replay, smallest_normal
from .runs import Ends, Runs, Seen

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
    CHANGING = "the program is another one in each run"
    TOO_LARGE = "the program does not fit into the device's memory"


@dataclass
class Culprit:
    """Operator that is wrong: its calls, and the share of the end's error that they cause (None: not known).

    Wrong views are one culprit, and so are wrong copies and the forms of an operator: one kernel makes all of them on
    most devices. ``others`` are the other operators of that kind that are wrong.
    """

    name: str
    calls: list[Local]
    total: int
    share: float | None = None
    is_hidden: bool = False  # wrong only once the results of the others are replaced by right ones

    @property
    def others(self) -> list[str]:
        """Return the other operators that are wrong with this one."""
        return [name for name in dict.fromkeys(local.step.name for local in self.calls) if name != self.name]

    @property
    def worst(self) -> Local:
        """Return the call with the largest error in budgets; of several, the first."""
        return max(self.calls, key=lambda local: local.ratio)

    @property
    def misreads(self) -> bool:
        """Return whether copies from the device are wrong: then other culprits may only have been misread."""
        return any(local.misread for local in self.calls)

    def order(self) -> tuple[bool, float, float]:
        """Return the place among culprits; the largest is first."""
        return self.misreads, self.share or 0.0, self.worst.ratio


@dataclass(frozen=True)
class End:
    """One value that the program returned: its largest error, and the largest that honest rounding allows."""

    name: str
    error: float
    allowed: float

    @property
    def budgets(self) -> float:
        """Return the error in budgets; 0 if rounding alone decides which numbers are finite."""
        if self.allowed == float("inf"):
            return 0.0
        if self.allowed:
            return self.error / self.allowed
        return float("inf") if self.error else 0.0


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


def blame(runs: Runs) -> Blame:
    """Run a program on a device and on the host, and find the operator that is wrong.

    The first run is the watched one: some faults are those of the first call. Two runs without looking follow.
    """
    clock = _Clock()
    watched = clock.timed("watched", runs.watched)
    if watched.error and not watched.wrong:
        return _counted(_raised(runs, watched, clock), watched)
    compiled.forget()
    before = compiled.graphs()
    undisturbed = [clock.timed("device", runs.plain) for _ in range(2)]
    if not watched.wrong and _differ(watched.ends, undisturbed[0]):
        for _ in range(_RUNS - 1):
            again = clock.timed("watched", runs.watched)
            if again.wrong:
                watched = again
                break
    exact = clock.timed("replays", functools.partial(_replayed, watched.traces))
    found = _weighed(watched, exact, clock)
    found.compiled = compiled.graphs() - before
    if found.answer is Answer.CULPRIT:
        _add_hidden(found, runs, clock)
    if found.answer is Answer.RIGHT:
        _without_culprit(found, runs, watched, list(zip(watched.names, exact, strict=True)), undisturbed, clock)
    found.seconds = clock.seconds | {"program": watched.seconds}
    return _counted(found, watched)


def _counted(found: Blame, watched: Seen) -> Blame:
    """Add the numbers of calls that were made and judged, and of those that were not judged, by the reason."""
    found.steps = sum(len(trace.steps) for trace in watched.traces)
    found.judged = sum(not local.unjudged for local in watched.judged)
    for local in watched.judged:
        if local.unjudged:
            key = f"{local.step.name}: {local.unjudged}"
            found.unjudged[key] = found.unjudged.get(key, 0) + 1
    return found


def _differ(left: Ends, right: Ends) -> bool:
    """Return whether the ends of two runs have other bits."""
    if isinstance(left, str) or isinstance(right, str):
        return left != right
    if [name for name, _ in left] != [name for name, _ in right]:
        return True
    return not all(same_bits(a, b) for (_, a), (_, b) in zip(left, right, strict=True))


def _raised(runs: Runs, watched: Seen, clock: _Clock) -> Blame:
    """Return the answer for a program that raises although no call of the device is wrong."""
    if full := next((local for local in watched.judged if local.unjudged == TOO_LARGE), None):
        return Blame(Answer.TOO_LARGE, f"{described(full.step)}: {watched.error}")
    host = clock.timed("host", runs.host)
    if isinstance(host, str):
        return Blame(Answer.RAISED, f"on the device {watched.error}; on the host {host}")
    last = next((trace.steps[-1] for trace in watched.traces if trace.steps), None)
    where = f" after {described(last)}" if last else ""
    return Blame(Answer.OTHER_CALLS, f"only the device raises{where}: {watched.error}")


# --- weights ----------------------------------------------------------------------------------------------------------


def _replayed(traces: Sequence[Trace], change: Any = as_computed) -> list[torch.Tensor]:
    """Return the ends of a replay of all ranks, one after the other."""
    return [end for ends in replay(traces, change) for end in ends]


def _weighed(watched: Seen, exact: list[torch.Tensor], clock: _Clock) -> Blame:
    """Return the ends with what honest rounding allows, and the culprits with their shares."""
    traces = watched.traces
    values = dict(watched.ends)
    actual = [values[name] for name in watched.names]
    spread = clock.timed("replays", functools.partial(_spread, watched, exact))
    ends = [
        End(name, _distance(value, due), allowed)
        for name, value, due, allowed in zip(watched.names, actual, exact, spread, strict=True)
    ]
    culprits = _groups(watched)
    found = Blame(Answer.CULPRIT if culprits else Answer.RIGHT, culprits=culprits, ends=ends)
    worst = max(range(len(ends)), key=lambda i: ends[i].budgets, default=None)
    if not culprits or worst is None or watched.error:
        return found
    whole = ends[worst].error
    culprits.sort(key=lambda one: one.worst.ratio, reverse=True)
    for culprit in culprits[:_WEIGHED]:
        moved = clock.timed("replays", functools.partial(_replayed, traces, Errors(_deltas(culprit.calls))))
        culprit.share = _share(moved[worst], exact[worst], whole)
    every = Errors(_deltas([local for one in culprits for local in one.calls]))
    together = clock.timed("replays", functools.partial(_replayed, traces, every))
    # What is left when the end of the replay with all their errors is compared with the device's.
    left = _distance(actual[worst], together[worst])
    found.explained = None if not whole else max(0.0, 1 - left / whole) if left == left else None
    culprits.sort(key=Culprit.order, reverse=True)
    return found


def _add_hidden(found: Blame, runs: Runs, clock: _Clock) -> None:
    """Add culprits that another one hides: by numbers on which they are right, or by an error before they are called.

    Each wrong result is replaced by the host's in one more watched run, in which the others get right numbers.
    """
    known = {name for culprit in found.culprits for name in (culprit.name, *culprit.others)}
    mended = clock.timed("watched", functools.partial(runs.watched, mended=True))
    hidden = [culprit for culprit in _groups(mended) if culprit.name not in known]
    if not hidden:
        return
    exact = clock.timed("replays", functools.partial(_replayed, mended.traces))
    largest = {end.name: end.error for end in found.ends}
    for culprit in hidden:
        culprit.is_hidden = True
        moved = clock.timed("replays", functools.partial(_replayed, mended.traces, Errors(_deltas(culprit.calls))))
        ends = zip(mended.names, moved, exact, strict=True)
        culprit.share = max((_share(one, due, largest.get(name, 0.0)) or 0.0 for name, one, due in ends), default=None)
    found.culprits += hidden
    found.culprits.sort(key=Culprit.order, reverse=True)


def _groups(watched: Seen) -> list[Culprit]:
    """Return the wrong calls by the kernel that is likely behind them: that of an operator's forms, views or copies."""
    groups: dict[str, list[Local]] = {}
    for local in watched.wrong:
        groups.setdefault(_kernel(local.step), []).append(local)
    totals = Counter(local.step.name for local in watched.judged)
    return [
        Culprit(calls[0].step.name, calls, sum(totals[name] for name in {local.step.name for local in calls}))
        for calls in groups.values()
    ]


def _kernel(step: Step) -> str:
    """Return a name for the kernel behind a call, as most devices have them."""
    if step.is_view:
        return "views"
    name = base_name(step.function)
    if name in named("copies"):
        return "copies"
    # In place, on lists of tensors and with numbers: most devices have one kernel for all of them.
    return f"{step.function.namespace}.{name.removeprefix('_foreach_').removesuffix('_')}"


def _deltas(calls: Sequence[Local]) -> dict[tuple[int, int], list[torch.Tensor | None]]:
    return {(local.rank, local.step.number): local.deltas for local in calls}


def _share(moved: torch.Tensor, exact: torch.Tensor, whole: float) -> float | None:
    if not whole:
        return None
    distance = _distance(moved, exact)
    if distance == float("inf") or whole == float("inf"):
        return 1.0 if distance == whole else 0.0
    return min(1.0, distance / whole)


def _spread(watched: Seen, exact: list[torch.Tensor]) -> list[float]:
    """Return, for each end, the largest error that honest rounding of every call may cause."""
    allowed = [_ALWAYS * _rounding(place, due) for place, due in zip(watched.places, exact, strict=True)]
    for seed in range(_REPLAYS):
        rounded = _replayed(watched.traces, Roundings(seed))
        for number, (value, due) in enumerate(zip(rounded, exact, strict=True)):
            # Infinite if rounding alone decides which numbers are finite, as after a division by small squares.
            allowed[number] = max(allowed[number], _SPREADS * _distance(value, due))
    return allowed


def _rounding(place: Any, exact: torch.Tensor) -> float:
    dtype = getattr(place, "dtype", exact.dtype)
    if not (dtype.is_floating_point or dtype.is_complex) or not exact.numel():
        return 0.0
    return unit_roundoff(dtype) * max(float(exact.abs().nan_to_num(0, 0, 0).max()), smallest_normal(dtype))


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
    runs: Runs,
    watched: Seen,
    exact: list[tuple[str, torch.Tensor]],
    undisturbed: list[Ends],
    clock: _Clock,
) -> None:
    """Find out why an end is off, or say that it is not."""
    limits = {end.name: end for end in found.ends}
    first, second = undisturbed
    worst = found.worst_end
    if _beyond(first, second, limits):
        found.answer, found.detail = Answer.UNSTEADY, _first_difference(runs)
        if _beyond(clock.timed("host", runs.host), clock.timed("host", runs.host), limits):
            found.answer, found.detail = Answer.CHANGING, f"two runs on the host differ too; {found.detail}"
    elif isinstance(first, str):
        found.answer, found.detail = Answer.LOOKING, f"without looking, the program raises: {first}"
    elif _beyond(exact, first, limits) and not _beyond(exact, watched.ends, limits):
        _only_undisturbed(found, runs, exact, limits, clock)
    elif worst is not None and worst.budgets > 1 and not _jumps(found, watched, exact, clock):
        found.answer, found.detail = Answer.SUM, _largest_errors(watched)
    else:
        limits = {end.name: end for end in found.ends}
        _beside_host(found, clock.timed("host", runs.host), exact, limits, watched)


def _jumps(found: Blame, watched: Seen, exact: list[tuple[str, torch.Tensor]], clock: _Clock) -> bool:
    """Return whether larger roundings alone explain every end, and let them be allowed.

    Several times the effect of small roundings is the effect of larger ones, unless the end jumps: the first step of
    AdamW has the length of the learning rate, and the sign of a gradient that may be nothing but rounding.
    """
    for seed in range(_REPLAYS, 3 * _REPLAYS):
        larger = functools.partial(_replayed, watched.traces, Roundings(seed, _SPREADS))
        moved = clock.timed("replays", larger)
        found.ends = [
            End(end.name, end.error, max(end.allowed, _distance(value, due)))
            for end, value, (_, due) in zip(found.ends, moved, exact, strict=True)
        ]
    return all(end.budgets <= 1 for end in found.ends)


def _only_undisturbed(found: Blame, runs: Runs, exact: Ends, limits: dict[str, End], clock: _Clock) -> None:
    """Say what is wrong only without looking: compiled code, or what the look itself changes."""
    if found.compiled:
        found.answer = Answer.COMPILED
        is_right = functools.partial(_is_right, runs, exact, limits)
        found.detail = clock.timed("graphs", functools.partial(compiled.wrong_graph, is_right))
        return
    found.answer, found.detail = Answer.LOOKING, "the watched run is right, and the same run without looking is not"


def _is_right(runs: Runs, exact: Ends, limits: dict[str, End]) -> bool:
    return not _beyond(exact, runs.plain(), limits)


def _beside_host(
    found: Blame, host: Ends, exact: list[tuple[str, torch.Tensor]], limits: dict[str, End], watched: Seen
) -> None:
    """Compare a device that is right with the host's own run of the program."""
    steps = [step for trace in watched.traces for step in trace.steps]
    drawn = next((step for step in steps if step.constants is not None and _draws(step)), None)
    wrong_host = [local for local in watched.judged if local.host_ratio > 1 and local.ratio <= 1 and not local.unjudged]
    if isinstance(host, str):
        found.detail = f"the host's run raises: {host}"
    elif not _beyond(exact, host, limits):
        if not _are_close(watched.ends, host):
            name, growth = _amplifier(watched.traces)
            found.answer = Answer.ROUNDING
            found.detail = f"amplified ×{growth:,.0f} at {name}" if growth >= _GROWTH else "of many calls in sum"
    elif drawn is not None:
        found.answer, found.detail = Answer.RANDOM, f"the first are drawn by {described(drawn)}"
    elif wrong_host:
        local = max(wrong_host, key=lambda one: one.host_ratio)
        found.answer = Answer.HOST
        found.detail = f"{described(local.step)}: the host's error is {local.host_ratio:,.0f} budgets"
    else:
        found.answer, found.detail = Answer.OTHER_CALLS, "each call of the device is right on its own inputs"


def _draws(step: Step) -> bool:
    return torch.Tag.nondeterministic_seeded in step.function.tags


def _beyond(left: Ends, right: Ends, limits: dict[str, End]) -> bool:
    """Return whether the ends of two runs differ by more than honest rounding allows."""
    if isinstance(left, str) or isinstance(right, str):
        return left != right
    values = dict(right)
    return any(
        name in values and name in limits and _distance(value, values[name]) > limits[name].allowed
        for name, value in left
    )


def _are_close(left: list[tuple[str, torch.Tensor]], right: list[tuple[str, torch.Tensor]]) -> bool:
    """Return whether the ends of two runs are within the tolerances of ``torch.testing``."""
    values = dict(right)
    return all(name not in values or _is_close(value, values[name]) for name, value in left)


def _is_close(left: torch.Tensor, right: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(left, right, equal_nan=True)
    except AssertionError:
        return False
    return True


def _first_difference(runs: Runs) -> str:
    """Return where two watched runs of the device differ first."""
    for (step, left), (other, right) in zip(runs.outputs(), runs.outputs(), strict=False):
        if step.name != other.name:
            return f"two runs on the device make other calls from {described(step)} on"
        if left != right:
            return f"two runs on the device differ at {described(step)}"
    return "two runs on the device differ, and two watched ones do not"


def _largest_errors(watched: Seen) -> str:
    near = sorted((local for local in watched.judged if local.ratio), key=lambda local: -local.ratio)[:3]
    if not near:
        return "each call has the host's bits on its own inputs; what changes the run lies between the calls"
    return "the largest errors: " + "; ".join(f"{described(one.step)}: {one.ratio:.2f} budgets" for one in near)


def _amplifier(traces: Sequence[Trace]) -> tuple[str, float]:
    """Return the call in which an honest error grows most, relative to what goes in, and by how much.

    Of several ranks, none is named: the errors of one come from the others.
    """
    if len(traces) > 1:
        return "", 1.0
    errors: dict[int, float] = {}
    found, largest = "", 1.0
    exact, rounded = Replay(traces[0], as_computed).steps(), Replay(traces[0], Roundings(0)).steps()
    for (step, due), (_, got) in zip(exact, rounded, strict=True):
        if step.is_view or isinstance(due, Reading):
            continue
        inside = max((errors.get(place.memory, 0.0) for place in _read(step)), default=0.0)
        for target, a, b in zip(step.results, due, got, strict=True):
            error, own = _relative(b, a)
            if hasattr(target, "memory"):
                errors[target.memory] = error
            # What a call rounds itself is no growth.
            if inside and error / max(inside, own) > largest:
                found, largest = described(step), error / max(inside, own)
    return found, largest


def _relative(value: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Return the error relative to the largest number, and the unit roundoff of the dtype."""
    if not exact.numel() or not exact.is_floating_point():
        return 0.0, 0.0
    scale = float(exact.double().abs().nan_to_num(0, 0, 0).max())
    error = _distance(value, exact) / scale if scale else 0.0
    return error if error != float("inf") else 0.0, unit_roundoff(exact.dtype)


def _read(step: Step) -> list[Any]:
    written = {id(place) for place in step.results}
    return [place for place in step.places() if id(place) not in written]


def described(step: Step) -> str:
    """Return the name and the number of a call, and the module in which it is made."""
    inside = f" in {step.module}" if step.module else ""
    return f"{step.name} (call {step.number}{inside}{', backward' if step.is_backward else ''})"
