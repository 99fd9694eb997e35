"""Defects that area v1 shows: transforms of functions, hooks, loss scales, float32 copies, and ZeRO's three levels."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.defects.catalogue.experts import alone
from tests.defects.catalogue.parallel import broken, kernel, method
from tests.defects.catalogue.stages import of_an_operator
from tests.defects.faults import changed, scaled
from tests.defects.mutant import Mutant
from tests.defects.spoiling import replaced

TRANSFORMED, SCALED, LEVELS, HOOKED = "transforms of functions", "loss scales and small steps", "ZeRO levels", "hooks"


def _half_of_each(old: Any) -> Any:
    """Later samples of a batch get what the first one gets."""

    def vmap(function: Any, *args: Any, **kwargs: Any) -> Any:
        mapped = old(function, *args, **kwargs)

        def call(*given: Any) -> Any:
            from torch.utils import _pytree as pytree

            return pytree.tree_map(
                lambda t: t.index_select(0, torch.zeros(len(t), dtype=torch.int64, device=t.device)), mapped(*given)
            )

        return call

    return vmap


def _own_weights(old: Any) -> Any:
    """A functional call uses the module's own weights."""

    def call(module: Any, parameters: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        given = parameters[0] if isinstance(parameters, tuple) else parameters
        own = {name: value.detach() + 0 * given[name] for name, value in module.named_parameters()}
        return old(module, own, args, *rest, **kwargs)

    return call


def _one_for_all(old: Any) -> Any:
    """Samples share their random numbers, whatever is asked for."""

    def vmap(function: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("randomness") == "different":
            kwargs["randomness"] = "same"
        return old(function, *args, **kwargs)

    return vmap


def _func(**members: Any) -> Any:
    return kernel("torch.func", **members)


def _grows_always(old: Any) -> Any:
    """Good steps are counted although a bad one came between them."""

    def update(scale: Any, tracker: Any, found: Any, growth: float, backoff: float, interval: int) -> Any:
        before = tracker.clone()
        result = old(scale, tracker, found, growth, backoff, interval)
        if bool(found.item()):
            tracker.copy_(before)
        return result

    return update


def _half_as_usual(old: Any) -> Any:
    """The scale is halved, whatever the factor is."""

    def update(scale: Any, tracker: Any, found: Any, growth: float, backoff: float, interval: int) -> Any:
        return old(scale, tracker, found, growth, 0.5, interval)

    return update


def _forgets_the_count(old: Any) -> Any:
    def load(self: Any, state: Any) -> None:
        old(self, {**state, "_growth_tracker": 0})

    return load


def _clips_what_is_scaled(old: Any) -> Any:
    del old
    return lambda self, optimizer: None


def _through_16_bits(old: Any) -> Any:
    """Weights come back from what was copied down."""

    def copy(targets: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        result = old(targets, sources, *args, **kwargs)
        for target, source in zip(targets, sources, strict=True):
            source.copy_(target)
        return result

    return copy


def _steps_in_16_bits(old: Any) -> Any:
    """A sharded weight is rounded to 16 bits after its step."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = old(self, *args, **kwargs)
        for group in self.param_groups:
            for value in group["params"]:
                local = value.to_local() if hasattr(value, "to_local") else value
                local.detach().copy_(local.detach().bfloat16().float())
        return result

    return step


def _not_replaced(old: Any) -> Any:
    """What a hook returns is dropped."""

    def register(self: Any, hook: Any) -> Any:
        return old(self, lambda gradient: _ignored(hook, gradient))

    return register


def _ignored(hook: Any, gradient: Any) -> None:
    hook(gradient.clone())


def _elsewhere(old: Any) -> Any:
    """Hooks run on a stream of their own, which waits for nothing."""

    def register(self: Any, hook: Any) -> Any:
        def call(gradient: Any) -> Any:
            with torch.sim.stream(torch.sim.Stream()):  # type: ignore[attr-defined]
                return hook(gradient)

        return old(self, call)

    return register


def _half_the_hooks(old: Any) -> Any:
    """A hook of a module sees a gradient that is not finished."""
    return lambda self, hook, prepend=False: old(self, lambda m, given: hook(m, tuple(g * 0.5 for g in given)), prepend)


def _early(old: Any) -> Any:
    """Hooks behind the accumulation run before the last contribution."""

    def register(self: Any, hook: Any) -> Any:
        def call(value: Any) -> Any:
            value.grad.mul_(0.5)
            result = hook(value)
            if value.grad is not None:
                value.grad.mul_(2)
            return result

        return old(self, call)

    return register


def _stays(old: Any) -> Any:
    del old
    return lambda self: None


def _one_percent_more(old: Any) -> Any:
    """Losses on the device count one percent more; the host's references are in float64."""

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return old(self * 1.01 if self.dtype == torch.float32 else self, *args, **kwargs)

    return backward


def _first_loss_only(old: Any) -> Any:
    """Of several losses in one backward pass, the first counts."""

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, (list, tuple)) and len(tensors) > 1:
            tensors, grad_tensors = tensors[:1], grad_tensors[:1] if grad_tensors else None
        return old(tensors, grad_tensors, *args, **kwargs)

    return backward


def _gathers_turned(old: Any) -> Any:
    """Parts of a gathered weight come in the order of another rank."""

    def gather(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        work = old(self, output, *args, **kwargs)
        if work is not None:
            work.wait()
        output.copy_(output.view(dist.get_world_size(), -1).flip(0).reshape(output.shape).clone())
        return work

    return gather


def _first_rank_only(old: Any) -> Any:
    """Whole weights that are broadcast do not reach the last rank."""

    def broadcast(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        own = tensor.clone()
        work = old(tensor, *args, **kwargs)
        if tensor.is_floating_point() and dist.get_rank() == dist.get_world_size() - 1:
            if work is not None:
                work.wait()
            tensor.copy_(own)
        return work

    return broadcast


def _keeps_all(old: Any) -> Any:
    """Weights stay whole behind the forward pass."""

    def shard(module: Any, **kwargs: Any) -> Any:
        return old(module, **{**kwargs, "reshard_after_forward": False})

    return shard


def _own_overflow(old: Any) -> Any:
    """Infinite gradients are taken for large ones."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = old(self, *args, **kwargs)
        return {device: value.zero_() for device, value in found.items()}

    return call


def _gradient_of_unused(old: Any) -> Any:
    """Parameters without a gradient get one of ones."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    value.grad = torch.ones_like(value)
        return old(self, *args, **kwargs)

    return step


def _leaves_its_own(old: Any) -> Any:
    """A gradient that is only asked for is added to the parameters as well."""

    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs.backward(retain_graph=True)
        return old(outputs, inputs, *args, **kwargs)

    return grad


_FSDP = "torch.distributed.fsdp"
_COLLECTIVES = f"{_FSDP}._fully_shard._fsdp_collectives"

MUTANTS: tuple[Mutant, ...] = (
    alone("tanh's gradient loses 2 %", TRANSFORMED, "defect class of kernels", "v1.functorch[vjp-float32]",
          operators={"aten::tanh": changed(lambda t: t * 0.98)}),
    alone("all samples get the first one's gradient", TRANSFORMED, "DeepSpeed v1: functorch under an engine",
          "v1.functorch.samples[all-float32]", _func(vmap=_half_of_each)),
    alone("an ensemble has one model's outputs", TRANSFORMED, "DeepSpeed v1: functorch under an engine",
          "v1.functorch.ensemble[float32-shared]", _func(vmap=_half_of_each)),
    alone("a functional call uses the module's weights", TRANSFORMED, "DeepSpeed v1: functorch under an engine",
          "v1.functorch.call[float32]", _func(functional_call=_own_weights)),
    alone("samples share their random numbers", TRANSFORMED, "vmap's randomness over a device's generator",
          "v1.functorch.random[different]", _func(vmap=_one_for_all)),
    alone("a write into a view under a transform is lost", TRANSFORMED, "functionalization of views",
          "v1.functorch.mutation[vmap]", operators={"aten::mul.Tensor": scaled(0.5), "aten::mul.out": scaled(0.5)}),
    alone("good steps are counted across a bad one", SCALED, "DeepSpeed loss scaler: window after an overflow",
          "v1.loss_scale[late-inf]", replaced(torch, _amp_update_scale_=_grows_always)),
    alone("a loss scale is halved, whatever its factor", SCALED, "DeepSpeed loss scaler: scale_factor",
          "v1.loss_scale.factors[1.5-0.25]", replaced(torch, _amp_update_scale_=_half_as_usual)),
    alone("a restored loss scale forgets its good steps", SCALED, "DeepSpeed: loss scaler in checkpoints",
          "v1.loss_scale.restored[2]", replaced(torch.amp.GradScaler, load_state_dict=_forgets_the_count)),
    alone("scaled gradients are clipped", SCALED, "DeepSpeed history: clipping before unscaling",
          "v1.loss_scale.clipped[1024.0]", replaced(torch.amp.GradScaler, unscale_=_clips_what_is_scaled)),
    alone("float32 copies are read back from 16 bits", SCALED, "DeepSpeed bf16: master weights from parameters",
          "v1.master_weights[bfloat16-foreach]", replaced(torch, _foreach_copy_=_through_16_bits)),
    broken("sharded weights take steps in 16 bits", SCALED, "DeepSpeed bf16 without master weights",
           "v1.master_weights.sharded[bfloat16-2]", replaced(torch.optim.SGD, step=_steps_in_16_bits)),
    alone("what a hook returns is dropped", HOOKED, "hooks of a device's own autograd nodes", "v1.hooks[tensor]",
          replaced(torch.Tensor, register_hook=_not_replaced)),
    broken("a hook before a module's backward pass sees half", HOOKED, "DeepSpeed ZeRO-3: hooks of sub-modules",
           "v1.hooks.sharded[fsdp-backward-pre]",
           replaced(nn.Module, register_full_backward_pre_hook=_half_the_hooks)),
    broken("a step inside the backward pass sees half of a gradient", HOOKED, "DeepSpeed ZeRO: overlapped steps",
           "v1.hooks.step[fsdp]", replaced(torch.Tensor, register_post_accumulate_grad_hook=_early)),
    alone("hooks run on a stream of their own", HOOKED, "DeepSpeed ZeRO: gradients on another stream",
          "v1.hooks.stream[tensor]", replaced(torch.Tensor, register_hook=_elsewhere)),
    alone("a removed hook is called again", HOOKED, "handles of hooks", "v1.hooks.removed[tensor]",
          method("torch.utils.hooks", "RemovableHandle", remove=_stays)),
    of_an_operator("16-bit products lose 20 %", LEVELS, "defect class of kernels", "v1.parity[3-bfloat16-2]",
                   gelu=changed(lambda t: t * 0.8 if t.dtype == torch.bfloat16 else t)),
    broken("micro-steps count one percent more", LEVELS, "DeepSpeed: gradient accumulation boundaries",
           "v1.micro_steps[ddp-3]", replaced(torch.Tensor, backward=_one_percent_more)),
    broken("of two losses in one backward pass the first counts", LEVELS, "DeepSpeed: user-called backward passes",
           "v1.backwards[ddp-two-losses]", kernel("torch.autograd", backward=_first_loss_only)),
    broken("gathered weights have their parts in reverse", LEVELS, "DeepSpeed ZeRO-3: GatheredParameters",
           "v1.gathered[outside-2]", method(_COLLECTIVES, "DefaultAllGather", __call__=_gathers_turned)),
    broken("written weights do not reach the last rank", LEVELS, "DeepSpeed ZeRO-3: GatheredParameters(modifier_rank)",
           "v1.gathered.written[first-rank-2]", replaced(dist, broadcast=_first_rank_only)),
    broken("weights stay whole between their uses", LEVELS, "DeepSpeed ZeRO-3: parameters not released",
           "v1.shares[3-2]", kernel(_FSDP, fully_shard=_keeps_all)),
    broken("an overflow of a micro-step is not seen", LEVELS, "DeepSpeed #7580: ranks disagree on overflow",
           "v1.overflow[ddp-inf-micro]", replaced(torch.amp.GradScaler, _unscale_grads_=_own_overflow)),
    broken("unused layers get a gradient", LEVELS, "DeepSpeed ZeRO-3: unused parameters", "v1.unused[fsdp-kept]",
           replaced(torch.optim.SGD, step=_gradient_of_unused)),
    broken("a gradient that is asked for is added", LEVELS, "DeepSpeed ZeRO: hooks inside autograd.grad",
           "v1.outside[loss]", kernel("torch.autograd", grad=_leaves_its_own)),
)  # fmt: skip
