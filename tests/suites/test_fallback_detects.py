"""Operators that are computed on the host, or do nothing, are found out; honest ones are not accused."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from conformance.accelerators.claims import Capabilities, declaration_of, emulates, lacks
from conformance.accelerators.declaration import Detail
from conformance.judging.checker import Checker
from conformance.judging.finding import Finding
from conformance.judging.observation import observe
from conformance.judging.verdicts import judge
from conformance.numerics import placement
from conformance.numerics.placement import Call as ProfiledCall
from conformance.numerics.placement import HostWork, Operand, host_work
from conformance.plan.case import Case, seed_of
from conformance.plan.run_options import Strictness
from conformance.reports.verdict import Reason, Verdict
from conformance.suites.operators import cell
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.plan import catalogue
from tests.acceptance.running import DATABASE
from tests.acceptance.running import run as user_run

from . import host_detours as detours

SIM = "sim"


@pytest.fixture(scope="module")
def device() -> torch.device:
    import conformance.accelerators.simulated.torch_sim  # noqa: F401 - registers the device

    return torch.device(SIM, 0)


@pytest.fixture(autouse=True)
def nothing_pending(device: torch.device) -> None:
    torch.get_device_module(device).synchronize()


@functools.cache
def planned() -> dict[str, Case]:
    return {case.id: case for case in catalogue.generate()}


def run(name: str, device: torch.device) -> Checker:
    """The body of one operator cell, under the seeds the plugin would give it."""
    seed = seed_of(f"operators.{name}")
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    check = Checker()
    cell.run(planned()[f"operators.{name}"], device, check)
    return check


def finding(name: str, device: torch.device) -> Finding:
    with pytest.raises(Finding) as caught:
        run(name, device)
    return caught.value


# --- on a device ----------------------------------------------------------------------------------------------------

CLEAN = [
    "mm[float32-inference]",
    "exp[float32-inference]",
    "softmax[bfloat16-training]",
    "nn.functional.gelu[float32-training]",
    "nn.functional.dropout[float32-inference]",
    "arange[float32-inference]",
    "randn_like[float32-inference]",
    # What PyTorch itself does on the host, on every device:
    "nn.functional.ctc_loss[float32-training]",  # lengths are read there
    "repeat[float32-inference]",  # sizes are added up in small host tensors
    "tensor_split[int64-inference]",  # the places to split at are a host tensor
    "__getitem__[float32-inference]",  # lists of indices become host tensors first
    "index_put[float32-training]",  # a mask on the host
    "nonzero[float32-inference]",  # the size of the result is read
    "masked_select[int64-inference]",
    "signal.windows.hann[float32-inference]",
]


def _native_dropout(device: str) -> dict[str, Any]:
    """The first sample drops nothing, and needs no such kernel."""
    return detours.boxed("native_dropout", device)


DETOURS: list[tuple[str, Callable[[str], dict[str, Any]], str, str]] = [
    ("one operator", lambda d: detours.boxed("mm", d), "mm[float32-inference]", "aten::mm ran on the host"),
    ("its out form", detours.numpy_exp_out, "exp[float32-inference]", "aten::exp ran on the host"),
    ("numpy", detours.numpy_exp, "exp[float32-inference]", "aten::exp ran on the host"),
    ("part of another", lambda d: detours.boxed("_softmax", d), "softmax[float16-inference]", "aten::_softmax ran"),
    (
        "backward alone",
        lambda d: detours.boxed("gelu_backward", d),
        "nn.functional.gelu[float32-training]",
        "backward: ",
    ),
    ("a factory", detours.table_from_numpy, "arange[int64-inference]", "0 bytes were copied there"),
    ("a list of tensors", lambda d: detours.boxed("cat", d), "cat[float32-inference]", "aten::cat ran on the host"),
    ("random numbers", lambda d: detours.boxed("bernoulli", d), "bernoulli[float32-inference]", "aten::bernoulli ran"),
    ("not the first sample", _native_dropout, "nn.functional.dropout[float32-inference]", "aten::native_dropout ran"),
    (
        "answers a scalar",
        lambda d: detours.boxed("equal", d),
        "equal[float32-inference]",
        "aten::equal ran on the host",
    ),
]


@pytest.mark.parametrize("name", CLEAN)
def test_an_honest_device_is_not_accused(name: str, device: torch.device) -> None:
    check = run(name, device)

    assert check.count > 0
    assert not {"placement_not_seen", "host_bytes"} & check.metrics.keys()


@pytest.mark.parametrize(("kernels", "name", "message"), [one[1:] for one in DETOURS], ids=[one[0] for one in DETOURS])
def test_a_detour_over_the_host_is_a_fallback(
    kernels: Callable[[str], dict[str, Any]], name: str, message: str, device: torch.device
) -> None:
    with detours.registered(kernels(SIM)):
        found = finding(name, device)

    assert found.reason is Reason.FALLBACK
    assert message in found.message


@pytest.mark.parametrize("name", ["mm", "add", "exp", "softmax", "sum", "nn.functional.linear", "cumsum"])
def test_everything_on_the_host_is_a_fallback_everywhere(name: str, device: torch.device) -> None:
    with detours.registered(detours.everything(SIM)):
        found = finding(f"{name}[float32-inference]", device)

    assert found.reason is Reason.FALLBACK


def test_python_around_the_operators_is_seen(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor that replaces PyTorch's Python function: no operator of the device is involved."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if extra or function.__name__.endswith("_"):
            return call(function, sample, **extra)
        moved = sample.with_arguments(pytree.tree_map(detours.to_host, sample.arguments))
        return call(function, moved).to(sample.device)

    monkeypatch.setattr(execution, "execute", execute)

    assert finding("exp[float32-inference]", device).reason is Reason.FALLBACK


def test_a_wrong_result_is_wrong_wherever_it_comes_from(device: torch.device) -> None:
    wrong = detours.through_numpy("exp", SIM, lambda values: np.exp(values) * 2)
    with detours.registered(wrong), pytest.raises(AssertionError, match="elements differ") as caught:
        run("exp[float32-inference]", device)

    assert not isinstance(caught.value, Finding)


class Broken:
    """A profiler that fails, in the one place or the other."""

    def start(self) -> None:
        raise RuntimeError("no profiler here")


class Mute:
    def start(self) -> None: ...

    def region(self) -> nullcontext[None]:
        return nullcontext()

    def stop(self) -> None:
        raise RuntimeError("lost")


@pytest.mark.parametrize("profiler", [Broken, Mute])
def test_without_a_profiler_the_operator_is_judged_all_the_same(
    profiler: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.suites.operators.judge.watching.Recording", profiler)
    with detours.registered(detours.numpy_exp(SIM)):
        check = run("exp[float32-inference]", device)

    assert check.metrics["placement_not_seen"] == "RuntimeError"


def test_somebody_elses_profiler_is_left_alone(device: torch.device) -> None:
    with torch.profiler.profile() as theirs:
        check = run("exp[float32-inference]", device)

    assert check.metrics["placement_not_seen"] == "RuntimeError"
    assert any(event.key == "aten::exp" for event in theirs.key_averages())


def test_nothing_is_printed_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told otherwise before torch is imported, its profiler prints two lines for every recording."""
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)

    words = ("--accelerator=sim", "--case", "operators.mm[float32-inference]", "-n0", "-s")
    done = user_run(*words, cwd=tmp_path, name=SIM, imported=DATABASE)

    assert done.status == 0, done.output
    assert "profiler_st" not in done.output


# --- judged by the declaration --------------------------------------------------------------------------------------

MM = planned()["operators.mm[float32-inference]"]


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (frozenset({MM.requires[0]}), "fail fallback"),
        (emulates(MM.requires[0]), "fail fallback"),
        (emulates(MM.requires[0], detail=Detail.HOST), "pass emulated"),
        (lacks(MM.requires[0], "no matrix unit"), "skip under-declared"),
        (frozenset(), "skip undeclared"),
    ],
)
def test_the_claim_decides(claims: Capabilities, expected: str, device: torch.device) -> None:
    with detours.registered(detours.boxed("mm", SIM)):
        found = finding("mm[float32-inference]", device)

    assert text(judge(MM, declaration_of(claims), observe(found), Strictness.CI)) == expected


def test_declared_host_and_computed_on_the_device_passes(device: torch.device) -> None:
    run("mm[float32-inference]", device)

    declared = declaration_of(emulates(MM.requires[0], detail=Detail.HOST))
    assert text(judge(MM, declared, observe(None), Strictness.CERTIFY)) == "pass emulated"


def text(verdict: Verdict) -> str:
    return f"{verdict.outcome.value} {verdict.reason.value}"


# --- records, as values ---------------------------------------------------------------------------------------------


def there(elements: int = 10, address: int = 1) -> Operand:
    return Operand(SIM, elements, elements * 4, address)


def here(elements: int = 10, address: int = 2) -> Operand:
    return Operand("cpu", elements, elements * 4, address)


def down(elements: int = 10, address: int = 2) -> Call:
    """A copy to the host, as PyTorch records it: three operators, one copy."""
    copy = ProfiledCall("aten::copy_", (here(elements, address), there(elements)))
    carried = ProfiledCall(copy.name, copy.operands, (ProfiledCall("aten::_copy_from", copy.operands[::-1]),))
    return ProfiledCall("aten::_to_copy", (there(elements),), (carried,), own=False)


def up(elements: int = 10, address: int = 2) -> Call:
    return ProfiledCall("aten::copy_", (there(elements, 3), here(elements, address)))


def op(name: str, *operands: Operand, inside: tuple[Call, ...] = (), own: bool = True) -> Call:
    return ProfiledCall(f"aten::{name}", operands, inside, own)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([op("exp", there(), inside=(down(), up()))], HostWork("aten::exp", 40, 40)),
        ([op("exp", there(), inside=(down(),))], HostWork("aten::exp", 40, 0)),
        ([op("exp", there(), inside=(op("exp", here()),))], HostWork("aten::exp", 0, 0)),
        ([op("exp_", there(), inside=(op("exp", here()),), own=False)], HostWork("aten::exp_", 0, 0)),
        (
            [op("linear", there(), own=False, inside=(op("mm", there(), inside=(down(),)),))],
            HostWork("aten::mm", 40, 0),
        ),
        ([op("normal_", there(), inside=(op("normal"), up()))], HostWork("aten::normal_", 0, 40)),
        ([op("_to_copy", there(), inside=(down(), up()))], HostWork("aten::_to_copy", 40, 40)),
        ([ProfiledCall(inside=(op("mm", there(), inside=(down(),)),))], HostWork("aten::mm", 40, 0)),
        ([down(), op("exp", here()), up()], HostWork("aten::exp", 40, 40)),
        ([down(), up()], HostWork("", 40, 40)),  # NumPy computes: no operator of PyTorch
    ],
)
def test_host_work_is_named_with_its_bytes(calls: list[Call], expected: HostWork) -> None:
    assert host_work(calls, SIM, [there()]) == expected


def test_a_factory_is_host_work_where_it_is_what_was_asked_for() -> None:
    calls = [op("arange", inside=(up(),))]

    assert host_work(calls, SIM, []) == HostWork("aten::arange", 0, 40)
    assert host_work([op("gather", there(25), inside=tuple(calls))], SIM, [there(25)]) is None


@pytest.mark.parametrize(
    "calls",
    [
        [op("exp", there())],
        [op("unfold", there(25), inside=(op("arange", inside=(up(4),)),))],  # a table of 16 bytes, made on the host
        [op("index", there(25), inside=(op("index", here(4)), up(4)))],  # indices of 16 bytes, put in order on the host
        [op("exp", there(), inside=(op("empty"), op("exp", there(), there())))],
        [op("nonzero", there(), inside=(down(1),))],  # a size
        [op("_ctc_loss", there(1000), there(10), inside=(down(10), up(10)))],  # lengths
        [op("ctc_loss", there(10), inside=(down(10), up(10)), own=False)],  # PyTorch's own, on every device
        [op("index", there(), here(4, 9), inside=(up(4, 9),))],  # indices that the caller has on the host
        [op("index", there(), here(4, 9), inside=(op("index", here(4, 9)),))],
        [op("window", there(), inside=(op("arange"), up()))],  # a table made on the host, and never on the device
        [op("full", inside=(up(1),))],  # a scalar
        [up()],
    ],
)
def test_honest_records(calls: list[Call]) -> None:
    assert host_work(calls, SIM, [there()]) is None


@pytest.mark.parametrize("name", ["exp[float32-inference]", "add[float32-inference]"])
def test_torch_that_does_not_tell_overloads(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.7 a profile has operators' names alone; then all overloads are asked for."""
    monkeypatch.setattr(placement, "_config", lambda: None)

    assert run(name, device).count > 0
    with detours.registered(detours.everything(SIM)):
        assert finding(name, device).reason is Reason.FALLBACK


# --- stubs ----------------------------------------------------------------------------------------------------------


def returns_nothing(function: Any, sample: Call, **extra: Any) -> Any:
    call(function, sample, **extra)


def ignores_out(function: Any, sample: Call, **extra: Any) -> Any:
    return call(function, sample)


def changes_a_copy(function: Any, sample: Call, **extra: Any) -> Any:
    in_place = getattr(function, "__name__", "").endswith("_")
    return call(function, sample.on(sample.device), **extra) if in_place else call(function, sample, **extra)


@pytest.mark.parametrize(
    ("stub", "name", "message"),
    [
        (returns_nothing, "exp[float32-inference]", "nothing was returned"),
        (returns_nothing, "exp[float32-training]", "nothing was returned"),
        (returns_nothing, "sort[float32-inference]", "nothing was returned"),
        (returns_nothing, "nn.functional.dropout[float32-inference]", "nothing was returned"),
        (ignores_out, "exp[float32-inference]", "out= variant: the call wrote nothing"),
        (ignores_out, "sort[int64-inference]", "out= variant: the call wrote nothing"),
        (changes_a_copy, "exp[float32-inference]", "in-place variant: the call wrote nothing"),
    ],
)
def test_an_operator_without_effect_is_a_stub(
    stub: Any, name: str, message: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "execute", stub)

    found = finding(name, device)

    assert found.reason is Reason.STUB
    assert message in found.message
