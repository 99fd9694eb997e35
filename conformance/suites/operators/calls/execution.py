"""Operator calls. ``execute``, ``gradients`` and ``gradients_twice`` alone compute on the device under test.

The host's side uses ``call`` and ``host_gradients``, so that a test can inject a defect into one side alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._device import _device_constructors

from conformance.accelerators.interface import MissingMember
from conformance.base.seeding import seed_devices
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.modes import with_modes
from conformance.numerics.trees import leaves, tensors
from conformance.process import last_call

from .calls import HOST, Call

#: Tensors of one backward, in order.
Tensors = Sequence[torch.Tensor]
#: Seeds of the random numbers with which a certain call is made again.
_SEEDS = (1, 2, 3)
#: A context without an effect, made once.
_NO_DEVICE: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True)
class OnCopy:
    """The in-place form of an operator, on a copy of its input: leaves that require a gradient cannot be written."""

    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        """Return the name of the function."""
        return str(getattr(self.function, "__name__", ""))

    def __call__(self, first: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result that the in-place form wrote into a copy."""
        return self.function(first.clone(), *args, **kwargs)


@dataclass(frozen=True)
class Statement:
    """A statement of Python about a tensor ``t`` and others, ``a`` and ``b``; its result is the tensor afterwards."""

    text: str

    @property
    def definition(self) -> str:
        """Return the text of a function that makes the statement."""
        return f"def statement(t, a=None, b=None):\n    {self.text}\n    return t\n"

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Make the statement, and return its first tensor."""
        names: dict[str, Any] = {"torch": torch}
        exec(self.definition, names)
        changed: torch.Tensor = names["statement"](*tensors)
        return changed


def call(function: Any, sample: Call, **extra: Any) -> Any:
    """Call the operator on the host."""
    last_call.note_step(last_call.ON_HOST)  # no text: it costs more than a small call, and few hosts crash
    return _called(function, sample, extra)


def _called(function: Any, sample: Call, extra: Mapping[str, Any]) -> Any:
    """Call the operator on the device of the sample's tensors."""
    try:
        with _default_device(function, sample):
            return function(sample.input, *sample.args, **sample.kwargs, **extra)
    except AssertionError as error:
        # Outside of this call an AssertionError means a wrong result; here the operator refuses its arguments.
        raise RuntimeError(f"AssertionError: {error}") from error


def _default_device(function: Any, sample: Call) -> AbstractContextManager[object]:
    """Return a context with a default device for operators that create tensors: not every sample names a device."""
    if sample.device == HOST:
        return _NO_DEVICE
    # Private to torch, but the same set that torch.device uses as a context.
    makes_tensors = function in _device_constructors() or not sample.tensors
    return sample.device if makes_tensors else _NO_DEVICE


def perform(run: Callable[..., Any], info: Any, given: Call) -> Any:
    """Run a call in its form, which is the operator itself if no other function is set, by ``call`` or ``execute``."""
    return run(given.function or info.op, given, **given.extra)


@dataclass(frozen=True)
class HostCall:
    """The host's call of a sample: its arguments after the call, and its result or refusal. Nobody writes them.

    ``draws`` says that another call gives other numbers: this one moved the host's generator.
    """

    given: Call
    value: Any = None
    error: Exception | None = None
    draws: bool = False

    @property
    def comparable(self) -> bool:
        """Return whether the host computes the call, and draws no random numbers: its values can be compared."""
        return self.error is None and not self.draws

    @property
    def finite(self) -> bool:
        """Return whether it is comparable, and overflows nowhere."""
        results = tensors(self.value) if self.comparable else []
        return self.comparable and all(bool(t.isfinite().all()) for t in results if t.layout is torch.strided)


def host_call(function: Any, sample: Call) -> HostCall:
    """Return the host's call of a sample. It is made once for a sample, unless it draws random numbers."""
    found = sample.kept.get(("host", function)) or _on_host(function, sample)
    if not found.draws:
        sample.kept["host", function] = found
    return found


def was_refused(function: Any, sample: Call) -> bool:
    """Return whether ``host_call`` has found that the host refuses a sample. The call is not made again."""
    found = sample.kept.get(("host", function))
    return found is not None and found.error is not None


def _on_host(function: Any, sample: Call) -> HostCall:
    """Run a call on the CPU, without its warnings; record its result or refusal, and whether it drew random numbers."""
    given, value, error, state = sample.on(HOST), None, None, torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call(function, given)
        except Exception as refusal:  # each operator refuses in its own way
            error = refusal.with_traceback(None)  # its frames hold tensors
    draws = not torch.equal(state, torch.get_rng_state())
    if draws and sample.certain and error is None:
        draws = not _has_one_result(function, sample, value)
    return HostCall(given, value, error, draws)


def _has_one_result(function: Any, sample: Call, value: Any) -> bool:
    """Return whether the host gives the same result for other random numbers."""
    with torch.random.fork_rng(devices=()):
        for seed in _SEEDS:
            torch.default_generator.manual_seed(seed)
            again = call(function, sample.on(HOST))
            if not all(same_bits(*map(plain, pair)) for pair in zip(tensors(again), tensors(value), strict=True)):
                return False
    return True


def execute(function: Any, sample: Call, **extra: Any) -> Any:
    """Call the operator on the device under test."""
    last_call.note(sample.noted, last_call.ON_DEVICE)
    with with_modes():
        return _called(function, sample, extra)


@dataclass(frozen=True)
class Attempt:
    """Outcome of a call on one side: a value or an exception, and whether it warned about resizing."""

    value: object = None
    error: Exception | None = None
    resized: bool = False


def attempt(run: Callable[..., Any], info: Any, given: Call) -> Attempt:
    """Run a call by ``call`` or ``execute`` and return its outcome; an exception is caught, not raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = perform(run, info, given)
        except Exception as error:  # it is compared with the host's outcome
            return Attempt(error=error)
    return Attempt(value, resized=any("was resized" in str(warning.message) for warning in caught))


def settled(device_attempt: Attempt) -> Attempt:
    """Return the outcome after a read of the values: a device that queues its work raises only then."""
    try:
        for leaf in tensors(leaves(device_attempt.value)):
            plain(leaf)
    except Exception as error:  # as in attempt()
        # Its frames hold the result. A device that records calls raises at each synchronization while that lives.
        return Attempt(error=error.with_traceback(None))
    return device_attempt


def host_gradients(outputs: Tensors, inputs: Tensors, cotangents: Tensors) -> Sequence[torch.Tensor | None]:
    """Run backward on the host; an input that is not used has the gradient None."""
    last_call.note_step(last_call.ON_HOST)
    return _gradients(outputs, inputs, cotangents)


def _gradients(outputs: Tensors, inputs: Tensors, cotangents: Tensors) -> Sequence[torch.Tensor | None]:
    """Run backward on the device of the tensors."""
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


def gradients(outputs: Tensors, inputs: Tensors, cotangents: Tensors) -> Sequence[torch.Tensor | None]:
    """Run backward on the device under test."""
    last_call.note_step(last_call.BACKWARD)
    with with_modes():
        return _gradients(outputs, inputs, cotangents)


def gradients_twice(outputs: Tensors, inputs: Tensors, cotangents: Tensors) -> Sequence[torch.Tensor | None]:
    """Run two backwards over one graph, on the device of the tensors; return the gradients of both in one list."""
    last_call.note_step(last_call.BACKWARD)
    with with_modes():
        runs = [
            torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, retain_graph=True) for _ in range(2)
        ]
    return [gradient for run in runs for gradient in run]


def processed(sample: Call, result: Any) -> list[Any]:
    """Return the leaves of the result after the sample's own post-processing, which leaves only determined values."""
    return leaves(sample.process(result) if sample.process else result)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the host's generator and those of the device's type.

    ``torch.manual_seed`` formats a stack trace for every device type that is not initialised. Under a test runner that
    takes longer than most cells, so it is used only for a device that cannot be seeded otherwise.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == HOST.type:
        return
    # torch.mps has no such function, and a device need not have a module.
    module = getattr(torch, device.type, None)
    with suppress(NotImplementedError):
        if (seed_all := getattr(module, "manual_seed_all", None)) is not None:
            seed_all(seed)
            return
    if module is None and seed_devices(seed):
        return
    generators = getattr(module, "default_generators", ())
    for generator in generators:
        generator.manual_seed(seed)
    if not generators:
        torch.manual_seed(seed)


def require_seed(device: torch.device) -> None:
    """Raise MissingMember if no random function repeats its numbers after a seed: then no operator is to blame."""
    if device.type == HOST.type:
        return

    def draw(function: Callable[..., torch.Tensor]) -> torch.Tensor:
        reseed(1, device)
        return function(65).to(device="cpu", dtype=torch.float32)

    functions = (
        lambda count: torch.rand(count, device=device),
        lambda count: torch.empty(count, device=device).normal_(),
        lambda count: torch.randint(0, 1 << 20, (count,), device=device),
    )
    if not any(torch.equal(draw(each), draw(each)) for each in functions):
        name = "manual_seed_all"
        said = f"no seed repeats numbers of this device: torch.{device.type}.{name}() is missing, or has no effect"
        raise MissingMember(name, f"torch.{device.type}", said)
