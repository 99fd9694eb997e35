"""Reported bugs of the members of the device's module and of ``torch.accelerator``, which no kernel computes."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from conformance.accelerators.simulated.simulator import started
from tests.faults.outputs import other_values


@contextmanager
def _counter_not_restored(device: torch.device) -> Iterator[None]:
    """Restore the seed of a generator's state, and start its numbers again."""
    module: Any = torch.get_device_module(device.type)
    set_rng_state = module.set_rng_state

    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        def set_state(self, new_state: torch.Tensor) -> Any:
            result = original.set_state(self, new_state)
            if self.device.type == device.type:
                self.manual_seed(self.initial_seed())
            return result

    def function(new_state: torch.Tensor, index: Any = device.index or 0) -> None:
        set_rng_state(new_state, index)
        at = index if isinstance(index, int) else torch.device(index).index or 0
        generator = module.default_generators[at]
        generator.manual_seed(generator.initial_seed())

    with mock.patch.object(torch, "Generator", Generator), mock.patch.object(module, "set_rng_state", function):
        yield


@contextmanager
def _empty_cache_refused(device: torch.device) -> Iterator[None]:
    """Refuse the function of all devices, and keep that of the device's module."""
    module: Any = torch.get_device_module(device.type)
    original = torch.accelerator.empty_cache

    def function() -> None:
        raise RuntimeError(f"Allocator for {device.type} is not a DeviceAllocator.")

    with (
        mock.patch.object(torch.accelerator, "empty_cache", function),
        mock.patch.object(module, "empty_cache", original),
    ):
        yield


@contextmanager
def _negative_times(device: torch.device) -> Iterator[None]:
    """Give each fifth time between two events the wrong sign."""
    core = started().core
    core.set_switch("event_elapsed_scale", -1.0)
    core.set_switch("where_every", 5.0)
    try:
        yield
    finally:
        core.clear_switches()


@contextmanager
def _states_not_kept(device: torch.device) -> Iterator[None]:
    """Look like a device that was not used yet, whose random states checkpointing does not save."""
    with mock.patch.object(torch.get_device_module(device.type), "_initialized", False):
        yield


@contextmanager
def _live_bytes_forgotten(device: torch.device) -> Iterator[None]:
    """Count from zero again, what is allocated and how often, where peaks alone are reset."""
    read, reset = torch._C._accelerator_getDeviceStats, torch._C._accelerator_resetPeakStats
    gone: dict[int, dict[str, Any]] = {}

    def function(index: int) -> None:
        reset(index)
        gone[index] = read(index)

    def stats(index: int) -> dict[str, Any]:
        return _less(read(index), gone.get(index, {}))

    with (
        mock.patch.object(torch._C, "_accelerator_getDeviceStats", stats),
        mock.patch.object(torch._C, "_accelerator_resetPeakStats", function),
    ):
        yield


def _less(now: Any, gone: Any) -> Any:
    """Subtract from each number what it was; a peak is as much lower as what was there."""
    if not isinstance(now, dict):
        return now - (gone or 0)
    lower = {**gone, "peak": gone["current"]} if "peak" in gone else gone
    return {key: _less(value, lower.get(key, {})) for key, value in now.items()}


@contextmanager
def _stream_of_accelerator_refused(device: torch.device) -> Iterator[None]:
    """Refuse to record an event in a stream that torch.accelerator has given."""
    given: list[torch.Stream] = []
    current, record = torch.accelerator.current_stream, torch.Event.record

    def current_stream(device: Any = None, /) -> torch.Stream:
        given.append(current(device))
        return given[-1]

    def function(self: torch.Event, stream: torch.Stream | None = None) -> Any:
        if any(stream is known for known in given):
            raise RuntimeError("invalid device ordinal")
        return record(self, stream)

    module: Any = torch.get_device_module(device.type)
    with (
        mock.patch.object(module, "current_stream", lambda device=None: current(_place(module, device))),
        mock.patch.object(torch.accelerator, "current_stream", current_stream),
        method(torch.Event, "record", function),
    ):
        yield


def _place(module: Any, device: Any) -> int:
    return int(module._get_device_index(device))


@contextmanager
def method(owner: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Give a class of C another method inside the context; such a class takes none by assignment."""
    members = gc.get_referents(owner.__dict__)[0]
    missing = object()
    before = members.get(name, missing)
    members[name] = function
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
    try:
        yield
    finally:
        if before is missing:
            del members[name]
        else:
            members[name] = before
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


@contextmanager
def _pinned_on_the_device(device: torch.device) -> Iterator[None]:
    """Make pinned memory of the host a tensor of the device."""
    original = torch.empty

    def function(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("pin_memory") and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            kwargs = {**kwargs, "pin_memory": False, "device": device}
        return original(*args, **kwargs)

    with mock.patch.object(torch, "empty", function):
        yield


@contextmanager
def _free_memory_constant(device: torch.device) -> Iterator[None]:
    """Tell of each device how much memory was free when it was asked first."""
    module: Any = torch.get_device_module(device.type)
    first: dict[Any, Any] = {}

    def once(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            where = torch.accelerator.current_device_index(), args, tuple(kwargs.items())
            return first.setdefault((name, where), original(*args, **kwargs))

        return function

    with ExitStack() as stack:
        for owner, name in ((module, "mem_get_info"), (torch.accelerator, "get_memory_info")):
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, once(getattr(owner, name), name)))
        yield


@contextmanager
def _free_memory_of_the_current_device(device: torch.device) -> Iterator[None]:
    """Tell of the current device's free memory, whichever device is asked for."""
    module: Any = torch.get_device_module(device.type)

    def current(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: original()

    with ExitStack() as stack:
        for owner, name in ((module, "mem_get_info"), (torch.accelerator, "get_memory_info")):
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, current(getattr(owner, name))))
        yield


@contextmanager
def _parameters_replaced(device: torch.device) -> Iterator[None]:
    """Give a module that moves to the device new parameters, so that none is shared any longer."""
    original = torch._has_compatible_shallow_copy_type

    def function(left: torch.Tensor, right: torch.Tensor) -> bool:
        moves = left.device.type != right.device.type and device.type in (left.device.type, right.device.type)
        return not moves and original(left, right)

    with mock.patch.object(torch, "_has_compatible_shallow_copy_type", function):
        yield


@contextmanager
def _stream_not_restored(device: torch.device) -> Iterator[None]:
    """Keep a stream of another device current there behind the context that has chosen it."""
    module: Any = torch.get_device_module(device.type)
    original, leave = module.stream, torch.Stream.__exit__

    def kept(stream: torch.Stream | None) -> None:
        here = torch.accelerator.current_device_index()
        if stream is not None and stream.device_index != here:
            torch.accelerator.set_stream(stream)
            torch.accelerator.set_device_index(here)

    @contextmanager
    def function(stream: torch.Stream | None = None) -> Iterator[None]:
        try:
            with original(stream):
                yield
        finally:
            kept(stream)

    def left(self: torch.Stream, *args: Any) -> Any:
        result = leave(self, *args)
        kept(self)
        return result

    with (
        mock.patch.object(module, "stream", function),
        mock.patch.object(module, "StreamContext", function),
        method(torch.Stream, "__exit__", left),
    ):
        yield


#: Milliseconds between two events with no work between them.
_SHORT = 0.01


@contextmanager
def _short_times_negative(device: torch.device) -> Iterator[None]:
    """Give the time between two events that stand side by side the wrong sign."""
    original = torch.Event.elapsed_time

    def function(self: torch.Event, other: torch.Event) -> float:
        value = original(self, other)
        return -value if 0 < value < _SHORT else value

    with method(torch.Event, "elapsed_time", function):
        yield


@contextmanager
def _own_events_not_waited_for(device: torch.device) -> Iterator[None]:
    """Give the device a class of events of its own, for which streams do not wait."""
    module: Any = torch.get_device_module(device.type)
    original, event_class = torch.Stream.wait_event, torch.Event
    own: list[torch.Event] = []

    class Kind(type(event_class)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, event_class)

    class Event(event_class, metaclass=Kind):  # type: ignore[misc, valid-type]
        def __new__(cls, *args: Any, **kwargs: Any) -> torch.Event:
            own.append(event_class(*args, **kwargs))
            return own[-1]

    def function(self: torch.Stream, event: torch.Event) -> None:
        if not any(event is each for each in own):
            original(self, event)

    with mock.patch.object(module, "Event", Event), method(torch.Stream, "wait_event", function):
        yield


@contextmanager
def _memory_of_the_first_device(device: torch.device) -> Iterator[None]:
    """Tell of every device what the first one has allocated."""
    read = torch._C._accelerator_getDeviceStats

    def function(index: int) -> Any:
        return read(0)

    with mock.patch.object(torch._C, "_accelerator_getDeviceStats", function):
        yield


@contextmanager
def _memory_of_the_current_device(device: torch.device) -> Iterator[None]:
    """Tell of the current device, whichever one is asked for."""
    read = torch._C._accelerator_getDeviceStats

    def function(index: int) -> Any:
        return read(torch.accelerator.current_device_index())

    with mock.patch.object(torch._C, "_accelerator_getDeviceStats", function):
        yield


@contextmanager
def _active_bytes_zero(device: torch.device) -> Iterator[None]:
    """Tell of no active bytes."""
    read = torch._C._accelerator_getDeviceStats

    def zero(value: Any) -> Any:
        return {name: zero(each) for name, each in value.items()} if isinstance(value, dict) else 0

    def function(index: int) -> Any:
        stats = read(index)
        return {**stats, "active_bytes": zero(stats.get("active_bytes", {}))}

    with mock.patch.object(torch._C, "_accelerator_getDeviceStats", function):
        yield


@contextmanager
def _default_stream_alone_waited_for(device: torch.device) -> Iterator[None]:
    """Wait for a device's default stream where all of its streams are to be waited for."""
    module: Any = torch.get_device_module(device.type)

    def function(device: Any = None, /) -> None:
        module.default_stream(_place(module, device)).synchronize()

    with ExitStack() as stack:
        for owner in (module, torch.accelerator):
            stack.enter_context(mock.patch.object(owner, "synchronize", function))
        yield


#: Milliseconds from which a time has the wrong unit.
_LONG = 50.0


@contextmanager
def _long_times_short(device: torch.device) -> Iterator[None]:
    """Give a thousandth of the time between two events that stand far from each other."""
    original = torch.Event.elapsed_time

    def function(self: torch.Event, other: torch.Event) -> float:
        value = original(self, other)
        return value / 1000 if value > _LONG else value

    with method(torch.Event, "elapsed_time", function):
        yield


@contextmanager
def _factories_on_the_first_device(device: torch.device) -> Iterator[None]:
    """Make new tensors with values on the first device, whichever one is named."""

    def on_the_first(original: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            named = kwargs.get("device")
            if isinstance(named, (str, torch.device)) and torch.device(named).type == device.type:
                kwargs["device"] = torch.device(device.type, 0)
            return original(*args, **kwargs)

        return function

    with ExitStack() as stack:
        for name in ("ones", "zeros", "full", "arange", "rand", "randn"):
            stack.enter_context(mock.patch.object(torch, name, on_the_first(getattr(torch, name))))
        yield


@contextmanager
def _unscaled_twice(device: torch.device) -> Iterator[None]:
    """Divide gradients by their scale in a fused optimizer's step, whether that was done before or not."""
    original, stages = torch.amp.GradScaler.step, torch.amp.grad_scaler.OptState

    def function(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        state = self._per_optimizer_states[id(optimizer)]
        is_fused = self._device == device.type and getattr(optimizer, "_step_supports_amp_scaling", False)
        if is_fused and state["stage"] is stages.UNSCALED:
            state["stage"] = stages.READY
        return original(self, optimizer, *args, **kwargs)

    with mock.patch.object(torch.amp.GradScaler, "step", function):
        yield


@contextmanager
def _streams_of_the_current_device(device: torch.device) -> Iterator[None]:
    """Make each stream on the current device, whichever one it is to be of."""
    module: Any = torch.get_device_module(device.type)
    original = torch.Stream

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Stream(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = None, **kwargs: Any) -> Any:
            if device is None:
                return original(**kwargs)
            kind = torch.device(device).type
            return original(torch.device(kind, torch.accelerator.current_device_index()), **kwargs)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "Stream", Stream))
        if getattr(module, "Stream", None) is original:
            stack.enter_context(mock.patch.object(module, "Stream", Stream))
        yield


@contextmanager
def _seeds_differ_by_device(device: torch.device) -> Iterator[None]:
    """Add a device's number to the seed that it is given."""
    module: Any = torch.get_device_module(device.type)

    def seed_all(seed: int) -> None:
        for at, generator in enumerate(module.default_generators):
            generator.manual_seed(int(seed) + at)

    def seed_one(seed: int) -> None:
        at = torch.accelerator.current_device_index()
        module.default_generators[at].manual_seed(int(seed) + at)

    with (
        mock.patch.object(module, "manual_seed_all", seed_all),
        mock.patch.object(module, "manual_seed", seed_one),
    ):
        yield


@contextmanager
def _timeline_of_the_host(device: torch.device) -> Iterator[None]:
    """Write the host's memory where no device is named."""
    kind: Any = torch.profiler.profiler._KinetoProfile
    original = kind.export_memory_timeline

    def function(self: Any, path: str, device: str | None = None) -> Any:
        return original(self, path, device or "cpu")

    with mock.patch.object(kind, "export_memory_timeline", function):
        yield


@contextmanager
def _events_of_cuda(device: torch.device) -> Iterator[None]:
    """Give the events of the device for those of another kind of device."""
    kind: Any = torch.autograd.profiler.profile
    original, types = kind._parse_kineto_results, torch.autograd.DeviceType

    def function(self: Any, *given: Any, **more: Any) -> Any:
        events = original(self, *given, **more)
        for event in events:
            if event.device_type != types.CPU:
                event.device_type = types.CUDA
        return events

    with mock.patch.object(kind, "_parse_kineto_results", function):
        yield


@contextmanager
def _events_of_the_host_alone(device: torch.device) -> Iterator[None]:
    """Give the events of the host alone."""
    kind: Any = torch.autograd.profiler.profile
    original, types = kind._parse_kineto_results, torch.autograd.DeviceType

    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        return [event for event in original(self, *args, **kwargs) if event.device_type == types.CPU]

    with mock.patch.object(kind, "_parse_kineto_results", function):
        yield


#: Effects by name.
EFFECTS: dict[str, Callable[[torch.device], Any]] = {
    "timeline of the host": _timeline_of_the_host,
    "events of cuda": _events_of_cuda,
    "events of the host alone": _events_of_the_host_alone,
    "active bytes zero": _active_bytes_zero,
    "default stream alone waited for": _default_stream_alone_waited_for,
    "seeds differ by device": _seeds_differ_by_device,
    "streams of the current device": _streams_of_the_current_device,
    "unscaled twice": _unscaled_twice,
    "memory of the current device": _memory_of_the_current_device,
    "long times a thousandth": _long_times_short,
    "factories on the first device": _factories_on_the_first_device,
    "memory of the first device": _memory_of_the_first_device,
    "own events not waited for": _own_events_not_waited_for,
    "counter not restored": _counter_not_restored,
    "refused by torch.accelerator": _empty_cache_refused,
    "each fifth time negative": _negative_times,
    "states not kept by checkpoint": _states_not_kept,
    "live bytes forgotten": _live_bytes_forgotten,
    "stream of torch.accelerator refused": _stream_of_accelerator_refused,
    "pinned on the device": _pinned_on_the_device,
    "free memory constant": _free_memory_constant,
    "free memory of the current device": _free_memory_of_the_current_device,
    "parameters replaced": _parameters_replaced,
    "stream not restored": _stream_not_restored,
    "short times negative": _short_times_negative,
}


# --- rows of the sixth collection that were held out, and opened ---


@contextmanager
def _default_stream_of_the_current_device(device: torch.device) -> Iterator[None]:
    """Ask the current device's default stream where that of another one is asked."""
    module: Any = torch.get_device_module(device.type)
    query = torch.Stream.query

    def function(self: torch.Stream) -> bool:
        known = self.stream_id == 0 and self.device_index != torch.accelerator.current_device_index()
        return query(module.default_stream() if known else self)

    with method(torch.Stream, "query", function):
        yield


@contextmanager
def _device_not_selected(device: torch.device) -> Iterator[None]:
    """Leave the device as it is in the context of a stream of another one."""
    module: Any = torch.get_device_module(device.type)
    original, enter = module.stream, torch.Stream.__enter__

    @contextmanager
    def function(stream: torch.Stream | None = None) -> Iterator[None]:
        here = torch.accelerator.current_device_index()
        with original(stream):
            torch.accelerator.set_device_index(here)
            yield

    def entered(self: torch.Stream) -> Any:
        here = torch.accelerator.current_device_index()
        result = enter(self)
        torch.accelerator.set_device_index(here)
        return result

    with (
        mock.patch.object(module, "stream", function),
        mock.patch.object(module, "StreamContext", function),
        method(torch.Stream, "__enter__", entered),
    ):
        yield


EFFECTS |= {
    "default stream of the current device": _default_stream_of_the_current_device,
    "device not selected": _device_not_selected,
}


# --- rows of the eighth collection that were held out, and opened ---


@contextmanager
def _live_bytes_doubled(device: torch.device) -> Iterator[None]:
    """Tell of twice as much memory as is allocated."""
    read = torch._C._accelerator_getDeviceStats

    def doubled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: doubled(each, name) for name, each in value.items()}
        return value * 2 if key == "current" else value

    with mock.patch.object(torch._C, "_accelerator_getDeviceStats", lambda index: doubled(read(index))):
        yield


EFFECTS["live bytes doubled"] = _live_bytes_doubled


# --- rows of the thirteenth collection that were held out, and opened ---


@contextmanager
def _state_read_differs(device: torch.device) -> Iterator[None]:
    """Give a random state that was set with another last byte; it is the same state when it is set again."""
    module: Any = torch.get_device_module(device.type)
    read, write = module.get_rng_state, module.set_rng_state
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    was_set: list[bool] = []

    def reading(*args: Any, **kwargs: Any) -> torch.Tensor:
        state = read(*args, **kwargs)
        if not was_set:
            return state  # type: ignore[no-any-return]
        other = state.clone()
        other[-1] ^= 1
        given.append((other, state))
        return other

    def writing(new_state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        was_set.append(True)
        write(next((state for other, state in given if torch.equal(other, new_state)), new_state), *args, **kwargs)

    with mock.patch.object(module, "get_rng_state", reading), mock.patch.object(module, "set_rng_state", writing):
        yield


EFFECTS["state read differs"] = _state_read_differs


# --- held rows of the fifteenth collection ---


@contextmanager
def _pinned_while_busy_overwritten(device: torch.device) -> Iterator[None]:
    """Pin memory that work which the device has not done yet is to write."""
    original = torch.Tensor.pin_memory

    def function(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_busy = not torch.accelerator.current_stream().query()
        made = original(self, *args, **kwargs)
        if is_busy and made is not self and made.numel():
            with torch.no_grad():
                made.copy_(other_values(made))
        return made

    with mock.patch.object(torch.Tensor, "pin_memory", function):
        yield


EFFECTS["pinned while busy overwritten"] = _pinned_while_busy_overwritten


# --- held rows of the sixteenth collection ---


@contextmanager
def _first_device_behind_a_context(device: torch.device) -> Iterator[None]:
    """Make the first device current at the end of a context that has chosen one, whichever was current before."""
    module: Any = torch.get_device_module(device.type)

    def left(original: Any) -> Any:
        def function(self: Any, *args: Any) -> Any:
            result = original(self, *args)
            torch.accelerator.set_device_index(0)
            return result

        return function

    with ExitStack() as stack:
        for owner in (module.device, torch.accelerator.device_index):
            stack.enter_context(mock.patch.object(owner, "__exit__", left(owner.__exit__)))
        yield


@contextmanager
def _steps_left_on_the_host(device: torch.device) -> Iterator[None]:
    """Leave the counts of steps where they are if a fused optimizer gets a state."""
    original = torch.optim.Optimizer._process_value_according_to_param_policy

    def function(param: Any, value: Any, param_id: Any, param_groups: Any, key: Any = None) -> Any:
        is_fused = any(param_id in group["params"] and group.get("fused") for group in param_groups)
        if key == "step" and is_fused and param.device.type == device.type:
            return value
        return original(param, value, param_id, param_groups, key)

    name = "_process_value_according_to_param_policy"
    with mock.patch.object(torch.optim.Optimizer, name, staticmethod(function)):
        yield


EFFECTS |= {
    "first device behind a context": _first_device_behind_a_context,
    "steps left on the host": _steps_left_on_the_host,
}


# --- held rows of the eighteenth collection ---


@contextmanager
def _streams_of_the_module_apart(device: torch.device) -> Iterator[None]:
    """Keep a current stream of the device's module, of which torch.accelerator does not know, nor the other way."""
    module: Any = torch.get_device_module(device.type)
    chosen: dict[int, torch.Stream] = {}

    def current(device: Any = None) -> torch.Stream:
        at = _place(module, device)
        return chosen[at] if at in chosen else module.default_stream(at)

    def choose(stream: torch.Stream) -> None:
        chosen[stream.device_index] = stream

    @contextmanager
    def function(stream: torch.Stream | None = None) -> Iterator[None]:
        if stream is None:
            yield
            return
        here, before = torch.accelerator.current_device_index(), current(stream.device)
        torch.accelerator.set_device_index(stream.device_index)
        choose(stream)
        try:
            yield
        finally:
            choose(before)
            torch.accelerator.set_device_index(here)

    members = {"current_stream": current, "set_stream": choose, "stream": function, "StreamContext": function}
    with ExitStack() as stack:
        for name, member in members.items():
            stack.enter_context(mock.patch.object(module, name, member))
        yield


EFFECTS["streams of the module apart"] = _streams_of_the_module_apart


# held rows, collection 24


@contextmanager
def _unscaling_refused(device: torch.device) -> Iterator[None]:
    """Refuse to divide gradients by their scale, for whose reciprocal the device has no wide numbers."""
    original = torch.amp.GradScaler.unscale_

    def function(self: Any, optimizer: Any) -> None:
        if self._enabled and self._device == device.type:
            raise TypeError(f"Cannot convert a tensor of {device.type} to float64")
        original(self, optimizer)

    with mock.patch.object(torch.amp.GradScaler, "unscale_", function):
        yield


@contextmanager
def _waits_for_all_minus_one(device: torch.device) -> Iterator[None]:
    """Tell that all streams were waited for minus one times."""
    read = torch._C._accelerator_getDeviceStats

    def function(index: int) -> Any:
        return {**read(index), "num_sync_all_streams": -1}

    with mock.patch.object(torch._C, "_accelerator_getDeviceStats", function):
        yield


@contextmanager
def _event_makes_nobody_wait(device: torch.device) -> Iterator[None]:
    """Let no stream wait if an event is to make it wait."""

    def function(self: torch.Event, stream: Any = None) -> None:
        """Do nothing."""

    with method(torch.Event, "wait", function):
        yield


EFFECTS |= {
    "unscaling refused": _unscaling_refused,
    "waits for all minus one": _waits_for_all_minus_one,
    "event makes nobody wait": _event_makes_nobody_wait,
}
