"""Blame on the simulated device: the culprit of a planted fault, the other answers, and bad input."""

from __future__ import annotations

import copy
import functools
import gc
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conformance.accelerators.registry import resolve
from conformance.blame import from_report, runs
from conformance.blame.calls import recorded
from conformance.blame.collectives import Meeting
from conformance.blame.from_report import suspects, text
from conformance.blame.program import Program
from conformance.blame.recording import Step
from conformance.blame.runs import LocalRuns, RankRuns
from conformance.blame.text import is_blamed, lines, script
from conformance.blame.verdict import Answer, Blame, blame
from conformance.blame.watching import watch
from conformance.cli.main import main
from conformance.reports.loading import load
from conformance.reports.model import CaseRecord, Outcome, Reason, Report
from conformance.runner.terminal import blame_step
from tests.acceptance.running import forked_children, python
from tests.faults.overriding import Behaviour, Call, overridden
from tests.layers import longer

from .programs import PROGRAMS, trained

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "runs" / "cpu.json.gz"


@pytest.fixture(scope="module")
def device() -> torch.device:
    return torch.device(resolve("sim").load().current_device_name())


@pytest.fixture(autouse=True)
def seed_stays() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def classifier(device: torch.device) -> Any:
    """Train two layers with a normalisation and a softmax."""
    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 4))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2)).to(device)
    labels = torch.tensor([0, 1, 2, 3, 0]).to(device)
    return trained(model, device, lambda m: F.cross_entropy(m(x), labels), steps=2)


def answer(function: Callable[[torch.device], Any], device: torch.device, **faults: Behaviour) -> Blame:
    named = {f"aten::{name.replace('__', '.')}": behaviour for name, behaviour in faults.items()}
    with overridden(named, "PrivateUse1"):
        return blame(LocalRuns(Program(function.__name__, function), device))


def scaled(by: float) -> Behaviour:
    """Return a behaviour whose first result is too large."""

    def behaviour(call: Call) -> Any:
        result = call.run()
        (result if isinstance(result, torch.Tensor) else result[0]).mul_(by)
        return result

    return behaviour


def test_a_healthy_device_is_not_blamed(device: torch.device) -> None:
    found = answer(classifier, device)

    assert found.answer is Answer.RIGHT
    assert not is_blamed(found)
    assert found.judged > 80
    assert found.worst_end is not None
    assert found.worst_end.budgets < 1


FAULTS = {
    "silu__out": "aten.silu.default",
    "native_layer_norm_backward": "aten.native_layer_norm_backward.default",
    "native_layer_norm": "aten.native_layer_norm.default",
    "mm__out": "aten.mm.default",
    "_log_softmax_backward_data__out": "aten._log_softmax_backward_data.default",
}


@pytest.mark.parametrize("fault", longer(FAULTS, step=2))
def test_the_culprit_is_first(device: torch.device, fault: str) -> None:
    found = answer(classifier, device, **{fault: scaled(1.01)})

    assert found.answer is Answer.CULPRIT
    assert found.culprits[0].name == FAULTS[fault]
    assert found.explained is not None
    assert found.explained > 0.9


def test_of_two_culprits_both_are_named(device: torch.device) -> None:
    found = answer(classifier, device, silu__out=scaled(1.0005), mm__out=scaled(1.5))

    assert {culprit.name for culprit in found.culprits[:2]} == {"aten.silu.default", "aten.mm.default"}


def zeros(call: Call) -> Any:
    return call.run().zero_()


def refuses(call: Call) -> Any:
    raise RuntimeError("no kernel image is available")


def test_a_kernel_behind_several_operators_leaves_room_for_another_culprit(device: torch.device) -> None:
    def multiplies(where: torch.device) -> Any:
        x = torch.rand(3, 4, generator=torch.Generator().manual_seed(5)).to(where)
        (y,) = torch._foreach_mul([x], 3.0)
        return y.mul_(x).mul(torch.tensor(0.5)) * 2.0 + x.exp()

    found = answer(multiplies, device, mul__out=scaled(1.5), exp__out=scaled(1.0001))

    first, second = found.culprits
    assert {name.split(".")[1].strip("_") for name in (first.name, *first.others)} == {"mul", "foreach_mul"}
    assert second.name == "aten.exp.default"


@pytest.mark.parametrize("first", [zeros, refuses])
def test_a_culprit_that_another_one_hides_is_named(device: torch.device, first: Behaviour) -> None:
    def hiding(device: torch.device) -> Any:
        return torch.linspace(-1, 1, 12).to(device).sigmoid().tanh() * 3  # the hyperbolic tangent of 0 is right

    found = answer(hiding, device, sigmoid__out=first, tanh__out=scaled(1.01))

    assert [culprit.name for culprit in found.culprits] == ["aten.sigmoid.default", "aten.tanh.default"]
    assert found.culprits[1].is_hidden
    assert "hidden by another one" in "\n".join(lines(found, "hiding", "sim:0", {}))


def test_wrong_views_are_one_culprit_and_hide_no_other(device: torch.device) -> None:
    def views(device: torch.device) -> Any:
        x = torch.linspace(1, 2, 24).to(device).reshape(2, 3, 4).sin()
        return x.transpose(0, 1).unsqueeze(0).select(0, 0).narrow(0, 0, 2).diagonal(0, 0, 1) * 2

    def spoils(call: Call) -> Any:
        result = call.run()
        if result.numel():
            result.select(-1, -1).mul_(3)
        return result

    found = answer(views, device, as_strided=spoils, mul__out=scaled(1.001), sin__out=scaled(1.001))

    assert len(found.culprits[0].others) > 2
    assert {culprit.name for culprit in found.culprits[1:]} == {"aten.sin.default", "aten.mul.Tensor"}
    assert "one kernel may be behind all of them" in "\n".join(lines(found, "views", "sim:0", {}))


def test_the_host_by_its_full_name_is_not_blamed() -> None:
    """The tensors of the device ``cpu:0`` say ``cpu``."""
    found = answer(classifier, torch.device(resolve("cpu").load().current_device_name()))

    assert found.answer is Answer.RIGHT, (found.answer, found.detail)
    assert not found.culprits


def test_what_follows_from_a_result_on_another_device_is_no_fault(device: torch.device) -> None:
    def placed(device: torch.device) -> Any:
        x = torch.linspace(0.1, 1, 12).to(device)
        return (x.exp() + x).sin() * x

    def elsewhere(call: Call) -> Any:
        return call.run().to("sim:1")

    found = answer(placed, device, exp__out=scaled(1.001), sin=lambda call: call.run(), exp=elsewhere)
    later = answer(placed, device, exp=elsewhere, sin__out=scaled(1.01))

    assert [culprit.name for culprit in found.culprits] == ["aten.exp.default"]
    assert {culprit.name for culprit in later.culprits} == {"aten.exp.default", "aten.sin.default"}


def test_copies_that_show_what_was_there_before_are_found_and_no_other(device: torch.device) -> None:
    def copying(device: torch.device) -> Any:
        x = torch.linspace(1, 2, 12).to(device)
        return x.sin().transpose(0, -1) + torch.ones(12, device=device).copy_(torch.linspace(1, 3, 12))

    def adds(call: Call) -> Any:
        old = call.values[1].clone()
        result = call.run()
        call.values[1].add_(old)
        return result

    found = answer(copying, device, _copy_from=adds)

    assert len(found.culprits) == 1
    copies = {found.culprits[0].name, *found.culprits[0].others}
    assert "aten.copy_.default" in copies
    assert copies <= {"aten.copy_.default", "aten._to_copy.default"}  # new memory may be zeros


def rounds(call: Call, *, to: str) -> Any:
    """Copy, and round what a copy to a type of device has written to 8 bits of precision."""
    result, target = call.run(), call.values[1]
    if target.device.type == to and target.is_floating_point():
        target.copy_(target.bfloat16())
    return result


def test_copies_to_the_device_that_round_are_found_and_no_other(device: torch.device) -> None:
    found = answer(classifier, device, _copy_from=functools.partial(rounds, to=device.type))

    assert {culprit.name for culprit in found.culprits} <= {"aten._to_copy.default", "aten.copy_.default"}
    assert not found.culprits[0].misreads
    assert found.explained is not None
    assert found.explained > 0.9


def test_copies_from_the_device_that_round_are_found_and_no_other(device: torch.device) -> None:
    """Calls are judged on what the memory of the device holds, and not on what a broken copy shows."""
    found = answer(classifier, device, _copy_from=functools.partial(rounds, to="cpu"))

    assert [culprit.name for culprit in found.culprits] == ["aten._to_copy.default"]
    assert found.culprits[0].misreads


def test_copies_that_nothing_can_be_read_through_come_first(device: torch.device) -> None:
    def sums(device: torch.device) -> Any:
        return torch.linspace(1, 7, 120).to(device).reshape(10, 12).sum(1).cumsum(0)

    def shifts(call: Call) -> Any:
        result, target = call.run(), call.values[1]
        if target.numel() > 2:
            target.copy_(target.clone().roll(1))
        return result

    found = answer(sums, device, _copy_from=shifts)

    assert len(found.culprits) > 1
    assert found.culprits[0].name == "aten._to_copy.default"
    assert "the others may only have been misread" in "\n".join(lines(found, "sums", "sim:0", {}))


def test_a_broken_view_does_not_break_the_reading(device: torch.device) -> None:
    """The memory behind a tensor is read without the kernel of views."""

    def parts(device: torch.device) -> Any:
        return torch.linspace(-1, 1, 24).to(device).reshape(2, 12).sin().split(4, 1)[2].exp()

    def copies(call: Call) -> Any:
        return call.run([call.values[0].abs(), *call.values[1:]])

    found = answer(parts, device, as_strided=copies)

    assert found.culprits[0].worst.step.is_view, (found.answer, found.detail)


def test_a_result_that_reaches_beyond_its_memory_is_found(device: torch.device) -> None:
    def parts(device: torch.device) -> Any:
        return torch.linspace(1, 2, 24).to(device).reshape(2, 12).sin().split(4, 1)[2].exp()

    def longer(call: Call) -> Any:
        result = call.run()
        memory = torch.empty(3, device=result.device)
        return torch.ops.aten._reshape_alias.default(memory, list(result.shape), list(result.stride()))

    found = answer(parts, device, as_strided=longer)

    assert found.answer is Answer.CULPRIT, (found.answer, found.detail)
    assert "reaches beyond its memory" in found.culprits[0].worst.finding


def test_rounding_below_the_normal_numbers_is_no_fault(device: torch.device) -> None:
    def tiny(device: torch.device) -> Any:
        steps = torch.linspace(1, 2, 40).to(device, torch.float16) * 1e-3
        squares = (steps * steps).mean(0, keepdim=True) * 0.11  # a third of the smallest normal number
        return steps / squares.sqrt(), steps * 1e-3 / (squares * squares)

    def other_rounding(call: Call) -> Any:
        result = call.run()
        return result.add_((result.abs() < 6e-5).to(result.dtype) * 6e-8) if result.dtype is torch.float16 else result

    found = answer(tiny, device, mul__out=other_rounding)

    assert not is_blamed(found), (found.answer, found.detail, found.culprits)


def test_python_looks_for_garbage_as_before_when_a_recording_ends(device: torch.device) -> None:
    """In a recording, it does so for as many objects of the program's own, which makes few."""
    before, seen = gc.get_threshold(), []

    def program(device: torch.device) -> Any:
        seen.append(gc.get_threshold())
        raise ValueError(str(device))

    assert watch(Program("program", program), device, judged=False).error

    assert gc.get_threshold() == before
    assert seen[0][0] > before[0]
    assert seen[0][1:] == before[1:]


def test_a_fault_that_needs_a_warm_state_is_found(device: torch.device) -> None:
    calls = iter(range(1000))

    def third(call: Call) -> Any:
        result = call.run()
        if next(calls) % 3 == 2:
            result.mul_(2)
        return result

    assert answer(classifier, device, silu__out=third).culprits[0].name == "aten.silu.default"


def test_a_view_that_writes_is_found(device: torch.device) -> None:
    def writes(call: Call) -> Any:
        result = call.run()
        result.mul_(3)
        return result

    assert "aten.t.default" in {one.name for one in answer(classifier, device, as_strided=writes).culprits}


def test_a_view_of_repeated_elements_with_a_memory_of_its_own_is_found(device: torch.device) -> None:
    def repeated(device: torch.device) -> Any:
        return torch.ones(1, 3).to(device).expand(4, 3) * 2

    def other_memory(call: Call) -> Any:
        return call.run().clone().mul_(3).expand(4, 3)

    found = answer(repeated, device, as_strided=other_memory, expand=other_memory)

    assert found.culprits[0].name == "aten.expand.default"


def recurrent(kind: Callable[..., nn.Module], dtype: torch.dtype = torch.float32) -> Callable[[torch.device], Any]:
    def run(device: torch.device) -> Any:
        x = torch.linspace(-2, 2, 24, dtype=dtype).reshape(3, 2, 4).to(device)
        return trained(kind(4, 5).to(dtype), device, lambda m: m(x)[0].float().square().mean())

    return run


CELLS = {"lstm": (nn.LSTM, "_thnn_fused_lstm_cell", 2, "_impl"), "gru": (nn.GRU, "_thnn_fused_gru_cell", 1, "")}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_cell_is_judged_and_not_blamed(device: torch.device, name: str, dtype: torch.dtype) -> None:
    found = answer(recurrent(CELLS[name][0], dtype), device)

    assert found.answer in (Answer.RIGHT, Answer.ROUNDING)
    assert not found.unjudged or not any("thnn" in key for key in found.unjudged)


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("name", CELLS)
def test_a_wrong_backward_of_a_fused_cell_is_found(device: torch.device, name: str, output: int) -> None:
    kind, cell, _, suffix = CELLS[name]

    def wrong(call: Call) -> Any:
        result = call.run()
        result[output].mul_(1.01)
        return result

    found = answer(recurrent(kind), device, **{f"{cell}_backward{suffix}": wrong})

    assert [culprit.name for culprit in found.culprits] == [f"aten.{cell}_backward{suffix}.default"]


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_keeps_wrong_numbers_is_found(device: torch.device, name: str) -> None:
    kind, cell, position, _ = CELLS[name]

    def keeps(call: Call) -> Any:
        result = call.run()
        result[position][-1:].mul_(1.1)
        return result

    found = answer(recurrent(kind), device, **{cell: keeps})

    assert [culprit.name for culprit in found.culprits] == [f"aten.{cell}.default"]
    assert f"output {position}, which its backward reads" in found.culprits[0].worst.finding


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_may_keep_what_it_likes(device: torch.device, name: str) -> None:
    kind, cell, position, suffix = CELLS[name]

    def keeps(call: Call) -> Any:
        result = call.run()
        result[position].neg_()
        return result

    def reads(call: Call) -> Any:
        place = next(i for i, value in enumerate(call.values) if isinstance(value, torch.Tensor) and value.dim() == 2
                     and value.shape[1] > 10)  # fmt: skip
        return call.run([-value if i == place else value for i, value in enumerate(call.values)])

    found = answer(recurrent(kind), device, **{cell: keeps, f"{cell}_backward{suffix}": reads})

    assert found.answer is Answer.RIGHT, (found.culprits, found.detail)


#: A layer that normalises, and the shape of its input.
NORMS = {
    "native_layer_norm": (nn.LayerNorm(6), (5, 6)),
    "native_group_norm": (nn.GroupNorm(2, 6), (5, 6, 4)),
    "native_batch_norm": (nn.BatchNorm1d(6, track_running_stats=False), (5, 6)),
}


def normalising(name: str) -> Callable[[torch.device], Any]:
    layer, shape = NORMS[name]

    def run(device: torch.device) -> Any:
        model = nn.Sequential(copy.deepcopy(layer), nn.Tanh()).bfloat16()
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(device).requires_grad_()
        return trained(model, device, lambda m: m(x).float().square().mean())

    return run


def in_float32(narrow: int, by: float = 1.0, position: int = 0) -> Behaviour:
    """Return a kernel that computes in float32, and gives so many results in the dtype of its inputs."""

    def behaviour(call: Call) -> Any:
        dtype = call.values[0].dtype
        wide = [value.float() if isinstance(value, torch.Tensor) else value for value in call.values]
        results = list(call.run(wide))
        results[position] = results[position] * by
        return tuple(one.to(dtype) if one is not None and i < narrow else one for i, one in enumerate(results))

    return behaviour


@pytest.mark.parametrize("name", NORMS)
def test_statistics_may_be_kept_in_a_wider_dtype(device: torch.device, name: str) -> None:
    found = answer(normalising(name), device, **{name: in_float32(1), f"{name}_backward": in_float32(3)})

    assert found.answer in (Answer.RIGHT, Answer.ROUNDING), (found.culprits, found.detail)
    assert not any("norm" in key for key in found.unjudged)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("what", ["statistics", "result", "dtype", "backward"])
def test_a_norm_with_wide_statistics_that_is_wrong_is_found(device: torch.device, name: str, what: str) -> None:
    forward = {
        "statistics": in_float32(1, 1.001, 2),  # far less than bfloat16 shows
        "result": in_float32(1, 1.03),
        "dtype": in_float32(0),
        "backward": in_float32(1),
    }[what]
    wrong = in_float32(3, 1.1) if what == "backward" else in_float32(3)

    found = answer(normalising(name), device, **{name: forward, f"{name}_backward": wrong})

    suffix = "_backward" if what == "backward" else ""
    assert found.culprits
    assert found.culprits[0].name == f"aten.{name}{suffix}.default"


def test_an_input_that_is_changed_is_found(device: torch.device) -> None:
    def spoils(call: Call) -> Any:
        result = call.run()
        call.values[0].add_(1)
        return result

    found = answer(classifier, device, silu__out=spoils)

    assert found.culprits[0].name == "aten.silu.default"
    assert "changed its input" in found.culprits[0].worst.finding


def test_a_call_that_raises_is_named(device: torch.device) -> None:
    def raises(call: Call) -> Any:
        raise RuntimeError("no kernel image")

    found = answer(classifier, device, silu__out=raises)

    assert found.culprits[0].name == "aten.silu.default"
    assert "no kernel image" in found.culprits[0].worst.finding


def slightly_off(call: Call) -> Any:
    return call.run().mul_(1 + 5 * 2.0**-24)  # within the budget of a call


def test_a_rounding_that_turns_a_sign_is_no_fault(device: torch.device) -> None:
    """The first step of AdamW is as long for a gradient that is rounding alone."""

    def sign(device: torch.device) -> Any:
        x = torch.tensor([1.3])
        return (x.to(device).exp() - (x.exp().item() + 4 * 2**-22)).sign()

    found = answer(sign, device, exp__out=slightly_off)

    assert found.answer is Answer.ROUNDING, found.detail


def test_errors_that_are_too_large_together_are_told(device: torch.device) -> None:
    def powers(device: torch.device) -> Any:
        x = torch.tensor([1.0, 1.5]).to(device)
        for number in range(120):
            x = x * torch.full((2,), (-1) ** number * 0.3).to(device).exp()
        return x

    found = answer(powers, device, exp__out=slightly_off)

    assert found.answer is Answer.SUM
    assert "the largest errors: aten.exp.default" in found.detail


def test_runs_that_differ_are_told_with_the_place(device: torch.device) -> None:
    draws = iter(range(10_000))

    def unsteady(call: Call) -> Any:
        result = call.run()
        result[0].select(-1, 0).add_(1e-6 * next(draws))
        return result

    found = answer(classifier, device, native_layer_norm=unsteady)

    # A small error that is another in each run: within budget in some, beyond it in others.
    assert found.answer in (Answer.UNSTEADY, Answer.CULPRIT)
    assert "native_layer_norm" in (found.detail or found.culprits[0].name)


def test_random_numbers_are_no_fault(device: torch.device) -> None:
    def dropped(device: torch.device) -> Any:
        model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 4)).to(device).train()
        return model(torch.ones(3, 6).to(device))

    found = answer(dropped, device)

    assert found.answer in (Answer.RANDOM, Answer.RIGHT)
    assert not is_blamed(found)


def test_compiled_code_that_is_wrong_is_told_with_its_graph(device: torch.device) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        del inputs
        is_wrong = any("silu" in str(node.target) for node in graph.graph.nodes)
        return lambda *args: tuple(leaf * 1.5 if is_wrong else leaf for leaf in graph.forward(*args))

    def compiled(device: torch.device) -> Any:
        first = torch.compile(lambda x: x.exp() + 1, backend=broken)
        second = torch.compile(lambda x: F.silu(x) * 2, backend=broken)
        return second(first(torch.linspace(0, 1, 8).to(device)))

    found = answer(compiled, device)

    assert found.answer is Answer.COMPILED
    assert found.detail.startswith("graph 1 of 2: 2 operators (silu, mul")
    assert is_blamed(found)


def test_compiled_code_that_is_right_is_told(device: torch.device) -> None:
    def compiled(device: torch.device) -> Any:
        return torch.compile(lambda x: F.silu(x) * 2, backend="aot_eager")(torch.linspace(0, 1, 8).to(device))

    found = answer(compiled, device)

    assert found.answer is Answer.RIGHT
    assert found.compiled == 1
    assert "1 compiled graphs: watched call by call" in "\n".join(lines(found, "", "", {}))


def test_rounding_that_is_amplified_is_told(device: torch.device) -> None:
    def cancelling(device: torch.device) -> Any:
        x = torch.linspace(1, 2, 40).to(device)
        return (x.sum() * 1e6).sin()

    def other_order(call: Call) -> Any:
        # An honest sum: its terms in another order.
        return call.run([call.values[0].flip(0), *call.values[1:]])

    found = answer(cancelling, device, sum=other_order, sum__dim_IntList=other_order, sum__IntList_out=other_order)

    assert not is_blamed(found), found


def test_the_script_of_a_culprit_runs_without_this_package(device: torch.device, tmp_path: Path) -> None:
    found = answer(classifier, device, silu__out=scaled(1.01))
    path = tmp_path / "silu.py"
    path.write_text(script(found.culprits[0], "cpu", ""), encoding="utf-8")

    ended = python("-c", path.read_text(encoding="utf-8"), cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert "DIFFERENT" not in ended.stdout  # the CPU is right
    assert "conformance" not in path.read_text(encoding="utf-8")
    assert "torch.ops.aten.silu.default" in path.read_text(encoding="utf-8")


def test_the_text_names_the_call_its_inputs_and_its_share(device: torch.device) -> None:
    found = answer(classifier, device, silu__out=scaled(1.01))

    printed = "\n".join(lines(found, "m.py:f", "sim:0", {"aten.silu.default": "s.py"}))

    assert "1. aten.silu.default: " in printed
    assert "% of the end's error; 2 of its 2 calls are wrong" in printed
    assert "inputs: float32[5, 8]" in printed
    assert "in Sequential.1" in printed
    assert "python s.py" in printed


def test_looking_changes_nothing(device: torch.device) -> None:
    program = Program("classifier", classifier)
    undisturbed = dict(program.run(device))

    blame(LocalRuns(program, device))

    for name, value in program.run(device):
        assert torch.equal(torch.as_tensor(value).cpu(), torch.as_tensor(undisturbed[name]).cpu()), name


@pytest.mark.parametrize("name", longer(PROGRAMS, "lstm", "unet"))
def test_no_architecture_is_accused(device: torch.device, name: str) -> None:
    pytest.importorskip("transformers")

    found = blame(LocalRuns(Program(name, PROGRAMS[name]), device))

    assert not is_blamed(found), (found.answer, found.detail)


# --- bad input --------------------------------------------------------------------------------------------------------

WRONG = {
    "model.py": "names no function",
    "none.py:run": "there is no file none.py",
    "model.py:other": "has no function 'other'; it has: ",
    "model.py:nothing": "must take one argument, the device",
    "broken.py:run": "broken.py cannot be imported: ZeroDivisionError",
    "leaves.py:run": "leaves.py cannot be imported: SystemExit",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(
        "import torch\ndef run(device):\n    return torch.ones(3, device=device) * 2\n"
        "def nothing():\n    return 1\ndef raises(device):\n    raise ValueError('my own')\n"
        "def empty(device):\n    return None\n"
        "GIVEN = torch.ones(3)\ndef changes(device):\n    GIVEN.mul_(2)\n    return GIVEN.to(device) * 2\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("program", WRONG)
def test_bad_input_is_one_sentence(files: Path, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", program, "--accelerator", "cpu"]) == 4

    message = capsys.readouterr().err
    assert WRONG[program] in message
    assert "Traceback" not in message


def test_a_program_that_raises_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", "model.py:raises", "--accelerator", "cpu"]) == 0

    assert "the program raises on both: on the device ValueError: my own" in capsys.readouterr().out


def test_a_program_without_an_end_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", "model.py:empty", "--accelerator", "cpu"]) == 0

    assert "the program returned nothing that comes from the device" in capsys.readouterr().out


def test_a_program_that_changes_its_own_inputs_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", "model.py:changes", "--accelerator", "cpu"]) == 0

    printed = capsys.readouterr().out
    assert "the program is another one in each run: two runs on the host differ too" in printed
    assert "differ at aten." in printed


def test_a_call_that_does_not_fit_is_named_and_the_others_are_judged(device: torch.device) -> None:
    def out_of_memory(call: Call) -> Any:
        raise torch.OutOfMemoryError("9 GiB are not free")

    found = answer(classifier, device, silu__out=out_of_memory)

    assert found.answer is Answer.TOO_LARGE
    assert "aten.silu.default (call " in found.detail
    assert not is_blamed(found)
    assert found.judged > 3


@pytest.fixture
def custom() -> Iterator[Any]:
    """Yield custom operators without fake kernels: ``twice``, and ``odd``, which the host does not have."""
    with torch.library._scoped_library("blamed", "DEF") as library:
        library.define("odd(Tensor x) -> Tensor")
        library.define("twice(Tensor x) -> Tensor")
        for name, keys in (("odd", ["PrivateUse1"]), ("twice", ["CPU", "PrivateUse1"])):
            for key in keys:
                library.impl(name, lambda x: x + x, key)
        yield torch.ops.blamed


@pytest.mark.parametrize("name", ["odd", "twice"])
def test_custom_operators_are_judged_by_the_host_or_named(device: torch.device, custom: Any, name: str) -> None:
    def calls(where: torch.device) -> Any:
        return getattr(custom, name)(torch.ones(3).to(where)).exp()

    found = answer(calls, device)

    assert found.answer is Answer.RIGHT
    assert found.judged == found.steps - (name == "odd") > 1
    assert [key.partition(":")[0] for key in found.unjudged] == ["blamed.odd.default"] * (name == "odd")


def test_a_custom_operator_without_a_fake_kernel_cannot_be_traced(custom: Any) -> None:
    with pytest.raises(NotImplementedError, match="blamed::twice"):
        recorded(lambda device: custom.twice(torch.ones(3, device=device)))


def test_an_unknown_accelerator_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", "model.py:run", "--accelerator", "siim"]) != 0

    assert "siim" in capsys.readouterr().err


# --- ranks ------------------------------------------------------------------------------------------------------------

RANKS = """
import sys
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, {root!r})
from tests.faults.overriding import overridden


def planted(call):
    result = call.run()
    if dist.get_rank() == 1:
        call.values[0].mul_(1.5) if "{fault}".startswith("aten") else call.values[0][0][-1:].add_(1)
    return result


def train(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 4)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(dist.get_rank())).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {{"loss": loss, "model": model}}


def faulty(device):
    if device.type == "cpu":
        return train(device)
    with overridden({{"{fault}": planted}}, "PrivateUse1"):
        return train(device)


def apart(device):
    x = torch.ones(3).to(device)
    dist.all_reduce(x) if dist.get_rank() == 0 else dist.broadcast(x, 0)
    return x
"""


def on_ranks(tmp_path: Path, function: str, fault: str = "") -> Blame:
    file = tmp_path / "ranks.py"
    file.write_text(RANKS.format(root=str(Path(__file__).parents[2]), fault=fault), encoding="utf-8")
    return blame(RankRuns(f"{file}:{function}", "sim", 2))


@pytest.mark.long
def test_two_healthy_ranks_are_not_blamed(tmp_path: Path) -> None:
    found = on_ranks(tmp_path, "train")

    assert found.answer is Answer.RIGHT
    assert {end.name for end in found.ends} >= {"rank 0: loss", "rank 1: loss"}


@pytest.mark.long
def test_a_collective_that_is_wrong_on_one_rank_is_first(tmp_path: Path) -> None:
    found = on_ranks(tmp_path, "faulty", "c10d::allreduce_")

    assert found.culprits[0].name == "c10d.allreduce_.default"
    assert found.culprits[0].worst.rank == 1
    assert found.explained is not None
    assert found.explained > 0.9


@pytest.mark.long
def test_ranks_that_do_not_meet_are_told(tmp_path: Path) -> None:
    found = on_ranks(tmp_path, "apart")

    assert "the ranks make different collectives" in found.detail
    assert "rank 0: allreduce_ sum, rank 1: broadcast_ sum" in found.detail


def test_a_rank_that_waits_for_another_one_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_PATIENCE", 0.05)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    met = Meeting("allreduce_", "reduce", "group", (0, 1))
    step = Step(7, torch.ops.aten.add.Tensor, (), {}, meeting=met)

    with pytest.raises(RuntimeError, match=r"rank 0 waits for rank 1 at aten.add.Tensor \(call 7\)"):
        runs._Store(store, 0, tmp_path).exchange(step, [torch.ones(2)])


# --- from a report ----------------------------------------------------------------------------------------------------


def test_a_report_names_the_failing_operators_of_a_failing_workload() -> None:
    layer_norm = "operators.nn.functional.layer_norm[float32-training]"
    workload = "workloads.gpt.generate[float32-inference]"
    report = failing(load(PUBLISHED), {workload, layer_norm, "operators.sort[float32-inference]"})

    with forked_children(from_report):
        (found,) = suspects(report)

    assert found.workload.id == workload
    assert [cell.id for cell in found.cells] == [layer_norm]
    assert "calls nn.functional.layer_norm, of which 1 cells fail" in "\n".join(text(found))


def test_a_run_with_failing_workloads_and_operators_names_the_command() -> None:
    report = load(PUBLISHED)
    operator, workload = "operators.sort[float32-inference]", "workloads.gpt2.greedy[float32-inference]"

    assert [*blame_step(failing(report, {operator, workload}), "conformance-report/cpu")] == [
        "      conformance blame --from conformance-report/cpu"
    ]
    assert not [*blame_step(failing(report, {workload}), "conformance-report/cpu")]


def test_a_report_without_a_failing_workload_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", "--from", str(PUBLISHED)]) == 4

    assert "no workload fails in this report" in capsys.readouterr().err


def failing(report: Report, cases: set[str]) -> Report:
    def changed(case: CaseRecord) -> CaseRecord:
        wrong = replace(case, outcome=Outcome.FAIL, reason=Reason.WRONG, message="0.1 in place of 0.2")
        return wrong if case.id in cases else case

    return replace(report, cases=tuple(map(changed, report.cases)))


# --- documentation ----------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "blame.md"


def test_the_picture_of_the_documentation_is_what_is_printed(device: torch.device) -> None:
    """``CONFORMANCE_RENEW=1`` writes the picture anew."""
    program = Program.load(f"{PAGE.parent / 'recipes' / 'model.py'}:train")
    with overridden({"aten::silu.out": scaled(1.01)}, "PrivateUse1"):
        found = blame(LocalRuns(program, device))
    command = "docs/recipes/model.py:train --accelerator=acme -o wrong"
    scripts = {"aten.silu.default": "wrong/aten_silu_default.py"}
    # The last line has seconds.
    printed = [*lines(found, "docs/recipes/model.py:train", "acme:0", scripts)][:-1]
    picture = "\n".join(["```console", f"$ conformance blame {command}", *printed, "```"])
    begin, end = "<!-- picture:begin -->\n", "\n<!-- picture:end -->"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    shown, _, after = rest.partition(end)
    if os.environ.get("CONFORMANCE_RENEW"):
        PAGE.write_text(f"{before}{begin}{picture}{end}{after}", encoding="utf-8")
        return

    assert without_numbers(shown) == without_numbers(picture)


def without_numbers(text: str) -> str:
    """Return the text without the errors, whose last digits differ between processors."""
    return re.sub(r"\d+(,\d{3})*(\.\d+)?(e-\d+)?", "#", text)
