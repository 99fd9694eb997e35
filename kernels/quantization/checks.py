"""Argument checks of quantizers, made before anything is modified. They raise UsageError."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.kernels.arguments import check_choice, check_number, check_tensor, wrong
from conformance.kernels.specification import Arguments

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def check_positive(given: Arguments, *names: str) -> None:
    """Check that the arguments ``names`` are whole numbers of at least 1."""
    for name in names:
        if isinstance(given[name], bool) or not isinstance(given[name], int) or given[name] < 1:
            raise wrong(name, "a whole number from 1 on", repr(given[name]))


def check_groups(name: str, tensor: Tensor, groups: int, num_bits: int = 8, packed: bool = False) -> None:
    """Check that the tensor has equal groups, and that no byte of 4-bit numbers belongs to two of them."""
    numbers = tensor.numel() * (8 // num_bits if packed else 1)
    if numbers == 0 or numbers % groups:
        raise wrong(name, f"elements for {groups} equal groups", f"{numbers}")
    if num_bits < 8 and not packed and (numbers // groups) % (8 // num_bits):
        raise wrong(name, f"an even number of elements a group for {num_bits} bits", f"{numbers // groups}")


def check_stored(given: Arguments) -> None:
    """Check data, parameters, groups, bits and type as ``quantize`` returns or takes them."""
    data = check_tensor("data", given["data"], dtypes=(torch.int8, torch.uint8))
    check_type(given)
    check_positive(given, "groups")
    check_groups("data", data, given["groups"], given["num_bits"], packed=True)
    check_params(given["params"], given["groups"], given["quant_type"], data.device)


def check_type(given: Arguments) -> None:
    """Check that the numbers have 4 or 8 bits, and that the type is symmetric (0) or asymmetric (1)."""
    check_choice("num_bits", given["num_bits"], (4, 8))
    check_choice("quant_type", given["quant_type"], (0, 1))


def check_params(params: object, groups: int, quant_type: int, device: torch.device, name: str = "params") -> None:
    """Check that the parameters are float32, one row for each group: the step, and the offset of asymmetric types."""
    found = check_tensor(name, params, dtypes=(torch.float32,), device=device)
    if found.numel() != groups * (1 + int(quant_type)):
        raise wrong(name, f"{groups} rows of {1 + int(quant_type)} numbers", f"shape {tuple(found.shape)}")


def check_errors(given: Arguments, name: str, numbers: int, device: torch.device) -> None:
    """Check that the error feedback has an element for each number, and that its rate is from 0 to 1."""
    errors = check_tensor(name, given[name], dtypes=FLOATS, device=device)
    if errors.numel() != numbers:
        raise wrong(name, f"{numbers} elements", errors.numel())
    check_number("err_beta", given["err_beta"], at_least=0.0)
    if given["err_beta"] > 1:
        raise wrong("err_beta", "at most 1", given["err_beta"])


def check_divides(name: str, value: int, by: Sequence[str], given: Arguments) -> None:
    """Check that ``value`` is a multiple of the product of the arguments ``by``."""
    product = math.prod(given[factor] for factor in by)
    if value % product:
        raise wrong(name, f"a multiple of {' * '.join(by)} = {product}", value)
