"""Short cuts of operator cells find what the long way finds."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.judging.checker import Checker
from conformance.numerics.budgets import OpClass
from conformance.suites.operators.calls import database, execution, passes, sampling
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.work import work
from conformance.suites.operators.checks import wrong_calls
from conformance.suites.operators.inputs import arrangements, large, variants
from conformance.suites.operators.judge import judging, oracle, promises
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Intermediates
from conformance.suites.operators.judge.watching import Watches


def a_cell(info: Any = None, samples: Sequence[Call] = ()) -> Cell:
    """A cell on the host of an operator of which only some facts are known."""
    watches = Watches.on(HOST, 0)
    return Cell(info, torch.float32, HOST, Checker(), OpClass.CONTRACTION, watches, samples=list(samples))


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

    assert len(draws) == 2 * len(outputs) - 1  # no number comes after the imaginary ones of the last output, a real one


def test_cotangents_inside_a_mode_are_drawn_by_the_mode() -> None:
    outputs = [torch.zeros(64)]
    usual = passes.cotangents(outputs, 12)[0]

    with Intermediates(0, inside=True):
        changed = passes.cotangents(outputs, 12)[0]

    assert not torch.equal(changed.double(), usual.double())
    assert torch.equal(passes.cotangents(outputs, 12)[0], usual)


def test_functions_inside_a_composition_round_by_more_than_products() -> None:
    x = torch.full((1000,), 2.0, dtype=torch.float64)
    with Intermediates(0, inside=True, step=2.0**-24):
        fours = x * x, x.pow(2.0), torch.exp2(x)

    product, *functions = (float((each / 4 - 1).abs().max()) * 2**23 for each in fours)
    assert 0.9 < product <= 1.0
    assert all(2.2 < change <= 2.5 for change in functions)


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
    cell, given = a_cell(), Call(0, before)

    variants._check_gaps(cell, given, "out", written, host, before)
    assert cell.check.count == 1

    memories[2][1, 1] = 7.0
    if columns < 6:
        with pytest.raises(AssertionError, match="between its elements"):
            variants._check_gaps(cell, given, "out", written, host, before)
    else:
        variants._check_gaps(cell, given, "out", written, host, before)


def test_the_meta_function_is_asked_once_for_a_sample() -> None:
    asked: list[Any] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor)
        return torch.cat([tensor, tensor])

    sample = Call(0, torch.zeros(5))
    for _ in range(3):
        assert promises.described_elements(double, sample) == 10
        assert not promises.promises_refusal(SimpleNamespace(op=double), sample)

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
    monkeypatch.setattr(wrong_calls, "unlike", lambda *given, **named: [])
    cell = a_cell(info, [Call(0, torch.ones(4), (2,))])

    wrong_calls.wrong_calls(cell)

    assert cell.check.count


def _strict(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() > 1:
        raise RuntimeError("a vector is expected")
    return tensor + 1


def _matrix(asked: list[Any]) -> wrong_calls.Wrong:
    def strict(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            asked.append(tensor)
        return _strict(tensor)

    return wrong_calls.Wrong.of(Call(0, torch.ones(2, 2), change="a matrix"), strict)


def test_a_call_that_the_device_refuses_is_not_asked_about() -> None:
    asked: list[Any] = []
    cell = a_cell()

    wrong_calls._check_wrong(cell, _matrix(asked))

    assert cell.check.count == 1
    assert not asked


def test_a_call_that_the_device_accepts_and_every_device_refuses_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(execution, "execute", lambda function, sample, **extra: sample.input + 1)

    with pytest.raises(AssertionError, match="PyTorch refuses it on every device"):
        wrong_calls._check_wrong(a_cell(), _matrix(asked))

    assert asked


def test_the_host_computes_a_sample_once_unless_it_draws() -> None:
    made: list[Any] = []

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        made.append(tensor)
        return tensor * 2

    sample = Call(0, torch.arange(4.0))
    first, again = (host_call(doubled, sample) for _ in range(2))
    assert first is again
    assert len(made) == 1
    assert made[0] is not sample.input

    drawn = [host_call(torch.bernoulli, Call(1, torch.full((200,), 0.5))) for _ in range(2)]
    assert all(each.draws for each in drawn)
    assert not torch.equal(drawn[0].value, drawn[1].value)


def test_arrangements_of_a_sample_are_made_once_and_know_its_dense_form() -> None:
    info = SimpleNamespace(op=_strict, name="strict", full_name="strict")
    info.promotes_int_to_float, info.gradcheck_wrapper, info.decorators = False, _strict, ()
    sample = Call(0, torch.arange(6.0))

    first, again = ({found.arrangement: found for found in arrangements.of(info, sample)} for _ in range(2))

    assert first
    assert all(again[name] is arranged for name, arranged in first.items())
    assert arrangements.dense_of(first["non-contiguous"]) is sample
    repeated = arrangements.dense_of(first["expanded along the first dimension"])
    assert repeated.input.tolist() == [0.0] * 6
    assert repeated.input.is_contiguous()


@pytest.mark.parametrize("returns_its_output", [True, False])
def test_an_output_that_is_returned_counts_twice(returns_its_output: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    cell = a_cell()

    def result(judge: object, form: Call, *given: Any, part: str = "") -> None:
        seen.append(part)
        cell.check.count += 3

    monkeypatch.setattr(judging.Judge, "result", result)
    outs = [torch.zeros(2), torch.zeros(2)]
    returned = tuple(outs) if returns_its_output else tuple(out.clone() for out in outs)

    variants._judge_both(cell, Call(0, None), "its output", returned, tuple(outs), None, 1.0)

    assert cell.check.count == 6
    assert seen == ([""] if returns_its_output else ["", "its output"])


def test_a_derivative_that_needs_the_square_of_its_memory_gets_fewer_rows() -> None:
    info = next(info for info in database.database().values() if info.name == "linalg.lstsq")
    samples = sampling.pick(info, torch.float32, requires_grad=True, extent=work().training)

    def rows(**given: bool) -> int:
        return max(max(x.shape) for x in large.grown(info, samples, torch.float32, work().large, **given)[-1].tensors)

    # A matrix of rows × rows in float64 takes 32 MB and not 134 MB.
    assert rows(trained=True) ** 2 * 8 <= 32e6 < rows() ** 2 * 8


def _lengths_asked(most: int) -> tuple[list[int], Any]:
    """Return the lengths that a function of at most so many rows was asked for, and how it grows."""
    asked: list[int] = []

    def op(rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        if len(rows) > most:
            raise RuntimeError("too many rows")
        return rows + 1

    return asked, large._measured(SimpleNamespace(name="a function", op=op), Call(0, torch.zeros(4)), (0,))


def test_a_length_that_the_host_refuses_is_not_doubled() -> None:
    assert _lengths_asked(8) == ([16], None)
    assert _lengths_asked(16) == ([16, 32], None)
    assert _lengths_asked(32) == ([16, 32], (1.0, 1.0))


def test_repeated_numbers_are_looked_for_where_bits_differ_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Call] = []
    repeats = oracle._repeats
    monkeypatch.setattr(oracle, "_repeats", lambda sample: looked.append(sample) or repeats(sample))
    sample = Call(0, torch.zeros(4).expand(3, 4))

    found = oracle.Oracle(lambda wide, _: [wide.input + 1], sample)
    assert not looked
    exact = [found.leaf(0), found.leaf(0)]

    assert looked == [sample]
    assert all(each is not None and each.rounds for each in exact)


def test_a_changed_call_forgets_what_was_found_out_about_its_arguments() -> None:
    call = Call(0, torch.zeros(2, 3))
    known = call.label, call.noted, call.found_out("elements", lambda: call.elements)

    other = call.with_arguments((torch.zeros(5), (), {}))

    assert other.label != known[0]
    assert other.noted != known[1]
    assert other.found_out("elements", lambda: other.elements) == 5
    with pytest.raises(TypeError, match="a call has no name"):
        call.named(name="words")
