"""Defects that a mixture of experts shows: router losses, noise, dropped tokens, copies and parts of experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.defects.catalogue.parallel import broken
from tests.defects.faults import Fault, Where, scaled
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import replaced

ROUTED, SPREAD = "routers and dropped tokens", "experts on several ranks"
#: A case in one process that none of these mutants concerns.
BYSTANDER = "utils.views.bytes[float32]"


def alone(name: str, family: str, precedent: str, caught_by: str, context: Any = None, **fault: Any) -> Mutant:
    """Return a mutant in a real run of the case and of another one, without ranks."""
    what = Fault(name, family, precedent, Where.OPERATOR, caught_by, context=context, **fault)
    return Mutant(what, (), (caught_by, BYSTANDER), how=How.PYTEST)


def of_everybody(old: Any) -> Any:
    """Random numbers come from the default generator, whatever generator is given."""
    return lambda *args, **kwargs: old(*args, **{**kwargs, "generator": None})


def _halved(old: Any) -> Any:
    return lambda *args, **kwargs: old(*args, **kwargs) / 2


def _without_maximum(old: Any) -> Any:
    del old
    return lambda x, dim: x.exp().sum(dim).log()


def _other_way_down(old: Any) -> Any:
    """A sort by the first dimension ignores its direction."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return old(x, *args, **{**kwargs, "descending": kwargs.get("descending", False) and kwargs.get("dim", -1) != 0})

    return call


def _sorted_draws(old: Any) -> Any:
    """The first rows of random matrices have the largest numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        drawn = old(*args, **kwargs)
        return drawn.sort(dim=0, descending=True).values if drawn.dim() > 1 else drawn

    return call


def _last_wins(call: Any, args: list[Any]) -> Any:
    """Rows that are added to one place overwrite each other."""
    before = args[0].clone()
    results = call(args)
    results[0].copy_(before.index_copy(args[1], args[2], args[3]))
    return results


def _constant(old: Any) -> Any:
    return lambda *args, **kwargs: old(*args, **kwargs).detach()


def in_groups_nothing(old: Any) -> Any:
    """Sums over a group that is not the world stay a rank's own."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if kwargs.get("group") is not None and tensor.is_floating_point() else old(tensor, *args, **kwargs)

    return call


def own_largest(old: Any) -> Any:
    """The largest value of all ranks is the rank's own."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if kwargs.get("op") == dist.ReduceOp.MAX else old(tensor, *args, **kwargs)

    return call


def _rows_turned(old: Any) -> Any:
    """What is loaded into a shard has its rows in reverse."""

    def load(state: dict[str, Any], **kwargs: Any) -> Any:
        result = old(state, **kwargs)
        for value in state.values():
            local = value.to_local()
            local.copy_(local.flip(0))
        return result

    return load


def _loads() -> Any:
    """Enter the fault where the checkpoint module is imported late."""
    import torch.distributed.checkpoint as dcp

    return replaced(dcp, load=_rows_turned)()


MUTANTS: tuple[Mutant, ...] = (
    alone("a softmax gradient is 2 % too large", ROUTED, "defect class of kernels", "moe.balance_loss[2-random]",
          operators={"aten::_softmax_backward_data": scaled(1.02)}),
    alone("a logarithm of sums overflows", ROUTED, "logsumexp without its maximum", "moe.size_loss[3000]",
          replaced(torch, logsumexp=_without_maximum)),
    alone("factors of scores ignore their generator", ROUTED, "DeepSpeed MoE: jitter from a global sampler",
          "moe.noise.jitter[0.5]", replaced(torch, rand=of_everybody)),
    alone("random numbers cover a half", ROUTED, "defect class of generators", "moe.noise.gumbel[1.0]",
          replaced(torch, rand=_halved)),
    alone("routes depend on what else was drawn", ROUTED, "DeepSpeed MoE: jitter from a global sampler",
          "moe.noise.routes[2]", replaced(torch, rand=of_everybody)),
    alone("a full expert keeps the least likely tokens", ROUTED, "DeepSpeed MoE: drop policy by probabilities",
          "moe.dropping[probability-2-0.25]", replaced(torch, argsort=_other_way_down)),
    alone("a full expert keeps the last tokens", ROUTED, "DeepSpeed MoE: drop policy by position",
          "moe.dropping[position-1-0.25]", replaced(torch, argsort=_other_way_down)),
    alone("early tokens have the highest random priority", ROUTED, "DeepSpeed MoE: random token selection",
          "moe.dropping.random[1]", replaced(torch, rand=_sorted_draws)),
    alone("of two experts' rows for a token one is kept", ROUTED, "index_add without atomics", "moe.layer[2-1.5]",
          operators={"aten::index_add": _last_wins}),
    alone("a router gets no gradient", ROUTED, "DeepSpeed MoE: gates detached", "moe.layer[3-1.0]",
          replaced(torch, softmax=_constant)),
    alone("coefficients of a residual layer get no gradient", ROUTED, "DeepSpeed residual MoE",
          "moe.residual[float32]", replaced(torch, softmax=_constant)),
    broken("copies of experts keep their gradients apart", SPREAD, "DeepSpeed expert-data-parallel groups",
           "moe.copies[2]", replaced(dist, all_reduce=in_groups_nothing)),
    broken("loaded experts are in reverse", SPREAD, "DeepSpeed: experts of a checkpoint by local number",
           "moe.checkpoint[4-2]", _loads),
    broken("halves of an expert are not added", SPREAD, "DeepSpeed MoE with tensor parallelism",
           "moe.tensor_parallel[spread]", replaced(dist, all_reduce=in_groups_nothing)),
    broken("ranks do not agree on the capacity", SPREAD, "DeepSpeed MoE: capacity without dropping",
           "moe.capacity.agreed[2-3]", replaced(dist, all_reduce=own_largest)),
)  # fmt: skip
