"""A right device with CUDA's habits is accused of nothing: the cases that the habits concern, in a run of their own.

`tox run -e instrument -- like-cuda` runs all areas.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.layers import longer
from tests.like_cuda.habits import HABITS
from tests.rows import every_row

from .running import DATABASE, Run, run

LIKE_CUDA = "tests.like_cuda.accelerator:LIKE_CUDA"
#: One cell for each kind of habit; and before and after it, cases that need a working device.
CELLS = (
    "sort[int8-inference]", "sort[bfloat16-training]", "argsort[bool-inference]", "topk[uint8-inference]",
    "kthvalue[int16-inference]", "median[float32-inference]", "mode[float32-inference]", "msort[float16-training]",
    "unique[int8-inference]", "frexp[float32-inference]", "native_layer_norm[bfloat16-training]",
    "native_batch_norm[float32-inference]", "native_batch_norm[float16-training]",
    "native_group_norm[float32-inference]",
    "mm[float32-training]", "mm[int8-inference]", "bmm[bfloat16-inference]", "igamma[float16-inference]",
    "exp[float64-inference]", "special.ndtr[int8-inference]", "nn.functional.tanhshrink[float64-inference]",
    "corrcoef[float32-training]", "logcumsumexp[float64-training]", "nn.functional.rms_norm[float32-training]",
    "maximum[float32-inference]", "addcmul[float32-inference]", "lerp[float32-inference]",
    "fft.fft2[complex64-inference]", "linalg.inv[float32-inference]", "multinomial[error-inputs]",
    "dot[float32-training]", "inner[float32-training]", "linalg.vector_norm[float32-training]",
)  # fmt: skip
#: Cells of the habits that take least time, and those that have to be confirmed.
FEW = ("topk[uint8-inference]", "mm[int8-inference]", "igamma[float16-inference]", "lerp[float32-inference]")
ASSERTS = ("gather[error-inputs]", "scatter[error-inputs]", "scatter_add[error-inputs]")


@pytest.fixture(scope="module", params=longer(["few", "all"]))
def cells(request: pytest.FixtureRequest) -> tuple[str, ...]:
    # After an assertion the run goes on in another process, which takes seconds to load what operators need.
    return (*ASSERTS[:1], *FEW) if request.param == "few" else (*ASSERTS, *CELLS)


@pytest.fixture(scope="module")
def finished(cells: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    cases = [f"--case=operators.{cell}" for cell in cells]
    folder: Path = tmp_path_factory.mktemp("like_cuda")
    # Link only the tests into the path: the folder conformance/ beside them is not the installed package.
    (folder / "tests").symlink_to(Path(__file__).parents[1])
    words = [f"--accelerator={LIKE_CUDA}", "-n1", *cases]
    return run(*words, cwd=folder, name="like-cuda", imported=DATABASE, PYTHONPATH=str(folder))


def test_no_cell_is_accused(cells: tuple[str, ...], finished: Run) -> None:
    failures = {case: finished.messages[case] for case, verdict in finished.verdicts.items() if verdict[0] == "fail"}

    assert failures == {}
    assert len(finished.verdicts) == len(cells), finished.output


def test_an_assertion_in_a_kernel_is_a_refusal(cells: tuple[str, ...], finished: Run) -> None:
    asserting = [case for case in finished.report.cases if case.id.removeprefix("operators.") in ASSERTS]

    assert len(asserting) == len(set(cells) & set(ASSERTS)) >= 1
    for case in asserting:
        assert (case.outcome.value, case.reason.value) == ("pass", "native"), case
        assert "error input" in case.metrics["context_ended_by"], case


def test_what_is_not_computed_is_confirmed(finished: Run) -> None:
    for cell in ("mm[int8-inference]", "igamma[float16-inference]"):
        assert finished.verdicts[f"operators.{cell}"] == ("skip", "unsupported")
        assert "confirmed" in finished.messages[f"operators.{cell}"]


@every_row(sorted(HABITS))
def test_every_habit_is_of_an_operator(name: str) -> None:
    assert torch._C._jit_get_schemas_for_operator(f"aten::{name}")
