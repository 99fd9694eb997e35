"""Defects of compressed communication that short runs hide: feedback, groups, packing kernels and masks."""

from __future__ import annotations

from typing import Any

from tests.defects.catalogue.collectives import broken
from tests.defects.catalogue.parallel import COMPRESSED, method

_ALL_REDUCE = "conformance.kernels.compression.all_reduce"


def _forgets_after_fifty(old: Any) -> Any:
    """The feedback of the fiftieth call is lost."""
    calls = [0]

    def call(self: Any, buffer: Any, feedback: Any) -> Any:
        calls[0] += 1
        result = old(self, buffer, feedback)
        if calls[0] % 50 == 0:
            feedback.server.zero_()
        return result

    return call


def _in_the_default_group(old: Any) -> Any:
    def call(self: Any, own: Any) -> Any:
        chosen, self._group = self._group, None
        try:
            return old(self, own)
        finally:
            self._group = chosen

    return call


def _packs_itself(old: Any) -> Any:
    """The kernels that were given are not used."""
    del old

    def call(self: Any, tensor: Any) -> Any:
        from conformance.kernels.compression.packing import packbits

        return packbits(tensor, tensor.numel())

    return call


def _without_mask(old: Any) -> Any:
    def call(self: Any, group: Any, parameter: Any) -> Any:
        return old(self, {**group, "mask": None}, parameter)

    return call


MUTANTS = (
    broken("feedback is lost in the fiftieth call", COMPRESSED, "DeepSpeed 1-bit Adam: errors dropped on load",
           "compression.all_reduce.hundred[2]",
           method(_ALL_REDUCE, "CompressedAllReduce", all_reduce=_forgets_after_fifty)),
    broken("scales go through the default group", COMPRESSED, "DeepSpeed comm_backend_name: a backend of its own",
           "compression.all_reduce.own_group[mean]",
           method(_ALL_REDUCE, "CompressedAllReduce", _gathered=_in_the_default_group)),
    broken("the optimizer packs with kernels of its own", COMPRESSED, "DeepSpeed compressed backend: PackbitsBuilder",
           "compression.optimizer.packing[adam]", method(_ALL_REDUCE, "CompressedAllReduce", _packed=_packs_itself)),
    broken("a mask is not used", COMPRESSED, "DeepSpeed 1-bit Adam: exp_avg_mask", "compression.optimizer.mask[adam]",
           method("conformance.kernels.compression.one_bit_adam", "OneBitAdam", _update_one=_without_mask)),
)  # fmt: skip
