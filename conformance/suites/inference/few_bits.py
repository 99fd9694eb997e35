"""Weights quantized to integers of 4 and 8 bits by the accelerator, and error bounds of their products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from conformance.kernels.injection import Injector
from conformance.kernels.specifications.quantization import kind_of
from conformance.numerics.budgets import load_table, unit_roundoff
from conformance.suites.module_inject.models import InjectedLlamaLayer
from conformance.suites.ops.loading import functions_if_any

_SYMMETRIC = 0


@dataclass(frozen=True)
class FewBits:
    """Quantized weight (outputs, inputs): codes, and a step for each of ``groups`` equal parts of its elements."""

    bits: int
    groups: int
    codes: torch.Tensor
    steps: torch.Tensor

    @classmethod
    def of(cls, weight, bits, groups, accelerator):
        functions = functions_if_any(accelerator, "QuantizerBuilder")
        codes, steps = functions.quantize(weight, groups, bits, kind_of(functions, _SYMMETRIC))
        return cls(bits, groups, codes, steps)

    def product(self, source, accelerator):
        """Return ``source`` (1, tokens, inputs) times the weight, (1, tokens, outputs).

        A kernel multiplies by int8 rows; other weights are dequantized first.
        """
        if self.bits == 8:
            multiply = Injector(accelerator).kernel("vector_matmul")
            return multiply(source, self.codes.view(torch.int8), False, self.steps, True, True)
        functions = functions_if_any(accelerator, "QuantizerBuilder")
        kind = kind_of(functions, _SYMMETRIC)
        weight = functions.dequantize_fp32(self.codes, self.steps, self.groups, self.bits, kind)
        return functional.linear(source, weight.to(source.dtype))


def int8_layers(accelerator):
    """Return a class of layers with int8 weights, and a dictionary of their dequantized weights in float64.

    The dictionary is filled as layers are made. Its keys are names of parameters in the model.
    """
    dequantized = {}

    class Int8Layer(InjectedLlamaLayer):
        int8 = True

        def __init__(self, original, injector, layer, *rest):
            super().__init__(original, injector, layer, *rest)
            self.quantized = {}
            for name in self.PRODUCTS:
                weight = getattr(original, name).weight.detach()
                self.quantized[name] = quantized = FewBits.of(weight, 8, len(weight), accelerator)
                codes = quantized.codes.view(torch.int8).cpu().double()
                dequantized[f"layers.{layer}.{name}.weight"] = codes * quantized.steps.cpu().double()

        def stored(self, name):
            return self.quantized[name].codes.view(torch.int8), self.quantized[name].steps

    return Int8Layer, dequantized


def allowed(weight, source, bits, groups, dtype):
    """Return the allowed error of each product, (tokens, outputs) in float64, for float64 inputs on the host.

    ``weight`` is (outputs, inputs) before quantization, ``source`` is (tokens, inputs), and ``dtype`` is that of the
    products. The error of a product is at most the sum over inputs of |input| times the weight's error, plus the
    rounding of the sum: n u sum |a b| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1).
    """
    limits = load_table(__file__, "limits.toml")
    rows = weight.reshape(groups, -1)
    levels = 2 ** (bits - 1)
    step = rows.abs().amax(1, keepdim=True) / levels
    wide, narrow = unit_roundoff(torch.float32), unit_roundoff(dtype)
    # The largest positive number has no code of its own: the largest code is levels - 1.
    of_weight = torch.maximum(step / 2, rows - (levels - 1) * step)
    of_weight = of_weight + limits["roundings_of_a_weight"] * wide * (rows.abs() + step)
    products = source.abs() @ weight.abs().T
    summed = weight.shape[1] * wide * products + limits["roundings_in_the_dtype"] * narrow * products
    return source.abs() @ of_weight.reshape(weight.shape).T + summed
