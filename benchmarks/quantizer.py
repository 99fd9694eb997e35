"""Quantization to 8, 4 and 1 bits and back on host memory, compared with PyTorch's operators and a copy of memory.

All sides are measured in one process, in turn; the results are medians. Speed is the bytes of the floating-point tensor
divided by the time of a call. The copy reads as many bytes as the kernels, and writes as many into new memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.table import Row, main, times
from benchmarks.turns import Side, medians
from conformance.kernels.builders import find_builder
from conformance.kernels.compression import packing
from conformance.kernels.specifications import quantization

GOAL = "≥ 1.0×"
_GROUP = 256
_TYPES = ("symmetric", "asymmetric")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quantizer-elements", type=int, default=1 << 25, help="number of elements (default: 2^25)")
    parser.add_argument("--quantizer-rounds", type=int, default=9, help="alternating rounds (default: 9)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    elements = arguments.quantizer_elements // _GROUP * _GROUP
    rows = []
    for bits in (8, 4):
        for kind, word in enumerate(_TYPES):
            rows += list(_one(elements, bits, kind, f"int{bits}, {word}", arguments.quantizer_rounds))
    return [*rows, *_signs(elements, arguments.quantizer_rounds)]


def _one(elements: int, bits: int, kind: int, word: str, rounds: int) -> Iterator[Row]:
    kernels = find_builder("QuantizerBuilder", "cpu")().load()
    groups = elements // _GROUP
    for dtype in (torch.float32, torch.float16):
        values = torch.rand(elements, generator=torch.Generator().manual_seed(1)).sub_(0.5).to(dtype)
        there, params = kernels.quantize(values, groups, bits, kind)
        back = "dequantize_fp32" if dtype is torch.float32 else "dequantize"
        ours, theirs = getattr(kernels, back), getattr(quantization, back)
        calls: dict[str, Side] = {
            "quantize": partial(kernels.quantize, values, groups, bits, kind),
            "quantize by operators": partial(quantization.quantize, values, groups, bits, kind),
            "dequantize": partial(ours, there, params, groups, bits, kind),
            "dequantize by operators": partial(theirs, there, params, groups, bits, kind),
            "copy": values.clone,
        }
        who = kernels.quantize.choice("cpu", "").implementation.value
        yield from _rows(calls, elements * dtype.itemsize, f"{word}, {str(dtype)[6:]}, {who}", rounds)


def _signs(elements: int, rounds: int) -> Iterator[Row]:
    """Yield the rows of packed signs, which one-bit optimizers send: one bit for each float32 number."""
    kernels = find_builder("PackbitsBuilder", "cpu")().load()
    values = torch.rand(elements, generator=torch.Generator().manual_seed(1)).sub_(0.5)
    there = kernels.packbits(values, elements, 0)
    calls: dict[str, Side] = {
        "packbits": partial(kernels.packbits, values, elements, 0),
        "packbits by operators": partial(packing.packbits, values, elements, 0),
        "unpackbits": partial(kernels.unpackbits, there, len(there), 0),
        "unpackbits by operators": partial(packing.unpackbits, there, len(there), 0),
        "copy": values.clone,
    }
    who = kernels.packbits.choice("cpu", "").implementation.value
    yield from _rows(calls, elements * values.itemsize, f"float32, {who}", rounds)


def _rows(calls: dict[str, Side], size: int, word: str, rounds: int) -> Iterator[Row]:
    """Yield the rows of each kernel: compared with the operators, and as a share of the copy."""
    seconds = medians(calls, rounds)
    speed = {name: size / taken / 1e9 for name, taken in seconds.items()}
    for name in [name for name in calls if f"{name} by operators" in calls]:
        operators = f"{name} by operators"
        ratio = times(speed[name] / speed[operators])
        yield Row(f"{name} {word}", f"{speed[name]:.2f} GB/s", GOAL, f"{speed[operators]:.2f} GB/s (operators)", ratio)
        share = times(speed[name] / speed["copy"])
        yield Row(f"{name} {word}", f"{speed[name]:.2f} GB/s", "", f"{speed['copy']:.2f} GB/s (copy)", share)


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
