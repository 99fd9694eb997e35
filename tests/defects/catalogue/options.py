"""Defects that options of training show: autocast's lists, hooks and buckets of DDP, states on the host, rates."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.defects.catalogue.experts import alone
from tests.defects.catalogue.parallel import broken, kernel, method
from tests.defects.faults import changed, scaled
from tests.defects.mutant import Mutant
from tests.defects.spoiling import on_device, replaced, spoiled

CAST, TRAVEL, ON_HOST, RATES = "autocast's lists", "gradients on their way", "states on the host", "rates and norms"


def _in_32_bits(call: Any, args: Any, kwargs: Any) -> Any:
    """A convolution is not on the lower list."""
    result = call(*args, **kwargs)
    return result.float() if on_device(result) else result


def _in_16_bits(old: Any) -> Any:
    """A loss is not on the float32 list."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = old(x, *args, **kwargs)
        return result.to(x.dtype) if on_device(x) else result

    return call


def _casts_everything(call: Any, args: Any, kwargs: Any) -> Any:
    result = call(*args, **kwargs)
    return result.bfloat16() if on_device(result) else result


def _casts_given(old: Any) -> Any:
    """A product into a given tensor is computed from inputs in 16 bits."""

    def call(left: Any, right: Any, out: Any = None) -> Any:
        if out is None or not on_device(left):
            return old(left, right) if out is None else old(left, right, out=out)
        return old(left.bfloat16().float(), right.bfloat16().float(), out=out)

    return call


def _second_bucket_alone(old: Any) -> Any:
    """With more than one bucket, later ones are not reduced."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **kwargs)
        if kwargs.get("bucket_cap_mb") == 0.0001:
            self.register_comm_hook(None, _only_the_first)

    return init


def _only_the_first(state: Any, bucket: Any) -> Any:
    del state
    tensor = bucket.buffer()
    if not bucket.is_last():
        future: Any = torch.futures.Future()
        future.set_result(tensor)
        return future
    done = dist.all_reduce(tensor.div_(dist.get_world_size()), async_op=True).get_future()
    return done.then(lambda result: result.value()[0])


def _sums(old: Any) -> Any:
    """A hook adds and does not divide."""

    def call(state: Any, bucket: Any) -> Any:
        return old(state, bucket).then(lambda done: done.value().mul_(dist.get_world_size()))

    return call


def _one_column(old: Any) -> Any:
    """A matrix of low rank is sent with one column."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **{**kwargs, "matrix_approximation_rank": 1})

    return init


def _never_sent(old: Any) -> Any:
    """Buffers stay what they are on each rank."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **{**kwargs, "broadcast_buffers": False})

    return init


def _own_sum(old: Any) -> Any:
    """A sum that carries gradients is the rank's own."""
    del old
    return lambda tensor, *args, **kwargs: tensor.clone()


def _goes_on(old: Any) -> Any:
    """Ranks do not stop when one has no inputs."""

    def join(self: Any, **options: Any) -> Any:
        return old(self, **{**options, "throw_on_early_termination": False})

    return join


def _averages_nothing(old: Any) -> Any:
    del old

    def average(self: Any, parameters: Any) -> None:
        self.step += 1

    return average


def _returns_halves(old: Any) -> Any:
    """What comes back from locked or other host memory has lost its last rows."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = old(self, *args, **kwargs)
        if self.device.type == "cpu" and on_device(result) and kwargs.get("copy") and result.dim() and len(result) > 1:
            result.detach()[-1:].zero_()
        return result

    return to


def _keeps_memory(old: Any) -> Any:
    """Memory of tensors that went to the host stays taken."""
    kept: list[Any] = []

    def cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        if on_device(self) and self.numel() == 512 * 512:
            kept.append(self)
        return old(self, *args, **kwargs)

    return cpu


def _cut_off(old: Any) -> Any:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.param_groups:
            group["kept"], group["lr"] = group["lr"], max(group["lr"], 0.1)
        result = old(self, *args, **kwargs)
        for group in self.param_groups:
            group["lr"] = group.pop("kept")
        return result

    return step


def _always_two(old: Any) -> Any:
    """Every norm is the Euclidean one."""
    return lambda tensors, norm_type=2.0, *args, **kwargs: old(tensors, 2.0, *args, **kwargs)


def _clips_before_the_error(old: Any) -> Any:
    """Gradients are scaled before a norm is found not to be finite."""

    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(parameters)
        for value in given:
            value.grad.mul_(0.5)
        return old(given, *args, **kwargs)

    return clip


def _first_stays(old: Any) -> Any:
    """A running average keeps its first value."""
    del old
    return lambda self, model: self.n_averaged.add_(1)


def _drops_others(old: Any) -> Any:
    return lambda *args, **kwargs: old(*args, **{**kwargs, "preserve_rng_state": False})


def _half(old: Any) -> Any:
    """The mean that a schedule looks at loses its fraction."""

    def mean(self: Any, *args: Any, **kwargs: Any) -> Any:
        return old(self, *args, **kwargs) * 0 + 1 if on_device(self) else old(self, *args, **kwargs)

    return mean


_DDP, _HOOKS = "torch.nn.parallel.distributed", "torch.distributed.algorithms.ddp_comm_hooks"


def _of_copies(name: str, precedent: str, caught_by: str) -> Mutant:
    """Return a mutant that breaks copies, so that cases of views may fail as well."""
    mutant = alone(name, ON_HOST, precedent, caught_by, replaced(torch.Tensor, to=_returns_halves))
    return dataclasses.replace(mutant, may_touch=("utils.*",))


MUTANTS: tuple[Mutant, ...] = (
    alone("a convolution under autocast is computed in 32 bits", CAST, "vendors' autocast lists without convolutions",
          "runtime.autocast[conv2d-bfloat16]", spoiled(convolution=_in_32_bits)),
    alone("a loss under autocast is computed in 16 bits", CAST, "vendors' autocast lists without losses",
          "runtime.autocast.full[kl_div-bfloat16]", replaced(nn.functional, kl_div=_in_16_bits)),
    alone("autocast casts a sum", CAST, "vendors' autocast lists with too many operators",
          "runtime.autocast.unlisted[maximum-float16]", spoiled(maximum=_casts_everything)),
    alone("autocast casts what goes into a given tensor", CAST, "vendors' autocast of out= forms",
          "runtime.autocast.in_place[out-bfloat16]", replaced(torch, mm=_casts_given)),
    broken("only the last bucket is reduced", TRAVEL, "DeepSpeed: gradients of a bucket left out",
           "runtime.buckets[one-bucket-each]", method(_DDP, "DistributedDataParallel", __init__=_second_bucket_alone)),
    broken("torch's own hook adds and does not divide", TRAVEL, "hooks that divide in 16 bits",
           "runtime.hook.own[float16-2]", kernel(f"{_HOOKS}.default_hooks", fp16_compress_hook=_sums)),
    broken("PowerSGD sends one column", TRAVEL, "approximations of too low a rank", "runtime.hook.low_rank[yes]",
           method(f"{_HOOKS}.powerSGD_hook", "PowerSGDState", __init__=_one_column)),
    broken("buffers of the first rank do not travel", TRAVEL, "DDP's broadcast of buffers", "runtime.buffers[yes-2]",
           method(_DDP, "DistributedDataParallel", __init__=_never_sent)),
    broken("rows are normalized by one rank's sums", TRAVEL, "SyncBatchNorm over a wrong group",
           "runtime.batch_norm[uneven-2]", kernel("torch.distributed.nn.functional", all_reduce=_own_sum)),
    broken("ranks go on when one has no inputs", TRAVEL, "uneven inputs: early termination", "runtime.uneven.refused",
           method(_DDP, "DistributedDataParallel", join=_goes_on)),
    broken("weights are never averaged", TRAVEL, "local SGD without communication", "runtime.averaged[2-2]",
           method("torch.distributed.algorithms.model_averaging.averagers", "PeriodicModelAverager",
                  average_parameters=_averages_nothing)),
    _of_copies("states lose their last row on their way back", "DeepSpeed: offload_states and reload_states",
               "runtime.reload[states-pageable-adamw]"),
    alone("states on the host keep their memory on the device", ON_HOST, "DeepSpeed: offload_states frees nothing",
          "runtime.reload.memory[sgd]", replaced(torch.Tensor, cpu=_keeps_memory)),
    _of_copies("activations lose their last row on the host", "DeepSpeed: cpu_checkpointing",
               "runtime.saved_on_host[pageable]"),
    alone("nested recomputation drops others", ON_HOST, "DeepSpeed activation checkpointing: generators not restored",
          "runtime.recomputation.kinds[nested]", kernel("torch.utils.checkpoint", checkpoint=_drops_others)),
    alone("tiles of a layer lose their last output", ON_HOST, "DeepSpeed TiledLinear: uneven tiles",
          "runtime.tiled_linear[outputs-no]", operators={"aten::mm": changed(lambda t: t.index_fill(
              -1, torch.tensor([t.shape[-1] - 1]), 0.0) if t.dim() else t)}),
    alone("small rates are taken for larger ones", RATES, "fused optimizers with a least rate",
          "runtime.rates[polynomial-loop]", replaced(torch.optim.SGD, step=_cut_off)),
    alone("a schedule sees other losses", RATES, "losses read before they are finished", "runtime.rates.plateau[min]",
          replaced(torch.Tensor, mean=_half)),
    alone("every norm is the Euclidean one", RATES, "fused norms of one kind", "runtime.clipping.norms[1-foreach-0.5]",
          kernel("torch.nn.utils.clip_grad", _get_total_norm=_always_two)),
    alone("gradients change although their norm is an error", RATES, "clipping before the check",
          "runtime.clipping.nonfinite[inf-loop]", replaced(nn.utils, clip_grad_norm_=_clips_before_the_error)),
    alone("a running average keeps its first value", RATES, "averages that are not updated on a device",
          "runtime.average_of_weights[exponential-no]",
          method("torch.optim.swa_utils", "AveragedModel", update_parameters=_first_stays)),
    alone("addition with a factor is 2 % too large", RATES, "defect class of kernels", "runtime.rates[one-cycle-loop]",
          operators={"aten::add_": scaled(1.02), "aten::add": scaled(1.02)}),
)  # fmt: skip
