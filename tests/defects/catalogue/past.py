"""Past defects of other trackers, rebuilt from their descriptions. Sizes are scaled where a host cannot hold them."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.faults import Around, Call, Fault, Where, changed
from tests.defects.mutant import Mutant

Tensor = torch.Tensor


def past(name: str, precedent: str, caught_by: str, operator: str, around: Around) -> Mutant:
    """Return the mutant of an operator. Whatever computes with the operator may fail too."""
    what = Fault(name, "past defects of other trackers", precedent, Where.OPERATOR, caught_by,
                 operators={f"aten::{operator}": around})  # fmt: skip
    return Mutant(what, ("operators.*", "accelerator.*", "capabilities.*", "profiling.*"), (caught_by,))


def _expanded(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _dense(tensor: Tensor) -> Tensor:
    """Return the elements that follow each other in memory, in the shape of the tensor."""
    if not tensor.numel():
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((span,), (1,), tensor.storage_offset())
    return memory[torch.arange(tensor.numel()) % span].view(tensor.shape)


def _repeats_after_a_block(result: Tensor) -> Tensor:
    """What lies beyond 65,536 elements is computed as if it were the beginning."""
    if result.numel() <= 1 << 16:
        return result
    flat = result.reshape(-1).clone()
    flat[1 << 16 :] = flat[: flat.numel() - (1 << 16)]
    return flat.view(result.shape)


def _dense_index(call: Call, args: list[Any]) -> list[Any]:
    if _expanded(args[2]):
        args[2] = _dense(args[2])
    return call(args)


def _returns_at_once(call: Call, args: list[Any]) -> list[Any]:
    return [args[-1]] if isinstance(args[2], Tensor) and not args[2].numel() else call(args)


def _writes_in_one_piece(call: Call, args: list[Any]) -> list[Any]:
    """A result that is not contiguous gets its values in the order of memory."""
    results = call(args)
    result = results[0]
    if result.numel() > 1 and not result.is_contiguous() and not _expanded(result):
        values = result.contiguous().view(-1)
        result.as_strided((values.numel(),), (1,), result.storage_offset()).copy_(values)
    return results


def _leaves_strided(call: Call, args: list[Any]) -> list[Any]:
    """Draws into a tensor that is not contiguous, and leaves it as it was."""
    before = None if args[0].is_contiguous() else args[0].clone()
    results = call(args)
    if before is not None:
        args[0].copy_(before)
    return results


def _beyond_the_last(call: Call, args: list[Any]) -> list[Any]:
    results = call(args)
    if results[0].numel() > 8:
        results[0].view(-1)[-1] = args[0].shape[-1] + 1
    return results


def _never_drawn(call: Call, args: list[Any]) -> list[Any]:
    """One draw of 32 is the least probable category, though its probability may be 0."""
    results = call(args)
    least = args[0].argmin(-1, keepdim=True).expand(results[0].shape)
    positions = torch.arange(results[0].numel()).view(results[0].shape)
    results[0].copy_(torch.where(positions % 32 == 31, least, results[0]))
    return results


def _merged_dimensions(call: Call, args: list[Any]) -> list[Any]:
    """Beyond four dimensions the leading ones are merged, each tensor's with its own sizes."""
    given, dim, index, source = args[:4]
    dim = dim % max(1, given.dim())
    leading = given.dim() - 3
    if given.dim() <= 4 or dim < leading or not isinstance(source, Tensor) or len(args) > 5:
        return call(args)
    merged = [tensor.flatten(0, leading - 1) for tensor in (given, index, source)]
    args[-1].copy_(torch.scatter(merged[0], dim - leading + 1, merged[1], merged[2]).view(given.shape))
    return [args[-1]]


def _reads_in_one_piece(call: Call, args: list[Any]) -> list[Any]:
    if not args[0].is_contiguous():
        args[0] = _dense(args[0])
    return call(args)


def _first_row_alone(call: Call, args: list[Any]) -> list[Any]:
    """An expanded factor counts for its first row only."""
    for place in (0, 1):
        if _expanded(args[place]):
            rows = torch.zeros_like(args[place], memory_format=torch.contiguous_format)
            rows[:1] = args[place][:1]
            args[place] = rows
    return call(args)


def _inner_dimension(call: Call, args: list[Any]) -> list[Any]:
    """A product adds up the first 32,768 terms."""
    if args[0].shape[1] > 1 << 15:
        args[0], args[1] = args[0][:, : 1 << 15], args[1][: 1 << 15]
    return call(args)


def _flat_weights(call: Call, args: list[Any]) -> list[Any]:
    """Gradients of weights of several dimensions come back with one, for many rows."""
    results = call(args)
    if args[0].numel() > 1 << 12:
        results[1:] = [None if result is None else result.flatten() for result in results[1:]]
    return results


def _counts_to_255(result: Tensor) -> Tensor:
    if result.dim() == 2 and result.shape[0] > 255:
        result = result.clone()
        result[255:] = result[:1]
    return result


def _repeats(result: Tensor) -> Tensor:
    """The second half of many numbers is the first once more."""
    if result.numel() < 1 << 10:
        return result
    flat = result.reshape(-1).clone()
    half = flat.numel() // 2
    flat[half : 2 * half] = flat[:half]
    return flat.view(result.shape)


def _repeated_mask(call: Call, args: list[Any]) -> list[Any]:
    results = call(args)
    return [_repeats(result) for result in results]


def _mask_of_another_call(call: Call, args: list[Any]) -> list[Any]:
    """The gradient is masked one element further than the forward pass was."""
    args[1] = args[1].roll(1)
    return call(args)


MUTANTS = (
    past("cumsum begins again after 65,536 elements", "pytorch #143486: cumsum of large tensors, 32-bit block indices",
         "operators.cumsum[float32-inference]", "cumsum", changed(_repeats_after_a_block)),
    past("scatter_add reads an expanded index as dense", "FlagGems #6448: scatter_add_ ignores a stride of zero",
         "accelerator.laws.indices[scatter_add]", "scatter_add", _dense_index),
    past("scatter with an empty index writes nothing", "intel-extension-for-pytorch #682: returned before the copy",
         "accelerator.laws.indices[scatter]", "scatter", _returns_at_once),
    past("addcdiv writes a strided result in one piece", "pytorch #118115: addcdiv_ on MPS with strided tensors",
         "operators.addcdiv[float32-inference]", "addcdiv", _writes_in_one_piece),
    past("normal_ leaves a strided tensor as it was", "pytorch #165267, #124029: random functions on MPS",
         "accelerator.laws.draws_in_place[normal]", "normal_", _leaves_strided),
    past("multinomial draws beyond the last category", "pytorch #136623: samples outside of the domain on MPS",
         "accelerator.laws.multinomial", "multinomial", _beyond_the_last),
    past("multinomial draws what has probability 0", "pytorch #192577, #48841: zero-probability indices",
         "accelerator.laws.multinomial", "multinomial", _never_drawn),
    past("scatter merges leading dimensions", "tt-metal #56875: scatter of more than four dimensions",
         "accelerator.laws.indices[scatter]", "scatter", _merged_dimensions),
    past("elu reads a strided input in one piece", "pytorch #124834: ELU of strided inputs on MPS",
         "operators.nn.functional.elu[float32-inference]", "elu", _reads_in_one_piece),
    past("a product reads the first row of an expanded factor", "pytorch #180201: MPS, gradient of y.sum()",
         "operators.nn.functional.linear[float32-training]", "mm", _first_row_alone),
    past("a product adds up 32,768 terms", "pytorch #177116: MPS gradients above 32 K rows",
         "accelerator.laws.long_products[mm]", "mm", _inner_dimension),
    past("layer_norm's weight gradient has one dimension", "torch-xpu-ops #5235: dweight flattened for many rows",
         "operators.nn.functional.layer_norm[float32-training]", "native_layer_norm_backward", _flat_weights),
    past("nonzero loses its place after 255", "AMDMIGraphX #4919: accumulator of NonZero overflows",
         "operators.nonzero[float32-inference]", "nonzero", changed(_counts_to_255)),
    past("dropout repeats its mask", "marian-dev #7, ngraph #3006: one sequence for every thread of the mask",
         "accelerator.laws.draws_by_element[dropout]", "native_dropout", _repeated_mask),
    past("poisson repeats its numbers", "Paddle #29465: the offset of the generator is not advanced",
         "accelerator.laws.distributions[poisson]", "poisson", changed(_repeats)),
    past("dropout's gradient has another mask", "flash-attention #166: the state of the generator for backward",
         "accelerator.laws.dropout_gradient", "native_dropout_backward", _mask_of_another_call),
    Mutant(Fault("kernels run on the default stream", "past defects of other trackers",
                 "pytorch #2702: the current stream is not honoured by some operations", Where.STREAM,
                 "accelerator.stream.kernels_follow[*]", switches={"launch_on_default_stream": 1}),
           ("accelerator.*", "capabilities.*")),
)  # fmt: skip
