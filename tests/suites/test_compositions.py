"""A device may compose an operator as PyTorch documents it, and round the result of each step to the dtype."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import call
from tests.layers import longer

from .test_operators_detect import run

Given = dict[str, Any]


def _bias_after(function: Any, dims: int) -> Callable[[Given], torch.Tensor]:
    """Compute without the bias, and add it to the rounded result."""

    def composed(given: Given) -> torch.Tensor:
        bias, rest = given.pop("bias", None), {name: value for name, value in given.items() if name != "bias"}
        result = function(**rest)
        return result if bias is None else result + bias.reshape(-1, *(1,) * dims)

    return composed


def _linear(given: Given) -> torch.Tensor:
    product, bias = torch.matmul(given["input"], given["weight"].t()), given.get("bias")
    return product if bias is None else product + bias


def _bilinear(given: Given) -> torch.Tensor:
    first, second, weight = given["input1"], given["input2"], given["weight"]
    turned = torch.einsum("...i,oij->...oj", first, weight)
    product, bias = (turned * second.unsqueeze(-2)).sum(-1), given.get("bias")
    return product if bias is None else product + bias


def _added(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def composed(added: torch.Tensor, *args: Any, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        multiplied = product(*args)
        scaled = multiplied if alpha == 1 else multiplied * alpha
        return scaled if beta == 0 else (added if beta == 1 else added * beta) + scaled

    return composed


def _log_softmax(given: Given) -> torch.Tensor:
    dim, x = given.get("dim", -1), given["input"]
    if given.get("dtype") is not None:
        x = x.to(given["dtype"])
    moved = x - x.detach().amax(dim, keepdim=True)
    return moved - moved.exp().sum(dim, keepdim=True).log()


def _affine_after(function: Any, dims: Callable[[Given], int]) -> Callable[[Given], torch.Tensor]:
    """Normalise, round, multiply by the weight, round, and add the bias."""

    def composed(given: Given) -> torch.Tensor:
        weight, bias = given.pop("weight", None), given.pop("bias", None)
        result, rest = function(**given), dims(given)
        if weight is not None:
            result = result * weight.reshape(*weight.shape, *(1,) * rest)
        return result if bias is None else result + bias.reshape(*bias.shape, *(1,) * rest)

    return composed


def _of_products(given: Given) -> torch.Tensor:
    return given["input"] + given.get("value", 1) * given["tensor1"] * given["tensor2"]


def _of_quotients(given: Given) -> torch.Tensor:
    return given["input"] + given.get("value", 1) * (given["tensor1"] / given["tensor2"])


def _images(given: Given) -> int:
    return int(given["input"].dim() - 2)


#: By function, what composes it from its arguments by name.
BY_NAME: dict[Any, Callable[[Given], torch.Tensor]] = {
    functional.linear: _linear,
    functional.bilinear: _bilinear,
    torch.log_softmax: _log_softmax,
    functional.layer_norm: _affine_after(functional.layer_norm, lambda given: 0),
    functional.rms_norm: _affine_after(functional.rms_norm, lambda given: 0),
    functional.group_norm: _affine_after(functional.group_norm, _images),
    functional.batch_norm: _affine_after(functional.batch_norm, _images),
    torch.addcmul: _of_products,
    torch.addcdiv: _of_quotients,
}
for _dims in (1, 2, 3):
    for _kind in ("conv", "conv_transpose"):
        _function = getattr(functional, f"{_kind}{_dims}d")
        BY_NAME[_function] = _bias_after(_function, _dims)
#: By function, what composes it from its arguments in order.
IN_ORDER: dict[Any, Callable[..., torch.Tensor]] = {
    torch.addmm: _added(torch.mm),
    torch.baddbmm: _added(torch.bmm),
    torch.addbmm: _added(lambda left, right: torch.bmm(left, right).sum(0)),
    torch.addmv: _added(torch.mv),
    torch.addr: _added(torch.outer),
}
NAMES = {
    torch.log_softmax: ("input", "dim", "dtype"),
    functional.linear: ("input", "weight", "bias"),
    functional.bilinear: ("input1", "input2", "weight", "bias"),
    torch.addcmul: ("input", "tensor1", "tensor2"),
    torch.addcdiv: ("input", "tensor1", "tensor2"),
}
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding")
_TURNED = (*_CONVOLUTION, "output_padding", "groups", "dilation")


def _named(function: Any, sample: Call) -> Given:
    name = getattr(function, "__name__", "")
    if function in NAMES:
        names: tuple[str, ...] = NAMES[function]
    elif name.startswith("conv_transpose"):
        names = _TURNED
    elif name.startswith("conv"):
        names = (*_CONVOLUTION, "dilation", "groups")
    else:
        names = tuple(inspect.signature(function).parameters)
    return {**dict(zip(names, (sample.input, *sample.args), strict=False)), **sample.kwargs}


def composes(function: Any, sample: Call, **extra: Any) -> Any:
    """Compute the plain call and ``out=`` by steps."""
    key = _FUNCTIONS.get(id(function))
    if key is None or not all(tensor.numel() for tensor in sample.tensors):
        return call(function, sample, **extra)
    # A function may write its arguments, such as running means.
    usual = call(function, sample if extra else sample.on(HOST), **extra)
    if key in IN_ORDER:
        result = IN_ORDER[key](sample.input, *sample.args, **sample.kwargs)
    else:
        result = BY_NAME[key](_named(key, sample))
    place = usual if "out" in extra else torch.empty_strided(usual.shape, usual.stride(), dtype=usual.dtype)
    return place.copy_(result)


_FUNCTIONS = {id(function): function for function in (*BY_NAME, *IN_ORDER)}
OPERATORS = (
    *(f"nn.functional.{kind}{dims}d" for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)),
    *("nn.functional.linear", "nn.functional.bilinear", "addmm", "baddbmm", "addbmm", "addmv", "addr", "log_softmax"),
    *("nn.functional.layer_norm", "nn.functional.rms_norm", "nn.functional.group_norm", "nn.functional.batch_norm"),
    *("addcmul", "addcdiv"),
)


@pytest.mark.parametrize("name", longer(OPERATORS, "nn.functional.conv2d", "log_softmax"))
@pytest.mark.parametrize("cell", ["bfloat16-inference", "float16-inference", "bfloat16-training"])
def test_each_step_may_be_rounded(name: str, cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", composes)

    assert run(f"operators.{name}[{cell}]").count > 10
