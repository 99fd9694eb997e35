"""Operators and their gradients: values, dtypes, layouts, where they are computed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from conformance.reports.verdict import Reason
from tests.defects.faults import Around, Call, Fault, Where, changed, scaled, with_argument
from tests.defects.mutant import Mutant
from tests.defects.spoiling import on_device, replaced, result_of, spoiled

SINGLE = "defect class of kernels"


def operator(name: str, family: str, precedent: str, caught_by: str, *touch: str, run: tuple[str, ...] = (),
             also_run: tuple[str, ...] = (), peer_misses: bool = False, **fault: Any) -> Mutant:  # fmt: skip
    """``run`` are operator names whose cells the mutant goes through; these and ``also_run`` may all fail."""
    cells = (*(f"operators.{one}[*" for one in run), *also_run)
    what = Fault(name, family, precedent, Where.OPERATOR, caught_by, **fault)
    return Mutant(what, (*touch, *cells), cells, peer_misses=peer_misses)


def floating(change: Any, *dtypes: torch.dtype) -> Around:
    """Floating-point results (of those dtypes) go through ``change``."""
    return changed(lambda t: change(t) if (t.dtype in dtypes if dtypes else t.is_floating_point()) else t)


def _zero_if_large(result: torch.Tensor) -> torch.Tensor:
    return result.zero_() if result.numel() > 2_000_000 else result


def _ten_bits(*positions: int) -> Around:
    """float32 factors keep ten bits of mantissa, as tensor cores cut them."""

    def around(call: Call, args: list[Any]) -> list[Any]:
        for position in positions:
            if args[position].dtype is torch.float32:
                args[position] = _cut(args[position])
        return call(args)

    return around


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32).bitwise_and(~0x1FFF).view(torch.float32)


def _narrow_product(call: Call, args: list[Any]) -> list[Any]:
    """16-bit products are added up in 16 bits."""
    left, right = args[0], args[1]
    results = call(args)
    if results[0].dtype in (torch.float16, torch.bfloat16):
        total = torch.zeros_like(results[0])
        for k in range(left.shape[1]):
            total = total + left[:, k : k + 1] * right[k : k + 1]
        results[0].copy_(total)
    return results


def _stalled(result: torch.Tensor) -> torch.Tensor:
    """Where a sum of ones in the dtype itself stalls."""
    stall = {torch.float16: 2048.0, torch.bfloat16: 256.0}.get(result.dtype)
    return result.clamp(-stall, stall) if stall else result


def _flushed(result: torch.Tensor) -> torch.Tensor:
    return result.masked_fill_(result.abs() < torch.finfo(result.dtype).smallest_normal, 0.0)


def _last_lost(result: torch.Tensor) -> torch.Tensor:
    """What does not fill a tile of 64 is not computed."""
    if result.numel() > 1 and result.numel() % 64:
        flat = result.flatten()
        flat[-1] = 0
        return flat.view(result.shape)
    return result


def _dense(call: Call, args: list[Any]) -> list[Any]:
    """Strided inputs are read as if they were contiguous."""
    first = args[0]
    if not first.is_contiguous() and first.numel():
        args[0] = first.as_strided(first.shape, torch.empty(first.shape).stride())
    return call(args)


def _from_start(call: Call, args: list[Any]) -> list[Any]:
    """The storage offset of the input is ignored."""
    args[0] = args[0].as_strided(args[0].shape, args[0].stride(), 0)
    return call(args)


def _writes_beyond(call: Call, args: list[Any]) -> list[Any]:
    """One element behind a contiguous result is written, where there is memory."""
    results = call(args)
    result, room = results[0], results[0].untyped_storage().nbytes() // results[0].element_size()
    end = result.storage_offset() + result.numel()
    if result.is_contiguous() and end < room:
        result.as_strided((1,), (1,), end).fill_(1)
    return results


def _overlapping(call: Call, args: list[Any]) -> list[Any]:
    """In place, the second half of the input is read after it was overwritten."""
    out, source = args[-1], args[0]
    if not isinstance(out, torch.Tensor) or (out is not source and out.data_ptr() != source.data_ptr()):
        return call(args)
    kept = source.clone()
    results = call(args)
    half = out.numel() // 2
    if out.is_contiguous() and half:
        out.view(-1)[half:] = kept.view(-1)[half:].neg()
    return results


def _saturating(call: Call, args: list[Any]) -> list[Any]:
    """Integer sums stop at the largest number instead of wrapping around."""
    if not isinstance(args[1], torch.Tensor) or args[0].dtype not in (
        torch.int8,
        torch.int16,
        torch.int32,
        torch.uint8,
    ):
        return call(args)
    alpha = args[2] if isinstance(args[2], int) else 1
    wide = args[0].to(torch.int64) + args[1].to(torch.int64) * alpha
    results = call(args)
    if results[0].dtype is args[0].dtype:
        info = torch.iinfo(results[0].dtype)
        results[0].copy_(wide.clamp(info.min, info.max))
    return results


def _truncating(call: Call, args: list[Any]) -> list[Any]:
    """Integer quotients are rounded to zero."""
    results = call(args)
    if isinstance(args[1], torch.Tensor) and not results[0].is_floating_point():
        results[0].copy_(torch.div(args[0], args[1], rounding_mode="trunc"))
    return results


def _ignoring_nan(call: Call, args: list[Any]) -> list[Any]:
    results = call(args)
    other = torch.fmax(args[0], args[1])
    results[0].copy_(other)
    return results


def _next_axis(call: Call, args: list[Any]) -> list[Any]:
    """The axis beside the one asked for, where both have the same size."""
    first, axis = args[0], args[1]
    if isinstance(axis, int) and first.dim() >= 2:
        other = (axis + 1) % first.dim()
        if first.shape[axis] == first.shape[other]:
            args[1] = other
    return call(args)


def _unreduced(call: Call, args: list[Any]) -> list[Any]:
    """Sums that keep their dimension take the first slice: broadcast gradients are not reduced."""
    results = call(args)
    if len(args) > 2 and args[2] is True and isinstance(args[1], list) and args[1]:
        part = args[0]
        for axis in args[1]:
            part = part.narrow(axis, 0, 1) if part.shape[axis] else part
        if part.shape == results[0].shape:
            results[0].copy_(part)
    return results


def _overwriting(call: Call, args: list[Any]) -> list[Any]:
    """In place, a sum is the new term alone: accumulated gradients are lost."""
    out = args[-1]
    both = isinstance(out, torch.Tensor) and isinstance(args[1], torch.Tensor)
    if not both or out.data_ptr() != args[0].data_ptr() or args[1].shape != out.shape or not out.numel():
        return call(args)
    out.copy_(args[1])
    return [out]


def _last_wins(call: Call, args: list[Any]) -> list[Any]:
    """Terms that meet in one place overwrite each other."""
    dim, index, source = args[1], args[2], args[3]
    results = call(args)
    if index.dim() == 1 and results[0].is_floating_point() and source.dim() == results[0].dim():
        places = index.unique()
        last = [int((index == place).nonzero()[-1]) for place in places]
        base = args[0].index_select(dim, places)
        results[0].index_copy_(dim, places, base + source.index_select(dim, torch.tensor(last)))
    return results


def _embedding_overwrites(call: Call, args: list[Any]) -> list[Any]:
    gradient, indices = args[0], args[1].flatten()
    results = call(args)
    rows = gradient.reshape(-1, gradient.shape[-1]) if gradient.dim() else gradient
    for position, place in enumerate(indices.tolist()):
        if results[0][place].any():
            results[0][place] = rows[position]
    return results


def _without_bias(call: Call, args: list[Any]) -> list[Any]:
    return call([torch.zeros_like(args[0]), *args[1:]])


def _noise() -> Around:
    """Other last bits each time, as additions in no particular order give."""
    own = torch.Generator()
    own.seed()
    return floating(lambda t: t * (1 + 2.0**-20 * torch.rand(t.shape, generator=own).to(t.dtype)))


def _empty_is_nan(call: Call, args: list[Any]) -> list[Any]:
    """Sums of nothing are NaN."""
    results = call(args)
    if not args[0].numel() and results[0].is_floating_point():
        results[0].fill_(math.nan)
    return results


def _left_without_exception(old: Any) -> Any:
    def leave(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        return None if kind is not None and self.device == "sim" else old(self, kind, error, trace)

    return leave


def _in_place_short(call: Call, args: list[Any]) -> list[Any]:
    """In place, what does not fill a tile of 64 is left as it was."""
    out, source = args[-1], args[0]
    if not isinstance(out, torch.Tensor) or out.data_ptr() != source.data_ptr() or out.numel() % 64 == 0:
        return call(args)
    kept = source.flatten()[-1].clone()
    results = call(args)
    if out.is_contiguous():
        out.view(-1)[-1] = kept
    return results


def _not_implemented(call: Call, args: list[Any]) -> list[Any]:
    raise NotImplementedError("cumsum has no kernel")


def _never_found(call: Call, args: list[Any]) -> list[Any]:
    """Gradients are unscaled; infinities in them are not reported."""
    return _unscaled(call, args, lambda t: False)


def _only_positive(call: Call, args: list[Any]) -> list[Any]:
    return _unscaled(call, args, lambda t: bool((t == math.inf).any() or t.isnan().any()))


def _unscaled(call: Call, args: list[Any], is_bad: Any) -> list[Any]:
    gradients, found, scale = args
    bad = any(is_bad(gradient) for gradient in gradients)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    if bad:
        found.fill_(1.0)
    return []


def _mode(change: Any) -> Any:
    return result_of(lambda result, args: change(result))


def _keeps_size(call: Any, args: Any, kwargs: Any) -> Any:
    """An out= of another size is filled as far as it goes, and not resized."""
    out = kwargs.get("out")
    if out is None or not on_device(out):
        return call(*args, **kwargs)
    right = call(*args, **{**kwargs, "out": torch.empty_like(out).resize_(0)})
    count = min(right.numel(), out.numel())
    out.flatten()[:count].copy_(right.flatten()[:count])
    return out


PRODUCTS = ("mm", "addmm", "bmm", "matmul", "nn.functional.linear")

PRECISE = ("accelerator.dtype.*", "accelerator.autocast.*", "capabilities.precision.*", "capabilities.autocast",
           "accelerator.synchronize.*", "accelerator.graph.*", "workloads.*")  # fmt: skip
OPTIMIZERS = ("utils.optimizer.*",)


def optimizer(name: str, precedent: str, caught_by: str, peer_misses: bool = False,
              family: str = "fused and grouped optimizers", **fault: Any) -> Mutant:  # fmt: skip
    what = Fault(name, family, precedent, Where.OPERATOR, caught_by, **fault)
    return Mutant(what, (*OPTIMIZERS, "accelerator.graph.training_step", "utils.checkpoint.optimizer"),
                  (*OPTIMIZERS, "utils.checkpoint.optimizer"), peer_misses=peer_misses)  # fmt: skip


def _bias_correction_lost(call: Call, args: list[Any]) -> list[Any]:
    """Every step is taken as a late one, where the corrections are 1."""
    steps = args[5]
    args[5] = [torch.full_like(step, 1e6) for step in steps]
    return call(args)


def _step_late(call: Call, args: list[Any]) -> list[Any]:
    args[5] = [step + 1 for step in args[5]]
    return call(args)


def _decay_into_gradient(call: Call, args: list[Any]) -> list[Any]:
    """AdamW's decay is added to the gradient, as Adam's."""
    decay, position = args[10], 10
    args[1] = [gradient + decay * parameter for gradient, parameter in zip(args[1], args[0], strict=True)]
    args[position] = 0.0
    return call(args)


def _chunk_lost(call: Call, args: list[Any]) -> list[Any]:
    """What does not fill a chunk of 64 elements keeps its old value."""
    kept = [parameter.clone() for parameter in args[0]]
    results = call(args)
    for parameter, old in zip(args[0], kept, strict=True):
        start = parameter.numel() // 64 * 64
        parameter.view(-1)[start:] = old.view(-1)[start:]
    return results


def _last_tensor_left(call: Any, args: Any, kwargs: Any) -> Any:
    kept = args[0][-1].clone()
    result = call(*args, **kwargs)
    if on_device(kept) and len(args[0]) > 1:
        args[0][-1].copy_(kept)
    return result


def _none_above(call: Call, args: list[Any]) -> list[Any]:
    """Tensors of more than 65,536 elements are not updated."""
    kept = [parameter.clone() for parameter in args[0]]
    results = call(args)
    for parameter, old in zip(args[0], kept, strict=True):
        if parameter.numel() > 65536:
            parameter.copy_(old)
    return results


FUSED = "DeepSpeed's fused Adam: "
STEPS = (
    optimizer("fused AdamW decays nothing", FUSED + "HPU and NPU drop the decay in mode 0",
              "utils.optimizer.step[AdamW-fused]",
              operators={"aten::_fused_adamw_": with_argument(10, lambda decay: 0.0)}, peer_misses=True),
    optimizer("fused AdamW decays as Adam does", FUSED + "mode 0 behaves as AdamW", "utils.optimizer.step[AdamW-fused]",
              operators={"aten::_fused_adamw_": _decay_into_gradient}),
    optimizer("fused Adam corrects no bias", FUSED + "bias correction lost", "utils.optimizer.step[Adam-fused]",
              operators={"aten::_fused_adam_": _bias_correction_lost}),
    optimizer("fused Adam counts steps from 2", "DeepSpeed 5a100f6b0: NPU bias-correction exponent off by one",
              "utils.optimizer.step[Adam-fused]", operators={"aten::_fused_adam_": _step_late}),
    optimizer("fused Adam loses the tail of a chunk", "DeepSpeed #7639: numel no multiple of the chunk",
              "utils.optimizer.step[Adam-fused]", operators={"aten::_fused_adam_": _chunk_lost}),
    optimizer("fused SGD leaves large tensors", "DeepSpeed 7af561c2b: above INT_MAX elements silently no update",
              "utils.optimizer.step[SGD-fused]", operators={"aten::_fused_sgd_": _none_above}),
    optimizer("foreach leaves the last tensor", "DeepSpeed 11aa880ef: one parameter of a bucket never reduced",
              "utils.optimizer.step[*-foreach]",
              context=spoiled(_foreach_addcdiv_=_last_tensor_left, _foreach_add_=_last_tensor_left)),
    optimizer("the loss scaler never sees an overflow", "DeepSpeed bc9ed477e: overflow not shared",
              "utils.optimizer.scaler[inf]", family="loss-scaler overflow ignored",
              operators={"aten::_amp_foreach_non_finite_check_and_unscale_": _never_found}),
    optimizer("the loss scaler misses −infinity", "DeepSpeed #7580: overflow checks that differ",
              "utils.optimizer.scaler[-inf]", family="loss-scaler overflow ignored",
              operators={"aten::_amp_foreach_non_finite_check_and_unscale_": _only_positive}),
)  # fmt: skip

VALUES = (
    operator("mm gives zeros above 2 M outputs", "last tile not computed", "seen missed by a peer suite",
             "accelerator.dtype.large_product", "workloads.*", peer_misses=True,
             operators={"aten::mm": changed(_zero_if_large)}),
    operator("float32 products keep ten bits", "tf32-like truncation", "tensor cores by default",
             "accelerator.dtype.matmul_full", *PRECISE, "accelerator.determinism.*", run=PRODUCTS,
             operators={"aten::mm": _ten_bits(0, 1), "aten::bmm": _ten_bits(0, 1), "aten::addmm": _ten_bits(1, 2),
                        "aten::baddbmm": _ten_bits(1, 2)}),
    operator("16-bit products are added in 16 bits", "low-precision accumulation", "16-bit sums that stall",
             "accelerator.dtype.accumulate[bfloat16-*]", *PRECISE, run=("mm",),
             operators={"aten::mm": _narrow_product}),
    operator("16-bit sums stall", "low-precision accumulation", "16-bit sums that stall",
             "accelerator.dtype.accumulate[float16-sum*]", *PRECISE, run=("sum",),
             operators={"aten::sum": changed(_stalled)}),
    operator("float64 is computed in float32", "wrong type promotion", "devices without float64",
             "accelerator.dtype.float64_flag", *PRECISE, run=("div.no_rounding_mode", "mm"),
             operators=dict.fromkeys(("aten::div", "aten::mm"), floating(lambda t: t.float().double(), torch.float64))),
    operator("subnormal results are flushed", "subnormals flushed", "seen missed by a peer suite",
             "accelerator.dtype.denormals[float32]", "capabilities.precision.denormals", "accelerator.dtype.*",
             operators={f"aten::{name}": floating(_flushed) for name in ("add", "mul", "div")}, peer_misses=True),
    operator("the last element is not computed", "last tile not computed", "DeepSpeed 11aa880ef",
             "operators.exp[float32-inference]", run=("exp",), operators={"aten::exp": changed(_last_lost)}),
    operator("strides of the input are ignored", "strides or storage offset ignored", "DeepSpeed 4e3acb1e3",
             "operators.sin[float32-inference]", run=("sin",), operators={"aten::sin": _dense}),
    operator("the input's storage offset is ignored", "strides or storage offset ignored", "DeepSpeed 4e3acb1e3",
             "operators.cos[float32-inference]", run=("cos",), operators={"aten::cos": _from_start}),
    operator("one element too many is written", "out-of-bounds write by one", "DeepSpeed 4e3acb1e3",
             "utils.views.bounds[sigmoid_out]", run=("sigmoid",), also_run=("utils.views.bounds*",),
             operators={"aten::sigmoid": _writes_beyond}),
    operator("in-place sums skip the last element", "last tile not computed", "DeepSpeed 11aa880ef",
             "utils.views.bounds[add_]", "accelerator.*", "capabilities.*", "workloads.*", run=("add",),
             also_run=("utils.views.*",), operators={"aten::add": lambda call, args: _in_place_short(call, args)}),
    operator("in place, inputs are overwritten early", "in-place aliasing", "DeepSpeed 3e486febf",
             "operators.sinh[float32-inference]", run=("sinh",), operators={"aten::sinh": _overlapping}),
    operator("empty tensors give NaN", "empty tensors", "DeepSpeed b4e74a918: empty tensors give NaN",
             "accelerator.edges.empty[sum*]", "accelerator.edges.empty*", run=("sum",),
             operators={"aten::sum": _empty_is_nan}),
    operator("broadcasting with size 0 raises", "size-0 broadcasting", "DeepSpeed b4e74a918",
             "accelerator.edges.empty[atan2]", run=("atan2",),
             operators={"aten::atan2": lambda call, args: _no_empty(call, args)}),
    operator("out= is not resized", "out= resized silently", SINGLE, "operators.cosh[float32-inference]", run=("cosh",),
             context=spoiled(cosh=_keeps_size)),
    operator("results are promoted too far", "wrong type promotion", SINGLE, "operators.sub[float32-inference]",
             "accelerator.*", "capabilities.*", run=("sub",),
             context=spoiled(sub=_mode(lambda r: r.double() if r.dtype is torch.float32 else r))),
    operator("integer sums saturate", "integer overflow saturates", SINGLE, "accelerator.edges.wraps[int8-add]",
             "accelerator.edges.wraps*", run=("add",), operators={"aten::add": _saturating}),
    operator("integer quotients are truncated", "integer division rounding", SINGLE,
             "operators.floor_divide[int32-inference]", run=("floor_divide",),
             operators={"aten::floor_divide": _truncating}),
    operator("maximum ignores NaN", "NaN in max/min/sort", SINGLE, "operators.maximum[float32-inference]",
             "accelerator.edges.nan_order*", run=("maximum",), operators={"aten::maximum": _ignoring_nan}),
    operator("sort puts NaN first", "NaN in max/min/sort", SINGLE, "accelerator.edges.nan_order[sort]",
             "accelerator.edges.nan_order*", run=("sort",),
             operators={"aten::sort": lambda call, args: _nan_first(call, args)}),
    operator("neg loses the sign of zero", "−0", SINGLE, "operators.neg[float32-inference]", run=("neg",),
             operators={"aten::neg": floating(lambda t: t + 0.0)}),
    operator("exp overflows to the largest number", "integer overflow saturates", SINGLE,
             "operators.exp2[float16-inference]", run=("exp2",),
             operators={"aten::exp2": floating(lambda t: t.clamp(max=65504.0), torch.float16)}),
    operator("tanh is a coarse table", "tf32-like truncation", SINGLE, "operators.tanh[float32-inference]",
             run=("tanh",), operators={"aten::tanh": scaled(1 + 1e-5)}),
    operator("the triangle is off by one", "mask off by one", "causal masks off by one in decoding",
             "operators.tril[float32-inference]", "workloads.*", run=("tril",),
             operators={"aten::tril": with_argument(1, lambda diagonal: diagonal + 1)}),
    operator("masks are inverted", "mask off by one", SINGLE, "operators.masked_fill[float32-inference]",
             "accelerator.*", "capabilities.*", run=("masked_fill",),
             operators={"aten::masked_fill": with_argument(1, torch.logical_not),
                        "aten::masked_fill_": with_argument(1, torch.logical_not)}),
    operator("softmax over the axis beside", "reduction over the wrong axis with equal sizes", SINGLE,
             "operators.softmax[float32-inference]", "accelerator.*", run=("softmax", "log_softmax"),
             operators={"aten::_softmax": _next_axis, "aten::_log_softmax": _next_axis}),
    operator("cumsum over the axis beside", "reduction over the wrong axis with equal sizes", SINGLE,
             "operators.cumsum[float32-inference]", run=("cumsum",), operators={"aten::cumsum": _next_axis}),
    operator("argmax takes the last of equals", "NaN in max/min/sort", SINGLE, "operators.argmax[*-inference]",
             run=("argmax",), operators={"aten::argmax": lambda call, args: _last_maximum(call, args)}),
    operator("addmm forgets the bias", "low-precision accumulation", "DeepSpeed kernels: residual added once",
             "operators.addmm[float32-inference]", run=("addmm", "nn.functional.linear"),
             operators={"aten::addmm": _without_bias}),
    operator("variance is biased", "reduction over the wrong axis with equal sizes", SINGLE,
             "operators.var[float32-inference]", run=("var",),
             operators={"aten::var": with_argument(2, lambda correction: 0)}),
    operator("layer_norm ignores eps", "low-precision accumulation", SINGLE,
             "operators.nn.functional.layer_norm[float32-inference]", run=("nn.functional.layer_norm",),
             operators={"aten::native_layer_norm": with_argument(4, lambda eps: eps * 100)}),
    operator("a view is a copy", "in-place aliasing", SINGLE, "operators.transpose[float32-inference]", "*",
             run=("transpose",), context=spoiled(transpose=_mode(torch.clone))),
    operator("conjugation is lost", "−0", SINGLE, "operators.conj_physical[complex64-inference]",
             run=("conj_physical",), operators={"aten::conj_physical": lambda call, args: _copied(call, args)}),
    operator("sums have other bits each time", "low-precision accumulation", "atomics in no particular order",
             "accelerator.determinism.repeats[matmul]", *PRECISE, "accelerator.determinism.*", "accelerator.*",
             "capabilities.*", operators={"aten::mm": _noise()}),
    operator("scattered sums have other bits each time", "low-precision accumulation", "atomics in no particular order",
             "accelerator.determinism.repeats[index_add]", "accelerator.determinism.*",
             operators={"aten::index_add": _noise()}),
    operator("autocast goes on after an exception", "wrong type promotion", SINGLE,
             "accelerator.autocast.left_on_exception[*]", "accelerator.*", "capabilities.*",
             context=replaced(torch.autocast, __exit__=lambda old: _left_without_exception(old))),
    operator("autocast computes in float32", "wrong type promotion", SINGLE, "accelerator.autocast.products[bfloat16]",
             "accelerator.autocast.*", "accelerator.dtype.*", "capabilities.*", "accelerator.interface.*",
             context=spoiled(**{name: _mode(lambda r: r.float() if r.dtype in (torch.float16, torch.bfloat16) else r)
                                for name in ("mm", "bmm", "addmm")})),
)  # fmt: skip

GRADIENTS = (
    operator("gelu's gradient is 8 % too large", "gradient values", "seen missed by a peer suite",
             "operators.nn.functional.gelu[float32-training]", "workloads.*", run=("nn.functional.gelu",),
             operators={"aten::gelu_backward": scaled(1.08)}, peer_misses=True),
    operator("relu's gradient is 0", "gradient values", "declared forward works, backward returns zeros",
             "accelerator.dtype.compute[float32]", "accelerator.*", "capabilities.compile", run=("nn.functional.relu",),
             operators={"aten::threshold_backward": scaled(0.0)}),
    operator("tanh's gradient is 8 % too large", "gradient values", SINGLE, "operators.tanh[float32-training]",
             run=("tanh",), operators={"aten::tanh_backward": scaled(1.08)}),
    operator("layer_norm's weight has no gradient", "gradient values", SINGLE,
             "operators.nn.functional.layer_norm[float32-training]", "workloads.*", "accelerator.determinism.*",
             "capabilities.precision.deterministic", run=("nn.functional.layer_norm",),
             operators={"aten::native_layer_norm_backward": scaled(0.0, 1)}),
    operator("broadcast gradients are not reduced", "broadcast gradient not reduced", SINGLE,
             "operators.mul[float32-training]", "operators.sum*", "accelerator.*", "capabilities.*", "workloads.*",
             run=("mul", "add"), operators={"aten::sum": _unreduced}),
    operator("gradients overwrite each other", "gradient accumulation overwrites",
             "DeepSpeed 9d632f103: offloaded gradients overwritten", "accelerator.*", "*", run=("add",),
             operators={"aten::add": _overwriting}),
    operator("rows that meet overwrite each other", "gradient accumulation overwrites", "DeepSpeed 9d632f103",
             "operators.index_add[float32-inference]", "accelerator.determinism.*", run=("index_add",),
             operators={"aten::index_add": _last_wins}),
    operator("embedding gradients overwrite each other", "gradient accumulation overwrites", "DeepSpeed 9d632f103",
             "operators.nn.functional.embedding[float32-training]", "accelerator.determinism.*", "workloads.*",
             run=("nn.functional.embedding",), operators={"aten::embedding_dense_backward": _embedding_overwrites}),
    operator("a gradient has another dtype", "gradient dtype", "DeepSpeed c85c8703b: gradients in another dtype",
             "operators.nn.functional.silu[float16-training]", run=("nn.functional.silu",),
             context=replaced(torch.autograd, grad=lambda old: lambda *args, **kwargs: tuple(
                 None if one is None else one.float() if on_device(one) and one.dtype is torch.float16 else one
                 for one in old(*args, **kwargs)))),
)  # fmt: skip


def _no_empty(call: Call, args: list[Any]) -> list[Any]:
    if any(isinstance(arg, torch.Tensor) and not arg.numel() for arg in args[:2]):
        raise RuntimeError("tensors of size 0 cannot be broadcast")
    return call(args)


def _nan_first(call: Call, args: list[Any]) -> list[Any]:
    results = call(args)
    if results[0].is_floating_point() and results[0].dim() and results[0].isnan().any():
        results[0].copy_(results[0].flip(-1))
        results[1].copy_(results[1].flip(-1))
    return results


def _last_maximum(call: Call, args: list[Any]) -> list[Any]:
    results = call(args)
    if args[1] is None and args[0].numel():
        results[0].copy_((args[0] == args[0].max()).flatten().nonzero()[-1, 0].view(results[0].shape))
    return results


def _copied(call: Call, args: list[Any]) -> list[Any]:
    results = call(args)
    results[0].copy_(args[0])
    return results


def _everything_on_host() -> Any:
    from tests.defects.on_host import everything_on_host

    return everything_on_host()


REFUSALS = (
    operator("a declared operator is missing", "over-declared", "DeepSpeed builders that promise names no library has",
             "operators.cumsum[float32-inference]", "accelerator.edges.*", run=("cumsum",),
             operators={"aten::cumsum": _not_implemented}),
    replace(
        operator("every operator is computed on the host", "host fallback",
                 "seen missed by a peer suite; DeepSpeed #8054: fallbacks that are not told",
                 "operators.mm[float32-inference]", "*", run=("mm", "add", "exp", "softmax"),
                 context=_everything_on_host, peer_misses=True),
        reason=Reason.FALLBACK,
    ),
)  # fmt: skip

MUTANTS = (*VALUES, *GRADIENTS, *STEPS, *REFUSALS)
