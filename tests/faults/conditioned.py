"""Families H, L, N, O, P, Q and R: faults of one dtype, one axis, one place in a sequence, one thread, two arguments,
small errors, and arithmetic in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.coverage.databases import tensors_of

from . import arguments, conditions, inputs, outputs
from .conditions import under
from .fault import Fault, Flags, Hits, Kind, Target, size_class
from .overloads import (
    SAME_FOR_A_SHAPE,
    SQUARE,
    SQUARE_PLACES,
    VECTORS,
    draws,
    has_one_element,
    is_index,
    operator_of,
)
from .overriding import Behaviour, Call
from .values import larger, over_tensors, with_change

_KNOWN = {(kind.family, kind.name): kind for module in (arguments, inputs, outputs) for kind in module.KINDS}
_LAST, _ROW, _BLOCK = (_KNOWN["C", name] for name in ("last", "row", "block"))
_STRIDES, _OFFSET, _EXPANSION = (_KNOWN["B", name] for name in ("strides", "offset", "expansion"))
_DEFAULT = _KNOWN["A", "default"]
_NAN, _INFINITY = (_KNOWN["E", name] for name in ("NaN", "infinity"))


def _values_as_they_are(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield values


# --- family L: the part beyond a length of one axis -------------------------------------------------------------------


def _cut_outputs(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place.removeprefix("r"))

    def behaviour(call: Call) -> Any:
        result = call.run()
        written = outputs.outputs_of(call, result)
        part = conditions.beyond(written[place], fault.detail) if place < len(written) else None
        if part is not None and part.numel():
            hit()
            part.zero_() if fault.kind == "output cut" else part.copy_(outputs.other_values(part))
        return result

    return behaviour


def _cut_inputs(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place)

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        part = conditions.beyond(tensor, fault.detail)
        if part is None or not part.numel():
            return tensor
        hit()
        copy = tensor.clone()
        rest = conditions.beyond(copy, fault.detail)
        assert rest is not None
        rest.zero_()
        return copy

    def behaviour(call: Call) -> Any:
        values = list(call.values)
        values[place] = over_tensors(values[place], cut)
        return call.run(values) if values[place] is not call.values[place] else call.run()

    return behaviour


def _lacks(kernel: str, flags: Flags, place: str, word: str) -> bool:
    """Return whether a tensor of a kernel has no axis of this length in any call that fits into memory."""
    operator, (axis, _, power) = operator_of(kernel), word.partition(" ")
    if place.startswith("r") and (
        has_one_element(kernel, flags) or (operator in VECTORS and axis == "second") or (kernel, axis) in _OF_TWO
    ):
        return True
    is_square = operator in SQUARE or (kernel, place) in SQUARE_PLACES
    return is_square and axis == "last" and int(power) >= _MOST_OF_A_SQUARE


#: Axes that have two elements in every call, and the exponent from which no matrix is as long as it is wide.
_OF_TWO, _MOST_OF_A_SQUARE = (("aten::view_as_real", "last"),), 12


def _long(places: Callable[[str, Flags], Iterator[Target]]) -> Callable[[str, Flags], Iterator[Target]]:
    def targets(kernel: str, flags: Flags) -> Iterator[Target]:
        for place, _ in places(kernel, flags):
            for word in conditions.long_words(kernel, flags, place):
                if not _lacks(kernel, flags, place, word):
                    yield place, word

    return targets


# --- family N: results of the call before -----------------------------------------------------------------------------


def _stale(fault: Fault, hit: Hits) -> Behaviour:
    place, kept = int(fault.place.removeprefix("r")), {}  # type: tuple[int, dict[Any, torch.Tensor]]

    def behaviour(call: Call) -> Any:
        result = call.run()
        written = outputs.outputs_of(call, result)
        if place < len(written) and written[place].numel():
            output = written[place]
            key = (output.shape, output.dtype)
            before, kept[key] = kept.get(key), output.detach().clone()
            if before is not None:
                hit()
                output.copy_(before)
        return result

    return behaviour


def _unlike_a_call_before(kernel: str, flags: Flags) -> Iterator[Target]:
    if kernel not in SAME_FOR_A_SHAPE:
        yield from outputs.results(kernel, flags)


_STALE = Kind("C", "stale", _unlike_a_call_before, _stale, lambda fault, flags: bool(flags), _values_as_they_are)

# --- family Q: small errors -------------------------------------------------------------------------------------------

#: Twice what ``torch.testing.assert_close`` permits, relative to the result.
_SMALL = {torch.float64: 2e-7, torch.float32: 2.6e-6, torch.float16: 2e-3, torch.bfloat16: 3.2e-2}


_PARTS = ("all", "last", "every 16th", "first half")


def _slightly_wrong(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place.removeprefix("r"))

    def edit(flat: torch.Tensor) -> None:
        part = {"all": flat, "last": flat[-1:], "every 16th": flat[15::16], "first half": flat[: len(flat) // 2]}
        chosen = part[fault.detail.partition(" in ")[0]]
        chosen.mul_(1 + _SMALL[flat.dtype])

    def behaviour(call: Call) -> Any:
        result = call.run()
        written = outputs.outputs_of(call, result)
        wanted = fault.detail.partition(" in ")[2]
        if place < len(written) and str(written[place].dtype).endswith(f".{wanted}") and written[place].numel():
            hit()
            outputs.rewrite(written[place], edit)
        return result

    return behaviour


def _float_results(kernel: str, flags: Flags) -> Iterator[Target]:
    """Yield parts of results that are no draws: nothing says how exact a draw is."""
    if draws(kernel):
        return
    # A kernel that returns nothing has no flags of results.
    seen = set(flags.get("r") or (flag for flags_of_place in flags.values() for flag in flags_of_place))
    for place, _ in outputs.results(kernel, flags):
        if is_index(kernel, int(place[1:])):
            continue
        for dtype in ("float32", "float16", "bfloat16", "float64"):
            if dtype in seen:
                for part in ("all",) if has_one_element(kernel, flags) else _PARTS:
                    yield place, f"{part} in {dtype}"


def _in_its_dtype(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    word = fault.detail.partition(" in ")[2]
    for given in [values, *conditions.ONE_DTYPE.variants(fault.target, word, values)]:
        yield given
        yield from larger(given, 100)


# --- family R: arithmetic in 16 bits ----------------------------------------------------------------------------------

#: Kernels that are linear in one argument, and the places of this argument and of what is added once. ``index_add``
#: and ``scatter_add`` are none of them: PyTorch's CPU and CUDA add to their outputs in 16 bits, as this fault does.
LINEAR = {
    "aten::sum.IntList_out": (0, None), "aten::mean.out": (0, None), "aten::nansum.out": (0, None),
    "aten::mm.out": (0, None), "aten::bmm.out": (0, None), "aten::addmm.out": (1, 3), "aten::baddbmm.out": (1, 3),
    "aten::addmv.out": (1, 3), "aten::dot": (0, None), "aten::cumsum.out": (0, None),
    "aten::convolution_overrideable": (0, 2), "aten::avg_pool2d.out": (0, None), "aten::avg_pool3d.out": (0, None),
    "aten::_adaptive_avg_pool2d": (0, None), "aten::_convolution": (0, 2), "aten::slow_conv2d_forward": (0, 3),
    "aten::upsample_bilinear2d_backward.grad_input": (0, None),
    "aten::embedding_dense_backward": (0, None),
    "aten::avg_pool2d_backward.grad_input": (0, None), "aten::_fft_r2c": (0, None),
}  # fmt: skip
#: Kernels that square their input, and those that take its exponential.
_SQUARES = ("linalg_vector_norm", "native_layer_norm", "native_group_norm", "native_batch_norm", "batch_norm", "var",
            "std", "mse_loss", "_fused_rms_norm", "rms_norm", "norm", "_cdist", "hypot", "square", "renorm",
            "_foreach_norm", "smooth_l1_loss", "huber_loss")  # fmt: skip
_EXPONENTIALS = ("_softmax", "_log_softmax", "logsumexp", "sigmoid", "softplus", "log_sigmoid_forward", "tanh", "silu",
                 "logaddexp", "logcumsumexp", "_logcumsumexp", "elu", "gelu", "mish", "cosh", "glu",
                 "binary_cross_entropy_with_logits", "soft_margin_loss")  # fmt: skip
#: Terms that are added up in more bits, and most rounds of a call.
_TERMS, _ROUNDS = 32, 64


def _is_16_bits(call: Call, fault: Fault) -> bool:
    return str(conditions.dtype_of(call.values)) == f"torch.{fault.detail}"


def accumulating(fault: Fault, hit: Hits) -> Behaviour:
    """Return a behaviour that adds up parts of a sum, and rounds after each part."""
    place, once = LINEAR[fault.target]

    def behaviour(call: Call) -> Any:
        given = call.values[place]
        if not _is_16_bits(call, fault) or not isinstance(given, torch.Tensor) or given.numel() <= _TERMS:
            return call.run()
        axis = max(range(given.dim()), key=lambda dim: given.shape[dim])
        terms = max(_TERMS, -(-given.shape[axis] // _ROUNDS))
        if given.shape[axis] <= terms:
            return call.run()
        hit()
        total: torch.Tensor | None = None
        result: Any = None
        for start in range(0, given.shape[axis], terms):
            part = torch.zeros_like(given)
            rows = min(terms, given.shape[axis] - start)
            part.narrow(axis, start, rows).copy_(given.narrow(axis, start, rows))
            values = list(call.values)
            values[place] = part
            if once is not None and start:
                values[once] = _nothing_of(values[once])
            result = call.run(values)
            written = outputs.outputs_of(call, result)[0]
            total = written.clone() if total is None else total + written
        outputs.outputs_of(call, result)[0].copy_(total)
        return result

    return behaviour


def _nothing_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return 0 if isinstance(value, (int, float)) else value


def _overflowing(limit: float) -> Callable[[Fault, Hits], Behaviour]:
    """Return a behaviour's maker: an input beyond a limit is infinite, as its square or exponential in float16 is."""

    def behave(fault: Fault, hit: Hits) -> Behaviour:
        def behaviour(call: Call) -> Any:
            given = next(iter(tensors_of(call.values)), None)
            if given is None or given.dtype is not torch.float16 or not bool((given.abs() > limit).any()):
                return call.run()
            hit()
            values = list(call.values)
            large = torch.where(given.abs() > limit, torch.full_like(given, float("inf")), given)
            at = next(at for at, value in enumerate(values) if any(given is t for t in tensors_of(value)))
            values[at] = over_tensors(values[at], lambda t: large if t is given else t)
            return call.run(values)

        return behaviour

    return behave


def _named(names: tuple[str, ...], dtypes: tuple[str, ...]) -> Callable[[str, Flags], Iterator[Target]]:
    def targets(kernel: str, flags: Flags) -> Iterator[Target]:
        operator = kernel.removeprefix("aten::").partition(".")[0].removesuffix("_")
        if operator.removesuffix("_backward") in names or operator in names:
            yield from (("", dtype) for dtype in dtypes)

    return targets


def _linear(kernel: str, flags: Flags) -> Iterator[Target]:
    if kernel in LINEAR:
        yield from (("", dtype) for dtype in ("float16", "bfloat16"))


def _has_dtype(fault: Fault, flags: Flags) -> bool:
    return any(fault.detail in seen for seen in flags.values())


def _sums_much(fault: Fault, flags: Flags) -> bool:
    return _has_dtype(fault, flags) and max(size_class(seen) for seen in flags.values()) > _TERMS.bit_length()


def _long_in_16_bits(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for given in conditions.ONE_DTYPE.variants(fault.target, fault.detail, values):
        yield from conditions.long_axes(given, 4099)


def _large_in_16_bits(limit: float) -> Callable[[Fault, dict[str, Any]], Iterator[dict[str, Any]]]:
    def variants(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for given in [values, *conditions.ONE_DTYPE.variants(fault.target, "float16", values)]:
            yield from with_change(given, "", lambda t: t.sign() * limit * 1.5 if t.is_floating_point() else t)

    return variants


KINDS = [
    *(under("H", kind, conditions.ONE_DTYPE)
      for kind in (_LAST, _ROW, _BLOCK, _STRIDES, _OFFSET, _EXPANSION, _DEFAULT)),
    *(under("H", kind, conditions.ONE_FLOAT_DTYPE) for kind in (_NAN, _INFINITY)),
    *(Kind("L", name, _long(outputs.results), _cut_outputs, conditions.can_be_long, conditions.made_long)
      for name in ("output cut", "output other")),
    Kind("L", "input cut", _long(outputs.tensor_inputs), _cut_inputs, conditions.can_be_long, conditions.made_long),
    *(under("N", kind, conditions.SEQUENCE) for kind in (_STALE, _LAST, _OFFSET, _DEFAULT)),
    *(under("O", kind, conditions.ANOTHER_THREAD) for kind in (_STALE, _LAST, _ROW, _STRIDES, _DEFAULT)),
    *(under("P", kind, conditions.ANOTHER_ARGUMENT) for kind in (_DEFAULT, _STRIDES, _OFFSET, _EXPANSION)),
    Kind("Q", "small error", _float_results, _slightly_wrong,
         lambda fault, flags: any(fault.detail.partition(" in ")[2] in seen for seen in flags.values()), _in_its_dtype),
    Kind("R", "added up in 16 bits", _linear, accumulating, _sums_much, _long_in_16_bits),
    Kind("R", "squared in 16 bits", _named(_SQUARES, ("float16",)), _overflowing(255.0), _has_dtype,
         _large_in_16_bits(255.0)),
    Kind("R", "exponential in 16 bits", _named(_EXPONENTIALS, ("float16",)), _overflowing(11.0), _has_dtype,
         _large_in_16_bits(11.0)),
]  # fmt: skip
