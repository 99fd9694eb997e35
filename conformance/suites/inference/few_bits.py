"""Weights stored as integers of 4 and 8 bits by the accelerator's quantizer, and how far their products may be off."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from conformance.kernels.injection import Injector
from conformance.kernels.specifications.quantization import kind_of
from conformance.numerics.beside import table_beside
from conformance.numerics.budgets import unit_roundoff
from conformance.suites.module_inject.models import InjectedLlamaLayer
from conformance.suites.ops.loading import functions_if_any

_SYMMETRIC = 0


@dataclass(frozen=True)
class FewBits:
    """A weight (outputs, inputs) as codes, with a step for each of ``groups`` equal parts of its rows."""

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
        """``source`` (1, tokens, inputs) times the weight: by the kernel for int8 rows; the others come back first."""
        if self.bits == 8:
            multiply = Injector(accelerator).kernel("vector_matmul")
            return multiply(source, self.codes.view(torch.int8), False, self.steps, True, True)
        functions = functions_if_any(accelerator, "QuantizerBuilder")
        kind = kind_of(functions, _SYMMETRIC)
        weight = functions.dequantize_fp32(self.codes, self.steps, self.groups, self.bits, kind)
        return functional.linear(source, weight.to(source.dtype))


def int8_layers(accelerator):
    """Layers by kernels whose products have int8 weights, and what those are worth, in float64 by the layer's name.

    Returns the kind of layer, and a dictionary that is filled as layers are made.
    """
    worth = {}

    class Int8Layer(InjectedLlamaLayer):
        int8 = True

        def __init__(self, original, injector, layer, *rest):
            super().__init__(original, injector, layer, *rest)
            self.few = {}
            for name in self.PRODUCTS:
                weight = getattr(original, name).weight.detach()
                self.few[name] = few = FewBits.of(weight, 8, len(weight), accelerator)
                codes = few.codes.view(torch.int8).cpu().double()
                worth[f"layers.{layer}.{name}.weight"] = codes * few.steps.cpu().double()

        def stored(self, name):
            return self.few[name].codes.view(torch.int8), self.few[name].steps

    return Int8Layer, worth


def allowed(weight, source, bits, groups, dtype):
    """How far each result may be off: float64, for a weight and a source in float64 on the host.

    The error of a product is at most the sum over inputs of |input| times the weight's error, and what sums round:
    n u sum |a b| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1).
    """
    limits = table_beside(__file__, "limits.toml")
    rows = weight.reshape(groups, -1)
    most = 2 ** (bits - 1)
    step = rows.abs().amax(1, keepdim=True) / most
    wide, narrow = unit_roundoff(torch.float32), unit_roundoff(dtype)
    of_weight = torch.maximum(step / 2, rows - (most - 1) * step)
    of_weight = of_weight + limits["roundings_of_a_weight"] * wide * (rows.abs() + step)
    products = source.abs() @ weight.abs().T
    summed = weight.shape[1] * wide * products + limits["roundings_in_the_dtype"] * narrow * products
    return source.abs() @ of_weight.reshape(weight.shape).T + summed
