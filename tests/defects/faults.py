"""Faults as data: the broken part, a precedent in real software, and the case that must fail.

A fault is armed and disarmed in a running process; nothing is rebuilt. A fault can break four kinds of things:

* ``switches`` – named numbers in the core, for the simulator's own work (streams, events, memory, copies, graphs);
* ``operators`` – a function around an operator's kernel: ``around(call, args) -> results``. ``args`` are the operator's
  arguments in the order of its schema, ``call(args)`` runs the true kernel and returns the list of its results. Tensors
  are host views of device memory, so writing into one is a write to the device. The key is the operator's name
  without overload (``aten::gelu_backward``, ``c10d::allreduce_``), or with one (``aten::add.out``,
  ``aten::mm.default``), which then comes first. PyTorch computes most ``x.add_(y)`` and ``x + y`` as ``aten::add``
  with ``out=``, so one name covers all three. Undefined tensors are None. Collectives are finished when ``call``
  returns;
* ``members`` – replacements for attributes of ``torch.<device>``: ``members={"device_count": lambda old: lambda: 7}``;
* ``context`` – a context that is entered while the fault is armed. It reaches copies and factories (through a dispatch
  mode), PyTorch's own functions, and the members of the accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from conformance.accelerators.simulated.simulator import Simulator, started
from conformance.base.errors import UnknownName

Call = Callable[[list[Any]], list[Any]]
Around = Callable[[Call, list[Any]], Sequence[Any] | None]

#: The effect of each switch, and the meaning of its number where that matters.
SWITCHES: Mapping[str, str] = {
    "alloc_counts_on_device_zero": "allocated bytes are counted on device 0",
    "alloc_current_constant": "memory_allocated() always returns this number",
    "alloc_empty_cache_first_device": "empty_cache() releases the memory of device 0 alone",
    "alloc_empty_cache_poisons_live": "empty_cache() destroys live tensors",
    "alloc_free_uncounted": "freeing does not lower the counters",
    "alloc_hands_out_live": "an allocation may get the memory of a live tensor",
    "alloc_leaks": "freed memory is never used again, and stays counted",
    "alloc_no_limit": "the device never runs out of memory",
    "alloc_no_poison": "new memory keeps its old contents",
    "alloc_on_device_zero": "memory is always taken from device 0",
    "alloc_oom_runtime_error": "running out of memory raises RuntimeError instead of OutOfMemoryError",
    "alloc_peak_constant": "max_memory_allocated() always returns this number",
    "alloc_peak_reset_ignored": "reset_peak_memory_stats() does nothing",
    "alloc_reserved_constant": "memory_reserved() always returns this number",
    "alloc_reuse_ignores_stream": "freed memory goes to any stream at once",
    "alloc_stats_of_device_zero": "memory statistics are always those of device 0",
    "comm_wait_ignored": "work.wait() orders nothing",
    "context_ended": "an assertion in a kernel has ended the context: every later call raises",
    "copy_d2h_never": "asynchronous copies to the host never arrive",
    "copy_h2d_poison": "asynchronous copies to the device return before the data has arrived",
    "copy_ignores_offset": "copies start at the storage's first byte",
    "copy_ignores_strides": "copies read their source as if it were contiguous",
    "device_count": "this many devices are reported",
    "device_global": "all threads share one current device",
    "device_set_ignored": "set_device() changes nothing",
    "device_sync_default_stream": "synchronize() waits for the default stream alone",
    "device_sync_ignored": "synchronize() returns at once",
    "event_elapsed_constant": "elapsed_time() always returns this number",
    "event_elapsed_scale": "elapsed_time() is this many times too large",
    "event_leaves_out_idle": "times between events leave out what the device is idle",
    "event_query_true": "query() of an event is always True",
    "event_records_early": "an event does not include the last work before it",
    "event_sync_ignored": "synchronize() of an event returns at once",
    "event_time_without_work": "work takes no device time",
    "event_wait_ignored": "waiting for an event orders nothing",
    "graph_capture_executes": "capturing runs the work",
    "graph_replay_nothing": "replaying does nothing",
    "graph_replay_once": "only the first replay does something",
    "graph_replay_stale": "replaying uses the inputs' values at capture",
    "item_truncates": ".item() of a float drops its fraction",
    "kernels_give_zeros": "operators return zeros of the right shape and write zeros; copies carry zeros",
    "launch_on_default_stream": "kernels run on the default stream instead of the current one",
    "pin_flag": "is_pinned() always returns this value (0 or 1)",
    "pin_pageable": "pin_memory() returns memory that is not pinned",
    "record_stream_ignored": "record_stream() does nothing",
    "rng_coupled_to_host": "seeding the device seeds the host",
    "rng_get_state_advances": "reading the generator's state draws a number",
    "rng_never_advances": "kernels that draw do not advance the generator",
    "rng_seed_ignored": "seeding does nothing",
    "rng_seed_reaches_all": "seeding one device's generator seeds all devices",
    "rng_set_state_ignored": "setting the generator's state does nothing",
    "rng_shared": "all devices share one generator",
    "rng_state_of_device_zero": "the state of a generator is that of device 0",
    "storage_resize_loses_data": "resizing a storage drops its bytes",
    "stream_global": "all threads share the current streams",
    "stream_order_ignored": "unordered readers see the data anyway (hides races; no case can notice)",
    "stream_query_true": "query() of a stream is always True",
    "stream_sync_ignored": "synchronize() of a stream returns at once",
    "stream_wait_ignored": "wait_stream() and wait_event() order nothing",
    "where_after": "the other switches act only after this many calls",
    "where_crossing": "the other switches act only on pairs of two devices (1) or of one (0), where there is a pair",
    "where_device": "the other switches act only on this device",
    "where_every": "the other switches act only on every call of this number",
    "where_stream": "the other switches act only on side streams (1) or default streams (0), where there is a stream",
    "where_thread": "the other switches act only in threads that did not arm them (1), or in the one that did (0)",
}


class Where(Enum):
    """The part of the accelerator that a fault breaks."""

    ALLOCATOR = "allocator"
    STREAM = "stream"
    RNG = "rng"
    OPERATOR = "operator"
    COPY = "copy"
    GRAPH = "graph"
    COLLECTIVE = "collective"
    DEVICE = "device"
    KERNEL = "kernel"
    DECLARATION = "declaration"


@dataclass(frozen=True)
class Fault:
    """One defect. ``caught_by`` is the id, or a pattern of ids, of the case that must fail."""

    name: str
    family: str
    precedent: str
    where: Where
    caught_by: str
    switches: Mapping[str, float] = field(default_factory=dict)
    operators: Mapping[str, Around] = field(default_factory=dict)
    members: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    context: Callable[[], AbstractContextManager[Any]] | None = None


@contextmanager
def armed(*faults: Fault) -> Iterator[None]:
    """Break the accelerator with these faults inside the context; repair it on exit."""
    originals: dict[str, Any] = {}
    try:
        with ExitStack() as contexts:
            for fault in faults:
                # Two faults may replace the same member: only its first value is the original.
                originals.update(_members(fault, originals))
                arm(fault)
                if fault.context:
                    contexts.enter_context(fault.context())
            yield
    finally:
        disarm()
        module = _module(started())
        for name, value in originals.items():
            setattr(module, name, value)


def arm(fault: Fault) -> None:
    """Set the fault's switches, operators and members; raise UnknownName for an unknown switch."""
    simulator = started()
    for name, value in fault.switches.items():
        if not simulator.core.set_switch(name, float(value)):
            raise UnknownName("switch", name, SWITCHES)
    for name, around in fault.operators.items():
        simulator.core.set_around(name, around)
    module = _module(simulator)
    for name, change in fault.members.items():
        setattr(module, name, change(getattr(module, name)))


def disarm() -> None:
    """Clear all switches and operator faults. ``armed`` restores the members."""
    core = started().core
    core.clear_switches()
    core.clear_arounds()


def _members(fault: Fault, known: Mapping[str, Any]) -> dict[str, Any]:
    module = _module(started())
    return {name: getattr(module, name) for name in fault.members if name not in known}


def _module(simulator: Simulator) -> Any:
    import torch

    return getattr(torch, simulator.profile.device)


# --- building blocks of operator faults -------------------------------------------------------------------------


def scaled(factor: float, result: int = 0) -> Around:
    """Return a fault that multiplies result number ``result`` by ``factor``, or fills it with a non-finite one."""

    def around(call: Call, args: list[Any]) -> list[Any]:
        """Call the kernel, and spoil one of its results."""
        results = call(args)
        # A zero times infinity would be NaN, not infinity.
        results[result].mul_(factor) if math.isfinite(factor) else results[result].fill_(factor)
        return results

    return around


def with_argument(position: int, change: Callable[[Any], Any]) -> Around:
    """Return a fault that changes one argument before the kernel gets it."""

    def around(call: Call, args: list[Any]) -> list[Any]:
        args[position] = change(args[position])
        return call(args)

    return around


def changed(change: Callable[[Any], Any], result: int = 0) -> Around:
    """Return a fault that replaces result number ``result`` by ``change(result)``, a tensor of the same shape."""

    def around(call: Call, args: list[Any]) -> list[Any]:
        results = call(args)
        results[result] = change(results[result])
        return results

    return around
