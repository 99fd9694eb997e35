"""Defects of a second person who had not read the cases, from the trackers of PyTorch and of vendors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.defects.faults import Call
from tests.defects.spoiling import on_device, replaced

from .collectives import after, broken
from .experts import alone

Tensor = torch.Tensor
FAMILY = "defects of a second person who had not read the cases"


def _skips_nan(call: Call, args: list[Any]) -> list[Any]:
    """The position of the largest number, where a NaN is none."""
    return call([args[0].nan_to_num(-torch.inf) if args[0].is_floating_point() else args[0], *args[1:]])


def _ignores_the_word(call: Call, args: list[Any]) -> list[Any]:
    """A search by side="right" searches by the flag alone."""
    return call([None if arg == "right" else arg for arg in args])


def _scales_the_smaller(call: Call, args: list[Any]) -> list[Any]:
    """Where the first operand is the one that broadcasts, the factor goes to it."""
    left, right, alpha = args[:3]
    if isinstance(right, Tensor) and left.numel() < right.numel() and alpha != 1:
        return call([left * alpha, right, 1, *args[3:]])
    return call(args)


def _half_of_the_rows(call: Call, args: list[Any]) -> list[Any]:
    """Without a gradient of the input, gradients of the weights miss the second half of the rows."""
    if args[-1][0] is False and args[0].dim() and args[0].shape[0] > 1:
        cut = args[0].clone()
        cut[cut.shape[0] // 2 :] = 0
        args = [cut, *args[1:]]
    return call(args)


def _counts_ignored_rows(call: Call, args: list[Any]) -> list[Any]:
    """The mean's divisor counts rows that are ignored."""
    gradient, x, target, weight, reduction, ignored, total = args[:7]
    if weight is not None and reduction == 1 and x.dim() == 2:
        total = weight[target.clamp(0, x.shape[1] - 1)].sum()
    return call([gradient, x, target, weight, reduction, ignored, total, *args[7:]])


def _counts_by_row(call: Call, args: list[Any]) -> list[Any]:
    """The frequency of an index is counted in its row of the batch."""
    gradient, indices, words, padding, by_frequency = args[:5]
    if not by_frequency or indices.dim() < 2:
        return call(args)
    parts = [call([*pair, words, padding, True])[0] for pair in zip(gradient, indices, strict=True)]
    return [torch.stack(parts).sum(0)]


def _no_maximum(call: Call, args: list[Any]) -> list[Any]:
    """Fused Adam with amsgrad keeps no maximum of its second moments."""
    if args[11] is True:
        for moment in args[4]:
            moment.zero_()
    return call(args)


def _as_planes(call: Call, args: list[Any]) -> list[Any]:
    """Memory of channels_last is read as if its planes lay one after another."""
    x = args[0]
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        args = [x.permute(0, 2, 3, 1).contiguous().view(x.shape), *args[1:]]
    return call(args)


def _makes_current(old: Any) -> Any:
    def synchronize(index: int) -> None:
        old(index)
        torch._C._accelerator_setDeviceIndex(index)

    return synchronize


def _default_elsewhere(old: Any) -> Any:
    def stream(index: int) -> Any:
        here = torch._C._accelerator_getDeviceIndex()
        return old(index) if index == here else torch.sim.default_stream(index)  # type: ignore[attr-defined]

    return stream


def _of_whole_tensors(old: Any) -> Any:
    return lambda self, stream: None if self.storage_offset() else old(self, stream)


@contextmanager
def _replays_on_the_default_stream() -> Iterator[None]:
    """A replay goes to the default stream, whatever stream is current."""
    graphs = torch.sim.SIMGraph  # type: ignore[attr-defined]

    def around(old: Any) -> Any:
        def replay(self: Any) -> Any:
            with torch.sim.stream(torch.sim.default_stream()):  # type: ignore[attr-defined]
                return old(self)

        return replay

    with replaced(graphs, replay=around)():
        yield


def _device_zero(old: Any) -> Any:
    def validate(location: Any, backend: str) -> Any:
        device = old(location, backend)
        return torch.device(device.type, device.index or 0) if backend == "sim" else device

    return validate


def _through_float(tensor: Tensor, *_: Any) -> None:
    if tensor.dtype is torch.int64:
        tensor.copy_(tensor.to(torch.float32).to(torch.int64))


def _compiled_without_nan(old: Any) -> Any:
    def without(result: Any) -> Any:
        return [r.nan_to_num(-3e38) if on_device(r) and r.is_floating_point() else r for r in result]

    def compile(function: Any = None, **options: Any) -> Any:
        compiled = old(function, **options)
        return lambda *args, **kwargs: without(compiled(*args, **kwargs))

    return compile


def planted(name: str, precedent: str, caught_by: str, context: Any = None, **fault: Any) -> Any:
    return alone(name, FAMILY, precedent, caught_by, context, **fault)


MUTANTS = (
    planted("argmax passes NaN over", "PyTorch #130295", "operators.argmax[float32-inference]",
            operators={"aten::argmax": _skips_nan}),
    planted("a search ignores the word right", "PyTorch #112829", "operators.searchsorted[int64-inference]",
            operators={"aten::searchsorted": _ignores_the_word}),
    planted("a factor goes to the operand that broadcasts", "PyTorch #143932", "operators.add[float32-inference]",
            operators={"aten::add": _scales_the_smaller}),
    planted("layer norm's weights miss rows without the input's gradient", "PyTorch #183825",
            "operators.nn.functional.layer_norm[float32-training]",
            operators={"aten::native_layer_norm_backward": _half_of_the_rows}),
    planted("frequencies of indices are counted by row", "PyTorch #190063",
            "operators.nn.functional.embedding[float32-training]",
            operators={"aten::embedding_dense_backward": _counts_by_row}),
    planted("ignored rows count in the mean", "PyTorch #108148", "operators.nn.functional.nll_loss[float32-training]",
            operators={"aten::nll_loss_backward": _counts_ignored_rows}),
    planted("fused AdamW keeps no maximum", "PyTorch #4034", "optimizers.steps[AdamW-fused]",
            operators={"aten::_fused_adamw_": _no_maximum}),
    planted("group norm reads channels_last as planes", "PyTorch #111824",
            "operators.nn.functional.group_norm[float32-inference]", operators={"aten::native_group_norm": _as_planes}),
    planted("waiting for a device makes it current", "tinygrad #2715", "accelerator.synchronize.every_device",
            replaced(torch._C, _accelerator_synchronizeDevice=_makes_current)),
    planted("the current stream of another device is its default one", "defect class of runtimes",
            "accelerator.stream.per_device", replaced(torch._C, _accelerator_getStream=_default_elsewhere)),
    planted("a view with an offset records nothing", "PyTorch #27366", "accelerator.stream.record_keeps_memory[offset]",
            replaced(Tensor, record_stream=_of_whole_tensors)),
    planted("a replay goes to the default stream", "defect class of runtimes", "accelerator.graph.replay_stream",
            _replays_on_the_default_stream),
    planted("a location without an index is device 0", "PyTorch #35289", "utils.checkpoint.current_device",
            replaced(torch.serialization, _validate_device=_device_zero)),
    planted("compiled code has no NaN", "PyTorch #143976", "compile.special[*]",
            replaced(torch, compile=_compiled_without_nan)),
    broken("int64 is added in float32", FAMILY, "HCCL has no int64", "comm.all_reduce.wide[sum-int64-2]",
           replaced(dist, all_reduce=after(_through_float))),
)  # fmt: skip
