"""Who computes: the vendor, what is compiled here, or the reference; and that it is told."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.accelerators.backends.cpu import CPU
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.base.errors import SetupError, UsageError
from conformance.kernels import adapting, native
from conformance.kernels.builders import find_builder
from conformance.kernels.implementation import Implementation, choice_behind
from conformance.kernels.kernel import Kernel
from conformance.kernels.optimizers import compiled
from conformance.kernels.specification import Native
from conformance.kernels.specifications import specification
from conformance.kernels.vendors import VendorLibrary, VendorOperator, hpu, library_of, mlu, sdaa

from .test_specifications import ADAM, _accepted, _made

ASKED: list[str] = []


def _asked(*arguments: Any) -> None:
    ASKED.append("vendor")
    fused(*arguments)


def _stub(*arguments: Any) -> None:
    raise NotImplementedError("multi_tensor_adam is not implemented on cpu")


fused = specification("multi_tensor_adam").reference
assert fused is not None
VENDOR = VendorLibrary(
    "cpu", "acme_kernels", {"FusedAdamBuilder": {"multi_tensor_adam": VendorOperator("acme_kernels.adam")}}
)


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kernel]]:
    """A vendor's package with one operator, or with none."""
    library_of.cache_clear()

    def make(operator: Any) -> Kernel:
        module = ModuleType("acme_kernels")
        vars(module).update(LIBRARY=VENDOR, **({} if operator is None else {"adam": operator}))
        monkeypatch.setitem(sys.modules, "acme_kernels", module)
        return Kernel(ADAM, library="acme_kernels:LIBRARY")

    yield make
    library_of.cache_clear()


def _call(kernel: Any, dtype: str = "float32") -> bool:
    return _accepted(ADAM, ADAM.samples[0], dtype, kernel)


def test_the_vendor_comes_first(vendor: Callable[..., Kernel]) -> None:
    ASKED.clear()
    kernel = vendor(_asked)

    assert _call(kernel)
    assert ASKED == ["vendor"]
    assert kernel.used is not None
    assert (kernel.used.implementation, kernel.used.reason) == (Implementation.VENDOR, "acme_kernels.adam")


def test_an_operator_that_is_not_registered_is_passed_over(vendor: Callable[..., Kernel]) -> None:
    kernel = vendor(None)

    assert _call(kernel)
    assert kernel.used is not None
    assert kernel.used.implementation is Implementation.NATIVE
    assert "acme_kernels.adam is not registered" in kernel.used.reason


def test_an_operator_that_refuses_is_passed_over_for_that_call(vendor: Callable[..., Kernel]) -> None:
    kernel = vendor(_stub)

    assert _call(kernel)
    assert kernel.used is not None
    assert kernel.used.implementation is Implementation.NATIVE
    assert "acme_kernels.adam refuses: multi_tensor_adam is not implemented on cpu" in kernel.used.reason
    assert kernel.choice("cpu", "float32").implementation is Implementation.VENDOR


def test_a_package_that_is_missing_is_something_lacking_here() -> None:
    missing = VendorLibrary("cpu", "no_such_package_here", VENDOR.builders)

    with pytest.raises(SetupError, match="no_such_package_here"):
        missing.operator("FusedAdamBuilder", "multi_tensor_adam")


def test_a_declaration_names_its_own_library(vendor: Callable[..., Kernel]) -> None:
    vendor(_asked)
    acme = TorchAccelerator(name="cpu", vendor="Acme", kernel_library="acme_kernels:LIBRARY")

    builder = acme.create_op_builder("FusedAdamBuilder")

    assert "multi_tensor_adam: vendor, acme_kernels.adam" in builder.describe()
    assert type(builder) is acme.get_op_builder("FusedAdamBuilder")
    assert builder.load() is acme.create_op_builder("FusedAdamBuilder").load()


@pytest.mark.parametrize("named", ["acme_kernels", "acme_kernels:adam", "acme_kernels:NOTHING"])
def test_what_is_no_library_is_an_error(vendor: Callable[..., Kernel], named: str) -> None:
    vendor(_asked)

    with pytest.raises(UsageError, match="names no VendorLibrary"):
        library_of("cpu", named)


def test_without_a_compiler_the_reference_computes_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.shared_object.cache_clear()
    compiled.library.cache_clear()
    try:
        chosen = Kernel(ADAM).choice("cpu", "float32")
    finally:
        native.shared_object.cache_clear()
        compiled.library.cache_clear()

    assert chosen.implementation is Implementation.REFERENCE
    assert "CXX names no-such-compiler, which is not installed here" in chosen.reason
    assert chosen.lacks


def test_a_changed_shared_header_makes_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "SHARED", tmp_path)
    (tmp_path / "own").mkdir()
    source = tmp_path / "own" / "answer.cpp"
    source.write_text(
        '#include "number.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return N; }'
    )

    answers = []
    for number in (6, 7, 7):
        (tmp_path / "number.h").write_text(f"#define N {number}")
        answers.append(native.shared_object.__wrapped__(source, "it", "nothing does").answer())

    assert answers == [6, 7, 7]
    assert len(list((tmp_path / "cache").rglob("answer.so"))) == 2


def test_a_dtype_that_is_not_compiled_is_the_references() -> None:
    kernel = Kernel(ADAM)

    assert kernel.choice("cpu", "float32").implementation is Implementation.NATIVE
    assert kernel.choice("cpu", "float64").implementation is Implementation.REFERENCE
    assert kernel.choice("meta", "float32").implementation is Implementation.REFERENCE


def test_a_kernel_without_any_implementation_has_a_builder_that_says_no() -> None:
    def fails() -> Any:
        raise SetupError("no compiler")

    alone = dataclasses.replace(
        ADAM, reference=None, companions={ADAM.name: fused}, native=(Native(fails, "compiled"),)
    )

    with pytest.raises(NotImplementedError, match="multi_tensor_adam has no implementation for cpu: no compiler"):
        Kernel(alone).choice("cpu")


def test_is_compatible_says_what_it_would_load(capsys: pytest.CaptureFixture[str]) -> None:
    builder = CPU.create_op_builder("FusedAdamBuilder")

    assert builder.is_compatible(verbose=True) is True
    assert "FusedAdamBuilder: multi_tensor_adam: native, C++ compiled for this CPU" in capsys.readouterr().out


def test_anybody_elses_function_counts_as_a_vendors() -> None:
    assert choice_behind(_stub).implementation is Implementation.VENDOR
    assert __name__ in choice_behind(_stub).reason


def test_a_builder_speaks_for_its_device_and_is_found_by_its_name() -> None:
    kind = find_builder("CPUAdamBuilder", "sim")

    assert (kind.__name__, kind.NAME, kind.device_type) == ("CPUAdamBuilder", "cpu_adam", "sim")
    assert find_builder("FPQuantizerBuilder_", "sim").__name__ == "NotImplementedBuilder"


# --- tables of vendors: the operators as they are described, and the specification on top ----------------------------


def _hpu_adamw(
    grads: Any, params: Any, means: Any, squares: Any, size: Tensor, beta1: float, beta2: float, eps: float,
    kept: Any, *_: Any,
) -> None:  # fmt: skip
    """No bias correction, epsilon beside the uncorrected root, decay as a factor."""
    for g, p, m, v in zip(grads, params, means, squares, strict=True):
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p.mul_(kept).add_(size * m / (v.sqrt() + eps))


def _mlu_adam(noop_flag: Any, *rest: Any) -> None:
    fused(65536, noop_flag, rest[:4], *rest[4:])


def _sdaa_adam(
    g: Any, p: Any, m: Any, v: Any, maxima: Any, beta1: float, beta2: float, eps: float, lr: float, decay: float,
    mode: int, step: int, bias_correction: int,
) -> None:  # fmt: skip
    assert maxima == []
    fused(65536, torch.zeros(1), [g, p, m, v], lr, beta1, beta2, eps, step, mode, bias_correction, decay)


@pytest.mark.parametrize("lazy", [True, False])
def test_gaudis_table_corrects_what_the_operator_does_not(monkeypatch: pytest.MonkeyPatch, lazy: bool) -> None:
    internal = SimpleNamespace(is_lazy=lambda: lazy)
    for name in ("habana_frameworks", "habana_frameworks.torch", "habana_frameworks.torch.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "habana_frameworks.torch.utils.internal", internal)

    assert _failing(hpu.through_adamw(_hpu_adamw), "float32") == []


@pytest.mark.parametrize(
    "function",
    [
        mlu.without_chunks(_mlu_adam),
        sdaa.reordered(_sdaa_adam),
        adapting.lists_flattened(lambda chunk, flag, *rest: fused(chunk, flag, rest[:4], *rest[4:])),
    ],
    ids=["mlu", "sdaa", "supa"],
)
def test_tables_hand_over_everything(function: Callable[..., Any]) -> None:
    assert _failing(function, "float32") == []


def test_pytorchs_fused_adam_is_right_and_refuses_what_it_has_not() -> None:
    function = adapting.through_torchs_fused_adam(torch._fused_adam_)

    assert _failing(function, "float32") == ["adam-uncorrected", "adamw-uncorrected"]
    given = next(one for one in ADAM.samples if one.name == "adam-uncorrected")
    with pytest.raises(NotImplementedError, match="always corrects the bias"):
        function(*_made(ADAM, given, "float32").values())


#: One of each kind; sizes make no difference to who hands over arguments.
TELLING = {"mixed", "empty", "special", "overflow"} | {
    f"{word}-{what}" for word in ("adam", "adamw") for what in ("7", "first", "thousandth", "uncorrected")
}


def _failing(function: Callable[..., Any], dtype: str) -> list[str]:
    def asked(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except NotImplementedError:
            return None

    return [one.name for one in ADAM.samples if one.name in TELLING and not _accepted(ADAM, one, dtype, asked)]
