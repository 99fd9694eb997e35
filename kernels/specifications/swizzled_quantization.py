"""Quantized gradient communication: reordering with quantization, and reduction, with and without error feedback.

Sources: ZeRO++ (Wang et al., 2023, arXiv:2306.10209, section 4.3) and LoCo (Xie et al., 2024, arXiv:2407.04480) as
DeepSpeed implements them (csrc/quantization). Implementations in use disagree on some points. This specification
decides:

- Sums and errors are computed in float32. The kernels in use add in float16, which overflows at 65504 and loses the
  small errors that the feedback has to keep.
- The error feedback has the order of the result, after the reordering, so that it never moves between steps.
- LoCo reorders as ``swizzle_quant`` does, for every ``pipeline_size``. The kernel in use leaves slices inside their
  part. With more than one slice its parts would not be the ones that are sent together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor
from conformance.kernels.quantization import exact
from conformance.kernels.quantization.checks import (
    FLOATS,
    check_divides,
    check_errors,
    check_groups,
    check_params,
    check_positive,
    check_type,
)
from conformance.kernels.quantization.groups import (
    QuantizationType,
    Quantized,
    decoded,
    grouped,
    loaded,
    quantized,
    stored,
    swizzled,
)
from conformance.kernels.specification import Arguments, Expected, KernelSample, KernelSpecification, Property, Refusal
from conformance.kernels.specifications.quantization import (
    BUDGET,
    Observations,
    altered,
    kind_of,
    their_constants,
)

#: Float32 roundings in a sum of a few ranks' values plus the error feedback, before it is quantized.
_SUM_ROUNDINGS = 8


# --- semantics ------------------------------------------------------------------------------------------------------


def swizzle_quant(
    vals: Tensor, groups: int, num_bits: int, quant_type: int, pipeline_size: int, nodes: int, devices_per_node: int
) -> list[Tensor]:
    """Reorder the groups and quantize them. Returns [data, scales] in the new order; data is flat.

    Groups in the order (node, device, slice, group) get the order (slice, device, node, group). The groups for the same
    device of every node are then adjacent, slice by slice. Each rank's part has ``pipeline_size`` slices.
    """
    rows = swizzled(grouped(vals, groups), pipeline_size, nodes, devices_per_node)
    result = quantized(rows, num_bits, quant_type)
    return [stored(result.codes, num_bits), result.params]


def quantized_reduction(
    data: Tensor,
    scales: Tensor,
    in_groups: int,
    out_groups: int,
    num_bits: int,
    quant_type: int,
    devices_per_node: int,
) -> list[Tensor]:
    """Dequantize, add up, and quantize the sum. Returns [data, scales] of the sum.

    ``data`` holds ``devices_per_node`` tensors of equal size, one after the other, with ``in_groups`` groups in all.
    The sum has ``out_groups`` groups. Its last dimension is smaller by the factor ``devices_per_node``.
    """
    total = _total(data, scales, in_groups, num_bits, devices_per_node)
    result = quantized(total.view(out_groups, -1), num_bits, quant_type)
    shape = (*data.shape[:-1], data.shape[-1] // devices_per_node)
    return [stored(result.codes, num_bits).reshape(shape), result.params]


def loco_swizzle_quant(
    vals: Tensor,
    err: Tensor,
    err_beta: float,
    groups: int,
    num_bits: int,
    quant_type: int,
    pipeline_size: int,
    nodes: int,
    devices_per_node: int,
) -> list[Tensor]:
    """Add the error of former steps to the reordered numbers, quantize, and update the error in place.

    Returns [data, scales] as ``swizzle_quant`` does. With s = swizzle(vals) + err, the new error is
    err_beta * err + (1 - err_beta) * (s - dequantize(result)). For ``err_beta`` 0 nothing is lost:
    swizzle(vals) + old err = dequantize(result) + new err. ``err`` has as many elements as ``vals``, in the order of
    the result.
    """
    rows = swizzled(grouped(vals, groups), pipeline_size, nodes, devices_per_node)
    result = _with_feedback(rows, err, err_beta, num_bits, quant_type)
    return [stored(result.codes, num_bits), result.params]


def loco_quantized_reduction(
    data: Tensor,
    scales: Tensor,
    err: Tensor,
    err_beta: float,
    in_groups: int,
    out_groups: int,
    num_bits: int,
    quant_type: int,
    devices_per_node: int,
) -> list[Tensor]:
    """Reduce as ``quantized_reduction`` does, with error feedback added to the sum. Returns [data, scales].

    The error is updated in place as in ``loco_swizzle_quant``.
    """
    total = _total(data, scales, in_groups, num_bits, devices_per_node)
    result = _with_feedback(total.view(out_groups, -1), err, err_beta, num_bits, quant_type)
    shape = (*data.shape[:-1], data.shape[-1] // devices_per_node)
    return [stored(result.codes, num_bits).reshape(shape), result.params]


def _total(data: Tensor, scales: Tensor, groups: int, num_bits: int, devices: int) -> Tensor:
    values = decoded(loaded(data.view(torch.int8), num_bits, groups), scales.view(groups, -1))
    return values.view(devices, -1).sum(dim=0)


def _with_feedback(rows: Tensor, err: Tensor, beta: float, num_bits: int, quant_type: int) -> Quantized:
    """Return the quantized sum of rows and earlier errors, and update the errors in place."""
    old = err.detach().reshape(rows.shape).float()
    wanted = rows + old
    result = quantized(wanted, num_bits, quant_type)
    err.detach().copy_((beta * old + (1 - beta) * (wanted - result.values())).view(err.shape))
    return result


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def swizzle_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Move one group after the other, then quantize."""
    rows = _reordered(given)
    right = exact.quantize(rows, given["num_bits"], bool(given["quant_type"]))
    return _stored(given, right, rows, (-1,))


def loco_swizzle_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Move one group after the other, add the error, then quantize."""
    rows = _reordered(given)
    return _fed_back(given, rows, rows.abs(), (-1,))


def reduction_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Add up the values rank by rank, then quantize."""
    rows, magnitude = _summed(given)
    noise = _SUM_ROUNDINGS * 2.0**-24 * magnitude
    right = exact.quantize(rows, given["num_bits"], bool(given["quant_type"]), noise)
    return _stored(given, right, magnitude, _reduced_shape(given))


def loco_reduction_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Add up the values rank by rank, add the error, then quantize."""
    return _fed_back(given, *_summed(given), _reduced_shape(given))


def _reordered(given: Arguments) -> Tensor:
    """Return the groups in the order of the communication, moved one by one from the definition."""
    nodes, devices, slices = given["nodes"], given["devices_per_node"], given["pipeline_size"]
    rows = exact.rows(given["vals"], given["groups"])
    run = len(rows) // (nodes * devices * slices)
    moved = torch.empty_like(rows)
    for group in range(len(rows)):
        part, inside = divmod(group, run * slices)
        node, device = divmod(part, devices)
        piece, position = divmod(inside, run)
        moved[((piece * devices + device) * nodes + node) * run + position] = rows[group]
    return moved


def _summed(given: Arguments) -> tuple[Tensor, Tensor]:
    """Return the sum of all ranks' values in the result's groups, and the sum of the magnitudes of its terms."""
    data, groups, ranks = given["data"].reshape(-1), given["in_groups"], given["devices_per_node"]
    codes = data.double()
    if given["num_bits"] == 4:  # samples put the same number into both halves of a byte
        codes = torch.div(codes, 16, rounding_mode="floor").repeat_interleave(2)
    table, per_group = given["scales"].double().view(groups, -1), len(codes) // groups
    steps = table[:, 0].repeat_interleave(per_group) * codes
    offset = table[:, -1].repeat_interleave(per_group) if given["quant_type"] else torch.zeros_like(steps)
    size = len(codes) // ranks
    total, magnitude = torch.zeros(size).double(), torch.zeros(size).double()
    for rank in range(ranks):
        part = slice(rank * size, (rank + 1) * size)
        total += steps[part] + offset[part]
        magnitude += steps[part].abs() + offset[part].abs()
    return total.view(given["out_groups"], -1), magnitude.view(given["out_groups"], -1)


def _reduced_shape(given: Arguments) -> tuple[int, ...]:
    shape = given["data"].shape
    return (*shape[:-1], shape[-1] // given["devices_per_node"])


def _fed_back(given: Arguments, rows: Tensor, magnitude: Tensor, shape: tuple[int, ...]) -> Mapping[str, Expected]:
    """Return the expected codes and errors, with bounds of both."""
    old, beta = given["err"].double().view(rows.shape), given["err_beta"]
    wanted, terms = rows + old, magnitude + old.abs()
    noise = _SUM_ROUNDINGS * 2.0**-24 * terms
    right = exact.quantize(wanted, given["num_bits"], bool(given["quant_type"]), noise)
    new = beta * old + (1 - beta) * (wanted - right.values)
    u = torch.finfo(given["err"].dtype).eps / 2
    around = 16 * 2.0**-24 * (terms + right.scale + right.step * 2.0 ** given["num_bits"])
    # Where a neighbouring code is accepted too, the error differs by one step.
    allowed = u * (new.abs() + right.step) + around + (1 - beta) * right.slack * right.step + 2.0**-24
    fed = Expected(new.view(given["err"].shape), allowed=allowed.view(given["err"].shape))
    return {**_stored(given, right, terms, shape), "err": fed}


def _stored(
    given: Arguments, right: exact.ExactQuantization, terms: Tensor, shape: tuple[int, ...]
) -> Mapping[str, Expected]:
    """Return the expected codes and parameters. Codes are compared for 8 bits only."""
    share = 8 // given["num_bits"]
    codes, slack = (tensor.reshape(-1)[::share].reshape(shape) for tensor in (right.codes, right.slack))
    allowed = slack if share == 1 else torch.full(codes.shape, 255.0).double()
    largest = terms.abs().max(1, keepdim=True).values
    params = [right.step] if not given["quant_type"] else [right.step, right.offset]
    scales = [right.step + _SUM_ROUNDINGS * largest * 2.0 ** (1 - given["num_bits"]), _SUM_ROUNDINGS * largest]
    return {
        "result[0]": Expected(codes, allowed=allowed, dtype=torch.int8),
        "result[1]": Expected(torch.cat(params, 1), torch.cat(scales[: len(params)], 1), dtype=torch.float32),
    }


# --- samples ----------------------------------------------------------------------------------------------------------


def _numbers(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    elements: int,
    groups: int,
    num_bits: int = 8,
    quant_type: int = 0,
    layout: tuple[int, int, int],
    err_beta: float | None = None,
) -> Arguments:
    """Return arguments of the swizzling kernels.

    ``layout`` is (slices, nodes, devices). With ``err_beta`` there is an error feedback of the numbers' dtype.
    """
    slices, nodes, devices = layout
    # Groups differ in magnitude, so that the parameters show a group at a wrong position.
    sizes = (1.0 + torch.arange(groups).double()).repeat_interleave(elements)
    vals = (torch.randn(groups * elements, generator=generator, dtype=torch.float64) * sizes).to(dtype)
    given: Arguments = {"vals": vals}
    if err_beta is not None:
        error = torch.randn(groups * elements, generator=generator, dtype=torch.float64) / 32
        given |= {"err": error.to(dtype), "err_beta": err_beta}
    return given | {
        "groups": groups, "num_bits": num_bits, "quant_type": quant_type,
        "pipeline_size": slices, "nodes": nodes, "devices_per_node": devices,
    }  # fmt: skip


_LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "2x4": {"elements": 33, "groups": 8, "layout": (1, 2, 4)},
    "3x2-sliced": {"elements": 34, "groups": 24, "layout": (2, 3, 2)},
    "asym": {"elements": 65, "groups": 12, "layout": (1, 2, 3), "quant_type": 1},
    "4-bits": {"elements": 66, "groups": 6, "layout": (1, 3, 2), "num_bits": 4},
}
SWIZZLE_SAMPLES = tuple(
    KernelSample(name, functools.partial(_numbers, **settings)) for name, settings in _LAYOUTS.items()
)
LOCO_SWIZZLE_SAMPLES = (
    *(KernelSample(name, functools.partial(_numbers, **settings, err_beta=0.0)) for name, settings in _LAYOUTS.items()),
    KernelSample("decaying", functools.partial(_numbers, **_LAYOUTS["2x4"], err_beta=0.75)),
)


def _from_ranks(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...],
    ranks: int,
    in_groups: int,
    out_groups: int,
    num_bits: int = 8,
    quant_type: int = 0,
    err_beta: float | None = None,
) -> Arguments:
    """Return arguments of the reductions.

    With 4 bits both halves of a byte hold the same number, because a module chooses the order of the halves.
    """
    numbers = torch.randint(-128, 128, shape, generator=generator)
    data = numbers if num_bits == 8 else (numbers & 15) * 17
    data = torch.where(data > 127, data - 256, data).to(torch.int8)
    # Ranks differ in magnitude, so that a sum over wrong ranks is wrong.
    steps = (torch.rand(in_groups, 1, generator=generator) + 0.5) * (1 + torch.arange(in_groups)[:, None]) / 64
    offsets = torch.randn(in_groups, 1, generator=generator)
    given: Arguments = {"data": data, "scales": torch.cat([steps, offsets], 1) if quant_type else steps}
    if err_beta is not None:
        elements = data.numel() * (8 // num_bits) // ranks
        given |= {"err": (torch.randn(elements, generator=generator) / 8).to(dtype), "err_beta": err_beta}
    return given | {
        "in_groups": in_groups, "out_groups": out_groups,
        "num_bits": num_bits, "quant_type": quant_type, "devices_per_node": ranks,
    }  # fmt: skip


_SUMS: Mapping[str, Mapping[str, Any]] = {
    "4-ranks": {"shape": (4 * 132,), "ranks": 4, "in_groups": 8, "out_groups": 4},
    "3-ranks": {"shape": (2, 3 * 33), "ranks": 3, "in_groups": 6, "out_groups": 1},
    "asym": {"shape": (2 * 130,), "ranks": 2, "in_groups": 10, "out_groups": 2, "quant_type": 1},
    "4-bits": {"shape": (3 * 66,), "ranks": 3, "in_groups": 3, "out_groups": 2, "num_bits": 4},
}
REDUCTION_SAMPLES = tuple(
    KernelSample(name, functools.partial(_from_ranks, **settings)) for name, settings in _SUMS.items()
)
LOCO_REDUCTION_SAMPLES = (
    *(KernelSample(name, functools.partial(_from_ranks, **settings, err_beta=0.0)) for name, settings in _SUMS.items()),
    KernelSample("decaying", functools.partial(_from_ranks, **_SUMS["3-ranks"], err_beta=0.75)),
)


# --- properties -------------------------------------------------------------------------------------------------------


def _whole_way(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check the sum after swizzle, reduction and dequantization, for any order of the halves of a byte."""
    nodes, ranks, groups = 1, 3, 6
    vals = torch.randn(396, generator=generator).to(dtype)
    for num_bits in (8, 4):
        for quant_type in (0, 1):
            kind = kind_of(functions, quant_type)
            sent = functions.swizzle_quant(vals.to(device), groups, num_bits, kind, 1, nodes, ranks)
            values = functions.dequantize_fp32(*sent, groups, num_bits, kind).detach().cpu().double()
            reduced = functions.quantized_reduction(*sent, groups, 2, num_bits, kind, ranks)
            found = functions.dequantize_fp32(*reduced, 2, num_bits, kind)
            rows, terms = (tensor.reshape(ranks, -1).sum(0).view(2, -1) for tensor in (values, values.abs()))
            noise = _SUM_ROUNDINGS * 2.0**-24 * terms
            right = exact.quantize(rows, num_bits, bool(quant_type), noise)
            allowed = right.slack * right.step + 2 * noise + BUDGET.conditioning * 2.0**-24 * right.scale
            what = f"{num_bits} bits, {QuantizationType(quant_type).name}"
            yield what, found.reshape(2, -1), Expected(right.values, allowed=allowed)
            yield f"{what}: some element is not 0", found.any().cpu().view(1), Expected(torch.tensor([True]))


def _conserves(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that several steps lose nothing: results plus the error feedback add up to the inputs."""
    nodes, ranks, steps = 2, 2, 5
    size, groups = 264, 4
    for num_bits in (8, 4):
        kind = kind_of(functions, 0)
        err = torch.zeros(size, dtype=dtype, device=device)
        entered, left = torch.zeros(size).double(), torch.zeros(size).double()
        largest = 0.0
        for _ in range(steps):
            vals = torch.randn(size, generator=generator).to(dtype)
            moved = vals.double().view(nodes, ranks, -1).transpose(0, 1).reshape(-1)
            entered += moved
            sent = functions.loco_swizzle_quant(vals.to(device), err, 0.0, groups, num_bits, kind, 1, nodes, ranks)
            left += functions.dequantize_fp32(*sent, groups, num_bits, kind).detach().cpu().double().reshape(-1)
            largest = max(largest, float(moved.abs().max()))
        # Each call rounds the error once to its dtype. The error is below one step of the codes, or two at the top end.
        u = torch.finfo(dtype).eps / 2
        allowed = steps * (u * 4 * largest / 2 ** (num_bits - 1) + 32 * 2.0**-24 * largest)
        total = left + err.detach().cpu().double()
        yield f"{num_bits} bits", total, Expected(entered, allowed=torch.full((size,), allowed).double())


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check_swizzle(given: Arguments) -> None:
    """Raise ``UsageError`` for numbers that do not fill groups, nodes and devices."""
    vals = check_tensor("vals", given["vals"], dtypes=FLOATS)
    check_type(given)
    check_positive(given, "groups", "pipeline_size", "nodes", "devices_per_node")
    check_groups("vals", vals, given["groups"], given["num_bits"])
    check_divides("groups", given["groups"], ("pipeline_size", "nodes", "devices_per_node"), given)
    if "err" in given:
        check_errors(given, "err", vals.numel(), vals.device)


def _check_reduction(given: Arguments) -> None:
    """Raise ``UsageError`` for codes and scales that do not fill groups and devices."""
    data = check_tensor("data", given["data"], dtypes=(torch.int8, torch.uint8))
    check_type(given)
    check_positive(given, "in_groups", "out_groups", "devices_per_node")
    check_divides("in_groups", given["in_groups"], ("devices_per_node",), given)
    check_groups("data", data, given["in_groups"], given["num_bits"], packed=True)
    check_divides("data", data.shape[-1], ("devices_per_node",), given)
    check_params(given["scales"], given["in_groups"], given["quant_type"], data.device, "scales")
    numbers = data.numel() * (8 // given["num_bits"]) // given["devices_per_node"]
    check_groups("out_groups", data.view(-1)[: numbers * given["num_bits"] // 8], given["out_groups"])
    if "err" in given:
        check_errors(given, "err", numbers, data.device)


SWIZZLE_REFUSALS = (
    Refusal("groups", "groups", altered("nodes", 3)),
    Refusal("bits", "num_bits", altered("num_bits", 6)),
    Refusal("dtypes", "vals", altered("vals", lambda tensor: tensor.to(torch.int16))),
)
REDUCTION_REFUSALS = (
    Refusal("ranks", "in_groups", altered("devices_per_node", 3)),
    Refusal("scales", "scales", altered("scales", lambda scales: scales[1:].clone())),
    Refusal("out-groups", "out_groups", altered("out_groups", 5)),
)
FEEDBACK_REFUSALS = (
    Refusal("errors", "err", altered("err", lambda errors: errors[:-1].clone())),
    Refusal("rate", "err_beta", altered("err_beta", 1.5)),
)


def _specification(
    reference: Callable[..., list[Tensor]],
    oracle: Callable[[Arguments], Mapping[str, Expected]],
    samples: tuple[KernelSample, ...],
    refusals: tuple[Refusal, ...],
    properties: tuple[Property, ...] = (),
) -> KernelSpecification:
    """Return the specification of one function. A name with "loco" has error feedback."""
    feeds_back = reference.__name__.startswith("loco")
    return KernelSpecification(
        name=reference.__name__,
        builder="QuantizerBuilder",
        mode=Mode.TRAINING,
        dtypes=("float32",) if reference is quantized_reduction else ("float32", "float16", "bfloat16"),
        samples=samples,
        oracle=oracle,
        budget=BUDGET,
        reference=reference,
        changes=("err",) if feeds_back else (),
        validate=_check_reduction if "reduction" in reference.__name__ else _check_swizzle,
        refusals=(*refusals, *(FEEDBACK_REFUSALS if feeds_back else ())),
        properties=properties,
        session=their_constants,
    )


SPECIFICATIONS = (
    _specification(swizzle_quant, swizzle_oracle, SWIZZLE_SAMPLES, SWIZZLE_REFUSALS),
    _specification(
        quantized_reduction,
        reduction_oracle,
        REDUCTION_SAMPLES,
        REDUCTION_REFUSALS,
        (Property("whole-way", _whole_way),),
    ),
    _specification(
        loco_swizzle_quant,
        loco_swizzle_oracle,
        LOCO_SWIZZLE_SAMPLES,
        SWIZZLE_REFUSALS,
        (Property("conserves", _conserves),),
    ),
    _specification(loco_quantized_reduction, loco_reduction_oracle, LOCO_REDUCTION_SAMPLES, REDUCTION_REFUSALS),
)
