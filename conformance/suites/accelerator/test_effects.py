"""Members that answer answer something, and members that act leave something behind. One that does not is a stub.

Whether the answer or the effect is right is for the other cases; these tell "does nothing" from "does it wrongly".
"""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import (
    DEVICE,
    DEVICE_MULTIPLE,
    EVENT,
    GRAPH_CAPTURE,
    LAZY_CALL,
    MEMORY_PEAK,
    MEMORY_PINNED,
    MEMORY_STATS,
    OP_BUILDERS,
    RNG,
    RNG_STATE,
    STREAM,
    TENSOR_TYPES,
)
from conformance.case import case
from conformance.finding import environment_lacks, stub

from .test_interface import member_of

MIB = 1 << 20
HOST = torch.device("cpu")

#: What each member is asked, beyond those that ``interface.bool`` and its neighbours ask without arguments.
QUESTIONS = {
    "device": lambda accelerator, member: member(),
    "random": lambda accelerator, member: member(),
    "get_rng_state": lambda accelerator, member: member(),
    "default_generator": lambda accelerator, member: member(accelerator.current_device()),
    "stream": lambda accelerator, member: member(None),
    "memory_stats": lambda accelerator, member: member(),
    "pin_memory": lambda accelerator, member: member(torch.ones(3)),
    "pin_empty": lambda accelerator, member: member(3, dtype=torch.float32),
    "pin_empty_like": lambda accelerator, member: member(torch.ones(3)),
    "is_pinned": lambda accelerator, member: member(torch.ones(3)),
    "on_accelerator": lambda accelerator, member: member(torch.ones(3)),
    "build_extension": lambda accelerator, member: member(),
}


@case("accelerator.effect.answer", requires=[DEVICE], axes={"member": list(QUESTIONS)})
def test_answer(accelerator, member):
    """The member answers something; None is no answer."""
    answer = QUESTIONS[member](accelerator, member_of(accelerator, member))

    if answer is None:
        stub(f"{member}() answers None")


def require(answer, what: str):
    """The answer; None where a capability says that there is one is a stub."""
    if answer is None:
        stub(f"{what} is None, although it is declared")
    return answer


# --- devices and random numbers -------------------------------------------------------------------------------------


@case("accelerator.effect.set_device", requires=[DEVICE_MULTIPLE])
def test_set_device(accelerator):
    """Making another device current changes what is current."""
    if accelerator.device_count() < 2:
        environment_lacks("one device; setting it shows nothing")
    before = accelerator.current_device()
    other = 1 if before == 0 else 0

    accelerator.set_device(other)
    after = accelerator.current_device()
    accelerator.set_device(before)

    if after == before:
        stub(f"set_device({other}) has no effect: current_device() is {after} as before")


@case("accelerator.effect.seed", requires=[RNG], axes={"member": ["manual_seed", "manual_seed_all"]})
def test_seed(accelerator, device, member):
    """Seeding twice alike and drawing gives what drawing on does not."""

    def seeded():
        getattr(accelerator, member)(2024)
        return torch.randn(65, device=device).cpu()

    if not torch.equal(seeded(), seeded()):
        stub(f"{member}() has no effect: the same seed does not repeat the numbers")


@case("accelerator.effect.set_rng_state", requires=[RNG_STATE])
def test_set_rng_state(accelerator, device):
    """Setting an earlier state changes the state."""
    state = accelerator.get_rng_state()
    torch.randn(65, device=device)
    moved = accelerator.get_rng_state()

    accelerator.set_rng_state(state)

    if torch.equal(accelerator.get_rng_state(), moved) and not torch.equal(moved, state):
        stub("set_rng_state() has no effect: the state is what it was before the call")


# --- streams, events, graphs ----------------------------------------------------------------------------------------


@case("accelerator.effect.streams", requires=[STREAM], axes={"member": ["Stream", "current_stream", "default_stream"]})
def test_streams(accelerator, member):
    """Where there are streams, there is a class of them, a current one, and a default one."""
    value = getattr(accelerator, member)

    require(value if member == "Stream" else value(), member)


@case("accelerator.effect.stream", requires=[STREAM])
def test_stream(accelerator):
    """Inside its context a stream is current."""
    stream = accelerator.Stream()
    outside = accelerator.current_stream()
    with require(accelerator.stream(stream), "the context of a stream"):
        inside = accelerator.current_stream()

    if inside == outside:
        stub("stream() has no effect: the current stream is the same inside")


@case("accelerator.effect.synchronize", requires=[STREAM])
def test_synchronize(accelerator, device):
    """After synchronize() a stream that had work has none."""
    stream = accelerator.Stream()
    value = torch.ones(512, 512, device=device)
    with accelerator.stream(stream):
        for _ in range(64):
            value = value @ value * 0.001
    if stream.query():
        environment_lacks("the work was complete before anybody waited for it; waiting shows nothing")

    accelerator.synchronize()

    if not stream.query():
        stub("synchronize() has no effect: work that was queued before it is still under way")


@case("accelerator.effect.event", requires=[EVENT])
def test_event(accelerator):
    """Where there are events, there is a class of them."""
    require(accelerator.Event, "Event")


def captured(accelerator, device):
    """A graph that doubles ``source`` into ``target``, which holds -1."""
    source, target = torch.ones(65, device=device), torch.full((65,), -1.0, device=device)
    accelerator.synchronize()
    graph = require(accelerator.create_graph(), "create_graph()")
    with require(accelerator.capture_to_graph(graph), "the context of capture_to_graph()"):
        torch.add(source, source, out=target)
    accelerator.synchronize()
    return graph, source, target


@case("accelerator.effect.capture", requires=[GRAPH_CAPTURE])
def test_capture(accelerator, device):
    """A graph is created, and while it is captured its work does not run."""
    _, _, target = captured(accelerator, device)

    if target.cpu().ne(-1).all():
        stub("capture_to_graph() has no effect: the work ran at once")


@case("accelerator.effect.replay", requires=[GRAPH_CAPTURE])
def test_replay(accelerator, device):
    """A replay changes the graph's results."""
    graph, source, target = captured(accelerator, device)
    source.fill_(5.0)
    before = target.cpu()

    accelerator.replay_graph(graph)
    accelerator.synchronize()

    if torch.equal(target.cpu(), before):
        stub("replay_graph() has no effect: the results are what they were before it")


# --- memory ---------------------------------------------------------------------------------------------------------


@case(
    "accelerator.effect.memory_counter",
    requires=[MEMORY_STATS],
    axes={"member": ["memory_allocated", "memory_reserved", "memory_cached", "available_memory"]},
)
def test_memory_counter(accelerator, device, member):
    """A large tensor changes the number."""
    accelerator.empty_cache()
    before = getattr(accelerator, member)()

    tensor = torch.zeros(64 * MIB, dtype=torch.uint8, device=device)
    after = getattr(accelerator, member)()

    if after is None or after == before:
        stub(f"{member}() is {after!r} before and after an allocation of {tensor.nbytes >> 20} MiB")


@case("accelerator.effect.memory_stats", requires=[MEMORY_STATS])
def test_memory_stats(accelerator, device):
    """Where memory is counted, memory_stats() has numbers."""
    tensor = torch.zeros(MIB, dtype=torch.uint8, device=device)

    if not accelerator.memory_stats():
        stub(f"memory_stats() is empty, although {accelerator.memory_allocated()} bytes live ({tensor.nbytes} here)")


@case("accelerator.effect.empty_cache", requires=[MEMORY_STATS])
def test_empty_cache(accelerator, device):
    """Memory that is cached and unused is given back."""
    accelerator.empty_cache()
    torch.zeros(64 * MIB, dtype=torch.uint8, device=device)
    accelerator.synchronize()
    before = accelerator.memory_reserved()
    if before - accelerator.memory_allocated() < 32 * MIB:
        return  # freed memory is not kept, so there is nothing to give back

    accelerator.empty_cache()

    if accelerator.memory_reserved() == before:
        stub(f"empty_cache() has no effect: {before} bytes are reserved before and after it")


PEAKS = {
    "reset_peak_memory_stats": "max_memory_allocated",
    "reset_max_memory_allocated": "max_memory_allocated",
    "reset_max_memory_cached": "max_memory_cached",
}


@case(
    "accelerator.effect.peak", requires=[MEMORY_PEAK], axes={"member": sorted({*PEAKS.values(), "max_memory_reserved"})}
)
def test_peak(accelerator, device, member):
    """A tensor larger than any before raises the peak."""
    accelerator.empty_cache()
    size = getattr(accelerator, member)() or 0

    torch.empty(size + 16 * MIB, dtype=torch.uint8, device=device)

    if (getattr(accelerator, member)() or 0) <= size:
        stub(f"{member}() is {size} before and after a tensor that is larger")


@case("accelerator.effect.peak_reset", requires=[MEMORY_PEAK], axes={"member": list(PEAKS)})
def test_peak_reset(accelerator, device, member):
    """Resetting a peak lowers it, when what made it is gone."""
    torch.zeros(64 * MIB, dtype=torch.uint8, device=device)
    accelerator.synchronize()
    accelerator.empty_cache()
    peak = getattr(accelerator, PEAKS[member])
    before = peak()

    getattr(accelerator, member)()

    if peak() == before:
        stub(f"{member}() has no effect: {PEAKS[member]}() is {before} before and after it")


PINNING = {
    "pin_memory": lambda accelerator: accelerator.pin_memory(torch.ones(4096)),
    "pin_empty": lambda accelerator: member_of(accelerator, "pin_empty")(4096, dtype=torch.float32),
    "pin_empty_like": lambda accelerator: member_of(accelerator, "pin_empty_like")(torch.ones(4096)),
}


@case("accelerator.effect.pinned", requires=[MEMORY_PINNED], axes={"member": list(PINNING)})
def test_pinned(accelerator, member):
    """What is asked to be page-locked is, and is_pinned() says so."""
    tensor = require(PINNING[member](accelerator), f"what {member}() gives")

    if not accelerator.is_pinned(tensor):
        stub(f"{member}() has no effect: is_pinned() answers {accelerator.is_pinned(tensor)!r} for what it gives")


@case("accelerator.effect.register_host_memory", requires=[MEMORY_PINNED])
def test_register_host_memory(accelerator):
    """Registering says yes or no; after a yes the registration can be undone, and the memory still holds its values."""
    register = member_of(accelerator, "register_host_memory")
    alignment = member_of(accelerator, "pin_memory_alignment")()
    memory = torch.arange(4 * MIB, dtype=torch.int32).view(torch.uint8)
    start = -memory.data_ptr() % alignment

    answer = register(memory.data_ptr() + start, MIB // alignment * alignment)

    if answer is None:
        stub("register_host_memory() answers None")
    assert type(answer) is bool, f"register_host_memory() answers {answer!r}; it must be a bool"
    if answer:
        accelerator.unregister_host_memory(memory.data_ptr() + start)
    assert torch.equal(memory.view(torch.int32), torch.arange(4 * MIB, dtype=torch.int32)), "the memory was changed"


# --- software around the device -------------------------------------------------------------------------------------


@case("accelerator.effect.lazy_call", requires=[LAZY_CALL])
def test_lazy_call(accelerator, device):
    """The callback is run."""
    calls = []
    accelerator.lazy_call(lambda: calls.append(1))
    torch.zeros(1, device=device)

    if not calls:
        stub("lazy_call() takes a callback and never runs it")


@case("accelerator.effect.on_accelerator", requires=[DEVICE])
def test_on_accelerator(accelerator, device):
    """A tensor of the device is on it."""
    if not accelerator.on_accelerator(torch.ones(3, device=device)):
        stub(
            f"on_accelerator() answers {accelerator.on_accelerator(torch.ones(3, device=device))!r} for a tensor on it"
        )


TYPES = ["BFloat16Tensor", "ByteTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor"]


@case("accelerator.effect.tensor_type", requires=[TENSOR_TYPES], axes={"member": TYPES})
def test_tensor_type(accelerator, member):
    """There is a constructor."""
    require(getattr(accelerator, member), member)


@case("accelerator.effect.builder", requires=[OP_BUILDERS], axes={"member": ["get_op_builder", "create_op_builder"]})
def test_builder(accelerator, member):
    """A builder is found by its name."""
    require(getattr(accelerator, member)("FusedAdamBuilder"), f"{member}('FusedAdamBuilder')")


@case("accelerator.effect.set_visible_devices_envs", requires=[DEVICE])
def test_set_visible_devices_envs(accelerator):
    """The variables are written into the environment that is given."""
    environment: dict[str, str] = {}
    accelerator.set_visible_devices_envs(environment, [0])

    if not environment:
        stub("set_visible_devices_envs() has no effect: it wrote no variable")


@case("accelerator.effect.set_compile_backend", requires=[DEVICE])
def test_set_compile_backend(accelerator):
    """Setting another backend changes the one that is reported."""
    before = accelerator.get_compile_backend()
    other = "inductor" if before == "eager" else "eager"

    accelerator.set_compile_backend(other)
    after = accelerator.get_compile_backend()
    accelerator.set_compile_backend(before)

    if after == before != other:
        stub(f"set_compile_backend({other!r}) has no effect: it is {after!r} as before")
