"""Family S: leaks, counters of another device, memory reused too early, generators, threads, and modes left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .observing import DEVICES, ROUNDS, SIZE, device, everywhere, first, module
from .pair import MEMBER_CALLS, Part

# Cases that take long stand last.
_MEMORY = ("accelerator.pairs.counters", "accelerator.pairs.reuse", "accelerator.pairs.values", "accelerator.memory.*",
           "accelerator.laws.growth*", "accelerator.effect.*", "profiling.memory.*", "profiling.oom.*",
           "accelerator.stream.record*", "accelerator.interface.int*", "accelerator.pairs.*")  # fmt: skip
_RANDOM = ("accelerator.pairs.generators", "accelerator.rng.*", "accelerator.generator.*", "accelerator.laws.draws*",
           "accelerator.graph.random_numbers", "accelerator.lazy_call.*")  # fmt: skip
_DEVICES = ("accelerator.pairs.threads", "accelerator.device.*", "accelerator.on_accelerator.*", "accelerator.stream.*",
            "accelerator.laws.*", "accelerator.memory.per_device", "accelerator.pairs.*")  # fmt: skip
_GRAPHS = ("accelerator.graph.*", "accelerator.pairs.graphs")
_DEVICE = ("everywhere", "device 0", "device 1", "this thread", "other threads")


def _counters(index: int, stream: torch.Stream) -> list[int]:
    """Return how each device's counters move while a tensor of one device lives."""
    readings = []

    def read() -> None:
        for at in range(DEVICES):
            readings.append(torch.accelerator.memory_allocated(at))
            torch.accelerator.reset_peak_memory_stats(at)

    with module().stream(stream):
        read()
        tensor = torch.empty(SIZE, device=device(index))
        temporary = torch.empty(SIZE, device=device(index))
        del temporary
        peaks = [torch.accelerator.max_memory_allocated(at) for at in range(DEVICES)]
        read()
        del tensor
        read()
    base = readings[:DEVICES]
    return [value - base[place % DEVICES] for place, value in enumerate((*readings, *peaks))]


def _reserved(index: int, stream: torch.Stream) -> list[bool]:
    tensor = torch.empty(32 << 20, dtype=torch.uint8, device=device(index))
    held = torch.accelerator.memory_reserved(index)
    del tensor
    torch.accelerator.empty_cache()
    return [held >= 32 << 20, torch.accelerator.memory_reserved(index) < held]


def _fresh(index: int, stream: torch.Stream) -> float:
    """Reuse memory that another stream has just freed while its kernels still read it."""
    side = torch.Stream(device=device(index))
    with module().stream(side):
        tensor = torch.full((SIZE,), 3.0, device=device(index))
        copy = tensor + 1
        del tensor
    with module().stream(stream):
        torch.full((SIZE,), 9.0, device=device(index))
    side.synchronize()
    return first(copy.cpu())


def _distinct(index: int, stream: torch.Stream) -> bool:
    kept = [torch.full((64,), float(value), device=device(index)) for value in range(3)]
    return [first(tensor.cpu()) for tensor in kept] == [0.0, 1.0, 2.0]


def _draws(index: int, stream: torch.Stream) -> list[float]:
    """Return draws of every device after one of them was seeded, and after its state was put back."""
    for at in range(DEVICES):
        module().default_generators[at].manual_seed(11)
    with module().device(index):
        module().manual_seed(5)
        state = module().get_rng_state(index)
        drawn = [first(torch.rand(4, device=device(index)).cpu()) for _ in range(2)]
        module().set_rng_state(state, index)
        again = first(torch.rand(4, device=device(index)).cpu())
        dropped = [float(torch.nn.functional.dropout(torch.ones(64, device=device(index))).sum()) for _ in range(2)]
        shuffled = [torch.randperm(64, device=device(index)).cpu()[:4].tolist() for _ in range(2)]
    others = [first(torch.rand(4, device=device(at)).cpu()) for at in range(DEVICES)]
    return [*drawn, again, *others, dropped, shuffled]  # type: ignore[list-item]


def _threads(index: int, stream: torch.Stream) -> list[int]:
    """Return the current device and stream of a thread while another one has changed its own."""
    torch.accelerator.set_device_index(0)

    def other() -> None:
        torch.accelerator.set_device_index(1)
        torch.accelerator.set_stream(torch.Stream(device=device(0)))
        torch.accelerator.set_stream(torch.Stream(device=device(1)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    found = [torch.accelerator.current_device_index()]
    found += [int(torch.accelerator.current_stream(at).stream_id == 0) for at in range(DEVICES)]
    for at in range(DEVICES):
        torch.accelerator.set_stream(module().default_stream(at))
    torch.accelerator.set_device_index(0)
    return found


def _chosen(index: int, stream: torch.Stream) -> int:
    torch.accelerator.set_device_index(index)
    return torch.empty(1, device=device(0).type).device.index


def _graphs() -> Any:
    found = []
    for index in range(DEVICES):
        with module().device(index):
            tensor = torch.zeros(8, device=device(index))
            for _ in range(ROUNDS):
                graph = getattr(module(), _graph_name())()
                with module().graph(graph):
                    tensor.add_(1)
                before = first(tensor.cpu())
                tensor.fill_(5)
                graph.replay()
                graph.replay()
                found.append((before, first(tensor.cpu())))
    return found


def _graph_name() -> str:
    from conformance.accelerators.simulated.simulator import started

    return str(started().profile.graph)


# --- modes left behind ------------------------------------------------------------------------------------------------


def _leave_grad() -> None:
    torch.set_grad_enabled(not torch.is_grad_enabled())


def _leave_device() -> None:
    torch.accelerator.set_device_index(1)


def _leave_stream() -> None:
    torch.accelerator.set_stream(torch.Stream(device=device(torch.accelerator.current_device_index())))


def _leave_autocast() -> None:
    torch.set_autocast_enabled(device(0).type, True)


def _leave_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def _leave_host_seed() -> None:
    torch.random.default_generator.manual_seed(1)


MODES: dict[str, Callable[[], None]] = {
    "gradients": _leave_grad,
    "current device": _leave_device,
    "current stream": _leave_stream,
    "autocast": _leave_autocast,
    "default dtype": _leave_default_dtype,
    "the host's seed": _leave_host_seed,
}
#: Members of torch.<device> after whose calls a mode may be left behind, with arguments of a direct call.
MEMBERS: dict[str, tuple[Any, ...]] = {
    "synchronize": (),
    "empty_cache": (),
    "get_rng_state": (),
    "memory_allocated": (),
    "max_memory_allocated": (),
    "reset_peak_memory_stats": (),
    "memory_stats": (),
    "mem_get_info": (),
    "current_device": (),
    "device_count": (),
    "current_stream": (),
    "get_device_name": (),
    "get_device_properties": (0,),
    "is_available": (),
}


def modes() -> list[Any]:
    """Return the modes of this thread."""
    index = torch.accelerator.current_device_index()
    return [
        torch.is_grad_enabled(),
        index,
        torch.accelerator.current_stream(index).stream_id == 0,
        torch.is_autocast_enabled(device(0).type),
        torch.get_default_dtype(),
        torch.random.default_generator.initial_seed(),
    ]


def _restore() -> None:
    torch.set_grad_enabled(True)
    for at in range(DEVICES):
        # This makes the stream's device current too.
        torch.accelerator.set_stream(module().default_stream(at))
    torch.accelerator.set_device_index(0)
    torch.set_autocast_enabled(device(0).type, False)
    torch.set_default_dtype(torch.float32)


def _called(member: str) -> Callable[[], Any]:
    def probe() -> list[Any]:
        _restore()
        torch.random.default_generator.manual_seed(7)
        found = []
        for _ in range(ROUNDS):
            getattr(module(), member)(*MEMBERS[member])
            found.append(modes())
            _restore()
            torch.random.default_generator.manual_seed(7)
        return found

    return probe


def _leaving(leave: Callable[[], None]) -> Callable[[Any], Any]:
    def around(old: Any) -> Any:
        def member(*args: Any, **kwargs: Any) -> Any:
            result = old(*args, **kwargs)
            MEMBER_CALLS[0] += 1
            leave()
            return result

        return member

    return around


def _seeded() -> list[int]:
    """Return the host's seed after each seeding of the device."""
    found = []
    for _ in range(ROUNDS):
        torch.random.default_generator.manual_seed(7)
        module().manual_seed(3)
        found.append(torch.random.default_generator.initial_seed())
    return found


_MODE_PARTS = tuple(
    Part(f"{member}() changes {mode}", _called(member), ("accelerator.pairs.modes", "accelerator.*"), ("everywhere",),
         members={member: _leaving(leave)}, calls=("always",))
    for member in MEMBERS
    for mode, leave in MODES.items()
)  # fmt: skip

PARTS = (
    Part("memory leaks", lambda: everywhere(_counters), _MEMORY, _DEVICE, {"alloc_leaks": 1}),
    Part("freed memory still counted", lambda: everywhere(_counters), _MEMORY, _DEVICE, {"alloc_free_uncounted": 1}),
    Part("bytes counted on device 0", lambda: everywhere(_counters), _MEMORY, ("device 1",),
         {"alloc_counts_on_device_zero": 1}, calls=("always",)),
    Part("statistics of device 0", lambda: everywhere(_counters), _MEMORY, ("device 1",),
         {"alloc_stats_of_device_zero": 1}),
    Part("peak never reset", lambda: everywhere(_counters), _MEMORY, _DEVICE, {"alloc_peak_reset_ignored": 1}),
    Part("peak constant", lambda: everywhere(_counters), _MEMORY, _DEVICE, {"alloc_peak_constant": 4096}),
    Part("allocated constant", lambda: everywhere(_counters), _MEMORY, _DEVICE, {"alloc_current_constant": 4096}),
    Part("reserved constant", lambda: everywhere(_reserved), _MEMORY, _DEVICE, {"alloc_reserved_constant": 4096}),
    Part("empty_cache of device 0", lambda: everywhere(_reserved), _MEMORY, ("everywhere",),
         {"alloc_empty_cache_first_device": 1}),
    Part("memory returned too early", lambda: everywhere(_fresh), (*_MEMORY, "accelerator.stream.*"), _DEVICE,
         {"alloc_reuse_ignores_stream": 1}),
    Part("memory of live tensors", lambda: everywhere(_distinct), _MEMORY, _DEVICE, {"alloc_hands_out_live": 1}),
    Part("seed ignored", lambda: everywhere(_draws), _RANDOM, _DEVICE, {"rng_seed_ignored": 1}),
    Part("seed of all devices", lambda: everywhere(_draws), _RANDOM, _DEVICE, {"rng_seed_reaches_all": 1}),
    Part("state not set", lambda: everywhere(_draws), _RANDOM, _DEVICE, {"rng_set_state_ignored": 1}),
    Part("state of device 0", lambda: everywhere(_draws), _RANDOM, ("device 1",), {"rng_state_of_device_zero": 1}),
    Part("reading the state draws", lambda: everywhere(_draws), _RANDOM, _DEVICE, {"rng_get_state_advances": 1}),
    Part("generator never advances", lambda: everywhere(_draws), _RANDOM, _DEVICE, {"rng_never_advances": 1}),
    Part("seeding seeds the host", _seeded, _RANDOM, ("everywhere",), {"rng_coupled_to_host": 1}),
    Part("threads share the device", lambda: everywhere(_threads), _DEVICES, ("everywhere", "this thread",
         "other threads"), {"device_global": 1}, calls=("always",)),
    Part("threads share streams", lambda: everywhere(_threads), _DEVICES, ("everywhere", "this thread",
         "other threads"), {"stream_global": 1}, calls=("always",)),
    Part("set_device ignored", lambda: everywhere(_chosen), _DEVICES, _DEVICE, {"device_set_ignored": 1}),
    Part("capture runs", _graphs, _GRAPHS, ("everywhere", "device 0", "device 1"), {"graph_capture_executes": 1}),
    Part("replay does nothing", _graphs, _GRAPHS, ("everywhere", "device 0", "device 1"), {"graph_replay_nothing": 1}),
    Part("replay of old inputs", _graphs, _GRAPHS, ("everywhere", "device 0", "device 1"), {"graph_replay_stale": 1}),
    Part("one replay alone", _graphs, _GRAPHS, ("everywhere", "device 0", "device 1"), {"graph_replay_once": 1}),
    *_MODE_PARTS,
)  # fmt: skip
