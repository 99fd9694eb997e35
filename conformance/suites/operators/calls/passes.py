"""Forward and backward of one sample on one side, with seeded cotangents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils import _python_dispatch as dispatch

from conformance.numerics.transfer import copied

from . import execution
from .calls import HOST, Call
from .execution import perform, processed

#: Shape of an output, and whether it is complex.
Kind = tuple[torch.Size, bool]


def _as_drawn(cotangent: torch.Tensor) -> torch.Tensor:
    """Return a cotangent as it is."""
    return cotangent


@dataclass(frozen=True)
class Pass:
    """Kind of a derivative: ``arrange`` lays a strided cotangent, made on the host, out in memory.

    ``of`` is what is computed: the gradients of one backward, those of two over one graph, or a further derivative.
    """

    arrange: Callable[[torch.Tensor], torch.Tensor] = _as_drawn
    of: str = "gradients"

    def run(
        self, info: Any, run: Any, differentiate: Any, sample: Call, seed: int, change: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return the result, and the gradients of all inputs with ``requires_grad``, in order.

        ``change``, if given, is applied to each cotangent.
        """
        # All sides start from one seed: a device with the host's generator then draws the host's numbers.
        execution.reseed(seed, sample.device)
        result = perform(run, info, sample)
        outputs = differentiable(sample, result)
        inputs = unique(tensor for tensor in sample.tensors if tensor.requires_grad)
        if not outputs or not inputs:
            return result, []
        given = cotangents(outputs, seed, self.arrange)
        return result, list(differentiate(outputs, inputs, [change(each) for each in given] if change else given))


#: The backward of an ordinary pass.
PLAIN: Final = Pass()


def differentiable(sample: Call, result: Any) -> list[torch.Tensor]:
    """Return the outputs that have a gradient."""
    return [leaf for leaf in processed(sample, result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def unique(found: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return each tensor once: a sample may pass the same tensor in two arguments."""
    return list({id(tensor): tensor for tensor in found}.values())


def cotangents(
    outputs: list[torch.Tensor], seed: int, arrange: Callable[[torch.Tensor], torch.Tensor] = _as_drawn
) -> list[torch.Tensor]:
    """Return seeded normal cotangents with the outputs' shapes, dtypes and devices.

    They are drawn in float32 and rounded to bfloat16, so that they are equal in every precision.
    """
    kinds = tuple((output.shape, output.is_complex()) for output in outputs)
    # A dispatch mode takes part in each draw: the oracle's changes all results inside a pass.
    in_mode = dispatch._len_torch_dispatch_stack() > 0  # type: ignore[attr-defined]  # private to torch
    given = []
    for output, numbers in zip(outputs, (_draw if in_mode else _drawn)(seed, kinds), strict=True):
        if arrange is _as_drawn and not in_mode and output.device == HOST and output.layout is torch.strided:
            given.append(numbers.to(output.dtype, copy=True))  # what follows, in one step
            continue
        values = numbers.to(output.dtype)
        strided = output.layout is torch.strided
        values = arrange(values) if strided else values.to_sparse(layout=output.layout)
        given.append(copied(values, output.device))
    return given


@functools.lru_cache(maxsize=1)
def _drawn(seed: int, kinds: tuple[Kind, ...]) -> list[torch.Tensor]:
    """Return the numbers of one pass, which host, device, oracle and comparison ask for in turn; nobody writes them."""
    return _draw(seed, kinds)


def _draw(seed: int, kinds: tuple[Kind, ...]) -> list[torch.Tensor]:
    """Return cotangents of these shapes, drawn with a generator of this seed: numbers of bfloat16 in float32."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for number, (shape, is_complex) in enumerate(kinds, 1):
        # Also of a real output: the numbers of the outputs after it do not depend on its dtype.
        count = 2 if is_complex or number < len(kinds) else 1
        # float32 by name: the oracle runs under another default dtype, which would draw other numbers.
        parts = [torch.randn(shape, generator=generator, dtype=torch.float32) for _ in range(count)]
        drawn.append(_rounded(torch.complex(*parts) if is_complex else parts[0]))
    return drawn


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """Return the values rounded to bfloat16, in the dtype that they have."""
    if values.is_complex():
        return torch.complex(_rounded(values.real), _rounded(values.imag))
    return values.bfloat16().float()
