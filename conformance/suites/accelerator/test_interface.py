"""Every member of the interface: it exists as the right kind, with the interface's arguments and return types."""

from __future__ import annotations

import inspect

import torch

from conformance.accelerators.capabilities import DEVICE, RNG_GENERATOR
from conformance.accelerators.interface import MEMBERS
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import About, Level, case

BY_NAME = {member.name: member for member in MEMBERS}
REQUIRED = [member.name for member in MEMBERS if not member.optional]
OPTIONAL = [member.name for member in MEMBERS if member.optional]


def member_of(accelerator, name):
    """Return the member's value.

    Skip the case if the member is optional and missing: an accelerator written for an older DeepSpeed may lack it.
    """
    if BY_NAME[name].optional and not hasattr(accelerator, name):
        environment_lacks(
            f"{name} has a default in DeepSpeed {BY_NAME[name].since}, and this accelerator does not define it"
        )
    return getattr(accelerator, name)


# Signatures belong to the accelerator's class, which is mostly this project's own: they verify nothing of the device.
@case(
    "accelerator.interface.member",
    requires=[DEVICE],
    level=Level.CORE,
    axes={"member": REQUIRED},
    about=About.PACKAGE,
)
def test_member(accelerator, member):
    """The member exists as the right method or property and accepts the interface's arguments."""
    check_member(accelerator, member)


@case("accelerator.interface.newer_member", requires=[DEVICE], axes={"member": OPTIONAL}, about=About.PACKAGE)
def test_newer_member(accelerator, member):
    """A member with a default in DeepSpeed's base class, if it exists, accepts the interface's arguments."""
    check_member(accelerator, member)


def check_member(accelerator, name):
    """Check that the member is the right kind and accepts the interface's arguments."""
    value, expected = member_of(accelerator, name), BY_NAME[name]
    if expected.kind == "property":
        assert not inspect.ismethod(value), f"{name} is a method; it must be a property or attribute"
        return
    assert callable(value), f"{name} is {value!r}; it must be a method"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return  # functions written in C may have no signature to compare
    wanted = [argument for argument in expected.signature.parameters.values() if argument.name != "self"]
    complaint = mismatch(wanted, list(found.parameters.values()))
    assert not complaint, f"{name}{found} should be {name}({', '.join(map(str, wanted))}): {complaint}"


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)


def mismatch(wanted, found):
    """Return why a call written for ``wanted`` would fail or mean something else; None if it would not.

    Both arguments are lists of inspect.Parameter.
    """
    named = {have.name: (position, have) for position, have in enumerate(have for have in found if have.kind in _NAMED)}
    # ``**kwargs`` accepts every name.
    catches_all = any(have.kind is inspect.Parameter.VAR_KEYWORD for have in found)
    wanted = [want for want in wanted if want.kind in _NAMED]
    for position, want in enumerate(wanted):
        if want.name in named:
            complaint = difference(want, position, *named[want.name][::-1])
            if complaint:
                return complaint
        elif not catches_all:
            return f"argument {want.name!r} is missing or has another name"
    unknown = named.keys() - {want.name for want in wanted}
    extra = [name for name in unknown if named[name][1].default is inspect.Parameter.empty]
    return f"argument(s) {sorted(extra)} are required, but the interface does not have them" if extra else None


def difference(want, position, have, found_position):
    """Return how one argument differs from the interface's, or None."""
    # Only arguments that can be passed by position have a position that matters.
    if want.kind is have.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and found_position != position:
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
    """Return the result of the member without arguments; fail as a stub if it is None."""
    value = member_of(accelerator, name)
    answer = value() if callable(value) else value
    if answer is None:
        stub(f"{name}() returned None")
    return answer


@case("accelerator.interface.bool", requires=[DEVICE], level=Level.CORE, axes={"member": BOOLEANS})
def test_bool(accelerator, member):
    """The member returns exactly True or False."""
    answer = answer_of(accelerator, member)

    # None would read as False, and a version number as True.
    assert type(answer) is bool, f"{member}() returned {answer!r}, a {type(answer).__name__}; it must return a bool"


@case("accelerator.interface.int", requires=[DEVICE], level=Level.CORE, axes={"member": INTEGERS})
def test_int(accelerator, member):
    """The member returns an int and not a string, a float or a bool."""
    answer = answer_of(accelerator, member)

    # isinstance() would accept a bool, which is a subclass of int.
    assert type(answer) is int, f"{member}() returned {answer!r}, a {type(answer).__name__}; it must return an int"


@case("accelerator.interface.str", requires=[DEVICE], level=Level.CORE, axes={"member": STRINGS})
def test_str(accelerator, member):
    """The member returns a string that is not empty."""
    answer = answer_of(accelerator, member)

    assert type(answer) is str, f"{member}() returned {answer!r}, a {type(answer).__name__}; it must return a str"
    assert answer, f"{member}() returned an empty string"


@case("accelerator.interface.list", requires=[DEVICE], level=Level.CORE, axes={"member": LISTS})
def test_list(accelerator, member):
    """The member returns a new list, so a caller that changes it does not change later answers."""
    answer = answer_of(accelerator, member)
    assert type(answer) is list, f"{member}() returned {answer!r}, a {type(answer).__name__}; it must return a list"

    # Callers extend these lists, so a shared list would change for all of them.
    kept = list(answer)
    answer.append(None)

    again = answer_of(accelerator, member)
    assert again == kept, f"after a caller appended to its result, {member}() returned {again}, not {kept}"


@case("accelerator.interface.dict", requires=[DEVICE], level=Level.CORE)
def test_dict(accelerator):
    """memory_stats() returns a dict of numbers by name, which may be empty."""
    answer = accelerator.memory_stats()

    assert isinstance(answer, dict), (
        f"memory_stats() returned {answer!r}, a {type(answer).__name__}; it must return a dict"
    )
    invalid = {
        key: value for key, value in answer.items() if type(key) is not str or not isinstance(value, (int, float))
    }
    assert not invalid, f"memory_stats() contains {invalid}; keys must be str, values numbers"


@case("accelerator.interface.rng_state", requires=[DEVICE], level=Level.CORE)
def test_rng_state(accelerator, declaration):
    """get_rng_state() returns a uint8 tensor, and default_generator(i) a torch.Generator or a refusal."""
    state = accelerator.get_rng_state()

    assert isinstance(state, torch.Tensor), f"get_rng_state() returned {state!r}; it must return a tensor"
    assert state.dtype is torch.uint8, f"get_rng_state() is {state.dtype}, not torch.uint8"
    try:
        generator = accelerator.default_generator(accelerator.current_device())
    except NotImplementedError:
        # A device may have random numbers without generator objects, if it does not claim them.
        if declaration.supports(RNG_GENERATOR.cell):
            raise
        return
    assert isinstance(generator, torch.Generator), (
        f"default_generator() returned {generator!r}; it must return a torch.Generator"
    )


@case("accelerator.interface.communication_backend", requires=[DEVICE], level=Level.CORE)
def test_communication_backend(accelerator):
    """communication_backend_name() returns a string that is not empty, or None."""
    answer = accelerator.communication_backend_name()

    assert answer is None or (type(answer) is str and answer), (
        f"communication_backend_name() returned {answer!r}; it must return a name or None"
    )


@case("accelerator.interface.range_domain", requires=[DEVICE])
def test_range_domain(accelerator):
    """supports_nvtx_domain is an attribute whose value is a bool."""
    answer = member_of(accelerator, "supports_nvtx_domain")

    if answer is None:
        stub("supports_nvtx_domain is None")
    assert type(answer) is bool, f"supports_nvtx_domain is {answer!r}; it must be a bool"
