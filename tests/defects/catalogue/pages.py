"""Defects that pages of a cache and the choice of tokens show."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.catalogue.experts import alone
from tests.defects.mutant import Mutant
from tests.defects.spoiling import on_device, replaced, spoiled

PAGED, CHOSEN = "pages of a cache", "choice of tokens"
_CACHED = "DeepSpeed FastGen: blocked KV cache"


def _last_slot_lost(call: Any, args: Any, kwargs: Any) -> Any:
    """Of rows that are written to their slots, the last of several is lost."""
    before = args[0].clone()
    result = call(*args, **kwargs)
    if on_device(args[0]) and args[2].numel() > 1:
        place = args[2][-1:]
        args[0].copy_(torch.index_copy(args[0].clone(), args[1], place, before.index_select(args[1], place)))
    return result


def _first_rows_alone(call: Any, args: Any, kwargs: Any) -> Any:
    """A copy inside the device writes the first row alone."""
    target, source = args[0], args[1]
    if not (on_device(target) and on_device(source)) or target.dim() != 3:
        return call(*args, **kwargs)
    before = target.clone()
    result = call(*args, **kwargs)
    target[1:].fill_(0).add_(torch.nan_to_num(before[1:]))
    return result


def _comes_back_short(old: Any) -> Any:
    """Rows that come back from the host lack the last one."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = old(self, *args, **kwargs)
        if self.device.type == "cpu" and on_device(result) and result.is_floating_point() and result.dim() == 3:
            result[-1] = 0
        return result

    return to


def _first_row_last(call: Any, args: Any, kwargs: Any) -> Any:
    """A selection of rows of a cache reads the pool's first row in place of the last one."""
    if on_device(args[0]) and args[0].dim() == 3 and args[2].numel() > 1:
        places = args[2].clone()
        places[-1] = 0
        args = (args[0], args[1], places)
    return call(*args, **kwargs)


def _not_infinite(call: Any, args: Any, kwargs: Any) -> Any:
    """Scores that are masked keep a little."""
    if on_device(args[0]) and args[0].is_floating_point():
        args = (args[0], args[1], -1.0)
    return call(*args, **kwargs)


def _unordered(old: Any) -> Any:
    """A sort of floats ignores its direction."""

    def sort(x: Any, *args: Any, **kwargs: Any) -> Any:
        return old(x, *args, **{**kwargs, "descending": False}) if on_device(x) else old(x, *args, **kwargs)

    return sort


def _uniform(old: Any) -> Any:
    """Words are drawn with equal chances."""
    return lambda shares, *args, **kwargs: old(
        torch.ones_like(shares) if on_device(shares) else shares, *args, **kwargs
    )


def _parents_turned(call: Any, args: Any, kwargs: Any) -> Any:
    """The places of the largest values come in reverse."""
    values, places = call(*args, **kwargs)
    return (values, places.flip(-1)) if on_device(values) else (values, places)


def _one_further(call: Any, args: Any, kwargs: Any) -> Any:
    """The place of the largest value is one too far, in the second of several rows."""
    result = call(*args, **kwargs)
    if on_device(result) and result.dim() and len(result) > 1:
        result[1] += 1
    return result


def _always_accepted(old: Any) -> Any:
    return lambda *args, **kwargs: old(*args, **kwargs) * 0.5


def _bias_of_one_head(call: Any, args: Any, kwargs: Any) -> Any:
    """Scores of heads beyond the fourth lose what is added to them."""
    result = call(*args, **kwargs)
    if on_device(result) and result.dim() == 3 and result.shape[0] > 4:
        result = result.clone()
        result[4:] = args[0][4:]
    return result


MUTANTS: tuple[Mutant, ...] = (
    alone("a token's keys are not written", PAGED, _CACHED, "inference.paged[two-float32]",
          spoiled(index_copy_=_last_slot_lost)),
    alone("a copy of a shared page has its first token alone", PAGED, _CACHED, "inference.paged.shared[6-float32]",
          spoiled(copy_=_first_rows_alone)),
    alone("a sequence comes back without its last token", PAGED, "vLLM: swapped blocks",
          "inference.paged.evicted[swapped-float32]", replaced(torch.Tensor, to=_comes_back_short)),
    alone("a sequence reads another one's keys", PAGED, _CACHED, "inference.paged.turns[float32]",
          spoiled(index_select=_first_row_last)),
    alone("tokens outside a window count a little", PAGED, "sliding windows of blocks",
          "inference.paged.window[5-float32]", spoiled(masked_fill=_not_infinite)),
    alone("a sort goes up instead of down", CHOSEN, "defect class of kernels", "inference.filter[top-p-0.5]",
          replaced(torch, sort=_unordered)),
    alone("words are drawn with equal chances", CHOSEN, "multinomial over a device's generator",
          "inference.filter.drawn[top-k-4]", replaced(torch, multinomial=_uniform)),
    alone("beams have each other's parents", CHOSEN, "DeepSpeed inference: beams without a reordered cache",
          "inference.beams[4-float32]", spoiled(topk=_parents_turned)),
    alone("the second word of a draft is another one", CHOSEN, "verification of several tokens at once",
          "inference.speculative[right]", spoiled(argmax=_one_further)),
    alone("drafts are accepted too often", CHOSEN, "rejection sampling with halved draws",
          "inference.speculative.sampled[far]", replaced(torch, rand=_always_accepted)),
    alone("heads beyond a power of two have no distances", CHOSEN, "DeepSpeed inference: ALiBi slopes of 12 heads",
          "inference.alibi[6-whole-float32]", spoiled(add=_bias_of_one_head)),
)  # fmt: skip
