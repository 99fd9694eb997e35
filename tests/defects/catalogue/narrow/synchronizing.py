"""Waiting on the host, by every way there is: here one of them does not wait. And profiler ranges, beside it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from conformance.accelerators.simulated.simulator import started
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, on_device, replaced, spoiled

from .streams import OFFLOAD, Context, both

SYNC = ("accelerator.synchronize.*", "capabilities.synchronize")
RANGES = ("accelerator.ranges.*", "capabilities.ranges", "utils.ranges.*")
PROFILERS = "defect class of profiler plugins"
#: So many products nobody has waited for are work that is still under way.
_MANY = 4


def sync(name: str, family: str, precedent: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, Where.STREAM, caught_by, **fault), (*SYNC, *touch))


def ranges(name: str, precedent: str, caught_by: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, "unclean refusal", precedent, Where.DEVICE, caught_by, **fault), RANGES)


_LEFT_OUT: Any = object()


def _not_for_none(old: Any) -> Any:
    """None that is given, not left out, is taken for a device that there is not."""

    @functools.wraps(old)
    def synchronize(self: Any, device_index: int | None = _LEFT_OUT) -> None:
        if device_index is not None:
            old(self, None if device_index is _LEFT_OUT else device_index)

    return synchronize


def _impatient(old: Any) -> Any:
    """The third synchronize() in a row, with nothing launched in between, raises."""
    seen = [-1, 0]

    def synchronize(self: Any, device_index: int | None = None) -> None:
        launches = started().core.counters()["launches"]
        seen[1] = seen[1] + 1 if launches == seen[0] else 1
        seen[0] = launches
        if seen[1] > 2:
            raise RuntimeError("there is nothing to wait for")
        old(self, device_index)

    return synchronize


def _early(reader: str, read: Any) -> Context:
    """``read(args, kwargs)`` goes in place of an operator while products are under way; None: not here."""
    queued = [0]

    def product(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        queued[0] += not torch.sim.is_current_stream_capturing()  # type: ignore[attr-defined]
        return call(*args, **kwargs)

    def waiting(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        queued[0] = 0
        return call(*args, **kwargs)

    def reading(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = read(args, kwargs) if queued[0] >= _MANY else None
        return waiting(call, args, kwargs) if found is None else found

    def synchronize(old: Any) -> Any:
        def synchronize(self: Any, device_index: int | None = None) -> None:
            queued[0] = 0
            old(self, device_index)

        return synchronize

    def copied(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if on_device(args[0]) or not on_device(args[1]):
            return call(*args, **kwargs)
        return reading(call, args, kwargs)

    spoils = {"mm": product, "_to_copy": waiting, "_local_scalar_dense": waiting}
    spoils[reader] = copied if reader == "copy_" else reading
    return both(spoiled(**spoils), accelerator(synchronize=synchronize))


def _decided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return False if args[0].dtype is torch.bool else None


def _untouched(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A blocking copy returns before anything has arrived."""
    blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
    return args[0].zero_() if blocking else None


# --- ranges --------------------------------------------------------------------------------------------------------


class _Open:
    """How many ranges are open."""

    def __init__(self) -> None:
        self.depth = 0
        self.failed = False

    def push(self, check: Any) -> Any:
        def change(old: Any) -> Any:
            def range_push(self_: Any, msg: str, domain: str | None = None, category: str | None = None) -> None:
                check(self)
                self.depth += 1
                old(self_, msg, domain, category)

            return range_push

        return change

    def pop(self, check: Any) -> Any:
        def change(old: Any) -> Any:
            def range_pop(self_: Any, domain: str | None = None) -> None:
                check(self)
                self.depth = max(0, self.depth - 1)
                old(self_, domain)

            return range_pop

        return change

    def ranges(self, push: Any = lambda self: None, pop: Any = lambda self: None) -> Context:
        return accelerator(range_push=self.push(push), range_pop=self.pop(pop))


def _four_deep(ranges: _Open) -> None:
    if ranges.depth >= 4:
        raise RuntimeError("ranges nest at most four deep")


def _matched(ranges: _Open) -> None:
    if ranges.depth < 1:
        raise RuntimeError("there is no range to close")


def _sticky() -> Context:
    """An operator that fails in a range makes the next range fail as well."""
    state = _Open()

    def view(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return call(*args, **kwargs)
        except RuntimeError:
            state.failed = state.depth > 0 and on_device(args[0])
            raise

    def check(ranges: _Open) -> None:
        if ranges.failed:
            ranges.failed = False
            raise RuntimeError("an earlier operation has failed")

    return both(state.ranges(push=check), spoiled(view=view))


def _traced_backward() -> Context:
    """A backward pass in a range is run once for its trace, and once for its result."""
    state = _Open()

    def backward(old: Any) -> Any:
        def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if state.depth and on_device(self):
                old(self, *args, **{**kwargs, "retain_graph": True})
            old(self, *args, **kwargs)

        return run

    return both(state.ranges(), replaced(torch.Tensor, backward=backward))


MUTANTS = (
    sync("synchronize(None) returns at once", "stale or missing sync", OFFLOAD, "accelerator.synchronize.index",
         context=accelerator(synchronize=_not_for_none)),
    sync("an idle device cannot be synchronized", "unclean refusal", OFFLOAD, "accelerator.synchronize.idle",
         context=lambda: accelerator(synchronize=_impatient)()),
    sync("blocking copies to the host do not block", "async copy returning early", OFFLOAD,
         "accelerator.synchronize.host_read[copy]", "accelerator.pin.*", "accelerator.dtype.*",
         context=lambda: _early("copy_", _untouched)()),
    sync("conditions are decided early", "stale or missing sync", "DeepSpeed 1752c2ab6: wrong handling of overflow",
         "accelerator.synchronize.decisions", context=lambda: _early("_local_scalar_dense", _decided)()),
    ranges("ranges nest four deep", PROFILERS, "accelerator.ranges.nest",
           context=lambda: _Open().ranges(push=_four_deep)()),
    ranges("closing what is not open raises", PROFILERS, "accelerator.ranges.pop_without_push",
           context=lambda: _Open().ranges(pop=_matched)()),
    ranges("an error in a range sticks", PROFILERS, "accelerator.ranges.around_exceptions",
           context=lambda: _sticky()()),
    ranges("a range runs the backward pass twice", PROFILERS, "accelerator.ranges.around_backward",
           context=lambda: _traced_backward()()),
)  # fmt: skip
