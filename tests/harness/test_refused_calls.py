"""Which call ended a body, and what becomes of a case that fails by a call that it is not about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.accelerators.capabilities import DTYPE, Cell, Mode
from conformance.accelerators.claims import Capabilities, declaration_of, lacks
from conformance.accelerators.declaration import Declaration
from conformance.judging.observation import observe
from conformance.plan.case import Case, Level
from conformance.plan.run_options import Strictness
from conformance.reports.calls import NEEDS, REFUSING
from conformance.reports.verdict import Outcome, Reason, Verdict, failed
from conformance.runner.refused_calls import attributed, refusing_calls
from tests.defects import bench
from tests.faults.overriding import overridden

NOTHING: Capabilities = frozenset()
CASE = Case(id="runtime.something", area="runtime", requires=(DTYPE.on("float32"),))


def _claims(*names: str, mode: Mode = Mode.INFERENCE, denied: Capabilities = NOTHING) -> Declaration:
    return declaration_of({Cell(f"operators.{name}", "float32", mode.value) for name in names} | denied)


@contextmanager
def _refusing(kernel: str) -> Iterator[torch.device]:
    """Yield the simulated device without a kernel."""
    device = bench.Bench().device

    def refuse(call: Any) -> Any:
        raise NotImplementedError(f"Could not run 'aten::{kernel}' with arguments from the 'PrivateUse1' backend.")

    with overridden({f"aten::{kernel}": refuse}, "PrivateUse1"):
        yield device


def _verdict(
    body: Callable[[torch.device], object],
    declaration: Declaration,
    kernel: str,
    case: Case = CASE,
    strictness: Strictness = Strictness.CI,
) -> Verdict:
    with _refusing(kernel) as device:
        try:
            body(device)
        except Exception as error:
            first = failed(Reason.RAISED, str(error), max_abs=0.5)
            return attributed(first, observe(error), case, declaration, strictness, lambda: body(device), device)
    raise AssertionError("the body has not raised")


def _sine_of_a_sum(device: torch.device) -> object:
    return torch.sin(torch.ones(3).to(device) + 1)


def test_a_call_that_is_not_claimed_leaves_the_case_unjudged() -> None:
    found = _verdict(_sine_of_a_sum, _claims("add"), "sin")

    assert (found.outcome, found.reason) == (Outcome.SKIP, Reason.UNDECLARED)
    assert found.message.startswith(
        "operators.sin[float32-inference] is not declared; the case calls it, and it raises: Could not run"
    )
    # No number of a comparison that was made before: a skipped case was not judged.
    assert found.metrics == {NEEDS: "operators.sin[float32-inference]"}


def test_a_call_that_is_denied_is_denied_to_the_case() -> None:
    denied = lacks(Cell("operators.sin", "float32", "inference"), "no circuit for it")

    found = _verdict(_sine_of_a_sum, _claims("add", denied=denied), "sin")

    assert (found.outcome, found.reason) == (Outcome.SKIP, Reason.UNSUPPORTED)
    assert "operators.sin[float32-inference] is declared unsupported: no circuit for it; the case calls it" in (
        found.message
    )


def test_strictness_certify_asks_for_the_declaration_of_what_a_case_calls() -> None:
    found = _verdict(_sine_of_a_sum, _claims("add"), "sin", strictness=Strictness.CERTIFY)

    assert (found.outcome, found.reason) == (Outcome.FAIL, Reason.UNDECLARED)


def test_a_call_that_is_claimed_fails_the_case_and_is_named() -> None:
    found = _verdict(_sine_of_a_sum, _claims("add", "sin"), "sin")

    assert found.outcome is Outcome.FAIL
    assert found.metrics[REFUSING] == "operators.sin"
    assert found.message.endswith("it is raised by a call of operators.sin")


def test_only_the_call_that_ends_the_body_counts() -> None:
    def body(device: torch.device) -> None:
        with pytest.raises(NotImplementedError):
            torch.sin(torch.ones(3).to(device))
        raise RuntimeError("something else")

    found = _verdict(body, _claims("add"), "sin")

    assert (found.outcome, found.message) == (Outcome.FAIL, "something else")


def test_a_case_about_the_operator_is_judged_as_it_was() -> None:
    case = Case(id="runtime.sines", area="runtime", requires=(Cell("operators.sin", "float32", "inference"),))

    found = _verdict(_sine_of_a_sum, _claims("add"), "sin", case)

    assert found.outcome is Outcome.FAIL
    assert REFUSING not in found.metrics


def test_a_derivative_that_is_not_claimed_leaves_the_case_unjudged() -> None:
    def body(device: torch.device) -> None:
        torch.ones(3).to(device).requires_grad_().sigmoid().sum().backward()

    inference = _verdict(body, _claims("sigmoid", "sum"), "sigmoid_backward.grad_input")
    both = _verdict(body, _claims("sigmoid", "sum", mode=Mode.TRAINING), "sigmoid_backward.grad_input")

    assert (inference.outcome, inference.reason) == (Outcome.SKIP, Reason.UNDECLARED)
    assert "operators.sigmoid[float32-training]" in inference.message
    assert both.outcome is Outcome.FAIL


def test_the_core_of_a_device_is_never_excused_but_named() -> None:
    def body(device: torch.device) -> object:
        return torch.ones(3).to(device).clone()

    found = _verdict(body, _claims(), "clone")

    assert found.outcome is Outcome.FAIL
    assert found.message.endswith("it is raised by a call of clone()")
    # It may be what the case is about.
    assert REFUSING not in found.metrics


def test_operators_of_one_name_are_told_apart_by_what_they_are_given() -> None:
    """A largest element of rows is not the larger of two tensors, which the device claims."""

    def body(device: torch.device) -> object:
        return torch.ones(2, 3).to(device).max(1)

    found = _verdict(body, _claims("max.binary"), "max.dim")

    assert found.metrics == {NEEDS: "operators.max.reduction_with_dim[float32-inference]"}


def test_a_call_that_no_operator_has_is_named() -> None:
    def body(device: torch.device) -> object:
        return torch.ones(3).to(device).set_()

    assert _verdict(body, _claims(), "set_").message.endswith("it is raised by a call of set_()")


def test_an_operator_is_not_blamed_for_a_copy_of_its_result() -> None:
    """The claim of the operator stays: a report names what refused in its place."""
    case = Case(id="operators.sin", area="operators", requires=(Cell("operators.sin", "float32", "inference"),))

    found = _verdict(lambda device: torch.sin(torch.ones(3).to(device)).clone(), _claims("sin"), "clone", case)

    assert (found.outcome, found.metrics[REFUSING]) == (Outcome.FAIL, "clone")
    own = replace(case, requires=(Cell("operators.clone", "float32", "inference"),))
    assert (
        REFUSING
        not in _verdict(lambda device: torch.ones(3).to(device).clone(), _claims("clone"), "clone", own).metrics
    )


def test_a_kernel_behind_a_module_is_named_by_the_dispatcher() -> None:
    found = _verdict(lambda device: torch.nn.Linear(3, 3, device=device), _claims("add"), "uniform_")

    assert "operators.uniform[float32-" in found.message


def test_a_body_that_ends_otherwise_the_second_time_has_no_call() -> None:
    assert refusing_calls(lambda: torch.ones(3).sin()) == []


def _wrong_verdict(declaration: Declaration, case: Case = CASE) -> Verdict:
    """Return the verdict of a case that adds up a sine, on a device whose sine is wrong."""

    def double(call: Any) -> Any:
        return call.run() * 2

    with overridden({"aten::sin": double}, "PrivateUse1"):
        device = bench.Bench().device

        def body() -> None:
            found = (torch.arange(5.0).to(device) + 1).sin().sum().cpu()
            assert found < 0.2, f"{found} is not less than 0.2"

        try:
            body()
        except AssertionError as error:
            first = failed(Reason.WRONG, str(error))
            return attributed(first, observe(error), case, declaration, Strictness.CI, body, device)
    raise AssertionError("the body has passed")


def test_a_wrong_result_of_what_is_not_claimed_leaves_the_case_unjudged() -> None:
    found = _wrong_verdict(_claims("add", "sum"))

    assert (found.outcome, found.reason) == (Outcome.SKIP, Reason.UNDECLARED)
    assert "operators.sin[float32-inference] is not declared; the case calls it, and its own result is wrong: " in (
        found.message
    )
    assert found.metrics == {NEEDS: "operators.sin[float32-inference]"}


@pytest.mark.parametrize(
    ("declaration", "case"),
    [(_claims("add", "sum", "sin"), CASE), (_claims("add", "sum"), replace(CASE, level=Level.CORE))],
    ids=["claimed", "core"],
)
def test_a_wrong_result_names_the_first_call_that_makes_it(declaration: Declaration, case: Case) -> None:
    found = _wrong_verdict(declaration, case)

    assert found.outcome is Outcome.FAIL
    assert found.message.endswith("the first call whose own result is wrong: sin()")


@pytest.mark.parametrize(
    ("declared", "end"),
    [
        (_claims("nn.functional.linear", "sigmoid", "tanh"), Outcome.SKIP),
        (declaration_of({Cell("operators.*", "float32", "inference")}), Outcome.FAIL),
    ],
    ids=["by names", "all"],
)
def test_a_kernel_that_pytorch_calls_by_itself_is_promised_by_all_operators_alone(
    declared: Declaration, end: Outcome
) -> None:
    """PyTorch has a kernel of its own for a recurrent cell on other devices than the CPU."""

    def body(device: torch.device) -> object:
        return torch.ops.aten._thnn_fused_lstm_cell(
            *(torch.ones(1, 4, device=device),) * 2, torch.ones(1, 1, device=device)
        )

    found = _verdict(body, declared, "_thnn_fused_lstm_cell")

    assert found.outcome is end
    assert "_thnn_fused_lstm_cell" in found.message
