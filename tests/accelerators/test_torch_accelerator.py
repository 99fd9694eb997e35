"""Members derived from a torch module: on the CPU for real, and with invented modules for what a CPU lacks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from conformance.accelerators.backends import builtin
from conformance.accelerators.claims import TORCH_BASE, dtypes
from conformance.accelerators.interface import MEMBERS, MissingMember
from conformance.accelerators.sources import as_found
from conformance.accelerators.torch_accelerator import TorchAccelerator

CPU = builtin("cpu")
MEMORY_MEMBERS = [m.name for m in MEMBERS if m.name.endswith(("_allocated", "_cached", "_reserved", "_memory"))]
COUNTERS = [name for name in MEMORY_MEMBERS if not name.startswith(("reset", "pin", "unpin", "register", "unregister"))]


@pytest.fixture
def invented(monkeypatch):
    """A function that installs ``torch.invented`` with the given functions and returns its accelerator."""

    def build(functions, **data):
        defaults = {"is_available": lambda: True, "device_count": lambda: 2, "current_device": lambda: 1}
        module = SimpleNamespace(__name__="torch.invented", **{**defaults, **functions})
        monkeypatch.setattr(torch, "invented", module, raising=False)
        data.setdefault("capabilities", TORCH_BASE | dtypes("float32", "float16", "bfloat16"))
        return TorchAccelerator(name="invented", vendor="tests", **data)

    return build


# --- what today's implementations get wrong -------------------------------------------------------------------------


def test_current_device_is_an_int_under_a_launcher(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert CPU.current_device() == 0
    assert type(CPU.current_device()) is int


def test_device_carries_the_index(invented):
    accelerator = invented({}, device_type="cuda")

    assert CPU.device() == torch.device("cpu", 0)
    assert accelerator.device().index == 1
    assert accelerator.device(0).index == 0
    assert accelerator.device_name(0) == "cuda:0"
    assert accelerator.current_device_name() == "cuda:1"


@pytest.mark.parametrize("index", [None, 0])
def test_generator_state_round_trips_with_and_without_an_index(index):
    state = CPU.get_rng_state(index)
    first = torch.randn(7)
    CPU.set_rng_state(state, index)

    assert torch.equal(torch.randn(7), first)
    assert torch.equal(CPU.default_generator(index).get_state(), CPU.get_rng_state(index))


def test_seeding_is_remembered_and_touches_only_its_own_generator(invented):
    generators = [torch.Generator(), torch.Generator()]
    accelerator = invented({"default_generators": generators})
    host = torch.get_rng_state()

    accelerator.manual_seed(5)
    accelerator.manual_seed_all(6)
    accelerator.default_generator(0).manual_seed(7)

    assert accelerator.initial_seed() == 6
    assert [generator.initial_seed() for generator in generators] == [7, 6]
    assert torch.equal(torch.get_rng_state(), host)


@pytest.mark.parametrize("index", [1, -1])
@pytest.mark.parametrize(
    "member", ["set_device", "synchronize", "get_rng_state", "memory_allocated", "default_generator"]
)
def test_an_index_that_does_not_exist_raises(member, index):
    with pytest.raises(ValueError, match=f"cpu has 1 device.*{index}"):
        getattr(CPU, member)(index)


@pytest.mark.parametrize(
    "member", ["is_bf16_supported", "is_fp16_supported", "is_fp64_supported", "is_triton_supported"]
)
def test_questions_are_answered_by_a_bool(member):
    assert type(getattr(CPU, member)()) is bool


def test_a_dtype_needs_a_device_that_is_new_enough(invented):
    needs = {"float16": (7, 0), "bfloat16": (8, 0)}
    old = invented({"get_device_capability": lambda index: (7, 5)}, needs_generation=needs)

    assert old.supported_dtypes() == [torch.float32, torch.float16]
    assert (old.is_fp16_supported(), old.is_bf16_supported()) == (True, False)


def test_without_a_device_such_a_dtype_is_not_claimed(invented):
    absent = invented({"is_available": lambda: False}, needs_generation={"float16": (7, 0)})

    assert absent.is_fp16_supported() is False


def test_lazy_call_runs_the_callback_now_or_hands_it_to_the_module(invented):
    ran, queued = [], []
    queueing = invented({"_lazy_call": queued.append})

    CPU.lazy_call(lambda: ran.append(1))
    queueing.lazy_call(ran.append)

    assert ran == [1]
    assert queued == [ran.append]


def test_entering_no_stream_is_a_context_that_does_nothing(invented):
    accelerator = invented({"stream": lambda stream: nullcontext(stream)})

    with CPU.stream(None), accelerator.stream(None):
        pass
    with accelerator.stream("s") as entered:
        assert entered == "s"


def test_a_default_stream_is_found_where_the_module_names_none(invented):
    import threading

    here = threading.get_ident()
    accelerator = invented({"current_stream": lambda index: "other" if threading.get_ident() == here else "default"})

    assert accelerator.default_stream(0) == "default"


@pytest.mark.filterwarnings("error")
def test_a_module_without_streams_says_so_where_it_was_asked(invented):
    with pytest.raises(AttributeError, match="current_stream"):
        invented({}).default_stream(0)


def test_without_graphs_capture_and_replay_do_nothing():
    graph = CPU.create_graph()
    with CPU.capture_to_graph(graph, pool=1, stream=2):
        ran = True

    CPU.replay_graph(graph)

    assert graph is None
    assert ran


def test_with_graphs_all_three_members_are_real(invented):
    replayed = []
    graph_class = type("Graph", (), {"replay": lambda self: replayed.append(self)})
    functions = {"Graph": graph_class, "graph": lambda graph, **more: nullcontext(more)}
    accelerator = invented(functions, graph="Graph")

    graph = accelerator.create_graph()
    with accelerator.capture_to_graph(graph, pool=3) as given:
        pass
    accelerator.replay_graph(graph)

    assert given == {"pool": 3}
    assert replayed == [graph]


def test_an_older_torch_without_the_graph_class_has_no_graphs(invented):
    accelerator = invented({}, graph="Graph")

    assert accelerator.create_graph() is None
    with accelerator.capture_to_graph(None):
        pass
    accelerator.replay_graph(None)


@pytest.mark.parametrize(
    ("member", "dtype"),
    [
        ("BFloat16Tensor", torch.bfloat16),
        ("ByteTensor", torch.uint8),
        ("DoubleTensor", torch.float64),
        ("FloatTensor", torch.float32),
        ("HalfTensor", torch.float16),
        ("IntTensor", torch.int32),
        ("LongTensor", torch.int64),
    ],
)
def test_typed_constructors_build_from_lists(member, dtype):
    tensor = getattr(CPU, member)([1, 2])

    assert (tensor.dtype, tensor.tolist(), tensor.device.type) == (dtype, [1, 2], "cpu")


@pytest.mark.parametrize("member", COUNTERS)
def test_memory_is_counted_in_ints(member):
    for index in (None, 0):
        value = getattr(CPU, member)(index)

        assert type(value) is int
        assert value >= 0


def test_memory_numbers_fit_together():
    assert 0 < CPU.available_memory() <= CPU.total_memory()
    assert CPU.max_memory_allocated() >= CPU.memory_allocated() > 0
    assert CPU.memory_stats() == {}


def test_memory_falls_back_on_the_process_table(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)

    assert CPU.memory_allocated() > 1 << 20
    assert 0 < CPU.available_memory() <= CPU.total_memory()


def test_available_memory_counts_what_is_reserved_and_idle(invented):
    accelerator = invented(
        {
            "memory_allocated": lambda index: 10,
            "memory_reserved": lambda index: 30,
            "mem_get_info": lambda index: (50, 100),
        }
    )

    assert (accelerator.total_memory(), accelerator.available_memory()) == (100, 70)


def test_on_accelerator_tells_device_from_meta():
    assert CPU.on_accelerator(torch.ones(1)) is True
    assert CPU.on_accelerator(torch.ones(1, device="meta")) is False


def test_pinning_is_honest_where_nothing_is_pinned():
    tensor = torch.arange(6).reshape(2, 3)

    pinned = CPU.pin_memory(tensor)

    assert torch.equal(pinned, tensor)
    assert CPU.is_pinned(pinned) is False
    assert CPU.is_pinned(torch.ones(1, device="meta")) is False
    assert CPU.unpin_memory(pinned) is None
    assert CPU.register_host_memory(0, 8) is False


def test_fresh_pinned_tensors_follow_the_template():
    tensor = torch.ones(2, 3, dtype=torch.float16)

    assert CPU.pin_memory(tensor, make_copy=False).shape == (2, 3)
    assert CPU.pin_memory(tensor, make_copy=False, match_shape=False).shape == (6,)
    assert CPU.pin_empty(2, 3, dtype=torch.int8).shape == (2, 3)
    assert CPU.pin_empty((4,), dtype=torch.int8).shape == (4,)
    assert CPU.pin_empty_like(tensor).dtype is torch.float16
    assert CPU.pin_empty_like(tensor, dtype=torch.int32).dtype is torch.int32


@pytest.mark.parametrize("device", ["meta", "cuda:0", "nonsense"])
def test_only_host_memory_is_pinned(device):
    with pytest.raises(ValueError, match="only host memory"):
        CPU.pin_empty(1, dtype=torch.int8, device=device)


def test_a_pinning_library_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("DS_PIN_MEMORY_BACKEND", "native")

    with pytest.raises(NotImplementedError, match="DS_PIN_MEMORY_BACKEND"):
        CPU.pin_memory(torch.ones(1))


def test_host_memory_is_registered_with_the_runtime(invented):
    calls = []
    runtime = SimpleNamespace(
        reg=lambda *arguments: calls.append(arguments) or 0, unreg=lambda address: calls.append(address) or 7
    )

    def check(code):
        if code:
            raise RuntimeError(f"error {code}")

    accelerator = invented({"rt": lambda: runtime, "check_error": check}, host_registration=("rt", "reg", "unreg"))

    assert accelerator.register_host_memory(16, 32) is True
    with pytest.raises(RuntimeError, match="error 7"):
        accelerator.unregister_host_memory(16)
    assert calls == [(16, 32, 0), 16]


def test_ranges_nest_and_never_raise(invented):
    class Tool:
        def range_push(self, message):
            raise RuntimeError("not in this build")

    accelerator = invented({"tool": Tool()}, range_tool="tool")

    accelerator.range_pop()
    accelerator.range_push("outer", domain="d", category="c")
    accelerator.range_push("inner")
    accelerator.range_pop(domain="d")
    accelerator.range_pop()
    accelerator.range_pop()


def test_ranges_are_seen_by_the_profiler():
    with torch.profiler.profile() as profile:
        CPU.range_push("a range of ours")
        torch.ones(3).sum()
        CPU.range_pop()

    assert "a range of ours" in {event.name for event in profile.events()}


def test_visible_devices_change_the_given_environment_alone():
    before, given = dict(os.environ), {"OTHER": "1"}

    CPU.set_visible_devices_envs(given, [0, 1])

    assert given == {"OTHER": "1", CPU.visible_devices_envs()[0]: "0,1"}
    assert dict(os.environ) == before


def test_an_unknown_compile_backend_is_refused_and_the_old_one_stays():
    before = CPU.get_compile_backend()

    with pytest.raises(ValueError, match=r"'nonsense' is not a registered torch\.compile backend"):
        CPU.set_compile_backend("nonsense")

    assert CPU.get_compile_backend() == before == "inductor"


def test_a_known_compile_backend_is_taken():
    try:
        CPU.set_compile_backend("eager")

        assert CPU.get_compile_backend() == "eager"
    finally:
        CPU.set_compile_backend("inductor")


def test_builders_follow_one_convention():
    for name in ("FusedAdamBuilder", "NoSuchBuilder"):
        assert type(CPU.create_op_builder(name)) is CPU.get_op_builder(name)

    assert CPU.create_op_builder("NoSuchBuilder").is_compatible() is False
    assert __import__("importlib").import_module(CPU.op_builder_dir())


def test_a_module_that_takes_no_device_is_called_without_one(invented):
    called = []
    accelerator = invented({"synchronize": lambda: called.append(1)})

    accelerator.synchronize()
    accelerator.synchronize(0)

    assert called == [1, 1]


@pytest.mark.parametrize(("platform", "expected"), [("linux", "nccl"), ("win32", "gloo"), ("darwin", None)])
def test_the_communication_backend_depends_on_the_system(monkeypatch, platform, expected):
    monkeypatch.setattr("sys.platform", platform)

    assert builtin("cuda").communication_backend_name() == expected


def test_a_triton_product_is_preferred_on_the_generations_that_profit(invented, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    generation = [(8, 6)]
    accelerator = invented(
        {"get_device_capability": lambda index: generation[0]}, triton=True, triton_grouped_mm=((7, 0), (9, 0))
    )

    assert accelerator.prefer_triton_grouped_mm() is True
    generation[0] = (9, 0)
    assert accelerator.prefer_triton_grouped_mm() is False
    assert CPU.prefer_triton_grouped_mm() is False


@pytest.mark.parametrize(
    ("read", "missing"),
    [
        (lambda accelerator: accelerator.synchronize(), "synchronize"),
        (lambda accelerator: accelerator.Stream, "Stream"),
        (lambda accelerator: accelerator.Event, "Event"),
        (lambda accelerator: accelerator.current_stream(), "current_stream"),
    ],
)
def test_a_function_that_the_torch_module_lacks_is_missing_there(invented, read, missing):
    """The gap is named as one of the module; it is no AttributeError of this project's code."""
    with pytest.raises(MissingMember, match=rf"^torch\.invented has no member '{missing}'$"):
        read(invented({}))


def test_a_device_of_torch_has_what_its_module_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has declared the streams of ``torch:TYPE``: without a class for them, it has none and lacks nothing."""
    bare = SimpleNamespace(is_available=lambda: False)
    full = SimpleNamespace(**vars(bare), Stream=1, current_stream=1, stream=1, Event=1)
    undeclared = TorchAccelerator(name="cpu", vendor="somebody", capabilities=frozenset())
    can_pin = torch.accelerator.is_available()  # asks the module, which is another one below

    for module, has in ((bare, False), (full, True)):
        monkeypatch.setattr(torch, "get_device_module", lambda name, module=module: module)
        found = as_found(undeclared)
        assert (found.streams, found.events) == (has, has)
        assert torch.float32 in found.supported_dtypes()
        assert not found.pins or can_pin
