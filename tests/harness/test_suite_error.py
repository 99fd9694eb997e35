"""Tests of whose an exception is: the suite's, the case's, or that of torch or a vendor's package."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from conformance.judging.observation import Seen, observe
from conformance.numerics.compare import plain, same_bits
from tests.acceptance.running import run

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("run")
    shutil.copy(HERE / "suite_error_cases.py", folder / "test_origin.py")
    return run("--accelerator=cpu", "test_origin.py", "-n0", cwd=folder)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("suite", "suite-error"),
        ("rank[2]", "suite-error"),
        ("torch", "raised"),
        ("comparison", "wrong"),
        ("device", "raised"),
        ("answer", "raised"),
        ("right", "native"),
    ],
)
def test_the_reason_says_whose_the_exception_is(finished, case: str, reason: str) -> None:
    found = {id.removeprefix("origin."): verdict for id, verdict in finished.verdicts.items()}

    assert (found.get(case) or found[case.partition("[")[0]])[1] == reason, finished.output


def test_a_run_with_an_error_of_the_suite_ends_with_status_3(finished) -> None:
    assert finished.status == 3
    assert "compare.py" in finished.messages["origin.suite"]


def test_an_error_of_the_suite_does_not_count_as_claimed(finished) -> None:
    report = finished.report

    assert report.counts.failed == 6
    assert report.counts.claimed == 5  # four failures of the device, and a pass


def vendor(source: str) -> dict[str, Callable[..., object]]:
    """The functions of a vendor's module."""
    module = ModuleType("torch_acme.kernels")
    exec(compile(source, "/opt/acme/torch_acme/kernels.py", "exec"), module.__dict__)
    return vars(module)


def seen_of(body: Callable[[], object]) -> Seen:
    with pytest.raises(Exception) as caught:
        body()
    return observe(caught.value).seen


def test_a_vendors_assertion_is_an_exception_and_not_a_wrong_result() -> None:
    launch = vendor("def launch():\n    assert 1 == 2, 'no such kernel'")["launch"]

    assert seen_of(launch) is Seen.RAISED


def test_a_vendors_exception_below_the_suites_machinery_is_the_vendors() -> None:
    functions = vendor(
        "import torch\n"
        "class Tensor(torch.Tensor):\n"
        "    @classmethod\n"
        "    def __torch_function__(cls, function, types, args=(), kwargs=None):\n"
        "        raise NotImplementedError('detach')\n"
    )
    tensor = torch.ones(2).as_subclass(functions["Tensor"])

    assert seen_of(lambda: plain(tensor)) is Seen.NOT_IMPLEMENTED


def test_a_check_of_the_case_is_wrong_and_its_helper_may_be_another_file() -> None:
    def body() -> None:
        assert same_bits(torch.ones(2), torch.zeros(2)), "other bits"

    assert seen_of(body) is Seen.WRONG
    with pytest.raises(AssertionError) as caught:
        torch.testing.assert_close(1, 2)
    assert observe(caught.value).seen is Seen.WRONG


def test_an_undefined_name_is_the_suites() -> None:
    assert seen_of(lambda: undefined) is Seen.SUITE_ERROR  # type: ignore[name-defined] # noqa: F821


def test_what_the_comparison_cannot_do_is_the_suites() -> None:
    assert seen_of(lambda: same_bits(torch.ones(2), None)) is Seen.SUITE_ERROR  # type: ignore[arg-type]
    assert seen_of(lambda: plain(None)) is Seen.RAISED  # type: ignore[arg-type]
