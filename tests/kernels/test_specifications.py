"""Specifications: their oracles agree with PyTorch's optimizers, and what is wrong fails at every size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.accelerators.backends import builtin_names
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import COMPILED_FOR_HOST, declaration_of
from conformance.accelerators.registry import resolve
from conformance.base.errors import UnknownName
from conformance.judging.checker import Checker
from conformance.kernels.optimizers import oracles
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.specification import KernelSample, KernelSpecification, TensorLocation
from conformance.kernels.specifications import fused_optimizers, specification, specifications
from conformance.plan.case import seed_of
from conformance.suites.ops import planned
from conformance.suites.ops.execution import on_device
from conformance.suites.ops.judging import KernelJudge
from tests.docs.entry_points import UPSTREAM, unspecified

ADAM = specification("multi_tensor_adam")
BY_NAME = {one.name: one for one in specifications()}


@pytest.mark.parametrize("kernel", specifications(), ids=list(BY_NAME))
def test_a_specification_says_what_it_means_and_by_which_numbers(kernel: KernelSpecification) -> None:
    assert kernel.doc
    assert kernel.budget.source


@pytest.mark.parametrize("decoupled", [False, True])
def test_adams_oracle_is_torchs(decoupled: bool) -> None:
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    generator = torch.Generator().manual_seed(3)
    theirs = torch.nn.Parameter(torch.randn(67, generator=generator, dtype=torch.float64))
    optimizer = kind([theirs], lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2)
    ours, mean, square = theirs.detach().clone(), torch.zeros(67).double(), torch.zeros(67).double()

    for step in range(1, 5):
        theirs.grad = torch.randn(67, generator=generator, dtype=torch.float64)
        settings = AdamSettings(0.1, 0.8, 0.95, 1e-3, 0.2, step, True, decoupled)
        ours, mean, square = (one.value for one in oracles.adam(ours, theirs.grad, mean, square, settings))
        optimizer.step()

    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


def test_adams_rollback_oracle_undoes_its_step() -> None:
    generator = torch.Generator().manual_seed(3)
    start = [torch.rand(67, generator=generator).double() + 0.5 for _ in range(4)]

    for decoupled in (False, True):
        settings = AdamSettings(0.1, 0.8, 0.95, 1e-3, 0.2, 7, True, decoupled)
        parameter, mean, square = (one.value for one in oracles.adam(*start, settings))
        back = [one.value for one in oracles.adam_back(parameter, start[1], mean, square, settings)]

        for found, old in zip(back, (start[0], start[2], start[3]), strict=True):
            torch.testing.assert_close(found, old, rtol=1e-12, atol=1e-12)


def test_adagrads_oracle_is_torchs() -> None:
    generator = torch.Generator().manual_seed(3)
    theirs = torch.nn.Parameter(torch.randn(67, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.Adagrad([theirs], lr=0.1, eps=1e-3, weight_decay=0.2)
    ours, total = theirs.detach().clone(), torch.zeros(67).double()

    for _ in range(4):
        theirs.grad = torch.randn(67, generator=generator, dtype=torch.float64)
        ours, total = (one.value for one in oracles.adagrad(ours, theirs.grad, total, 0.1, 1e-3, 0.2))
        optimizer.step()

    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "moments"), [("multi_tensor_lion", "lists"), ("lion_update", "exp_avg")])
def test_lions_samples_leave_no_doubt_about_the_sign(name: str, moments: str) -> None:
    kernel = BY_NAME[name]
    for dtype in kernel.dtypes:
        for sample in kernel.samples:
            given = _made(kernel, sample, dtype)
            rows = [(given["grads"], given["exp_avg"])] if moments == "exp_avg" else []
            rows = rows or list(zip(given["tensor_lists"][0], given["tensor_lists"][2], strict=True))
            for grad, mean in rows:
                terms = given["beta1"] * mean.double(), (1 - given["beta1"]) * grad.double()
                doubt = (terms[0] + terms[1]).abs() / (terms[0].abs() + terms[1].abs())
                doubt = doubt[doubt.isfinite() & (doubt != 0)]
                assert not doubt.numel() or doubt.min() > 1e-3, (sample.name, dtype)


# --- the three Adams that pass elsewhere ----------------------------------------------------------------------------


def _does_nothing(*arguments: Any) -> None:
    """Returns as if it had worked."""


def _climbs(chunk_size: int, noop_flag: Any, tensor_lists: Any, lr: float, *rest: Any) -> None:
    fused_optimizers.multi_tensor_adam(chunk_size, noop_flag, tensor_lists, -lr, *rest)


def _corrects_no_bias(*arguments: Any) -> None:
    fused_optimizers.multi_tensor_adam(*arguments[:9], 0, arguments[10])


NOTHING_TO_DO = {"empty", "overflow"}


@pytest.mark.parametrize(
    ("broken", "passes"),
    [
        (_does_nothing, NOTHING_TO_DO),
        (_climbs, NOTHING_TO_DO),
        # Corrections are 1 where they are not asked for, and after a thousand steps to within rounding.
        (_corrects_no_bias, NOTHING_TO_DO | {f"{word}-{what}" for word in ("adam", "adamw")
                                             for what in ("thousandth", "uncorrected")}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ADAM.dtypes)
def test_a_broken_adam_fails_at_every_size(broken: Callable[..., None], passes: set[str], dtype: str) -> None:
    samples = [one for one in ADAM.samples if not one.dtypes or dtype in one.dtypes]

    accepted = {sample.name for sample in samples if _accepted(ADAM, sample, dtype, broken)}

    assert accepted == passes


def test_the_right_adam_passes_all() -> None:
    wrong = [
        sample.name
        for sample in ADAM.samples
        if not _accepted(ADAM, sample, "float32", fused_optimizers.multi_tensor_adam)
    ]

    assert not wrong


def _made(kernel: KernelSpecification, sample: KernelSample, dtype: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed_of(f"{kernel.name}/{sample.name}"))
    return sample.make(generator, getattr(torch, dtype))


def _accepted(kernel: KernelSpecification, sample: KernelSample, dtype: str, function: Callable[..., Any]) -> bool:
    given = _made(kernel, sample, dtype)
    arguments = on_device(given, torch.device("cpu"))
    result = function(*arguments.values())
    try:
        KernelJudge(Checker(), kernel.budget, "it").call(kernel, given, arguments, result)
    except AssertionError:
        return False
    return True


# --- what is claimed, planned and listed ----------------------------------------------------------------------------


def test_what_is_compiled_for_the_host_is_claimed_everywhere() -> None:
    expected = {
        Cell(f"kernels.{one.name}", dtype, one.mode.value)
        for one in specifications()
        if one.location is TensorLocation.HOST and one.native and one.dtypes != ("uint8",)
        for dtype in one.dtypes
    }
    claimed = set(declaration_of(COMPILED_FOR_HOST).cells)

    assert claimed <= expected


@pytest.mark.parametrize("name", builtin_names())
def test_a_kernel_that_is_claimed_is_specified_in_that_dtype_and_mode(name: str) -> None:
    claimed = [cell for cell in resolve(name).static_declaration.exact if cell.subject.startswith("kernels.")]

    assert claimed
    for cell in claimed:
        one = BY_NAME[cell.subject.removeprefix("kernels.")]
        assert (cell.dtype in one.dtypes, cell.mode) == (True, one.mode.value), cell


def test_a_specified_name_leaves_the_list_of_gaps_by_itself() -> None:
    everything = [(entry_points.builder, name) for entry_points in UPSTREAM for name in entry_points.names]

    missing = {(builder, names) for builder, names, _ in unspecified(everything[1:])}

    assert missing == {(everything[0][0], (everything[0][1],))}
    assert not list(unspecified(everything))


def test_cases_follow_from_specifications() -> None:
    ids = {case.id for plan in (planned.results, planned.refusals, planned.properties) for case in plan()}

    assert "ops.multi_tensor_adam[float32-training-adamw-513]" in ids
    assert "ops.multi_tensor_adam.refuses[float32-training-lengths]" in ids
    assert "ops.adam_update.property[bfloat16-training-same-step-twice]" in ids
    assert all(any(id.startswith(f"ops.{name}[") for id in ids) for name, one in BY_NAME.items() if one.samples)


def test_an_unknown_kernel_is_an_error_with_suggestions() -> None:
    with pytest.raises(UnknownName, match="multi_tensor_adam"):
        specification("multi_tensor_adm")


def test_two_samples_of_one_name_are_refused() -> None:
    sample = KernelSample("one", lambda generator, dtype: {})
    make = functools.partial(
        KernelSpecification, "k", "KBuilder", ADAM.mode, ("float32",), oracle=lambda given: {}, budget=ADAM.budget
    )

    with pytest.raises(ValueError, match="the same name"):
        make(samples=(sample, sample), reference=_does_nothing)
    with pytest.raises(ValueError, match="gives the signature"):
        make(samples=(sample,), reference=None)
