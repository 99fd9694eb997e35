"""Every member of the interface: there, of the right kind, with the interface's arguments and types of answers."""

from __future__ import annotations

import inspect

import torch

from conformance.accelerators.capabilities import DEVICE
from conformance.accelerators.interface import MEMBERS
from conformance.case import Level, case
from conformance.finding import environment_lacks, stub

BY_NAME = {member.name: member for member in MEMBERS}
REQUIRED = [member.name for member in MEMBERS if not member.optional]
OPTIONAL = [member.name for member in MEMBERS if member.optional]


def member_of(accelerator, name):
    """The member's value; a member that came later than the accelerator was written is not held against it."""
    if BY_NAME[name].optional and not hasattr(accelerator, name):
        environment_lacks(f"{name} has a default in DeepSpeed {BY_NAME[name].since}; this accelerator has none")
    return getattr(accelerator, name)


@case("accelerator.interface.member", requires=[DEVICE], level=Level.CORE, axes={"member": REQUIRED})
def test_member(accelerator, member):
    """The member is there, as the method or property it should be, and takes the interface's arguments."""
    check_member(accelerator, member)


@case("accelerator.interface.newer_member", requires=[DEVICE], axes={"member": OPTIONAL})
def test_newer_member(accelerator, member):
    """The same for members that DeepSpeed's base class brings: where they are, they are called alike."""
    check_member(accelerator, member)


def check_member(accelerator, name):
    value, expected = member_of(accelerator, name), BY_NAME[name]
    if expected.kind == "property":
        assert not inspect.ismethod(value), f"{name} is a method; it must be a property or attribute"
        return
    assert callable(value), f"{name} is {value!r}; it must be a method"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return  # written in C: it tells nothing about its arguments
    wanted = [p for p in expected.signature.parameters.values() if p.name != "self"]
    complaint = mismatch(wanted, list(found.parameters.values()))
    assert not complaint, f"{name}{found} should be {name}({', '.join(map(str, wanted))}): {complaint}"


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)


def mismatch(wanted, found):
    """Why a call written for ``wanted`` would not work, or would mean something else; None if it does."""
    named = {p.name: (position, p) for position, p in enumerate(p for p in found if p.kind in _NAMED)}
    catches_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found)
    wanted = [p for p in wanted if p.kind in _NAMED]
    for position, want in enumerate(wanted):
        if want.name in named:
            complaint = difference(want, position, *named[want.name][::-1])
            if complaint:
                return complaint
        elif not catches_all:
            return f"argument {want.name!r} is missing or has another name"
    unknown = named.keys() - {p.name for p in wanted}
    extra = [name for name in unknown if named[name][1].default is inspect.Parameter.empty]
    return f"argument(s) {sorted(extra)} are required, which callers do not know" if extra else None


def difference(want, position, have, place):
    if want.kind is have.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and place != position:
        return f"argument {want.name!r} is at another position"
    if want.default is not inspect.Parameter.empty and have.default != want.default:
        return f"the default of {want.name!r} is {have.default!r}, not {want.default!r}"
    return None


BOOLEANS = [
    "is_synchronized_device",
    "use_host_timers",
    "resolves_data_dependency",
    "handles_memory_backpressure",
    "is_bf16_supported",
    "is_fp16_supported",
    "is_fp64_supported",
    "is_available",
    "is_triton_supported",
    "prefer_triton_grouped_mm",
    "is_current_stream_capturing",
]
INTEGERS = [
    "current_device",
    "device_count",
    "initial_seed",
    "memory_allocated",
    "max_memory_allocated",
    "memory_cached",
    "max_memory_cached",
    "memory_reserved",
    "max_memory_reserved",
    "total_memory",
    "available_memory",
    "pin_memory_alignment",
]
STRINGS = ["device_name", "current_device_name", "op_builder_dir", "get_compile_backend"]
LISTS = ["supported_dtypes", "export_envs", "visible_devices_envs"]


def answer_of(accelerator, name):
    """What the member answers without arguments. None is no answer."""
    value = member_of(accelerator, name)
    answer = value() if callable(value) else value
    if answer is None:
        stub(f"{name}() answers None")
    return answer


@case("accelerator.interface.bool", requires=[DEVICE], level=Level.CORE, axes={"member": BOOLEANS})
def test_bool(accelerator, member):
    """Exactly True or False: None reads as no, and a version number as yes."""
    answer = answer_of(accelerator, member)

    assert type(answer) is bool, f"{member}() answers {answer!r}, a {type(answer).__name__}; it must be a bool"


@case("accelerator.interface.int", requires=[DEVICE], level=Level.CORE, axes={"member": INTEGERS})
def test_int(accelerator, member):
    """Exactly an int: neither a string, nor a float, nor a bool, nor None."""
    answer = answer_of(accelerator, member)

    assert type(answer) is int, f"{member}() answers {answer!r}, a {type(answer).__name__}; it must be an int"


@case("accelerator.interface.str", requires=[DEVICE], level=Level.CORE, axes={"member": STRINGS})
def test_str(accelerator, member):
    """A string that is not empty."""
    answer = answer_of(accelerator, member)

    assert type(answer) is str, f"{member}() answers {answer!r}, a {type(answer).__name__}; it must be a str"
    assert answer, f"{member}() answers an empty string"


@case("accelerator.interface.list", requires=[DEVICE], level=Level.CORE, axes={"member": LISTS})
def test_list(accelerator, member):
    """A list of its own: what a caller does to it changes no later answer."""
    answer = answer_of(accelerator, member)
    assert type(answer) is list, f"{member}() answers {answer!r}, a {type(answer).__name__}; it must be a list"

    kept = list(answer)
    answer.append(None)

    again = answer_of(accelerator, member)
    assert again == kept, f"appending to what {member}() gave changes its next answer to {again}"


@case("accelerator.interface.dict", requires=[DEVICE], level=Level.CORE)
def test_dict(accelerator):
    """memory_stats() is a dict of numbers by name; an empty one says that nothing is counted."""
    answer = accelerator.memory_stats()

    assert isinstance(answer, dict), f"memory_stats() answers {answer!r}, a {type(answer).__name__}"
    odd = {key: value for key, value in answer.items() if type(key) is not str or not isinstance(value, (int, float))}
    assert not odd, f"memory_stats() holds {odd}"


@case("accelerator.interface.rng_state", requires=[DEVICE], level=Level.CORE)
def test_rng_state(accelerator):
    """get_rng_state() is a uint8 tensor, and default_generator(i) a generator."""
    state, generator = accelerator.get_rng_state(), accelerator.default_generator(accelerator.current_device())

    assert isinstance(state, torch.Tensor), f"get_rng_state() answers {state!r}"
    assert state.dtype is torch.uint8, f"get_rng_state() is {state.dtype}"
    assert isinstance(generator, torch.Generator), f"default_generator() answers {generator!r}"


@case("accelerator.interface.communication_backend", requires=[DEVICE], level=Level.CORE)
def test_communication_backend(accelerator):
    """The communication backend is a name that is not empty, or None."""
    answer = accelerator.communication_backend_name()

    assert answer is None or (type(answer) is str and answer), f"communication_backend_name() answers {answer!r}"


@case("accelerator.interface.range_domain", requires=[DEVICE])
def test_range_domain(accelerator):
    """supports_nvtx_domain is a bool, and an attribute."""
    answer = member_of(accelerator, "supports_nvtx_domain")

    if answer is None:
        stub("supports_nvtx_domain is None")
    assert type(answer) is bool, f"supports_nvtx_domain is {answer!r}"
