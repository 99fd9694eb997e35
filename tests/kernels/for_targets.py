"""Triton's kernels compiled for devices that are not here, to machine code: types, and how memory is accessed.

    pytest tests/kernels/for_targets.py

The interpreter knows no types and no vectors: a kernel that it runs may not compile. ``test_triton.py`` runs this file.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from conformance.kernels.triton import lamb, norms, optimizers, quantizer, trial
from conformance.kernels.triton.launching import BLOCK

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("compiles: TRITON_INTERPRET has to be unset", allow_module_level=True)

# Triton tells that a default of its own will change.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}
ALL_NORMS = ("CENTRED", "BIASED", "RESIDUAL", "KEPT")
#: Arguments of kernels that may have any number of elements; of others, as of shares and parameters, there are few.
LARGE = (
    "gradients", "parameters", "means", "squares", "copies", "source", "residual", "target", "total", "codes", "values",
)  # fmt: skip
FLOATS = ("fp32", "fp16", "bf16")


def _norm(*there: str) -> dict[str, Any]:
    return {**{name: name in there for name in ALL_NORMS}, "BLOCK": norms.LONGEST}


#: Kernel, types of its arguments, and what it is compiled for. Triton compiles an integer that is 1 as a constant.
CASES = [
    (trial._count, "*i32 i32", {"BLOCK": 4}),
    *(
        (optimizers._adam, f"*{one} *{one} *{one} *{one} *i32 i32" + 9 * " fp32", {"DECOUPLED": kind, "BLOCK": BLOCK})
        for one, kind in zip(FLOATS, (True, False, True), strict=True)
    ),
    (optimizers._adam, 4 * "*fp32 " + "*i32 i64" + 9 * " fp32", {"DECOUPLED": True, "BLOCK": BLOCK}),
    (optimizers._adam, 4 * "*fp32 " + "*i32" + 9 * " fp32", {"count": 1, "DECOUPLED": True, "BLOCK": BLOCK}),
    *((optimizers._lion, f"*{one} *{one} *{one} *i32 i32" + 6 * " fp32", {"BLOCK": BLOCK}) for one in FLOATS),
    *(
        (lamb._moments, f"*fp32 *fp32 *fp32 *{one} *fp32 i32" + 7 * " fp32", {"EPSILON_INSIDE": kind, "BLOCK": BLOCK})
        for one, kind in zip(FLOATS, (True, False, True), strict=True)
    ),
    (lamb._add_up, "*fp32 *fp32 i32", {"BLOCK": BLOCK}),
    *(
        (lamb._move, f"*fp32 *{one}" + 4 * " *fp32" + " i32" + 5 * " fp32",
         {"EPSILON_INSIDE": kind, "COPIED": kind, "BLOCK": BLOCK})
        for one, kind in (("fp32", False), ("bf16", True))
    ),
    (norms._norm, 7 * "*bf16 " + "i32 fp32", _norm(*ALL_NORMS)),
    (norms._norm, 7 * "*fp16 " + "i32 fp32", _norm("CENTRED")),
    (norms._norm, 7 * "*fp32 " + "i32 fp32", _norm("RESIDUAL", "KEPT")),
    (norms._norm, 7 * "*fp32 " + "fp32", {**_norm("CENTRED"), "width": 1, "BLOCK": 1}),
    *(
        (quantizer._quantize, f"*{one} *i8 *fp32 i32", {"ASYMMETRIC": kind, "BITS": bits, "BLOCK": BLOCK})
        for one, kind, bits in (("fp32", 0, 8), ("fp16", 1, 8), ("bf16", 1, 4), ("fp32", 0, 4))
    ),
    (quantizer._quantize, "*fp32 *i8 *fp32", {"size": 1, "ASYMMETRIC": 0, "BITS": 8, "BLOCK": BLOCK}),
    *(
        (quantizer._dequantize, f"*i8 *fp32 *{one} i32 i32", {"ASYMMETRIC": kind, "BITS": bits, "BLOCK": BLOCK})
        for one, kind, bits in (("fp32", 0, 8), ("fp16", 1, 4))
    ),
    (quantizer._dequantize, "*i8 *fp32 *fp32", {"count": 1, "parts": 1, "ASYMMETRIC": 1, "BITS": 8, "BLOCK": BLOCK}),
]  # fmt: skip


def compiled(kernel: Any, types: str, constants: dict[str, Any], target: str) -> Any:
    """As a launch compiles it whose pointers and integers are multiples of 16."""
    given, signature, attributes = iter(types.split()), {}, {}
    for place, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else next(given)
        if signature[name][0] in "*i":
            attributes[(place,)] = [["tt.divisibility", 16]]
    assert not list(given)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=TARGETS[target])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=[f"{one[0].__name__}-{place}" for place, one in enumerate(CASES)])
def test_it_compiles_to_machine_code(case: tuple[Any, str, dict[str, Any]], target: str) -> None:
    code = compiled(*case, target)

    assert code.asm["cubin" if target == "sm_80" else "hsaco"]


@pytest.mark.parametrize(("dtype", "loads", "stores"), [("fp32", 8, 6), ("bf16", 4, 3)])
def test_adam_goes_through_memory_16_bytes_at_a_time(dtype: str, loads: int, stores: int) -> None:
    """4 tensors are read and 3 written, 8 numbers a thread. What remains is the overflow flag."""
    case = next(one for one in CASES if one[0] is optimizers._adam and one[1].startswith(f"*{dtype}"))
    text = compiled(*case, "sm_80").asm["ptx"]

    found = re.findall(r"(ld|st)\.global\.([\w.]+)", text)

    assert found.count(("ld", "v4.b32")) == loads
    assert found.count(("st", "v4.b32")) == stores
    assert len(found) == loads + stores + 1


def test_bfloat16_is_rounded_to_nearest() -> None:
    case = next(one for one in CASES if one[0] is norms._norm and "bf16" in one[1])

    found = set(re.findall(r"cvt\.(\w+)\.bf16(?:x2)?\.f32", compiled(*case, "sm_80").asm["ptx"]))

    assert found == {"rn"}


def test_the_way_of_rounding_survives_the_compiler() -> None:
    """Adding 1.5 * 2^23 and taking it off again is nothing to who computes as on paper."""
    case = next(one for one in CASES if one[0] is quantizer._quantize)
    text = compiled(*case, "sm_80").asm["ptx"]

    assert text.count("0f4B400000") == text.count("0fCB400000") > 0


@pytest.mark.parametrize(
    "kernel",
    [
        optimizers._adam,
        optimizers._lion,
        lamb._moments,
        lamb._move,
        norms._norm,
        quantizer._quantize,
        quantizer._dequantize,
    ],
    ids=lambda one: one.__name__,
)
def test_places_beyond_2_to_the_31_are_addressed(kernel: Any) -> None:
    """By an offset of 64 bits for every tensor of many elements, also where its size is one of 32 bits."""
    case = next(one for one in CASES if one[0] is kernel)
    text = compiled(*case, "sm_80").asm["ttir"]

    offsets = re.findall(r"tt\.addptr %(\w+), %\w+ : \S+, (?:tensor<\d+x)?(i\d+)", text)
    pointer_of = dict(re.findall(r"%(\w+) = tt\.splat %(\w+) ", text))
    found = {(pointer_of.get(name, name), width) for name, width in offsets}
    large = {(name, width) for name, width in found if name in LARGE}

    assert len(large) >= 2
    assert {width for _, width in large} == {"i64"}
