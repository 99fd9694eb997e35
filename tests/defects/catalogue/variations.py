"""Defects of training that varies and of profiles: rates, frozen layers, clipped or 16-bit gradients, uneven ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.defects.catalogue.parallel import broken, kernel, method
from tests.defects.mutant import Mutant
from tests.defects.spoiling import replaced

VARIED, PROFILED = "training that varies", "profiles that show something else"
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
#: Categories of a trace that the device's work has.
_OF_HOST = ("cpu_op", "user_annotation", "python_function", "Trace", "Operator")


def _keeps_the_rate(old: Any) -> Any:
    """A fused step on the device has compiled the first learning rate in."""
    first: list[float] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if args[0][0].device.type == "cpu":
            return old(*args, **kwargs)
        first.append(kwargs["lr"])
        return old(*args, **{**kwargs, "lr": first[0]})

    return call


def _freezes_nothing(old: Any) -> Any:
    del old
    return lambda self, requires_grad=True: self


def _clips_nothing(old: Any) -> Any:
    del old
    return lambda parameters, clip_value, foreach=None: None


def _clips_from_above(old: Any) -> Any:
    """Large negative elements stay."""
    del old

    def call(parameters: Any, clip_value: float, foreach: Any = None) -> None:
        for parameter in parameters:
            parameter.grad.clamp_(max=clip_value)

    return call


def _adds_twice_in_16_bits(old: Any) -> Any:
    """What is sent in 16 bits is added twice."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype in _SIXTEEN_BITS:
            tensor.mul_(2)
        return old(tensor, *args, **kwargs)

    return call


def _one_rank_keeps_its_own(old: Any) -> Any:
    """The last rank gets its own 16-bit numbers back, and not the sum."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        own = tensor.clone()
        work = old(tensor, *args, **kwargs)
        if tensor.dtype in _SIXTEEN_BITS and dist.get_rank() == dist.get_world_size() - 1:
            work.wait()
            tensor.copy_(own)
        return work

    return call


def _divides_by_those_left(old: Any) -> Any:
    """Sums are divided by the number of ranks that still have inputs."""
    return lambda self, divide_by_initial_world_size=True, **options: old(
        self, divide_by_initial_world_size=False, **options
    )


def _keeps_replicas_apart(old: Any) -> Any:
    """Gradients are not added over the groups of ranks."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if kwargs.get("group") is not None and tensor.is_floating_point() else old(tensor, *args, **kwargs)

    return call


def _of_the_host_only(old: Any) -> Any:
    """A trace is written without the spans of the device."""

    def export(self: Any, path: str) -> Any:
        result = old(self, path)
        trace = json.loads(Path(path).read_text())
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("ph") != "X" or e.get("cat") in _OF_HOST]
        Path(path).write_text(json.dumps(trace))
        return result

    return export


def _loses_the_last(old: Any) -> Any:
    """The last product is not in the file."""

    def export(self: Any, path: str) -> Any:
        result = old(self, path)
        trace = json.loads(Path(path).read_text())
        products = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
        # On each thread: a device may run its queue in one of its own.
        last = {event["tid"]: event["ts"] for event in sorted(products, key=lambda e: e["ts"] + e["dur"])}
        lost = [event for event in products if event["ts"] >= last[event["tid"]]]
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event not in lost]
        Path(path).write_text(json.dumps(trace))
        return result

    return export


def _without_products(old: Any) -> Any:
    """A layer on the device gives its bias alone, although its product is counted."""

    def call(x: Any, weight: Any, bias: Any = None) -> Any:
        result = old(x, weight, bias)
        if x.device.type == "cpu":
            return result
        return result * 0 + (0 if bias is None else bias)

    return call


_TRACE = "torch.profiler.profiler"
_HOOKED = "a hook in 16 bits, run by the engine's buckets"

MUTANTS: tuple[Mutant, ...] = (
    broken("a fused step keeps its first learning rate", VARIED, "fused optimizers: settings taken once",
           "runtime.schedule[ddp]", kernel("torch.optim.sgd", sgd=_keeps_the_rate)),
    broken("frozen layers are trained", VARIED, "DeepSpeed #4051: frozen parameters in optimizer groups",
           "runtime.frozen[ddp]", replaced(torch.nn.Module, requires_grad_=_freezes_nothing)),
    broken("nothing is clipped by value", VARIED, "engines that own the step and skip clipping",
           "runtime.clipping_by_value[ddp]", replaced(torch.nn.utils, clip_grad_value_=_clips_nothing)),
    broken("values are clipped from above only", VARIED, "a kernel with one bound",
           "runtime.clipping_by_value[fsdp]", replaced(torch.nn.utils, clip_grad_value_=_clips_from_above)),
    broken("gradients in 16 bits are added twice", VARIED, _HOOKED,
           "runtime.hook[bfloat16-2]", replaced(dist, all_reduce=_adds_twice_in_16_bits)),
    broken("a rank keeps its own gradients in 16 bits", VARIED, _HOOKED,
           "runtime.hook[float16-2]", replaced(dist, all_reduce=_one_rank_keeps_its_own)),
    broken("sums are divided by the ranks that are left", VARIED, "uneven inputs: the divisor changes in an epoch",
           "runtime.uneven[2]", method("torch.nn.parallel.distributed", "DistributedDataParallel",
                                       join=_divides_by_those_left)),
    broken("groups of ranks train apart", VARIED, "DeepSpeed MiCS: gradients of replica groups",
           "runtime.hybrid[2]", replaced(dist, all_reduce=_keeps_replicas_apart)),
    broken("a trace lacks the device's work", PROFILED, "vendors' profilers without a Kineto plugin",
           "profiling.trace", method(_TRACE, "_KinetoProfile", export_chrome_trace=_of_the_host_only)),
    broken("a trace lacks the last product", PROFILED, "buffers of activities that are not flushed",
           "profiling.trace", method(_TRACE, "_KinetoProfile", export_chrome_trace=_loses_the_last)),
    broken("products are counted and not done", PROFILED, "flops of a profiler that looks at shapes",
           "profiling.flops.modules", replaced(torch.nn.functional, linear=_without_products)),
)  # fmt: skip
