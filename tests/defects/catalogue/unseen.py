"""Defects of a person who had not read the cases: draws, exchanges, messages with tags, copies between layouts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.defects.faults import Around, Call, Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import on_device, replaced, result_of, spoiled

from .collectives import broken

Tensor = torch.Tensor
FAMILY = "defects of a person who had not read the cases"


def unseen(name: str, precedent: str, where: Where, caught_by: str, **fault: Any) -> Mutant:
    what = Fault(name, FAMILY, precedent, where, caught_by, **fault)
    return Mutant(what, ("accelerator.*", "capabilities.*", "operators.*", "utils.*", "profiling.*"), (caught_by,))


def _leftover() -> Around:
    """Normal numbers come in pairs; what a small odd draw has left over is given out later, whatever seed is set."""
    left: list[float] = []

    def around(call: Call, args: list[Any]) -> list[Any]:
        results = call(args)
        drawn = results[0]
        if 0 < drawn.numel() < 16 and drawn.numel() % 2:
            if left:
                drawn.view(-1)[0] = left.pop()
            else:
                left.append(float(drawn.view(-1)[0]) / 2)
        return results

    return around


def _repeats_after_a_launch(call: Call, args: list[Any]) -> list[Any]:
    """What lies beyond 2^20 numbers of a draw is its beginning once more."""
    results = call(args)
    drawn = results[0]
    if drawn.numel() > 1 << 20 and drawn.is_contiguous():
        flat = drawn.view(-1)
        flat[1 << 20 :] = flat[torch.arange(flat.numel() - (1 << 20)) % (1 << 20)]
    return results


def _of_32_bits(call: Call, args: list[Any]) -> list[Any]:
    """Whole numbers of a wide range have 32 random bits."""
    results = call(args)
    if isinstance(args[2], int) and args[2] - args[1] > 1 << 32:
        results[0].copy_(args[1] + (results[0] - args[1]) % (1 << 32))
    return results


def _one_row_for_all(call: Call, args: list[Any]) -> list[Any]:
    """The rows of a draw without replacement share their noise."""
    results = call(args)
    if results[0].dim() == 2 and not args[2]:
        results[0][1:] = results[0][:1]
    return results


def _exports_a_copy(old: Any) -> Any:
    def export(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return old(self if self.is_contiguous() else self.contiguous(), *args, **kwargs)

    return export


def _dense_on_a_peer(result: Tensor, args: tuple[Any, ...]) -> Tensor | None:
    """A copy to another device writes a transposed target in the order of memory."""
    if not on_device(args[1]) or args[1].device == result.device or result.is_contiguous() or result.dim() != 2:
        return None
    return args[1].to(result.device).to(result.dtype).contiguous().view(-1).view(result.shape[::-1]).t()


def _without_its_tag(old: Any) -> Any:
    def call(tensor: Any, peer: int, *args: Any, tag: int = 0, **kwargs: Any) -> Any:
        return old(tensor, peer, *args, **kwargs)

    return call


MUTANTS = (
    unseen("a seed keeps a normal number that was left over", "cuRAND's Box-Muller keeps the second number of a pair",
           Where.RNG, "accelerator.rng.seed_forgets[randn]", operators={"aten::normal_": _leftover()}),
    unseen("a draw repeats after 2^20 numbers", "a counter of a launch that is not advanced by the grid",
           Where.RNG, "accelerator.laws.long_draws[uniform]", operators={"aten::uniform_": _repeats_after_a_launch}),
    unseen("wide whole numbers have 32 random bits", "a kernel that draws one word of 32 bits",
           Where.RNG, "accelerator.laws.integer_draws[53]", operators={"aten::random_": _of_32_bits}),
    unseen("rows of multinomial share their noise", "a kernel that draws once per category",
           Where.RNG, "accelerator.laws.rows[permutations]", operators={"aten::multinomial": _one_row_for_all}),
    unseen("a strided tensor is exported as a copy", "DLPack: the consumer has to see the producer's writes",
           Where.COPY, "accelerator.dlpack[strided]", context=replaced(Tensor, __dlpack__=_exports_a_copy)),
    unseen("a copy between devices writes a transposed target densely", "peer copies take one memcpy",
           Where.COPY, "accelerator.dtype.copy_routes[float32-to_peer]",
           context=spoiled(copy_=result_of(_dense_on_a_peer))),
    broken("messages lose their tags", FAMILY, "NCCL has no tags", "comm.p2p.tags[blocking-2]",
           replaced(dist, isend=_without_its_tag, recv=_without_its_tag, irecv=_without_its_tag)),
)  # fmt: skip
