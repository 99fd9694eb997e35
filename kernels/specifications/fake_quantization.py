"""Fake quantization in place: every number is rounded to a value of a few bits and stays a float.

Sources: the quantization-aware training of DeepSpeed's compression and MoQ (csrc/quantization); Jacob et al., 2018,
arXiv:1712.05877; for stochastic rounding Gupta et al., 2015, arXiv:1502.02551. Implementations in use disagree on some
points. This specification decides:

- A result is a multiple of the group's step. DeepSpeed's CUDA kernel for float32 rounds the result to an integer once
  more, which turns most weights into zeros.
- b bits have 2^b codes. The asymmetric kernel in use gives the largest number a code beyond them.
- Every group size is quantized. Kernels in use return groups of more than 2^20 elements unchanged, without an error.
- Asymmetric stochastic rounding is asymmetric. The kernel in use launches the symmetric one under that name.
- Random numbers come from the device's default generator, so that torch.manual_seed repeats them.
- The range is computed from the numbers only. Kernels in use start their search at -10000 and 10000.
- A group with NaN or infinity becomes NaN, because it has no step. If it became finite, the overflow would go unnoticed
  and the training step would not be skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.quantization import exact
from conformance.kernels.quantization.checks import check_groups, check_positive
from conformance.kernels.quantization.groups import grouped, limits
from conformance.kernels.specification import (
    WORDS,
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Property,
    Refusal,
)

#: Added to the range, so that a group of equal numbers has a step above 0.
_TINY = 1e-5
_BITS = (2, 16)
BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=8.0,
    source="one rounding to the storage dtype, and half a dozen float32 operations each within u of its terms: "
    "the range, the step, the code's product and the sum (Higham, 2nd ed., 3.1)",
)
#: Allowed distance of a sample's mean, in standard deviations. A correct kernel exceeds six once in 5e8 times.
SIGMAS = 6.0


# --- semantics ------------------------------------------------------------------------------------------------------


def ds_quantize(vals: Tensor, groups: int, num_bits: int) -> Tensor:
    """Round ``vals`` to multiples of each group's step, in place, ties to even. Returns ``vals``.

    The step is (2 * largest magnitude + 1e-5) / 2^num_bits. Codes are clamped to [-2^(b-1), 2^(b-1) - 1]. The groups
    are ``groups`` equal consecutive parts. Arithmetic is in float32.
    """
    return _symmetric(vals, groups, num_bits, torch.round)


def ds_sr_quantize(vals: Tensor, groups: int, num_bits: int) -> Tensor:
    """Round ``vals`` as ``ds_quantize`` does, but stochastically. Returns ``vals``.

    A code is rounded up with the probability of its fraction, so that the expected result is the number.
    """
    return _symmetric(vals, groups, num_bits, _at_random)


def ds_quantize_asym(vals: Tensor, groups: int, num_bits: int) -> Tensor:
    """Round ``vals`` to each group's smallest number plus multiples of its step, in place. Returns ``vals``.

    The step is (largest - smallest + 1e-5) / 2^num_bits. Codes are clamped to [0, 2^b - 1].
    """
    return _asymmetric(vals, groups, num_bits, torch.round)


def ds_sr_quantize_asym(vals: Tensor, groups: int, num_bits: int) -> Tensor:
    """Round ``vals`` as ``ds_quantize_asym`` does, but stochastically. Returns ``vals``."""
    return _asymmetric(vals, groups, num_bits, _at_random)


def _symmetric(vals: Tensor, groups: int, num_bits: int, to_integer: Callable[[Tensor], Tensor]) -> Tensor:
    """Round each group to signed steps; zero stays zero. Changes and returns ``vals``."""
    rows = grouped(vals, groups)
    # _TINY keeps a group of zeros from a division by zero.
    scale = 2.0**num_bits / (2 * rows.abs().amax(dim=1, keepdim=True) + _TINY)
    codes = to_integer(rows * scale).clamp(*limits(num_bits))
    # detach: a parameter that requires a gradient cannot be changed in place otherwise.
    vals.detach().copy_((codes / scale).view(vals.shape))
    return vals


def _asymmetric(vals: Tensor, groups: int, num_bits: int, to_integer: Callable[[Tensor], Tensor]) -> Tensor:
    """Round each group to steps from its minimum to its maximum. Changes and returns ``vals``."""
    rows = grouped(vals, groups)
    low = rows.amin(dim=1, keepdim=True)
    step = (rows.amax(dim=1, keepdim=True) - low + _TINY) * 2.0**-num_bits
    codes = to_integer((rows - low) / step).clamp(0, 2**num_bits - 1)
    vals.detach().copy_((codes * step + low).view(vals.shape))
    return vals


def _at_random(position: Tensor) -> Tensor:
    # floor(position + random) would lose the random number where the position is large.
    below = position.floor()
    return below + (torch.rand_like(position) < position - below)


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def _oracle(given: Arguments, *, asymmetric: bool, stochastic: bool) -> Mapping[str, Expected]:
    """Return the rounded numbers, with errors that allow for float32.

    Both neighbouring codes are accepted where float32 may see a tie, or, in stochastic rounding, an integer.
    """
    numbers = exact.rows(given["vals"], given["groups"])
    steps = float(2 ** given["num_bits"])
    top, bottom = numbers.max(1, keepdim=True).values, numbers.min(1, keepdim=True).values
    origin = bottom if asymmetric else torch.zeros_like(top)
    span = top - bottom if asymmetric else 2 * torch.maximum(top, -bottom)
    step = (span + _TINY) / steps
    low, high = (0.0, steps - 1) if asymmetric else (-steps / 2, steps / 2 - 1)
    position = (numbers - origin) / step
    moved = exact.ROUNDINGS * 2.0**-24 * position.abs()
    if stochastic:
        below, above = (position - moved).floor().clamp(low, high), (position + moved).ceil().clamp(low, high)
        codes, slack = (below + above) / 2, (above - below) / 2
    else:
        codes, slack = exact.rounded(position, low, high, moved)
    value, scale = codes * step + origin, (codes.abs() + slack) * step + origin.abs()
    allowed = slack * step + _rounding(given["vals"].dtype, value.abs() + slack * step, scale)
    value, allowed = value.view(given["vals"].shape), allowed.view(given["vals"].shape)
    return {path: Expected(value, allowed=allowed, dtype=given["vals"].dtype) for path in ("vals", "result")}


def _rounding(dtype: torch.dtype, magnitude: Tensor, scale: Tensor) -> Tensor:
    """Return the error of the budget, which ``allowed`` replaces, plus one subnormal step of float16."""
    u = torch.finfo(dtype).eps / 2
    allowed: Tensor = BUDGET.rounding * u * magnitude + BUDGET.conditioning * 2.0**-24 * scale + 2.0**-24
    return allowed


# --- samples ----------------------------------------------------------------------------------------------------------


def _call(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...],
    groups: int,
    num_bits: int,
    change: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Arguments:
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    changed = change(numbers.view(groups, -1)).view(shape)
    return {"vals": changed.to(dtype), "groups": groups, "num_bits": num_bits}


def _zero_group(rows: Tensor) -> Tensor:
    rows[1] = 0.0
    rows[2] = 0.125
    return rows


def _nonfinite(rows: Tensor) -> Tensor:
    rows[1, 3], rows[3, 0], rows[4, 2] = float("nan"), float("inf"), -float("inf")
    return rows


#: More elements than 2^20, and no multiple of a vector width.
_HUGE = 2**20 + 5
SAMPLES = (
    KernelSample("3x67-8", functools.partial(_call, shape=(3, 67), groups=3, num_bits=8)),
    KernelSample("one-4", functools.partial(_call, shape=(2, 5, 13), groups=1, num_bits=4)),
    KernelSample("singles-8", functools.partial(_call, shape=(7,), groups=7, num_bits=8)),
    KernelSample("pairs-2", functools.partial(_call, shape=(6, 64), groups=192, num_bits=2)),
    KernelSample("many-16", functools.partial(_call, shape=(8, 128), groups=8, num_bits=16), ("float32",)),
    KernelSample("small-8", functools.partial(_call, shape=(4, 66), groups=4, num_bits=8,
                                              change=lambda rows: rows / 64)),
    KernelSample("large-8", functools.partial(_call, shape=(2, 66), groups=2, num_bits=8,
                                              change=lambda rows: 25000 + 2500 * rows.clamp(-3, 3))),
    KernelSample("zeros-8", functools.partial(_call, shape=(4, 66), groups=4, num_bits=8, change=_zero_group)),
    KernelSample("nonfinite-8", functools.partial(_call, shape=(5, 66), groups=5, num_bits=8, change=_nonfinite)),
)  # fmt: skip
#: A million numbers cost more time than all other samples, so the sample is used with one dtype and two kernels.
HUGE = KernelSample("huge-8", functools.partial(_call, shape=(_HUGE,), groups=1, num_bits=8), ("float32",))


# --- properties -------------------------------------------------------------------------------------------------------

#: Observations of a property: description, tensor, expected result.
Observations = Iterable[tuple[str, Tensor, Expected]]


def _returns_its_argument(name: str, functions: Any, device: torch.device, dtype: torch.dtype, _: Any) -> Observations:
    """Check that the result is the given tensor: a write to the result changes the argument."""
    vals = torch.linspace(-1, 1, 66).to(device, dtype)
    result = _of(functions, name, dtype)(vals, 3, 8)
    result.fill_(7.0)
    yield "the argument after a write to the result", vals, Expected(torch.full((66,), 7.0).double())


#: Positions of the numbers between two codes.
_FRACTIONS = (0.0625, 0.25, 0.5, 0.75, 0.9375)
#: Numbers for one mean: its standard deviation is then 1/64 of a single draw's.
_DRAWS = 4096


def _is_unbiased(
    name: str, functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Observations:
    """Check that the mean of many equal numbers is the number, within SIGMAS standard deviations of such a mean."""
    # The kernel draws from the device's default generator; this seed makes the check repeatable.
    torch.manual_seed(int(torch.randint(1 << 30, (), generator=generator)))
    fractions = torch.tensor([*_FRACTIONS, *(-fraction for fraction in _FRACTIONS)]).double()
    # The last two numbers of each group, 1 and -1, make the step about 2/16. The others lie between two codes.
    inner = (fractions + 2.0) / 8.0
    rows = torch.cat([inner[:, None].expand(-1, _DRAWS), torch.tensor([[1.0, -1.0]]).double().expand(10, -1)], dim=1)
    vals = rows.to(dtype).contiguous()
    given = {"vals": vals.clone(), "groups": len(rows), "num_bits": 4}
    asymmetric = "asym" in name
    step = (2.0 + _TINY) / 16
    origin = -1.0 if asymmetric else 0.0
    exact_mean = vals[:, 0].double()
    fraction = ((exact_mean - origin) / step) % 1.0
    spread = SIGMAS * step * (fraction * (1 - fraction) / _DRAWS).sqrt()

    result = _of(functions, name, dtype)(vals.to(device).view(-1), given["groups"], given["num_bits"])

    means = result.detach().view(len(rows), -1)[:, :_DRAWS].cpu().double().mean(dim=1)
    rounded = torch.finfo(dtype).eps / 2 * exact_mean.abs() + 2.0**-24
    allowed = spread + rounded + exact.ROUNDINGS * 2.0**-24
    yield "mean of each group", means, Expected(exact_mean, allowed=allowed)


def _repeats(
    name: str, functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Observations:
    """Check that the same seed repeats the results, and that a further call without a seed gives other results."""
    vals = torch.randn(5, 131, generator=generator).to(dtype)
    function, results = _of(functions, name, dtype), []
    for seed in (3, 3, None):
        if seed is not None:
            torch.manual_seed(seed)
        results.append(function(vals.to(device, copy=True), 5, 4).cpu())
    yield "results with the same seed", results[1], Expected(results[0].double(), allowed=torch.zeros(5, 131).double())
    differ = (results[1] != results[2]).any().double()
    yield "a call without a new seed gives other results (1: yes)", differ, Expected(torch.ones(()).double())


def _of(functions: Any, name: str, dtype: torch.dtype) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = getattr(functions, f"{name}_{WORDS[str(dtype).removeprefix('torch.')]}")
    return function


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _validate(given: Arguments) -> None:
    """Raise ``UsageError`` for numbers of bits or groups that do not fit ``vals``."""
    vals = check_tensor("vals", given["vals"], dtypes=(torch.float32, torch.float16))
    check_positive(given, "groups", "num_bits")
    if not _BITS[0] <= given["num_bits"] <= _BITS[1]:
        raise wrong("num_bits", f"{_BITS[0]} to {_BITS[1]}", given["num_bits"])
    check_groups("vals", vals, given["groups"])


REFUSALS = (
    Refusal("groups", "vals", lambda given: {**given, "groups": 2}),
    Refusal("no-groups", "groups", lambda given: {**given, "groups": 0}),
    Refusal("bits", "num_bits", lambda given: {**given, "num_bits": 0}),
    Refusal("strides", "vals", lambda given: {**given, "vals": given["vals"].t()}),
    Refusal("dtypes", "of ds_", lambda given: {**given, "vals": given["vals"].bfloat16()}),
)


def _specification(reference: Callable[..., Tensor]) -> KernelSpecification:
    """Return the specification of one function. Its name tells rounding and symmetry."""
    name = reference.__name__
    stochastic = "_sr_" in name
    properties: dict[str, Callable[..., Observations]] = {"in-place": _returns_its_argument}
    if stochastic:
        properties |= {"unbiased": _is_unbiased, "repeats": _repeats}
    return KernelSpecification(
        name=name,
        builder="QuantizerBuilder",
        attribute=f"{name}_{{dtype}}",
        mode=Mode.TRAINING,
        dtypes=("float32", "float16"),
        samples=(*SAMPLES, HUGE) if name in ("ds_quantize", "ds_sr_quantize_asym") else SAMPLES,
        oracle=functools.partial(_oracle, asymmetric=name.endswith("asym"), stochastic=stochastic),
        budget=BUDGET,
        reference=reference,
        changes=("vals",),
        validate=_validate,
        refusals=REFUSALS,
        properties=tuple(Property(word, functools.partial(run, name)) for word, run in properties.items()),
    )


SPECIFICATIONS = tuple(map(_specification, (ds_quantize, ds_sr_quantize, ds_quantize_asym, ds_sr_quantize_asym)))
