"""Optimizer steps for parameters in host memory: Adam with its rollback, Adagrad, Lion.

An optimizer is created with an id, stepped any number of times with one tensor per call, and destroyed. Implementations
in use disagree on some points. This specification decides:

* A step depends on its own step number only. Two calls with the same step number, as for two parameter groups, are the
  same step. An implementation that multiplies a power of beta with every call takes the second call for the next step.
* Non-contiguous tensors are refused. An implementation that updates a copy instead never changes the parameter.
* Adagrad adds the decay to the gradient before it is squared, as torch.optim.Adagrad does. Gradients keep their values.
  Lion's sign of 0 is 0.
* ``adam_rollback`` accepts float32 only and raises for other dtypes. A value that was rounded to 16 bits cannot be
  restored, and callers tend to ignore an error code of -1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_choice, check_number, check_tensor, wrong
from conformance.kernels.native import WHAT
from conformance.kernels.optimizers import compiled, oracles, portable
from conformance.kernels.optimizers.oracles import BUDGET, away_from_zero
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.specification import (
    Arguments,
    Expected,
    KernelSample,
    KernelSpecification,
    Native,
    Property,
    Refusal,
    TensorLocation,
)

_DTYPES = ("float32", "float16", "bfloat16")
_STORED = (torch.float32, torch.float16, torch.bfloat16)
#: Created optimizers of each kind: whether the decay is decoupled, by optimizer id. Only Adam's can be either.
_CREATED: dict[str, dict[int, bool]] = {"adam": {}, "adagrad": {}, "lion": {}}
#: Settings of each kind, in the order of its arguments.
_SETTINGS_OF = {
    "adam": ("lr", "beta1", "beta2", "epsilon", "weight_decay"),
    "adagrad": ("lr", "epsilon", "weight_decay"),
    "lion": ("lr", "beta1", "beta2", "weight_decay"),
}


# --- semantics ------------------------------------------------------------------------------------------------------


def create_adam(
    optimizer_id: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    adamw_mode: bool = True,
    should_log: bool = False,
) -> int:
    """Create an AdamW or Adam optimizer with this id. Every step passes its own rates. Returns 0."""
    _CREATED["adam"][optimizer_id] = bool(adamw_mode)
    return 0


def _adam_signature(function: Callable[[Tensor, Tensor, Tensor, Tensor, AdamSettings], None]) -> Callable[..., int]:
    """Return a function with the signature of ``adam_update`` that calls ``function`` with tensors and settings."""

    def update(
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        bias_correction: bool,
        params: Tensor,
        grads: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
    ) -> int:
        # Whether decay is decoupled was said at creation; the update gets only the id.
        decoupled = _CREATED["adam"].get(optimizer_id, True)
        numbers = (lr, beta1, beta2, epsilon, weight_decay, step, bool(bias_correction), decoupled)
        function(params, grads, exp_avg, exp_avg_sq, AdamSettings(*numbers))
        return 0

    # Not functools.wraps: inspect.signature would then answer with the signature of ``function``.
    update.__name__, update.__doc__ = function.__name__, function.__doc__
    return update


@_adam_signature
def adam_update(params: Tensor, grads: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamSettings) -> None:
    """Update one parameter and its moments in place by one Adam or AdamW step. Returns 0.

    Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1; Loshchilov and Hutter, 2019, arXiv:1711.05101, algorithm 2.
    Gradients have the parameter's dtype. Moments have float32 or the parameter's dtype. Arithmetic is in float32.
    """
    portable.adam(params, grads, exp_avg, exp_avg_sq, settings)


@_adam_signature
def adam_rollback(params: Tensor, grads: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamSettings) -> None:
    """Undo the step with that number, given the arguments of its call. Returns 0. Only float32 is accepted.

    The order is: add the update back, computed from the moments; divide the decay out; then restore the moments.
    """
    portable.adam_back(params, grads, exp_avg, exp_avg_sq, settings)


def create_adagrad(
    optimizer_id: int, lr: float = 1e-2, epsilon: float = 1e-8, weight_decay: float = 0.0, should_log: bool = False
) -> int:
    """Create an Adagrad optimizer with this id. Returns 0."""
    _CREATED["adagrad"][optimizer_id] = False
    return 0


def adagrad_update(
    optimizer_id: int,
    step: int,
    lr: float,
    epsilon: float,
    weight_decay: float,
    params: Tensor,
    grads: Tensor,
    exp_avg_sq: Tensor,
) -> int:
    """Update one parameter and its sum of squares in place by one Adagrad step. Returns 0.

    Duchi, Hazan and Singer, 2011, JMLR 12, 2121-2159, with torch.optim.Adagrad's weight decay and without its learning
    rate decay: v += g², p -= lr * g / (sqrt(v) + epsilon), where g is the gradient plus weight_decay * p. ``step`` has
    no effect.
    """
    portable.adagrad(params, grads, exp_avg_sq, lr, epsilon, weight_decay)
    return 0


def create_lion(
    optimizer_id: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    should_log: bool = False,
) -> int:
    """Create a Lion optimizer with this id. Returns 0."""
    _CREATED["lion"][optimizer_id] = True
    return 0


def lion_update(
    optimizer_id: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    params: Tensor,
    grads: Tensor,
    exp_avg: Tensor,
) -> int:
    """Update one parameter and its moment in place by one Lion step. Returns 0.

    Chen et al., 2023, arXiv:2302.06675. The sign of 0 is 0, as in the paper and in torch.sign. ``step`` has no effect.
    """
    portable.lion(params, grads, exp_avg, lr, beta1, beta2, weight_decay)
    return 0


def _companions(kind: str, create: Callable[..., int]) -> dict[str, Callable[..., int]]:
    """Return the functions that create and destroy optimizers of ``kind``, by name."""

    def destroy(optimizer_id: int) -> int:
        """Remove the optimizer with this id, if it exists. Returns 0."""
        _CREATED[kind].pop(optimizer_id, None)
        return 0

    return {f"create_{kind}": create, f"destroy_{kind}": destroy}


# --- compiled ---------------------------------------------------------------------------------------------------------


def _compiled_adam(step: Callable[..., None]) -> Callable[..., int]:
    # Build the library now, so that a missing compiler is an error of loading and not of the first step.
    compiled.library()
    return _adam_signature(step)


def _compiled_without_step(kind: str) -> Callable[..., int]:
    """Return the compiled update of Adagrad or Lion. The compiled function takes the tensors before the settings."""
    compiled.library()
    function, settings = getattr(compiled, kind), len(_SETTINGS_OF[kind])

    def update(optimizer_id: int, step: int, *rest: Any) -> int:
        function(*rest[settings:], *rest[:settings])
        return 0

    return update


def _native(load: Callable[[], Callable[..., int]]) -> tuple[Native, ...]:
    return (Native(load, WHAT, dtypes=frozenset(_DTYPES)),)


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _validate(
    given: Arguments, *, states: tuple[str, ...], known: Any, dtypes: tuple[torch.dtype, ...] = _STORED
) -> None:
    """Raise ``UsageError`` for an unknown optimizer, numbers out of range, or tensors that do not fit."""
    if given["optimizer_id"] not in known:
        raise wrong("optimizer_id", "the id of an optimizer that was created", given["optimizer_id"])
    check_number("step", given["step"], at_least=1)
    for name in ("lr", "weight_decay", "epsilon", "beta1", "beta2"):
        if name in given:
            check_number(name, given[name], at_least=0.0)
    if "bias_correction" in given:
        check_choice("bias_correction", given["bias_correction"], (0, 1))
    params = check_tensor("params", given["params"], dtypes=dtypes, device="cpu")
    check_tensor("grads", given["grads"], dtypes=(params.dtype,), like=params, device="cpu")
    allowed = tuple(dict.fromkeys((torch.float32, params.dtype)))
    for name in states:
        state = check_tensor(name, given[name], dtypes=allowed, like=params, device="cpu")
        # All states of a parameter have the same dtype.
        allowed = (state.dtype,)


def _with(given: Arguments, name: str, change: Callable[[Any], Any]) -> Arguments:
    return {**given, name: change(given[name])}


def _refusal(name: str, argument: str, change: Callable[[Any], Any]) -> Refusal:
    return Refusal(name, argument, functools.partial(_with, name=argument, change=change))


def _refusals(state: str) -> tuple[Refusal, ...]:
    """Return calls that must be refused, each wrong in one respect."""
    return (
        _refusal("dtypes", state, lambda tensor: tensor.to(torch.float16)),
        _refusal("gradients", "grads", lambda tensor: tensor.to(torch.bfloat16)),
        _refusal("shapes", "grads", lambda tensor: tensor[:-1].clone()),
        _refusal("strides", "params", lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0]),
        _refusal("devices", state, lambda tensor: tensor.to("meta")),
        _refusal("numbers", "optimizer_id", lambda number: number + 1),
    )


# --- samples ----------------------------------------------------------------------------------------------------------

#: No two ids are adjacent: a refusal calls with an id plus 1, which must be unknown.
_ADAMW_ID, _ADAM_ID, _OTHER_ID = 50_001, 50_003, 50_005
#: Betas are exact in float32, and so is 1 - beta. An implementation that takes scalars as float32 loses nothing.
_SETTINGS = {"lr": 0.125, "beta1": 0.875, "beta2": 0.984375, "epsilon": 2.0**-10, "weight_decay": 0.25}
#: Sizes around vector widths and unrolled loops. The large size exceeds one thread's share and has a tail.
_SIZES, _LARGE = (513, 1, 22, 55, 64), 100_003


def _tensors(generator: torch.Generator, dtype: torch.dtype, size: int, narrow: bool) -> dict[str, Tensor]:
    """Return a parameter, its gradient and moments of a later step, each of shape (size,).

    Moments have float32, or the parameter's dtype if ``narrow``.
    """
    state = dtype if narrow else torch.float32
    mean = (0.5 * away_from_zero(generator, size)).to(state)
    # At most 13/16 in magnitude, so that Lion's blend with a moment of at least 1/8 is never near 0.
    gradient = (0.8125 * away_from_zero(generator, size)).to(dtype)
    # A second moment is at least the square of the first one; here it clearly exceeds it.
    square = (mean.double().square() * 1.25 + 2.0**-6).to(state)
    return {
        "params": away_from_zero(generator, size).to(dtype),
        "grads": gradient,
        "exp_avg": mean,
        "exp_avg_sq": square,
    }


def _special(tensors: dict[str, Tensor]) -> None:
    """Set the first gradients to NaN, infinities, and zeros of both signs."""
    tensors["grads"][:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])


def _zeros(tensors: dict[str, Tensor]) -> None:
    """Zero the gradient and the state of every second element, as for elements that never had a gradient."""
    for name, tensor in tensors.items():
        if name != "params":
            tensor[::2] = 0.0


def _tiny(tensors: dict[str, Tensor]) -> None:
    """Turn the call into a first step with gradients whose squares underflow in float16."""
    tensors["grads"].mul_(2.0**-10)
    tensors["exp_avg"].zero_()
    tensors["exp_avg_sq"].zero_()


def _adam_call(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    size: int = 67,
    narrow: bool = False,
    optimizer_id: int = _ADAMW_ID,
    step: int = 3,
    bias_correction: bool = True,
    change: Callable[[dict[str, Tensor]], None] | None = None,
    **numbers: float,
) -> Arguments:
    """Return the arguments of an Adam call. ``numbers`` replace settings, and ``change`` modifies the tensors."""
    tensors = _tensors(generator, dtype, size, narrow)
    if change is not None:
        change(tensors)
    settings = {**_SETTINGS, **numbers}
    return {"optimizer_id": optimizer_id, "step": step, **settings, "bias_correction": bias_correction, **tensors}


def _lion_call(generator: torch.Generator, dtype: torch.dtype, **choices: Any) -> Arguments:
    """Return arguments of ``lion_update``.

    The moments are twice as large as Adam's: beta1 times the smallest one exceeds 1 - beta1 times the largest gradient.
    """
    given = _adam_call(generator, dtype, **{"optimizer_id": _OTHER_ID, **choices})
    given["exp_avg"].mul_(2)
    return {name: value for name, value in given.items() if name not in ("epsilon", "bias_correction", "exp_avg_sq")}


def _adagrad_call(generator: torch.Generator, dtype: torch.dtype, **choices: Any) -> Arguments:
    given = _adam_call(generator, dtype, **{"optimizer_id": _OTHER_ID, **choices})
    left_out = ("beta1", "beta2", "bias_correction", "exp_avg")
    return {name: value for name, value in given.items() if name not in left_out}


def _samples(call: Callable[..., Arguments], **more: dict[str, Any]) -> tuple[KernelSample, ...]:
    """Return samples of all sizes with a float32 state, and a few with a 16-bit state."""
    return (
        *(KernelSample(str(size), functools.partial(call, size=size)) for size in _SIZES),
        KernelSample(str(_LARGE), functools.partial(call, size=_LARGE), ("float32",)),
        KernelSample("undecayed", functools.partial(call, weight_decay=0.0)),
        KernelSample("special", functools.partial(call, change=_special)),
        KernelSample("zeros", functools.partial(call, change=_zeros)),
        KernelSample("narrow", functools.partial(call, size=513, narrow=True), ("float16", "bfloat16")),
        KernelSample(
            "narrow-tiny", functools.partial(call, narrow=True, change=_tiny, step=1), ("float16", "bfloat16")
        ),
        *(KernelSample(name.replace("_", "-"), functools.partial(call, **choices)) for name, choices in more.items()),
    )


# --- oracles ----------------------------------------------------------------------------------------------------------


def _adam_oracle(given: Arguments, formula: Callable[..., tuple[Expected, ...]]) -> Mapping[str, Expected]:
    """Return parameter and moments after the step by ``formula``, in float64."""
    names = (*_SETTINGS_OF["adam"], "step", "bias_correction")
    decoupled = given["optimizer_id"] == _ADAMW_ID
    settings = AdamSettings(**{name: given[name] for name in names}, decoupled=decoupled)
    found = formula(*(given[name] for name in ("params", "grads", "exp_avg", "exp_avg_sq")), settings)
    return dict(zip(("params", "exp_avg", "exp_avg_sq"), found, strict=True))


def _oracle_without_step(given: Arguments, kind: str, state: str) -> Mapping[str, Expected]:
    """Return the expected parameter and ``state`` of Adagrad or Lion."""
    names = ("params", "grads", state, *_SETTINGS_OF[kind])
    found = getattr(oracles, kind)(*(given[name] for name in names))
    return dict(zip(("params", state), found, strict=True))


# --- around and between calls ---------------------------------------------------------------------------------------


@contextmanager
def _session(functions: Any, arguments: Arguments, kind: str) -> Iterator[None]:
    """Create the optimizers of ``kind`` that the samples use, for the time of a call: for Adam, one of each mode."""
    modes: dict[int, tuple[bool, ...]] = {_ADAMW_ID: (True,), _ADAM_ID: (False,)} if kind == "adam" else {_OTHER_ID: ()}
    numbers = [_SETTINGS[name] for name in _SETTINGS_OF[kind]]
    for optimizer_id, mode in modes.items():
        getattr(functions, f"create_{kind}")(optimizer_id, *numbers, *mode, False)
    try:
        yield
    finally:
        for optimizer_id in modes:
            getattr(functions, f"destroy_{kind}")(optimizer_id)


#: Observations of a property: description, tensor, expected result.
Observations = Iterator[tuple[str, Tensor, Expected]]


def _same_step_twice(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Observations:
    """Step two tensors with step number 5 and two with 6; each result depends on its own step number only."""
    calls = [_adam_call(generator, dtype, step=step) for step in (5, 5, 6, 6)]
    with _session(functions, {}, "adam"):
        for number, given in enumerate(calls):
            oracle = _adam_oracle(given, oracles.adam)
            functions.adam_update(*given.values())
            yield from ((f"call {number}, {name}", given[name], expected) for name, expected in oracle.items())


def _there_and_back(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Observations:
    """Check that a step and its rollback restore the tensors, except for rounding errors."""
    for optimizer_id in (_ADAMW_ID, _ADAM_ID):
        given = _adam_call(generator, dtype, optimizer_id=optimizer_id)
        before = {name: given[name].clone() for name in ("params", "exp_avg", "exp_avg_sq")}
        with _session(functions, given, "adam"):
            functions.adam_update(*given.values())
            functions.adam_rollback(*given.values())
        for name, old in before.items():
            # All values are of order 1, and the two steps together round about thirty times.
            yield f"optimizer {optimizer_id}, {name}", given[name], Expected(old.double(), old.double().abs() + 2)


def _specified(
    kind: str,
    name: str,
    reference: Callable[..., int],
    create: Callable[..., int],
    states: tuple[str, ...],
    **rest: Any,
) -> KernelSpecification:
    """Return a specification with the fields that all four kernels share."""
    dtypes = tuple(getattr(torch, dtype) for dtype in rest.get("dtypes", _DTYPES))
    return KernelSpecification(
        **{
            "name": name,
            "mode": Mode.TRAINING,
            "dtypes": _DTYPES,
            "budget": BUDGET,
            "reference": reference,
            "changes": ("params", *states),
            "validate": functools.partial(_validate, states=states, known=_CREATED[kind], dtypes=dtypes),
            "refusals": _refusals(states[0]),
            "location": TensorLocation.HOST,
            "companions": _companions(kind, create),
            "session": functools.partial(_session, kind=kind),
            **rest,
        }
    )


SPECIFICATIONS = (
    _specified(
        "adam",
        "adam_update",
        adam_update,
        create_adam,
        ("exp_avg", "exp_avg_sq"),
        builder="CPUAdamBuilder",
        samples=_samples(
            _adam_call,
            adam={"optimizer_id": _ADAM_ID, "size": 513},
            adam_22={"optimizer_id": _ADAM_ID, "size": 22},
            first={"step": 1},
            thousandth={"step": 1000},
            uncorrected={"bias_correction": False},
        ),
        oracle=functools.partial(_adam_oracle, formula=oracles.adam),
        properties=(Property("same-step-twice", _same_step_twice),),
        native=_native(functools.partial(_compiled_adam, compiled.adam)),
    ),
    _specified(
        "adam",
        "adam_rollback",
        adam_rollback,
        create_adam,
        ("exp_avg", "exp_avg_sq"),
        builder="CPUAdamBuilder",
        dtypes=("float32",),
        samples=(
            KernelSample("513", functools.partial(_adam_call, size=513)),
            KernelSample("adam", functools.partial(_adam_call, size=22, optimizer_id=_ADAM_ID)),
            KernelSample("uncorrected", functools.partial(_adam_call, size=22, bias_correction=False)),
        ),
        oracle=functools.partial(_adam_oracle, formula=oracles.adam_back),
        properties=(Property("there-and-back", _there_and_back),),
        native=_native(functools.partial(_compiled_adam, compiled.adam_back)),
    ),
    _specified(
        "adagrad",
        "adagrad_update",
        adagrad_update,
        create_adagrad,
        ("exp_avg_sq",),
        builder="CPUAdagradBuilder",
        samples=_samples(_adagrad_call),
        oracle=functools.partial(_oracle_without_step, kind="adagrad", state="exp_avg_sq"),
        native=_native(functools.partial(_compiled_without_step, "adagrad")),
    ),
    _specified(
        "lion",
        "lion_update",
        lion_update,
        create_lion,
        ("exp_avg",),
        builder="CPULionBuilder",
        samples=_samples(_lion_call),
        oracle=functools.partial(_oracle_without_step, kind="lion", state="exp_avg"),
        native=_native(functools.partial(_compiled_without_step, "lion")),
    ),
)
