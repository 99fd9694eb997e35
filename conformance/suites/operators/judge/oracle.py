"""Oracle of one sample, computed on first use: PyTorch in float64, and mpmath for single elements of functions."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.numerics.budgets import OpClass, slope_of, steps_of_kernel, term_of, term_of_generator
from conformance.numerics.compare import Exact, widen
from conformance.numerics.functions import FUNCTIONS, exact, exact_derivative, rounded
from conformance.numerics.modes import with_memory
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import Call, unchanged
from conformance.suites.operators.calls.classes import is_elementwise, op_class
from conformance.suites.operators.calls.execution import call, processed
from conformance.suites.operators.calls.facts import facts

from . import compositions

#: Perturbed evaluations that measure conditioning.
_PROBES = 2
#: Relative input change that measures conditioning: far above float64's roundoff, small enough to be linear.
STEP = 2.0**-24

#: Largest amplification of a change that counts as conditioning. Beyond it, the change has led to another branch: to a
#: mask of other elements, or another maximum.
MOST_AMPLIFIED = 2.0**16

#: How far, in means, the response of an element may lie above that of most others.
_USUAL = 2
#: Names of the kernels whose results are what is left of cancelling terms.
PROJECTIONS = re.compile(r"(layer|group|batch)_norm|fused_rms_norm|softmax_backward_data")

#: By output: exact values of single elements, and the sizes relative to which PyTorch's formula rounds.
Functions = tuple[Mapping[int, "FunctionElements"], Mapping[int, torch.Tensor]]


class Oracle:
    """Float64 values of all outputs of ``compute(sample)``, and their response to changes of the inputs.

    ``compute`` takes a wide sample (float64 or complex128) and a change of the other tensors, and returns leaves. An
    operator without a float64 version has no oracle; then the host's own result is the reference. By output,
    ``scales`` holds the sizes relative to which PyTorch's formula rounds. ``functions`` returns exact values of single
    elements and such sizes, and is called when an exact value is asked for. With ``apart``, the response is the sum of
    the responses to each input, as changes of several inputs can cancel. With ``rounds_between``, it is at least the
    response to changes of all intermediate results. With ``rounds``, the computation may round also where the host's
    results are all exact. With ``composed``, what it computes from is rounded to the dtype: the response is a size
    relative to which it rounds. With ``once``, one kernel computes the result, and rounds it once. With ``steps``, a
    few such kernels do.
    """

    def __init__(
        self,
        compute: Any,
        sample: Call,
        *,
        functions: Callable[[], Functions] | None = None,
        scales: dict[int, torch.Tensor] | None = None,
        apart: bool = False,
        rounds_between: bool = False,
        rounds: bool = False,
        composed: bool = False,
        once: bool = False,
        steps: bool = False,
    ) -> None:
        self._once, self._steps = once, steps
        self._rounds, self._composed = rounds or composed, composed
        self._compute, self._sample, self._apart, self._rounds_between = compute, sample, apart, rounds_between
        self._functions = functions or (lambda: ({}, scales or {}))
        self._values: list[Any] | None = None
        self._narrow: set[int] = set()

    def rounding(self) -> Oracle:
        """Return the same oracle of a computation that may round, although the host's results may all be exact."""
        found = copy.copy(self)
        found._rounds = True
        return found

    def leaf(self, position: int) -> Exact | None:
        """Return the exact value of one output, or None if there is no oracle for it."""
        values = self.values
        if position >= len(values) or not isinstance(values[position], torch.Tensor):
            return None
        by_output, scales = self._by_output
        elements, scale = by_output.get(position), scales.get(position)
        rounds = self._rounds or position in self._narrow or self._repeats
        if self._composed and (response := self._response(position)) is not None:
            # Few random changes leave some of many sums nearly unchanged; the roundings of the steps do so to others.
            response = torch.maximum(response, _USUAL * response.mean()) if response.numel() else response
            scale = response if scale is None else torch.maximum(scale, response)
        respond = functools.partial(self._response, position)
        between = functools.partial(self._between, position) if self._steps else None
        return Exact(values[position], respond, elements, scale, rounds=rounds, once=self._once, between=between)

    @functools.cached_property
    def _repeats(self) -> bool:
        """Return whether an input repeats few numbers, which is asked only where bits differ."""
        return _repeats(self._sample)

    @functools.cached_property
    def _by_output(self) -> Functions:
        """Return the exact functions and the scales of the outputs, by position; they are made once."""
        return self._functions()

    @property
    def values(self) -> list[Any]:
        """Return the exact outputs; the list is empty if the operator has no float64 version."""
        if self._values is None:
            self._values = self._evaluate()
        return self._values

    def _response(self, position: int) -> torch.Tensor | None:
        """Return the largest change of each element per relative input change, or None if nothing is comparable."""
        if not self._sample.tensors:
            return None  # nothing can be changed
        exact_value = self.values[position]
        found = _largest_changes(self._probes, position, exact_value)
        if self._rounds_between:
            rough = _largest_changes(self._rough_probes, position, exact_value)
            limit = MOST_AMPLIFIED * _largest(exact_value)
            if found is not None and rough is not None:
                # By element: a branch of one row says nothing of the others.
                found = torch.where(rough <= limit, torch.maximum(found, rough), found)
        if found is not None and (elements := self._by_output[0].get(position)) is not None:
            found = found + elements.terms(exact_value.shape)
        return found

    def _between(self, position: int) -> torch.Tensor | None:
        """Return the response of each element to changes of what the kernels return, all of the same size."""
        return _largest_changes(self._step_probes, position, self.values[position])

    @functools.cached_property
    def _step_probes(self) -> list[list[list[Any]]]:
        """Evaluate with intermediate results that change alike, as a kernel of 16 bits computes in float32."""
        return [[self._evaluate(unchanged, probe, inside=True, alike=True) for probe in range(2 * _PROBES)]]

    @functools.cached_property
    def _rough_probes(self) -> list[list[list[Any]]]:
        """Evaluate with changed intermediate results, as every operator between inputs and outputs rounds its own."""
        # The inputs stay: labels such as the 1 of a target would be none.
        return [[self._evaluate(unchanged, probe, inside=True) for probe in range(_PROBES)]]

    @functools.cached_property
    def _probes(self) -> list[list[list[Any]]]:
        """Evaluate with changed inputs. The response is the sum over probes of the largest change in a probe."""
        if self._apart and len(self._sample.tensors) == 2:
            # Both directions, because one may lead out of the domain.
            return [
                [self._evaluate(_Nudge(number, sign), sign + 1) for sign in (1, -1)]
                for number in range(len(self._sample.tensors))
            ]
        generator = torch.Generator().manual_seed(0)  # the nudges must not move the case's own generator
        probes = range(_PROBES)
        return [[self._evaluate(lambda tensor: _nudged(tensor, generator), probe) for probe in probes]]

    def _evaluate(self, change: Any = None, seed: int = 0, *, inside: bool = False, alike: bool = False) -> list[Any]:
        """Evaluate in float64; ``change``, if given, is applied to each input, and intermediate results change too."""
        try:
            intermediates = Intermediates(seed, inside=inside, alike=alike) if change else contextlib.nullcontext()
            others = unchanged if change is None or self._apart else change
            with wide_defaults():
                sample = self._wide(change)
                with intermediates:
                    found = list(self._compute(sample, others))
            # Some operators convert integers to float32 by name. Then the oracle has the host's roundings.
            self._narrow |= {place for place, leaf in enumerate(found) if _is_narrow(leaf)}
            return [_wide_leaf(leaf) for leaf in found]
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            return []  # the operator refuses float64: it has no oracle

    def _wide(self, change: Any) -> Call:
        """Return the wide sample. A change needs floating-point inputs: if there are none, integers become such."""
        if change is None or not self._has_integers_only:
            return self._sample.wide(change or unchanged)
        arguments = mapped(self._sample.arguments, _as_float)
        return self._sample.with_arguments(arguments).wide(change)

    @functools.cached_property
    def _has_integers_only(self) -> bool:
        """Return whether no tensor of the call is floating-point or complex."""
        return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in self._sample.tensors)


class Intermediates(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Apply relative changes to the intermediate results of the kernels that PROJECTIONS matches.

    If ``inside``, those of all kernels change. ``step`` is half of the largest change; functions such as ``pow``
    change by more of them (``budgets.steps_of_kernel``), unless all kernels change their results ``alike``.

    Such a kernel subtracts from its input the part along some directions. If nothing is left, as for two normalised
    elements, no change of the inputs shows how far the terms cancel; a change of the terms does.
    """

    def __init__(self, seed: int, *, inside: bool = False, step: float = STEP, alike: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside, self._step, self._alike = inside, step, alike
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run PyTorch's decomposition of a projection, and change what its operators return."""
        args, kwargs = mapped(args, with_memory), mapped(kwargs or {}, with_memory)
        if not self._inside and PROJECTIONS.search(func.overloadpacket.__name__) and func in decomposition_table:
            self._inside = True
            try:
                with self:
                    return decomposition_table[func](*args, **kwargs)
            finally:
                self._inside = False
        result = func(*args, **kwargs)
        if not self._inside or func.is_view or func._schema.is_mutable:
            return result
        step = self._step * (1.0 if self._alike else steps_of_kernel(func.overloadpacket.__name__))
        return mapped(result, functools.partial(self._changed, step=step))

    def _changed(self, leaf: Any, *, step: float) -> Any:
        """Return a tensor of numbers with each element changed by a relative step; another value as it is."""
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        if leaf.layout is not torch.strided or leaf._is_zerotensor():
            return leaf
        # Of different sizes: two terms that change alike would cancel again.
        sizes = torch.rand(leaf.shape, generator=self._generator, dtype=torch.float64) * 4 - 2
        return leaf * (1 + step * sizes)


#: Elements of a tensor from which it may repeat few numbers, and those that are looked at.
_MANY, _FIRST = 4_000, 64


def _repeats(sample: Call) -> bool:
    """Return whether an input repeats one number or few: then all results can be exact by one chance."""
    strided = [t for t in sample.tensors if t.layout is torch.strided and t.numel() > 1]
    return any(0 in t.stride() or (t.numel() > _MANY and _has_few(t)) for t in strided)


def _has_few(tensor: torch.Tensor) -> bool:
    """Return whether the first numbers repeat a few, as rows do that a sample repeats to become long."""
    if tensor.is_quantized:
        return False
    first = tensor.detach().reshape(-1)[:_FIRST].resolve_conj().resolve_neg()
    numbers = torch.view_as_real(first).double() if first.is_complex() else first.double()
    return len(set(numbers.reshape(-1).tolist())) <= _FIRST // 8


def _is_narrow(leaf: Any) -> bool:
    """Return whether a value is a floating-point tensor of less than 64 bits."""
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64


def _as_float(leaf: Any) -> Any:
    """Return a dense tensor in float64; another value as it is."""
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else leaf


def _largest_changes(probes: list[list[list[Any]]], position: int, exact: torch.Tensor) -> torch.Tensor | None:
    """Return the sum over probes of the largest change of each element, per relative change; None without a probe."""
    changes = [
        [
            (changed[position] - exact).abs() / STEP
            for changed in probe
            if position < len(changed) and _comparable(changed[position], exact)
        ]
        for probe in probes
    ]
    largest = [torch.nan_to_num(torch.stack(c), nan=0.0, posinf=0.0).amax(0) for c in changes if c]
    return torch.stack(largest).sum(0) if largest else None


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest size of an element; 1 without elements."""
    sizes = torch.nan_to_num(tensor.abs(), nan=0.0, posinf=0.0)
    return max(1.0, float(sizes.max())) if sizes.numel() else 1.0


def _with_default_eps(info: Any, sample: Call) -> Call:
    """Return the sample with the eps that the operator takes by default in this dtype; float64 has another."""
    if not facts(info.name).eps_of_accumulator or not isinstance(sample.input, torch.Tensor):
        return sample
    # On the CPU, 16-bit dtypes accumulate in float32 and take its eps.
    dtype = torch.float64 if sample.input.dtype is torch.float64 else torch.float32
    bound = inspect.signature(info.op).bind(*([sample.input, *sample.args]), **sample.kwargs)
    if bound.arguments.get("eps") is not None:
        return sample
    bound.arguments["eps"] = torch.finfo(dtype).eps
    return replace(sample, args=bound.args[1:], kwargs=bound.kwargs)


def of_forward(info: Any, sample: Call) -> Oracle:
    """Return the oracle of the operator's plain result. It is empty where the host's bits are the only right ones."""
    if op_class(info) is OpClass.EXACT:
        return Oracle(lambda wide, _: [], sample)
    sample = _with_default_eps(info, sample)
    return Oracle(
        lambda wide, _: processed(wide, call(info.op, wide)),
        sample,
        functions=lambda: _functions_of(info, sample),
        apart=is_elementwise(info),
        rounds_between=facts(info.name).rounds_between,
        rounds=facts(info.name).rounds,
        once=is_elementwise(info) and not term_of(info.name, 1.0),  # a sum of terms consists of several kernels
    )


def _functions_of(info: Any, sample: Call) -> Functions:
    """Return the exact function of the first output and the size of its terms, where they are known."""
    function = FunctionElements.of(info, sample) if sample.process is None else None
    term, between = term_of_generator(info.name), compositions.sizes_between(info, sample)
    scale = between if between is not None else torch.tensor(term, dtype=torch.float64) if term else None
    return {0: function} if function else {}, {} if scale is None else {0: scale}


def of_gradients(info: Any, sample: Call, compute: Any, cotangents: list[torch.Tensor]) -> Oracle:
    """Return the oracle of the gradients of all inputs, which ``compute`` returns for a wide sample.

    ``compute`` also takes the change of the cotangents: the gradient of a linear operator depends on them alone.
    """
    sample = _with_default_eps(info, sample)
    # A backward pass is a composition, also where the forward is one kernel.
    simple = is_elementwise(info)
    functions = functools.partial(_functions_of_gradients, info, sample, cotangents)
    composed = compositions.has_composed_gradients(info, sample)
    return Oracle(
        compute, sample, functions=functions, apart=simple, rounds_between=not simple, composed=composed, steps=simple
    )


def _functions_of_gradients(info: Any, sample: Call, cotangents: list[torch.Tensor]) -> Functions:
    """Return the exact derivatives of a function and the sizes of their terms, where they are known."""
    function = FunctionElements.of(info, sample) if sample.process is None else None
    if function is None or len(cotangents) != 1:
        return {}, {}
    cotangent, scales = cotangents[0].double(), {}
    elements = function.gradients(sample, cotangent)
    if slope := slope_of(info.name):
        scales = dict.fromkeys(elements, slope * cotangent.abs())
    if is_elementwise(info):
        scales.update(_sums_of_terms(info, sample, function, cotangent))
    return elements, scales


def _sums_of_terms(
    info: Any, sample: Call, function: FunctionElements, cotangent: torch.Tensor
) -> dict[int, torch.Tensor]:
    """Return the sums of the absolute terms of the gradients of broadcast inputs, by position; the terms can cancel."""
    trained = {id(tensor): tensor for tensor in sample.tensors if tensor.requires_grad}
    inputs = [id(argument) for argument in (sample.input, *sample.args)]
    broadcast = {
        position: (inputs.index(key), tensor.shape)
        for position, (key, tensor) in enumerate(trained.items())
        if inputs.count(key) == 1 and tensor.shape != cotangent.shape
    }
    if not broadcast or len(sample.args) != 1 or function.arguments[0].shape != cotangent.shape:
        return {}
    spread = [argument.clone().requires_grad_() for argument in function.arguments]
    result = info.op(*spread, **sample.kwargs)
    terms = torch.autograd.grad(result, spread, cotangent, allow_unused=True)
    return {
        position: torch.nan_to_num(terms[by].abs(), nan=0.0, posinf=0.0).sum_to_size(shape)
        for position, (by, shape) in broadcast.items()
        if terms[by] is not None
    }


@dataclass(frozen=True)
class FunctionElements:
    """Exact elements of a function of the sample's arguments, or of its gradient by one of them.

    ``arguments`` have the shape of the result. The gradient is by the argument at ``by``, times ``cotangent``.
    """

    name: str
    arguments: tuple[torch.Tensor, ...]
    keywords: dict[str, object]
    by: int | None = None
    cotangent: torch.Tensor | None = None

    @classmethod
    def of(cls, info: Any, sample: Call) -> FunctionElements | None:
        """Return the elements of the operator's result; None if it has no exact function, or is not real."""
        arguments = (sample.input, *sample.args)
        if info.name not in FUNCTIONS or not all(map(_is_real, arguments)):
            return None
        if not all(value is None or isinstance(value, (bool, int, float, str)) for value in sample.kwargs.values()):
            return None
        wide = [torch.as_tensor(argument, dtype=torch.float64).detach() for argument in arguments]
        try:
            together = torch.broadcast_tensors(*wide)  # type: ignore[no-untyped-call]  # torch has no types here
            return cls(info.name, together, dict(sample.kwargs))
        except RuntimeError:  # the arguments are broadcast by another rule, as the weight of prelu
            return None

    def gradients(self, sample: Call, cotangent: torch.Tensor) -> dict[int, FunctionElements]:
        """Return the elements of the gradients, by their position among the inputs that require one."""
        trained = {id(tensor): tensor for tensor in sample.tensors if tensor.requires_grad}
        inputs, found = [id(argument) for argument in (sample.input, *sample.args)], {}
        for position, (key, tensor) in enumerate(trained.items()):
            # A broadcast argument, or one that is passed twice, has a sum for its gradient.
            if inputs.count(key) == 1 and tensor.shape == cotangent.shape:
                found[position] = replace(self, by=inputs.index(key), cotangent=cotangent)
        return found

    def values(self, positions: list[int]) -> list[float]:
        """Return the exact values, rounded once to float64."""
        return [self._value(position) for position in positions]

    def responses(self, positions: list[int]) -> list[float]:
        """Return the sum of |x df/dx| over the arguments; NaN for gradients, which would need second derivatives."""
        return [math.nan if self.by is not None else self._response(position) for position in positions]

    def _value(self, position: int) -> float:
        """Return the exact value at a position of the flat result; NaN where it is not known."""
        at = self._at(position)
        if not all(map(math.isfinite, at)):
            return math.nan  # IEEE 754 or a convention decides
        if self.by is None:
            value = exact(self.name, at, self.keywords)
        else:
            assert self.cotangent is not None
            value = exact_derivative(self.name, at, self.keywords, self.by)
            value = None if value is None else value * float(self.cotangent.reshape(-1)[position])
        return math.nan if value is None else rounded(value)

    def _response(self, position: int) -> float:
        """Return how much relative steps of the arguments change the value at a position; NaN where it is not known."""
        at = self._at(position)
        slopes = [exact_derivative(self.name, at, self.keywords, i) for i in range(len(at))]
        known = [slope for slope in slopes if slope is not None]
        if len(known) < len(slopes):
            return math.nan
        return float(sum(abs(slope * x) for slope, x in zip(known, at, strict=True))) + term_of(self.name, at[0])

    def terms(self, shape: torch.Size) -> torch.Tensor | float:
        """Return the sizes of the terms by which PyTorch computes the elements; 0 for gradients."""
        if self.by is not None or not term_of(self.name, 1.0):
            return 0.0
        sizes = [term_of(self.name, float(x)) for x in self.arguments[0].reshape(-1)]
        return torch.nan_to_num(torch.tensor(sizes, dtype=torch.float64).reshape(shape), posinf=0.0)

    def _at(self, position: int) -> tuple[float, ...]:
        """Return the arguments at a position of the flat result."""
        return tuple(float(argument.reshape(-1)[position]) for argument in self.arguments)


def _is_real(argument: Any) -> bool:
    """Return whether an argument is a number, or a dense tensor of real numbers."""
    if isinstance(argument, torch.Tensor):
        return argument.layout is torch.strided and not argument.is_complex() and not argument.is_quantized
    return isinstance(argument, (int, float))


@dataclass
class _Nudge:
    """Change of the tensor with this number, in the order of widening, by a relative step; other tensors stay."""

    number: int
    sign: int
    seen: int = 0

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, changed if it is the one with this number."""
        self.seen += 1
        mine = self.seen - 1 == self.number and tensor.layout is torch.strided
        return tensor * (1 + self.sign * STEP) if mine else tensor


@contextlib.contextmanager
def wide_defaults() -> Iterator[None]:
    """Make float64 the default dtype: integers then promote to it, as all floating inputs are float64 already."""
    before = torch.get_default_dtype()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _wide_leaf(leaf: Any) -> Any:
    """Return a tensor as a dense one in float64 or complex128 without a graph; another value as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    leaf = leaf if leaf.layout is torch.strided else leaf.to_dense()
    leaf = leaf.resolve_conj().resolve_neg()
    return widen(leaf) if leaf.dtype.is_floating_point or leaf.dtype.is_complex else leaf


def _nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the tensor with a relative step of random sign for each element; labels stay."""
    if tensor.layout is not torch.strided or _is_label(tensor):
        return tensor
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return tensor * (1 + STEP * signs)


def _is_label(tensor: torch.Tensor) -> bool:
    """Return whether the tensor holds 1 and -1 alone, as targets of losses do: a change leaves no label, but a jump."""
    return not tensor.is_complex() and bool((tensor == -1).any()) and bool((tensor.abs() == 1).all())


def _comparable(changed: Any, exact: Any) -> bool:
    """Return whether a changed result is a tensor of numbers in the shape and dtype of the exact one."""
    if not isinstance(changed, torch.Tensor) or (changed.shape, changed.dtype) != (exact.shape, exact.dtype):
        return False
    return changed.is_floating_point() or changed.is_complex()
