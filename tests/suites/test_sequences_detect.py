"""Faults of sequences, states, other devices and recurrent modules on the simulated device: each turns its case red."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.reports.verdict import Outcome
from tests.defects.bench import Bench, is_red
from tests.defects.faults import Fault, Where, armed
from tests.rows import every_row

Context = Callable[[], AbstractContextManager[Any]]


class Row(NamedTuple):
    """A fault, the case that has to fail, and a part of its message."""

    name: str
    case: str
    said: str
    context: Context


def of_functions(**members: Callable[..., Any]) -> Context:
    """Replace functions of torch.nn.functional or torch: each gets the function that it replaces."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, change in members.items():
                owner = next(owner for owner in (torch.nn.functional, torch) if hasattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, change(getattr(owner, name))))
            yield

    return context


def with_switches(**switches: float) -> Context:
    return lambda: armed(Fault("", "", "", Where.STREAM, "", switches=switches))


class _Ops(TorchDispatchMode):
    """Goes around operators of a name; ``spoil(call, args, kwargs)`` returns the result."""

    def __init__(self, name: str, spoil: Callable[..., Any]) -> None:
        super().__init__()
        self._name, self._spoil = name, spoil

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in args if isinstance(x, torch.Tensor)]
        if func.overloadpacket.__name__ == self._name and given[0].device.type == "sim":
            return self._spoil(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def around(name: str, spoil: Callable[..., Any]) -> Context:
    return lambda: _Ops(name, spoil)


def _on_the_current_device(call: Any, args: Any, kwargs: Any) -> Any:
    """Compute on the current device, and leave the result there."""
    here = f"sim:{torch.sim.current_device()}"  # type: ignore[attr-defined]
    return call(*(x.to(here) if isinstance(x, torch.Tensor) else x for x in args), **kwargs)


def _moves_current(call: Any, args: Any, kwargs: Any) -> Any:
    result = call(*args, **kwargs)
    torch.sim.set_device(args[0].device.index)  # type: ignore[attr-defined]
    return result


def _flushes(call: Any, args: Any, kwargs: Any) -> Any:
    torch.set_flush_denormal(True)
    return call(*args, **kwargs)


def _draws(call: Any, args: Any, kwargs: Any) -> Any:
    torch.rand(1, device=args[0].device)
    return call(*args, **kwargs)


def _zero_on_other_threads() -> Context:
    """Give zeros on every thread but this one. A mode would not reach other threads."""
    here = threading.current_thread()

    def around_sum(call: Any, args: list[Any]) -> Any:
        results = call(args)
        if threading.current_thread() is not here:
            results[0].zero_()
        return results

    return lambda: armed(Fault("", "", "", Where.OPERATOR, "", operators={"aten::sum": around_sum}))


def _wrong_after_another_size() -> Callable[..., Any]:
    sizes: list[Any] = []

    def spoil(call: Any, args: Any, kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        stale = bool(sizes) and sizes[-1] != args[0].shape
        sizes.append(args[0].shape)
        return result * 2 if stale else result

    return spoil


@contextlib.contextmanager
def unflushed(context: Context) -> Iterator[None]:
    try:
        with context():
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.sim.set_device(0)  # type: ignore[attr-defined]


def _casts_in_no_grad_are_kept() -> Context:
    """Keep casts of weights that were made without gradients, as PyTorch once did (#112583)."""
    kept: dict[int, Any] = {}

    def change(old: Any) -> Any:
        def matmul(self: Any, other: Any) -> Any:
            if not (torch.is_autocast_enabled("sim") and other.requires_grad):
                kept.clear()
                return old(self, other)
            if not torch.is_grad_enabled():
                kept[id(other)] = other.detach().to(torch.get_autocast_dtype("sim"))
            return old(self, kept.get(id(other), other))

        return matmul

    return lambda: mock.patch.object(torch.Tensor, "__matmul__", change(torch.Tensor.__matmul__))


class _DrawsLate(TorchFunctionMode):
    """Draw normal numbers on the device when somebody reads a tensor, with the generator of that time."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cpu and args[0].device.type == "sim":
            waiting, self._waiting = self._waiting, []
            for tensor in waiting:
                tensor.normal_()
        result = func(*args, **(kwargs or {}))
        if func is torch.randn and result.device.type == "sim":
            self._waiting.append(result)
        return result


def _fills_from_the_start(call: Any, args: Any, kwargs: Any) -> Any:
    """Fill as many elements as there are, from the start of the memory on."""
    call(args[0].as_strided(args[0].shape, args[0].stride(), 0), *args[1:], **kwargs)
    return args[0]


def _keeps_results(name: str = "mm") -> Context:
    """Keep a copy of what each backward or forward of an operator gives."""
    kept = []

    def spoil(call: Any, args: Any, kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        kept.append((result if isinstance(result, torch.Tensor) else result[0]).detach().repeat(64, 1))
        return result

    return around(name, spoil)


def _loads(change: Callable[[torch.Tensor], torch.Tensor]) -> Context:
    """Change every tensor that torch.load gives."""
    load = torch.load

    def loaded(*args: Any, **kwargs: Any) -> Any:
        return {name: change(value) for name, value in load(*args, **kwargs).items()}

    return lambda: mock.patch.object(torch, "load", loaded)


def _seeds_with_its_number() -> AbstractContextManager[Any]:
    """Add a device's number to the seed that it alone is given."""
    right = TorchAccelerator.manual_seed

    def seed(self: TorchAccelerator, number: int) -> None:
        right(self, number + self.current_device())

    return mock.patch.object(TorchAccelerator, "manual_seed", seed)


def _softmax_is_not_cast() -> AbstractContextManager[Any]:
    """Give a softmax the dtype of its input, also under autocast."""
    right = torch.Tensor.softmax
    return mock.patch.object(torch.Tensor, "softmax", lambda x, dim: right(x, dim).to(x.dtype))


class _Forward:
    """Replacement of the forward of a class: ``change(forward)``."""

    def __init__(self, kind: type[nn.Module], change: Callable[[Any], Any]) -> None:
        self._kind, self._change = kind, change

    def __call__(self) -> AbstractContextManager[Any]:
        return mock.patch.object(self._kind, "forward", self._change(self._kind.forward))


def on_device_only(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """Call ``change(forward, module, x, *rest)`` for inputs on the simulated device."""

    def wrap(forward: Any) -> Any:
        def called(self: Any, x: Any, *rest: Any, **named: Any) -> Any:
            data = x.data if isinstance(x, nn.utils.rnn.PackedSequence) else x
            if data.device.type != "sim":
                return forward(self, x, *rest, **named)
            return change(forward, self, x, *rest, **named)

        return called

    return wrap


def _drops_in_evaluation(forward: Any, module: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Drop in eval() after a training call of that module (#180744)."""
    module.has_trained = getattr(module, "has_trained", False) or module.training
    with mock.patch.object(module, "training", module.training or module.has_trained):
        return forward(module, x, *rest, **named)


def _backward_without_mask(forward: Any, module: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Give the values of a pass that drops with the gradients of one that does not (#190056)."""
    if not module.training or not torch.is_grad_enabled():
        return forward(module, x, *rest, **named)
    dropped = forward(module, x, *rest, **named)
    with mock.patch.object(module, "training", False):
        whole = forward(module, x, *rest, **named)
    first = lambda value: value[0] if isinstance(value, tuple) else value  # noqa: E731
    mixed = first(whole) + (first(dropped) - first(whole)).detach()
    return (mixed, *dropped[1:]) if isinstance(dropped, tuple) else mixed


def _bias_of_65536_rows(forward: Any, module: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Leave the bias out where there are more rows than a grid has blocks (rocm-libraries #10551)."""
    if x.dim() < 3 or x.shape[0] * x.shape[1] <= 65536:
        return forward(module, x, *rest, **named)
    zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters() if "bias" in name}
    kept = {name: value.detach().clone() for name, value in module.named_parameters() if name in zeros}
    with torch.no_grad():
        for name in zeros:
            getattr(module, name).copy_(zeros[name])
    try:
        return forward(module, x, *rest, **named)
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                getattr(module, name).data = value


ROWS = (
    Row("a convolution runs on the current device", "accelerator.families.other_device[convolution]", "is on sim:0",
        around("convolution", _on_the_current_device)),
    Row("a sort runs on the current device", "accelerator.families.other_device[sort]", "is on sim:0",
        around("sort", _on_the_current_device)),
    Row("a lookup runs on the current device", "accelerator.families.other_device[embedding]", "is on sim:0",
        around("embedding", _on_the_current_device)),
    Row("a product makes its device current", "accelerator.families.other_device[product]", "the current device after",
        around("mm", _moves_current)),
    Row("a product flushes subnormals", "accelerator.families.sequence[product]", "subnormals of the host",
        around("mm", _flushes)),
    Row("a softmax draws", "accelerator.families.sequence[softmax]", "generator", around("_softmax", _draws)),
    Row("a sum on another thread is zero", "accelerator.families.sequence[sum]", "on another thread",
        _zero_on_other_threads()),
    Row("a product is stale after another size", "accelerator.families.sequence[product]", "product, ",
        around("mm", _wrong_after_another_size())),
    Row("casts made without gradients are kept", "accelerator.autocast.cache[bfloat16]", "has no gradient",
        _casts_in_no_grad_are_kept()),
    Row("times leave out what is idle", "accelerator.event.elapsed_idle", "elapsed_time() is",
        with_switches(event_leaves_out_idle=1)),
    Row("a product keeps a copy of each result", "accelerator.families.memory[product]", "bytes are allocated",
        _keeps_results()),
    Row("a sort keeps what it sorted", "accelerator.families.memory[sort]", "bytes are allocated",
        _keeps_results("sort")),
    Row("peaks of all devices are one", "accelerator.memory.peak_per_device", "raise",
        with_switches(alloc_stats_of_device_zero=1)),
    Row("a reset of peaks is ignored", "accelerator.memory.peak_per_device", "was not reset",
        with_switches(alloc_peak_reset_ignored=1)),
    Row("halves are printed as wholes", "accelerator.printing[float32]", "is printed as",
        with_switches(item_truncates=1)),
    Row("copies ignore strides", "checkpoint.metadata", "the values of", with_switches(copy_ignores_strides=1)),
    Row("a loaded leaf has no gradient", "checkpoint.metadata", "requires_grad of", _loads(torch.Tensor.detach)),
    Row("views are loaded as contiguous tensors", "checkpoint.metadata", "the strides of",
        _loads(lambda x: x.contiguous() if not x.requires_grad else x)),
    Row("the seed is ignored", "accelerator.rng.state_is_a_copy", "manual_seed() is ignored",
        with_switches(rng_seed_ignored=1)),
    Row("a softmax stays in 16 bits under autocast", "runtime.autocast.full[nll_loss-bfloat16]", "the dtype of softmax",
        _softmax_is_not_cast),
    Row("a device adds its number to the seed", "accelerator.rng.per_device_state", "are not those of",
        _seeds_with_its_number),
    Row("a view is filled from the start of the memory on", "accelerator.synchronize.idle", "wrote elsewhere",
        around("fill_", _fills_from_the_start)),
    *(Row(f"numbers are drawn late: {name}", f"accelerator.rng.{name}", "are drawn when somebody reads", _DrawsLate)
      for name in ("seed_repeats[randn]", "seed_all_repeats", "state_is_a_copy", "state_roundtrip[randn]",
                   "state_odd_sizes[7]", "state_index", "state_saved", "state_not_consumed", "state_of_another_seed",
                   "torch_seed_reaches_device")),
    Row("an LSTM drops in evaluation after training", "modules.turns.evaluation[LSTM]", "in eval() after training",
        _Forward(nn.LSTM, on_device_only(_drops_in_evaluation))),
    Row("a GRU drops in evaluation after training", "modules.turns.evaluation[GRU]", "in eval() after training",
        _Forward(nn.GRU, on_device_only(_drops_in_evaluation))),
    Row("attention drops in evaluation after training", "modules.turns.evaluation[MultiheadAttention]",
        "in eval() after training", _Forward(nn.MultiheadAttention, on_device_only(_drops_in_evaluation))),
    Row("the backward of an LSTM drops nothing", "modules.turns.gradient[LSTM]", "by the gradient",
        _Forward(nn.LSTM, on_device_only(_backward_without_mask))),
    Row("the backward of a GRU drops nothing", "modules.turns.gradient[GRU]", "by the gradient",
        _Forward(nn.GRU, on_device_only(_backward_without_mask))),
    Row("the backward of attention drops nothing", "modules.turns.gradient[MultiheadAttention]", "by the gradient",
        _Forward(nn.MultiheadAttention, on_device_only(_backward_without_mask))),
    Row("an LSTM of many rows has no bias", "modules.turns.many_rows[LSTM]", "the result of LSTM",
        _Forward(nn.LSTM, on_device_only(_bias_of_65536_rows))),
    Row("an RNN of many rows has no bias", "modules.turns.many_rows[RNN]", "the result of RNN",
        _Forward(nn.RNN, on_device_only(_bias_of_65536_rows))),
)  # fmt: skip


def check_a_fault(row: Row) -> None:
    place = Bench()
    sound = place.run(row.case)
    assert not is_red(sound), f"without the fault: {sound.message}"

    with unflushed(row.context):
        verdict = place.run(row.case)

    assert is_red(verdict), f"{row.case} is {verdict.reason.value}"
    assert row.said in verdict.message, verdict.message


test_a_fault_is_seen = every_row(ROWS[::4], lambda row: row.name)(check_a_fault)
test_every_fault_is_seen = pytest.mark.long(every_row(ROWS, lambda row: row.name)(check_a_fault))


def raw(x: torch.Tensor) -> torch.Tensor:
    """Return the elements of the memory of a tensor in their order, from its start on."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride(), 0)


def _in_memory_order(name: str) -> Callable[[Any], Any]:
    """Return a compiler whose code for one method of tensors reads memory in its order."""
    old = getattr(torch.Tensor, name)

    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        at_device = self.device.type == "sim" and self.untyped_storage().nbytes() >= self.nbytes
        return old(raw(self) if at_device else self, *args, **kwargs)

    def compiler(function: Any, **_: Any) -> Any:
        def compiled(*args: Any) -> Any:
            with mock.patch.object(torch.Tensor, name, method):
                return function(*args)

        return compiled

    return compiler


def _flushing_compiler(function: Any, **_: Any) -> Any:
    torch.set_flush_denormal(True)  # pytorch #126848
    return function


def _writing_compiler(function: Any, **_: Any) -> Any:
    def compiled(*args: Any) -> Any:
        results = function(*args)
        args[0].add_(1)
        return results

    return compiled


class _Otherwise(TorchFunctionMode):
    """One function computes something else on the simulated device."""

    def __init__(self, name: str, change: Callable[..., Any]) -> None:
        super().__init__()
        self._name, self._change = name, change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        found = func(*args, **given)
        is_meant = getattr(func, "__name__", "") == self._name and args and args[0].device.type == "sim"
        return self._change(found, *args, **given) if is_meant else found


def _compiler_of(name: str, change: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a compiler whose code for one function computes something else."""

    def compiler(function: Any, **_: Any) -> Any:
        def compiled(*args: Any) -> Any:
            with _Otherwise(name, change):
                return function(*args)

        return compiled

    return compiler


def _twice_at_last(found: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return a result whose last row is twice what it is."""
    return torch.cat((found[:-1], found[-1:] * 2)) if found.dim() else found * 2


def _half_gradient(found: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return a result whose gradient is half of what it is."""
    return found / 2 + (found / 2).detach()


def _first_results_of(name: str) -> Callable[[Any], Any]:
    """Return a compiler whose code gives the results of a function in its first call in each call."""

    def compiler(function: Any, **_: Any) -> Any:
        kept: list[torch.Tensor] = []

        def compiled(*args: Any) -> Any:
            earlier, made = iter(list(kept)), []

            def first(found: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
                made.append(found)
                return next(earlier, found)

            with _Otherwise(name, first):
                results = function(*args)
            kept.extend(made[len(kept) :])
            return results

        return compiled

    return compiler


def _in_8_bits_alone(found: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return _twice_at_last(found) if found.dtype in (torch.int8, torch.uint8) else found


def _refused(found: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    raise NotImplementedError("no such kernel")


def _joined(kind: str, mode: str = "inference") -> str:
    return f"compile.operators[{kind}-float32-{mode}{'' if (kind, mode) == ('reductions', 'inference') else '-deep'}]"


#: A compiler, the case that has to fail, and a part of its message.
COMPILERS = (
    ("argmax in memory order", _in_memory_order("argmax"), "compile.layout", "argmax"),
    ("cumsum in memory order", _in_memory_order("cumsum"), "compile.layout", "cumsum"),
    ("softmax in memory order", _in_memory_order("softmax"), "compile.layout", "softmax"),
    ("sort in memory order", _in_memory_order("sort"), "compile.layout", "sort"),
    ("flushes subnormals", _flushing_compiler, "compile.state", "subnormals of the host"),
    ("writes into its inputs", _writing_compiler, "compile.layout", "permuted"),
    ("a norm's last row", _compiler_of("linalg_vector_norm", _twice_at_last), _joined("reductions"), "vector_norm"),
    ("a row by index", _compiler_of("index_copy", _twice_at_last), _joined("indices"), "index_copy"),
    ("a refusal", _compiler_of("amin", _refused), _joined("reductions"), "amin: compiled code is refused"),
    ("rows of a roll", _compiler_of("roll", _twice_at_last), "compile.drawn[int64]", ".roll("),
    ("an inverse function", _compiler_of("asinh", _twice_at_last), "compile.special[elementwise]", "asinh"),
    ("the first maximum again", _first_results_of("maximum"), "compile.drawn[float32]", "of a second call"),
    ("the first roll again", _first_results_of("roll"), "compile.drawn[int64]", "of a second call"),
    ("bytes", _compiler_of("flip", _in_8_bits_alone), "compile.drawn[int64]", "int8"),
    ("a sign", _compiler_of("copysign", lambda found, *_, **__: found.abs()), "compile.drawn[float32]", "copysign"),
    ("a refused pad", _compiler_of("pad", _refused), "compile.drawn[int64]", "compiled code is refused"),
    ("a gradient", _compiler_of("maximum", _half_gradient), "compile.drawn[float32-training]", "the gradient of"),
    ("the gradient of a norm", _compiler_of("renorm", _half_gradient), _joined("others", "training"), "renorm"),
)  # fmt: skip


@every_row(COMPILERS, lambda row: str(row[0]))
def test_a_fault_of_a_compiler_is_seen(row: tuple[str, Any, str, str]) -> None:
    _, compiler, case, said = row
    place = Bench()
    with mock.patch.object(torch, "compile", lambda function, **_: function):
        sound = place.run(case)
    assert not is_red(sound), f"without the fault: {sound.message}"

    with unflushed(lambda: mock.patch.object(torch, "compile", compiler)):
        verdict = place.run(case)

    assert is_red(verdict), f"{case} is {verdict.reason.value}"
    assert said in verdict.message, verdict.message


class Lacks(TorchFunctionMode):
    """A device without some functions, however they are called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        on_device = str(given.get("device", "cpu")).startswith("sim") or any(
            isinstance(x, torch.Tensor) and x.device.type == "sim" for x in args
        )
        if on_device and getattr(func, "__name__", "") in ("eye", "all", "tolist"):
            raise NotImplementedError(f"'{func.__name__}' is not implemented")
        return func(*args, **given)


class _NoUnsigned(TorchFunctionMode):
    """A device without wide unsigned integers, which no claim covers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and torch.uint16 in args and args[0].device.type == "sim":
            raise RuntimeError("Unsupported data type:UInt16")
        return func(*args, **(kwargs or {}))


def _no_initial_seed() -> AbstractContextManager[Any]:
    return mock.patch.object(TorchAccelerator, "initial_seed", mock.Mock(side_effect=NotImplementedError("no seed")))


@every_row({"dtype.cast_to_unsigned[uint16]": _NoUnsigned, "rng.seed_all_repeats": _no_initial_seed}.items())
def test_what_no_claim_covers_is_not_asked_for(row: tuple[str, Context]) -> None:
    name, context = row
    place = Bench()

    with context():
        found = place.run(f"accelerator.{name}")

    assert found.outcome is Outcome.PASS, found.message


PROBES = (
    "device", "device.index", "device.multiple", "memory", "synchronize", "stream", "stream.order", "stream.record",
    "event", "event.timing", "ranges", "tensor-types", "precision.matmul-full", "precision.denormals",
    "memory.pinned-async", "memory.stats", "execution.ordered",
)  # fmt: skip


@every_row(PROBES)
def test_a_probe_needs_only_what_it_tests(name: str) -> None:
    place = Bench()
    wanted = place.run(f"capabilities.{name}")

    with Lacks():
        found = place.run(f"capabilities.{name}")

    assert (found.outcome, found.reason) == (wanted.outcome, wanted.reason), found.message


def test_the_clock_of_the_simulated_device_counts_idle_time() -> None:
    Bench()
    start, end = (torch.sim.Event(enable_timing=True) for _ in "ab")  # type: ignore[attr-defined]
    start.record()
    start.synchronize()
    time.sleep(0.02)
    end.record()
    end.synchronize()

    assert start.elapsed_time(end) >= 20


@pytest.mark.parametrize("turned", [False, True])
def test_a_compiled_index_counts_in_the_order_of_dimensions(turned: bool) -> None:
    """Also where the host's own inductor is wrong: behind a copy, and behind another reduction (pytorch #197739)."""

    def indices(x: torch.Tensor) -> list[torch.Tensor]:
        cube = x.reshape(3, 2, 2).permute(2, 0, 1)
        return [x.t().argmax(), x.argmin(), x.t().contiguous().argmax(), cube.mean(-1).argmax(), (cube * 2).argmin()]

    place = Bench()
    x = torch.arange(12.0).view(3, 4).sin()
    x = x.t() if turned else x

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
        torch._dynamo.reset()
        found = torch.compile(indices)(x.to(place.device))

    assert [int(index) for index in found] == [int(index) for index in indices(x)]
