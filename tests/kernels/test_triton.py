"""Triton kernels: who is offered them, what is told where they do not run, and their own tests where Triton is."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.capabilities import TRITON
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.kernels.builders import SpecifiedBuilder, find_builder
from conformance.kernels.implementation import Choice, Implementation
from conformance.kernels.optimizers import multi_tensor
from conformance.kernels.specification import KernelSpecification
from conformance.kernels.specifications import specifications
from conformance.kernels.triton import offering
from conformance.kernels.triton.launching import current
from conformance.process.python import child_pytest

KERNELS = [one for one in specifications() if any(native.needs for native in one.native)]
HERE = Path(__file__).parent
is_missing = importlib.util.find_spec("triton") is None


@pytest.fixture
def acme() -> Iterator[Callable[..., TorchAccelerator]]:
    """An accelerator on the host's tensors that declares Triton; ``there`` is what it says of its device."""
    offering.try_on.cache_clear()

    def make(there: bool = True) -> TorchAccelerator:
        class Acme(TorchAccelerator):
            def is_triton_supported(self) -> bool:
                return there

        return Acme(name="cpu", vendor="Acme", triton=True)

    yield make
    offering.try_on.cache_clear()


def _chosen(accelerator: TorchAccelerator, builder: str = "FusedLambBuilder", name: str = "lamb") -> Choice:
    loaded = accelerator.create_op_builder(builder)
    assert isinstance(loaded, SpecifiedBuilder)
    return loaded.choices()[name]


# --- who is offered them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", builtin_names())
def test_they_are_offered_by_what_is_declared(name: str) -> None:
    accelerator = builtin(name)

    declared = accelerator.get_op_builder("FusedLambBuilder").declared

    assert {(one.device_type, one.capability) for one in declared} == (
        {(accelerator.device_name(), TRITON.name)} if accelerator.triton else set()
    )


@pytest.mark.parametrize("device_type", ["cpu", "sim"])
def test_who_does_not_declare_triton_is_told_nothing_of_it(device_type: str) -> None:
    for kernel in KERNELS:
        said = find_builder(kernel.builder, device_type)().describe()
        assert "Triton" not in said


def test_tensors_of_another_device_are_not_its_business(acme: Callable[..., TorchAccelerator]) -> None:
    lamb = acme().create_op_builder("FusedLambBuilder").load().lamb

    assert lamb.choice("meta", "float32").reason == "PyTorch's operators"


# --- where they do not run --------------------------------------------------------------------------------------------


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("trial", "launching", "optimizers", "lamb", "norms", "quantizer"):
        monkeypatch.delitem(sys.modules, f"conformance.kernels.triton.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.mark.usefixtures("without_triton")
def test_without_triton_the_reference_computes_and_says_why(acme: Callable[..., TorchAccelerator]) -> None:
    chosen = _chosen(acme())

    assert chosen.implementation is Implementation.REFERENCE
    assert "Triton kernels need the package triton, which cannot be imported" in chosen.reason
    assert "the portable reference computes without it" in chosen.lacks


@pytest.mark.usefixtures("without_triton")
def test_what_else_is_compiled_comes_before_the_reference(acme: Callable[..., TorchAccelerator]) -> None:
    chosen = _chosen(acme(), "FusedAdamBuilder", "multi_tensor_adam")

    assert chosen.implementation is Implementation.NATIVE
    assert chosen.reason.startswith("C++ compiled for this CPU; Triton kernels need")


def test_a_device_without_what_is_declared_has_the_reference(
    acme: Callable[..., TorchAccelerator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "importlib", _Modules(lambda device_type: [1, 2, 3, 0]))

    chosen = _chosen(acme(there=False))

    assert chosen.implementation is Implementation.REFERENCE
    assert "triton is declared for cpu, not for this device" in chosen.reason


def _raises(device_type: str) -> list[int]:
    raise RuntimeError("0 active drivers ([]). There should only be one.\nmore")


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        (_raises, "Triton refuses a kernel of one block on cpu: 0 active drivers ([]). There should only be one.; "),
        (lambda device_type: [1, 2, 3, 4], "Triton's kernel of one block on cpu wrote [1, 2, 3, 4], not [1, 2, 3, 0]"),
    ],
    ids=["raises", "no-mask"],
)
def test_a_kernel_that_does_not_run_rightly_is_not_chosen(
    acme: Callable[..., TorchAccelerator], monkeypatch: pytest.MonkeyPatch, trial: Any, told: str
) -> None:
    monkeypatch.setattr(offering, "importlib", _Modules(trial))

    chosen = _chosen(acme())

    assert chosen.implementation is Implementation.REFERENCE
    assert told in chosen.lacks
    assert "\n" not in chosen.reason


def test_a_kernel_that_runs_is_chosen(acme: Callable[..., TorchAccelerator], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "importlib", _Modules(lambda device_type: [1, 2, 3, 0]))

    chosen = _chosen(acme())

    assert (chosen.implementation, chosen.reason) == (Implementation.NATIVE, offering.WHAT)


class _Modules:
    """Stands for Triton's modules: their trial answers as it is told."""

    def __init__(self, trial: Callable[[str], list[int]]) -> None:
        self.blocks_written = trial

    def import_module(self, name: str) -> Any:
        return self

    def lamb(self) -> None:
        """Never called."""


def test_a_launch_is_on_its_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    @contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    with current(torch.ones(1)):
        pass
    assert entered == []

    monkeypatch.setattr(torch.cpu, "device", guard, raising=False)
    with current(torch.ones(1)):
        assert entered == [torch.device("cpu")]


# --- the kernels themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda one: one.name)
def test_each_has_its_specifications_signature(kernel: KernelSpecification) -> None:
    """Read from the source: it needs no Triton."""
    native = next(one for one in kernel.native if one.needs is not None)
    family, name = native.load.args  # type: ignore[attr-defined]
    tree = ast.parse((Path(inspect.getfile(offering)).parent / f"{family}.py").read_text(encoding="utf-8"))

    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)

    assert _parameters(function) == list(kernel.signature.parameters)


def _parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of the parameters; a decorator of ``multi_tensor`` puts its own in the function's place."""
    for decorator in function.decorator_list:
        assert isinstance(decorator, ast.Name)
        adopt = getattr(multi_tensor, decorator.id)
        return list(inspect.signature(adopt(lambda *arguments: None)).parameters)
    return [parameter.arg for parameter in function.args.args]


@pytest.mark.skipif(is_missing, reason="the package triton is not installed: tox run -e instrument -- triton")
@pytest.mark.parametrize(("file", "interpreted"), [("on_triton.py", "1"), ("for_targets.py", "0")])
def test_their_own_tests_pass(file: str, interpreted: str, tmp_path: Path) -> None:
    """In a process each: Triton decides when a kernel is defined whether it is interpreted or compiled."""
    command = child_pytest("-n0", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(HERE / file))
    environment = {**os.environ, "TRITON_INTERPRET": interpreted, "TRITON_CACHE_DIR": str(tmp_path / "triton")}

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
