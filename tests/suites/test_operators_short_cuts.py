"""Short cuts of operator cells find what the long way finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checker import Checker
from conformance.suites.operators import passes, promises, variants, wrong_calls
from conformance.suites.operators.execution import OperatorSample
from conformance.suites.operators.oracle import Intermediates


def _drawn_by_hand(seed: int, *outputs: torch.Tensor) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for output in outputs:
        real, imaginary = (torch.randn(output.shape, generator=generator) for _ in range(2))
        real, imaginary = real.bfloat16().float(), imaginary.bfloat16().float()
        drawn.append((torch.complex(real, imaginary) if output.is_complex() else real).to(output.dtype))
    return drawn


def test_cotangents_of_one_pass_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [torch.zeros(3, 2), torch.zeros(4, dtype=torch.complex64), torch.zeros(2, dtype=torch.float64)]
    due = _drawn_by_hand(11, *outputs)
    draws = []
    draw = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *given, **named: draws.append(given) or draw(*given, **named))

    for _ in range(4):
        found = passes.cotangents(outputs, 11)
        assert all(torch.equal(one, other) and one.dtype is other.dtype for one, other in zip(found, due, strict=True))
        for cotangent in found:
            cotangent.zero_()  # a backward that writes its cotangent changes no later one

    assert len(draws) == 2 * len(outputs)


def test_cotangents_inside_a_mode_are_drawn_by_the_mode() -> None:
    outputs = [torch.zeros(64)]
    usual = passes.cotangents(outputs, 12)[0]

    with Intermediates(0, inside=True):
        changed = passes.cotangents(outputs, 12)[0]

    assert not torch.equal(changed.double(), usual.double())
    assert torch.equal(passes.cotangents(outputs, 12)[0], usual)


def test_equal_bits_are_alike_and_other_numbers_are_not() -> None:
    numbers = torch.tensor([1.0, float("nan"), float("inf"), -0.0])

    assert variants._are_alike([numbers], [numbers.clone()])
    assert variants._are_alike([numbers], [numbers * (1 + 1e-3)])
    assert not variants._are_alike([numbers], [numbers + 1])
    assert not variants._are_alike([torch.tensor([True, False])], [torch.tensor([True, True])])
    assert variants._are_alike([torch.tensor([1 + 1j])], [torch.tensor([1 + 1.001j])])


@pytest.mark.parametrize("columns", [6, 3], ids=["a whole tensor", "every second element"])
def test_a_write_between_elements_shows_and_a_whole_tensor_has_none(columns: int) -> None:
    memories = [torch.zeros(4, 6) for _ in range(3)]
    before, host, written = (memory[:, :: 6 // columns] for memory in memories)
    judge = SimpleNamespace(check=Checker())

    variants._check_gaps(judge, "a call", written, host, before)
    assert judge.check.count == 1

    memories[2][1, 1] = 7.0
    if columns < 6:
        with pytest.raises(AssertionError, match="between its elements"):
            variants._check_gaps(judge, "a call", written, host, before)
    else:
        variants._check_gaps(judge, "a call", written, host, before)


def test_the_meta_function_is_asked_once_for_a_sample() -> None:
    asked: list[Any] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor)
        return torch.cat([tensor, tensor])

    sample = OperatorSample(0, torch.zeros(5))
    for _ in range(3):
        assert promises.described_elements(double, sample) == 10
        assert not promises.promises_refusal(double, sample)

    assert len(asked) == 1


def test_a_wrong_call_with_a_huge_result_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def zoom(tensor: torch.Tensor, factor: int) -> torch.Tensor:
        if factor < 0:
            raise RuntimeError("a negative factor")
        assert tensor.is_meta or factor < 99, "a huge result was computed"
        return tensor.new_zeros(tensor.numel() * factor**4)

    info = SimpleNamespace(
        op=zoom, name="zoom", full_name="zoom", dtypes={torch.float32}, supports_out=False, inplace_variant=None
    )
    monkeypatch.setattr(wrong_calls.special_inputs, "unlike", lambda *given, **named: [])
    judge = SimpleNamespace(check=Checker(), values=True, drawn=set(), device=torch.device("cpu"))

    wrong_calls.check(info, judge, [OperatorSample(0, torch.ones(4), (2,))], torch.float32)

    assert judge.check.count
