"""Quantizers that round otherwise, read other bytes, sum other ranks, or forget what they were to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.kernel import Kernel
from conformance.kernels.quantization import groups
from conformance.kernels.quantization.byte_order import turned
from conformance.kernels.specification import Arguments
from conformance.kernels.specifications import fake_quantization, swizzled_quantization
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import constant, replaced

#: ``broken(call, arguments)`` may change the arguments, which are named as in the signature, and returns the answer.
Broken = Callable[[Callable[[Arguments], Any], Arguments], Any]

FAMILY = "quantizers"
SOURCE = "DeepSpeed csrc/quantization"


def _around(entry: str, broken: Broken) -> Callable[[], Any]:
    """What computes the kernel of that specification is broken. Others may load under the same name."""

    def of(self: Kernel, choice: Any) -> Any:
        def call(arguments: Arguments) -> Any:
            return choice.function(*arguments.values())

        def function(*values: Any) -> Any:
            return broken(call, dict(zip(self.specification.signature.parameters, values, strict=True)))

        return dataclasses.replace(choice, function=function) if self.specification.name == entry else choice

    return replaced(Kernel, choice=lambda old: lambda self, *key: of(self, old(self, *key)))


def quantizer(name: str, precedent: str, entry: str, caught_by: str, broken: Broken, *touch: str) -> Mutant:
    """``caught_by`` is a case, or the end of the id of one of this kernel's."""
    case = caught_by if caught_by.startswith(("ops.", "compression.")) else f"ops.{entry}{caught_by}"
    may = (f"ops.{entry}[*", f"ops.{entry}.*", "compression.weights.*", *touch)
    return Mutant(Fault(name, FAMILY, precedent, Where.KERNEL, case, context=_around(entry, broken)), may, (*may, case))


def _with(**changes: Callable[[Any], Any]) -> Broken:
    return lambda call, given: call({**given, **{name: change(given[name]) for name, change in changes.items()}})


# --- fake quantization ------------------------------------------------------------------------------------------------


def _to_integers(call: Any, given: Arguments) -> Any:
    result = call(given)
    return result.round_() if result.dtype is torch.float32 else result


def _as_it_came_above(call: Any, given: Arguments) -> Any:
    return given["vals"] if given["vals"].numel() // given["groups"] > 1 << 20 else call(given)


def _nearest(call: Any, given: Arguments) -> Any:
    return fake_quantization.ds_quantize(**given)


def _by_halves(call: Any, given: Arguments) -> Any:
    """Up or down with the same probability, whatever the fraction is."""

    def coin(position: Tensor) -> Tensor:
        return position.floor() + (torch.rand_like(position) < 0.5)

    return fake_quantization._symmetric(given["vals"], given["groups"], given["num_bits"], coin)


def _same_numbers(call: Any, given: Arguments) -> Any:
    torch.manual_seed(7)
    return call(given)


def _symmetric_instead(call: Any, given: Arguments) -> Any:
    return fake_quantization.ds_sr_quantize(**given)


def _asymmetric(given: Arguments, most: int, least: float | None = None) -> Any:
    vals, rows = given["vals"], groups.grouped(given["vals"], given["groups"])
    low = rows.amin(dim=1, keepdim=True)
    low = low if least is None else low.clamp(max=least)
    step = (rows.amax(dim=1, keepdim=True) - low + 1e-5) / 2 ** given["num_bits"]
    codes = ((rows - low) / step).round().clamp(0, most)
    return vals.copy_((codes * step + low).view(vals.shape))


def _a_code_more(call: Any, given: Arguments) -> Any:
    return _asymmetric(given, 2 ** given["num_bits"])


def _from_ten_thousand(call: Any, given: Arguments) -> Any:
    return _asymmetric(given, 2 ** given["num_bits"] - 1, least=10000.0)


_SR = ".property[float32-training-unbiased]"
FAKE = (
    quantizer("fake quantization of float32 to integers", f"{SOURCE}: roundf of the dequantized number", "ds_quantize",
              "[float32-training-3x67-8]", _to_integers),
    quantizer("fake quantization that gives up above 2^20", f"{SOURCE}: returns vals as they came", "ds_quantize",
              "[float32-training-huge-8]", _as_it_came_above),
    quantizer("stochastic rounding to the nearest", "defect class of kernels", "ds_sr_quantize", _SR, _nearest),
    quantizer("stochastic rounding by halves", "defect class of kernels", "ds_sr_quantize", _SR, _by_halves),
    quantizer("stochastic rounding draws the same numbers again", "defect class of kernels", "ds_sr_quantize",
              ".property[float32-training-repeats]", _same_numbers),
    quantizer("asymmetric stochastic rounding is symmetric", f"{SOURCE}: launches the other kernel",
              "ds_sr_quantize_asym", "[float32-training-large-8]", _symmetric_instead),
    quantizer("asymmetric fake quantization with a code too many", f"{SOURCE}: roundf without a clamp",
              "ds_quantize_asym", "[float32-training-one-4]", _a_code_more),
    quantizer("the range of fake quantization starts at 10000", f"{SOURCE}: min = 10000", "ds_quantize_asym",
              "[float16-training-large-8]", _from_ten_thousand),
    quantizer("fake quantization of a copy", "defect class of kernels", "ds_quantize",
              ".property[float32-training-in-place]", lambda call, given: call(given).clone()),
    Mutant(Fault("groups that do not divide are quantized", FAMILY, "defect class of kernels", Where.KERNEL,
                 "ops.ds_quantize.refuses[float32-training-groups]",
                 context=replaced(fake_quantization, check_groups=constant(None))), ("ops.*",), ("ops.ds_quantize.*",)),
)  # fmt: skip


# --- bytes ------------------------------------------------------------------------------------------------------------


def _rounding(to_integer: Callable[[Tensor], Tensor]) -> Broken:
    def broken(call: Any, given: Arguments) -> Any:
        data, params = call(given)
        bits, rows = given["num_bits"], groups.grouped(given["vals"], given["groups"])
        shifted = rows - params[:, 1:] if params.shape[1] == 2 else rows
        codes = to_integer(shifted / params[:, :1]).clamp(*groups.limits(bits)).nan_to_num(nan=0.0)
        return [groups.stored(codes, bits).reshape(data.shape), params]

    return broken


def _half_away(position: Tensor) -> Tensor:
    return position.sign() * (position.abs() + 0.5).floor()


def _reinterpreted(vals: Tensor) -> Tensor:
    return vals.view(torch.float16) if vals.dtype is torch.bfloat16 else vals


def _low_first(call: Any, given: Arguments) -> Any:
    return call({**given, "data": turned(given["data"])} if given["num_bits"] == 4 else given)


def _offset_in_half(params: Tensor) -> Tensor:
    return torch.cat([params[:, :1], params[:, 1:].half().float()], dim=1)


_BACK = ("ops.quantize.property[*", "ops.loco*", "ops.quantized_reduction.*")
BYTES = (
    quantizer("quantization rounds towards zero", "defect class of kernels", "quantize", "[float32-inference-sym8]",
              _rounding(torch.trunc)),
    quantizer("quantization rounds ties away from zero", "defect class of kernels", "quantize",
              "[float16-inference-ties-sym8]", _rounding(_half_away)),
    quantizer("bfloat16 is read as float16", f"{SOURCE}: (__half*)vals.data_ptr()", "quantize",
              "[bfloat16-inference-sym8]", _with(vals=_reinterpreted)),
    quantizer("quantization loses NaN", f"{SOURCE}: comparisons that NaN never wins", "quantize",
              ".property[float32-inference-non-finite]", _with(vals=torch.nan_to_num)),
    quantizer("two numbers of a byte are exchanged", f"{SOURCE}: bit-fields", "dequantize_fp32",
              "ops.quantize.property[float32-inference-round-trip]", _low_first, *_BACK),
    quantizer("offsets go through float16", "DeepSpeed #7283", "dequantize_fp32", "[float32-inference-asym8]",
              _with(params=_offset_in_half), *_BACK),
    quantizer("weights are multiplied by their scale", "defect class of kernels",
              "dequantize_int8_to_half_experimental", "[float16-inference-3x64]",
              _with(scale_buffer=torch.reciprocal)),
    quantizer("weights of 4 bits start with the low half", "defect class of kernels",
              "dequantize_int4_to_half_experimental", "[float16-inference-1x8]", _with(data_in=turned)),
)  # fmt: skip


# --- between ranks ----------------------------------------------------------------------------------------------------


def _other_ranks(call: Any, given: Arguments) -> Any:
    """Each rank's part is summed with itself: neighbours instead of what lies a part away."""
    values = groups.decoded(
        groups.loaded(given["data"], given["num_bits"], given["in_groups"]),
        given["scales"].view(given["in_groups"], -1),
    )
    total = values.reshape(-1, given["devices_per_node"]).sum(dim=1)
    result = groups.quantized(total.view(given["out_groups"], -1), given["num_bits"], given["quant_type"])
    shape = (*given["data"].shape[:-1], given["data"].shape[-1] // given["devices_per_node"])
    return [groups.stored(result.codes, given["num_bits"]).reshape(shape), result.params]


def _exchanged(call: Any, given: Arguments) -> Any:
    return call({**given, "nodes": given["devices_per_node"], "devices_per_node": given["nodes"]})


def _forgetful(call: Any, given: Arguments) -> Any:
    return call({**given, "err": given["err"].clone()})


def _slices_stay(call: Any, given: Arguments) -> Any:
    return call({**given, "pipeline_size": 1})


RANKS = (
    quantizer("a quantized sum over the wrong ranks", "defect class of kernels", "quantized_reduction",
              "[float32-training-4-ranks]", _other_ranks),
    quantizer("nodes and devices are exchanged", "defect class of kernels", "swizzle_quant", "[float32-training-2x4]",
              _exchanged, "ops.quantized_reduction.*"),
    quantizer("LoCo forgets its error", "defect class of kernels", "loco_swizzle_quant",
              ".property[float16-training-conserves]", _forgetful),
    quantizer("LoCo's reduction forgets its error", "defect class of kernels", "loco_quantized_reduction",
              "[float32-training-3-ranks]", _forgetful),
    quantizer("LoCo's error does not decay", "defect class of kernels", "loco_swizzle_quant",
              "[float32-training-decaying]", _with(err_beta=lambda beta: 0.0)),
    quantizer("LoCo leaves slices where they are", f"{SOURCE}: the swizzled rank without its slice",
              "loco_swizzle_quant", "[float32-training-3x2-sliced]", _slices_stay),
    Mutant(Fault("an error feedback of another size is taken", FAMILY, "defect class of kernels", Where.KERNEL,
                 "ops.loco_swizzle_quant.refuses[float32-training-rate]",
                 context=replaced(swizzled_quantization, check_errors=constant(None))),
           ("ops.loco*",), ("ops.loco_swizzle_quant.*",)),
)  # fmt: skip


# --- floating-point numbers of few bits -------------------------------------------------------------------------------


def _without_zero(val: Tensor) -> Tensor:
    """Zero comes back as a small number, as where no code stands for it."""
    return torch.where(val == 0, val.abs().amax() / 240, val)


def _whole_scales_first(call: Any, given: Arguments) -> Any:
    rows = given["out"].view(given["num_groups"], -1)[:, :4]
    return rows.contiguous().view(-1).view(torch.float32).view(-1, 1)


FLOATS = (
    quantizer("no code stands for zero", "DeepSpeed csrc/fp_quantizer: exponents from the smallest normal on",
              "fp_quantize", ".property[float16-inference-round-trip]", _with(val=_without_zero)),
    quantizer("stochastic FP rounding to the nearest", "DeepSpeed csrc/fp_quantizer: bits that are not uniform",
              "fp_quantize", ".property[bfloat16-inference-unbiased]", _with(stochastic_rounding=lambda flag: 0)),
    quantizer("scales are read before the codes", "DeepSpeed csrc/fp_quantizer: get_scales", "fp_get_scales",
              "[float32-inference-behind-codes]", _whole_scales_first),
    quantizer("chosen rows come in the order of the file", "defect class of kernels", "fp_selective_dequantize",
              "[bfloat16-inference-some]", _with(indexes=lambda one: one.sort().values)),
    quantizer("dequantized numbers are too large by a sixty-fourth", "defect class of kernels", "fp_dequantize",
              "[bfloat16-inference-fp8]",
              lambda call, given: (call(given), given["val"].mul_(1 + 2.0**-6))[0]),
)  # fmt: skip

WEIGHTS = (
    quantizer("weights of 8 bits are rounded to quarters", "defect class of kernels",
              "dequantize_int8_to_half_experimental", "compression.weights.integers[8-33x64]",
              lambda call, given: (call(given) * 4).round() / 4),
    quantizer("weights of few bits are another group's", "defect class of kernels", "fp_dequantize",
              "compression.weights.floats[6]",
              lambda call, given: (call(given), given["val"].copy_(given["val"].roll(1, 0)))[0]),
)  # fmt: skip

MUTANTS = (*FAKE, *BYTES, *RANKS, *FLOATS, *WEIGHTS)
