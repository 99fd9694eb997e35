"""Cases of adapted models: adapters, narrow weights, and gradients of inputs."""

from __future__ import annotations

from conformance.accelerators.capabilities import DTYPE
from conformance.plan.case import cases

from . import adapted, narrow_products
from .families import families
from .loop import RunDevice
from .planned import planned_families


def _of(*names):
    return lambda family: family.name in names


def _family(case):
    return families()[case.id.split(".")[1]]


@cases(planned_families("adapter", "training", dtypes=["float32"], having=_of("llama", "qwen3", "gemma")))
def test_adapter(accelerator, device, case, check):
    """A low-rank adapter trains alone, and the merged model gives the same logits."""
    adapted.check_adapter(check, _family(case), RunDevice(device, accelerator))


@cases(planned_families("input_gradient", "training", dtypes=["float32"], having=_of("llama", "bert", "gpt2", "bloom")))
def test_input_gradient(accelerator, device, case, check):
    """The gradient of embedded inputs is that of float64 on the host."""
    adapted.check_input_gradient(check, _family(case), RunDevice(device, accelerator))


@cases(planned_families("int8_weights", "inference", dtypes=["float32"], having=_of("llama", "qwen3")))
def test_int8_weights(accelerator, device, case, check):
    """Weights of eight bits are within half a step, and give the logits of the same weights on the host."""
    adapted.check_narrow_weights(check, _family(case), RunDevice(device, accelerator), "int8")


@cases(planned_families("int4_weights", "inference", dtypes=["float32"], having=_of("llama", "qwen3")))
def test_int4_weights(accelerator, device, case, check):
    """Weights of four bits are within half a step, and give the logits of the same weights on the host."""
    adapted.check_narrow_weights(check, _family(case), RunDevice(device, accelerator), "int4")


@cases(
    planned_families(
        "fp8_weights", "inference", DTYPE.on("float8_e4m3fn"), dtypes=["float32"], having=_of("llama", "qwen3")
    )
)
def test_fp8_weights(accelerator, device, case, check):
    """Weights of float8 are within half a step, and give the logits of the same weights on the host."""
    adapted.check_narrow_weights(check, _family(case), RunDevice(device, accelerator), "fp8")


@cases(
    planned_families(
        "fp8_linear", "training", DTYPE.on("float8_e4m3fn"), DTYPE.on("float8_e5m2"),
        dtypes=["float32"], having=_of("llama", "qwen3"),
    )
)  # fmt: skip
def test_fp8_linear(accelerator, device, case, check):
    """Linear layers with operands of float8 compute the products of these operands, forward and backward."""
    narrow_products.check_float8_training(check, _family(case), RunDevice(device, accelerator))
