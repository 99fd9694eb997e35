"""Injected kernels: who computes is told, and an error that is one reaches the caller."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conformance.base.errors import UnknownName, UsageError
from conformance.kernels.implementation import Implementation
from conformance.kernels.inference.workspace import WORKSPACE
from conformance.kernels.injection import InjectedLinear, Injector, inject
from conformance.kernels.specifications import specification

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
X, ONES = torch.tensor([[[1.0, 3.0]]]), torch.ones(2)


def accelerator(**functions: object) -> SimpleNamespace:
    """Its one builder loads these."""
    builder = SimpleNamespace(load=lambda: SimpleNamespace(**functions))
    return SimpleNamespace(create_op_builder=lambda name: builder)


def raising(error: Exception):
    def kernel(*arguments: object) -> None:
        raise error

    return kernel


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("not for this shape"),
        RuntimeError("torch.ops.deepspeed.rms_norm is not available. Ensure that it is built."),
        AttributeError("'_OpNamespace' 'deepspeed' object has no attribute 'rms_norm'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_kernel_that_is_not_there_is_passed_over_and_told(error):
    injector = Injector(accelerator(rms_norm=raising(error)))

    found = injector.kernel("rms_norm")(X, ONES, 0.0)

    assert found.flatten().tolist() == pytest.approx([1 / 5**0.5, 3 / 5**0.5])
    (row,) = injector.told()
    assert (row.kernel, row.dtype, row.implementation) == ("rms_norm", "float32", Implementation.REFERENCE)
    assert str(error)[:20] in row.reason


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), AttributeError("no attribute 'shape'")])
def test_other_errors_are_the_callers(error):
    injector = Injector(accelerator(rms_norm=raising(error)))

    with pytest.raises(type(error), match=str(error)):
        injector.kernel("rms_norm")(X, ONES, 0.0)
    assert injector.told() == []


def test_the_portable_kernel_checks_its_arguments():
    injector = Injector(accelerator())

    with pytest.raises(UsageError, match="argument gamma: expected shape"):
        injector.kernel("rms_norm")(X, torch.ones(3), 0.0)


def test_an_unknown_kernel_is_told_with_what_is_like_it():
    with pytest.raises(UnknownName, match="rms_norm"):
        Injector(accelerator()).kernel("rms_nrm")


def test_what_an_accelerator_has_is_called_and_told():
    injector = Injector(accelerator(rms_norm=lambda source, gamma, epsilon: source * 2))

    assert injector.kernel("rms_norm")(X, ONES, 0.0).tolist() == [[[2.0, 6.0]]]
    assert [row.implementation for row in injector.told()] == [Implementation.VENDOR]


def test_a_workspace_is_allocated_on_both_sides():
    calls: list[tuple[object, ...]] = []
    functions = {"softmax_context_fp32": print, "allocate_workspace_fp32": lambda *sizes: calls.append(sizes)}
    sizes = (32, 4, 1, 1, 1, 1, False, 0, 4, 1)

    Injector(accelerator(**functions)).companion("softmax_context", "allocate_workspace_fp32")(*sizes)
    assert calls == [sizes]
    assert WORKSPACE.size is not None
    assert WORKSPACE.size.heads == 4
    own = specification("softmax_context").companions["release_workspace"]
    assert Injector(accelerator()).companion("softmax_context", "release_workspace") is own
    own()


def test_modules_are_replaced_by_exact_type_and_put_back():
    class Special(nn.Linear):
        """Whoever made it wanted something else."""

    model = nn.Sequential(nn.Linear(4, 4), Special(4, 4), nn.LayerNorm(4, elementwise_affine=False), nn.RMSNorm(4))
    originals = list(model)
    expected = model(torch.ones(2, 4))

    injection = inject(model, accelerator())

    assert [index for index, module in enumerate(model) if module is not originals[index]] == [0, 3]
    assert isinstance(model[0], InjectedLinear)
    torch.testing.assert_close(model(torch.ones(2, 4)), expected)
    assert {row.kernel for row in injection.told()} == {"linear_layer", "rms_norm"}
    injection.restore()
    assert list(model) == originals


def test_the_example_of_the_page_works(capsys):
    examples = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    (example,) = [block.split("```")[0] for block in examples if "injection.told()" in block.split("```")[0]]

    exec(compile(example, "docs/kernels.md", "exec"), {})

    told = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in told] == [
        ["layer_norm", "float32", "reference"],
        ["linear_layer", "float32", "reference"],
    ]
