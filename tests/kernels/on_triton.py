"""Triton's kernels by its interpreter, on the CPU: every sample of their specifications, and what breaks them.

    TRITON_INTERPRET=1 pytest tests/kernels/on_triton.py

``test_triton.py`` runs it in a process of its own: Triton decides when a kernel is defined whether it is interpreted.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.judging.checker import Checker
from conformance.kernels.implementation import Implementation
from conformance.kernels.specification import KernelSample, KernelSpecification
from conformance.kernels.specifications import specifications
from conformance.kernels.triton import lamb, norms, offering, optimizers, quantizer
from conformance.numerics.trees import mapped
from conformance.plan.case import seed_of
from conformance.suites.ops.judging import KernelJudge

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs Triton's interpreter: set TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
MODULES = {"optimizers": optimizers, "lamb": lamb, "norms": norms, "quantizer": quantizer}
KERNELS = {one.name: one for one in specifications() if any(native.needs for native in one.native)}
CODES = ("quantize", "dequantize", "dequantize_fp32")
FAMILY = {
    **dict.fromkeys(("multi_tensor_adam", "multi_tensor_lion"), "optimizers"),
    "lamb": "lamb",
    **dict.fromkeys(CODES, "quantizer"),
}
#: What lies around every tensor: more than a block, so that a kernel without a mask writes over nothing else.
GUARD, UNTOUCHED = 8192, 77


@pytest.fixture(autouse=True)
def rounds_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts float32 off to bfloat16, where its compilers round to nearest (PTX: cvt.rn.bf16x2)."""
    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(values, source, target, mode)
        exact = torch.from_numpy(numpy.ascontiguousarray(values)).to(torch.bfloat16)
        return exact.view(torch.int16).numpy().view(numpy.uint16)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


class Guarded:
    """Copies of tensors with room on both sides, and whether that room is as it was."""

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []

    def copy(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        room = torch.full((tensor.numel() + 2 * GUARD,), UNTOUCHED, dtype=tensor.dtype)
        self._rooms.append(room)
        inner = room[GUARD : GUARD + tensor.numel()].view(tensor.shape)
        return inner.copy_(tensor)

    def is_whole(self) -> bool:
        return all(bool((end == UNTOUCHED).all()) for room in self._rooms for end in (room[:GUARD], room[-GUARD:]))


def accepted(kernel: KernelSpecification, sample: KernelSample, dtype: str, function: Callable[..., Any]) -> bool:
    generator = torch.Generator().manual_seed(seed_of(f"{kernel.name}/{sample.name}"))
    given, guarded = sample.make(generator, getattr(torch, dtype)), Guarded()
    arguments = mapped(given, guarded.copy)
    result = function(*arguments.values())
    try:
        KernelJudge(Checker(), kernel.budget, "it").call(kernel, given, arguments, result)
    except AssertionError:
        return False
    return guarded.is_whole()


def failing(kernel: KernelSpecification, dtype: str, function: Callable[..., Any]) -> list[str]:
    samples = [one for one in kernel.samples if not one.dtypes or dtype in one.dtypes]
    return [one.name for one in samples if not accepted(kernel, one, dtype, function)]


def function_of(name: str, module: ModuleType | None = None) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(module or MODULES[FAMILY.get(name, "norms")], name)
    return found


# --- right ones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, one in KERNELS.items() for dtype in one.dtypes])
def test_it_meets_its_specification(name: str, dtype: str) -> None:
    assert failing(KERNELS[name], dtype, function_of(name)) == []


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in FAMILY])
def test_a_row_in_several_parts_is_the_same_norm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "LONGEST", 32)

    assert failing(KERNELS[name], "float32", function_of(name)) == []


def _lamb(module: ModuleType, monkeypatch: pytest.MonkeyPatch, **changes: float) -> bool:
    """Of 4101 elements in blocks of 16: their shares of the norms take three rounds to add up."""
    monkeypatch.setattr(module, "BLOCK", 16)
    large = next(one for one in KERNELS["lamb"].samples if one.name == "263171")

    def make(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
        given = large.make(generator, dtype)
        cut = {name: given[name][-4101:].clone() for name in ("p", "p_copy", "m", "v", "g")}
        return {**given, **cut, **changes}

    return accepted(KERNELS["lamb"], KernelSample("rounds", make), "float32", module.lamb)


def test_lambs_norms_are_whole_after_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _lamb(lamb, monkeypatch)


def test_lamb_without_epsilon_has_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _lamb(lamb, monkeypatch, eps=0.0)


def _properties(module: ModuleType) -> list[str]:
    """The properties of ``quantize`` that do not hold."""
    kernel, wrong = KERNELS["quantize"], []
    functions = SimpleNamespace(**{name: getattr(module, name) for name in CODES}, **kernel.companions)
    for one in kernel.properties:
        judge = KernelJudge(Checker(), kernel.budget, "it")
        try:
            for seen in one.run(functions, torch.device("cpu"), torch.float32, torch.Generator().manual_seed(3)):
                judge.tensor(*seen)
        except AssertionError:
            wrong.append(one.name)
    return wrong


def test_what_is_quantized_comes_back() -> None:
    assert _properties(quantizer) == []


def test_a_group_in_several_parts_is_the_same_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizer, "BLOCK", 16)

    assert [failing(KERNELS[name], KERNELS[name].dtypes[0], function_of(name)) for name in CODES] == [[], [], []]


def test_an_accelerator_that_declares_triton_is_given_these() -> None:
    offering.try_on.cache_clear()
    acme = TorchAccelerator(name="cpu", vendor="Acme", triton=True)

    adam = acme.create_op_builder("FusedAdamBuilder").load().multi_tensor_adam
    assert accepted(KERNELS["multi_tensor_adam"], KERNELS["multi_tensor_adam"].samples[0], "float32", adam)

    assert adam.used.implementation is Implementation.NATIVE
    assert adam.used.reason == offering.WHAT
    assert adam.choice("cpu", "float64").implementation is Implementation.REFERENCE


def test_a_device_that_writes_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.kernels.triton import trial

    offering.try_on.cache_clear()
    monkeypatch.setattr(trial, "blocks_written", lambda device_type: [1, 2, 3, 4])
    chosen = TorchAccelerator(name="cpu", vendor="Acme", triton=True).create_op_builder("FusedLambBuilder").choices()

    assert chosen["lamb"].implementation is Implementation.REFERENCE
    assert "Triton's kernel of one block on cpu wrote [1, 2, 3, 4], not [1, 2, 3, 0]" in chosen["lamb"].reason


# --- broken ones ------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Callable[[str, str, str], ModuleType]]:
    """A family's module with one piece of its text replaced; from a file, where Triton reads its kernels."""
    made: list[str] = []

    def make(family: str, old: str, new: str) -> ModuleType:
        text = Path(str(MODULES[family].__file__)).read_text(encoding="utf-8")
        assert old in text
        file = tmp_path / f"broken_{family}.py"
        file.write_text(text.replace(old, new), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        made.append(file.stem)
        spec.loader.exec_module(module)
        return module

    yield make
    for name in made:
        del sys.modules[name]


MASK = "inside = offsets < tl.where(tl.load(flag) == 0, count, 0)"
BREAKS = {
    "no tail mask": ("multi_tensor_adam", MASK, "inside = offsets < tl.where(tl.load(flag) == 0, count + BLOCK, 0)"),
    "a lost tail": ("multi_tensor_adam", MASK, "inside = offsets < tl.where(tl.load(flag) == 0, count // 64 * 64, 0)"),
    "a flag that is ignored": ("multi_tensor_adam", MASK, "inside = offsets < count"),
    "no correction of the first moment": ("multi_tensor_adam", "tl.div_rn(m, correction1)", "m"),
    "no correction of the second moment": ("multi_tensor_adam", "tl.div_rn(v, correction2)", "v"),
    "decay that is always decoupled": ("multi_tensor_adam", "if not DECOUPLED:", "if False:"),
    "no tail mask in lion": ("multi_tensor_lion", MASK,
                             "inside = offsets < tl.where(tl.load(flag) == 0, count + 3, 0)"),
    "a sign of 0 that is not 0": ("multi_tensor_lion", "tl.where(blend < 0, -1.0, blend)", "-1.0"),
    "a moment that follows with beta1": ("multi_tensor_lion", "beta2 * m + rest2 * g", "beta1 * m + rest1 * g"),
    "shares that are not added up": ("lamb", "sums = _added_up(shares)", "sums = shares"),
    "one share of each block": ("lamb", "tl.num_programs(0) + tl.program_id(0), tl.sum(update * update)",
                                "tl.num_programs(0), tl.sum(update * update)"),
    "no copy": ("lamb", "COPIED=p_copy.numel() > 0", "COPIED=False"),
    "no lower limit": ("lamb", "ratio = tl.where(ratio < least, least, ratio)", "ratio = ratio + 0.0"),
    "lanes past the end in the variance": ("layer_norm", "tl.where(inside, x - mean, 0.0)", "x - mean"),
    "no epsilon": ("rms_norm", " / width + epsilon", " / width"),
    "the sum that is not kept": ("pre_rms_norm", "tl.store(total + base + columns, x, mask=inside)", "x += 0.0"),
    "a bias that is forgotten": ("layer_norm_residual", "BIASED=bias is not None", "BIASED=False"),
    "ties away from zero": ("quantize", "((found + _ROUNDER) - _ROUNDER).to", "tl.floor(found + 0.5).to"),
    "no offset": ("dequantize_fp32", "offset = tl.load(params + group * 2 + 1)", "offset = 0.0"),
    "halves in the other order of signs": ("dequantize_fp32", "(byte << 28) >> 28", "byte & 15"),
}  # fmt: skip


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_fails(what: str, broken: Callable[[str, str, str], ModuleType]) -> None:
    name, old, new = BREAKS[what]
    kernel = KERNELS[name]

    module = broken(FAMILY.get(name, "norms"), old, new)

    assert failing(kernel, kernel.dtypes[0], function_of(name, module))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("while shares.shape[1] > 1:", "for _ in range(2):", {}),
        ("tl.where(inside, _direction(p, m, v, epsilon, decay, EPSILON_INSIDE), 0.0)",
         "_direction(p, m, v, epsilon, decay, EPSILON_INSIDE)", {"eps": 0.0}),
    ],
    ids=["partial norms are lost", "0 / 0 past the end"],
)  # fmt: skip
def test_a_broken_norm_of_lamb_fails(
    broken: Callable[[str, str, str], ModuleType], monkeypatch: pytest.MonkeyPatch, old: str, new: str, changes: Any
) -> None:
    assert not _lamb(broken("lamb", old, new), monkeypatch, **changes)


@pytest.mark.parametrize(
    ("name", "old", "new", "part"),
    [
        ("rms_norm", "squares += away * away", "squares = away * away", "LONGEST"),
        ("quantize", "tl.where(inside & (x > most), x, most)", "tl.where(inside & (start == 0), x, most)", "BLOCK"),
        ("dequantize", "(tl.program_id(0) % parts) * BLOCK", "(tl.program_id(0) % parts)", "BLOCK"),
    ],
)
def test_one_part_of_several_fails(
    broken: Callable[[str, str, str], ModuleType], monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str,
    part: str,
) -> None:  # fmt: skip
    module = broken(FAMILY.get(name, "norms"), old, new)
    monkeypatch.setattr(module, part, 16)

    assert failing(KERNELS[name], KERNELS[name].dtypes[0], function_of(name, module))


@pytest.mark.parametrize(
    ("old", "new", "property"),
    [
        ("spoiled += x * 0.0", "spoiled += 0.0", "non-finite"),
        ("(_code(first, offset, scale, BITS) << 4)", "(_code(second, offset, scale, BITS) << 4)", "round-trip"),
    ],
    ids=["infinity is passed over", "a neighbour's number"],
)
def test_a_broken_quantizer_fails(
    broken: Callable[[str, str, str], ModuleType], old: str, new: str, property: str
) -> None:
    assert property in _properties(broken("quantizer", old, new))
