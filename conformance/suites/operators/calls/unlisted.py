"""Operators that users call and PyTorch's own database lacks, described in its terms: an OpInfo for each.

Every function has a name in torch, so that a script needs nothing else. Each description gives the dtypes of PyTorch's
CPU, as the database does; an operator that the database of the installed torch has comes from there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F

from conformance.accelerators.capabilities import DTYPES

from .execution import OnCopy

_FLOATS: Final = ("float64", "float32", "bfloat16", "float16")
_WIDE: Final = ("float64", "float32")
_COMPLEX: Final = ("complex128", "complex64")
_INTEGERS: Final = ("int64", "int32", "int16", "int8", "uint8")
_EVERY: Final = tuple(name for name in DTYPES if not name.startswith("float8"))
#: A power of two, so that a quotient by it is exact: a rounding of it does not depend on how it is divided.
_STEP: Final = 0.125
#: Makes a tensor of these sizes. The numbers are uniform between ``low`` and ``high``.
Make = Callable[..., torch.Tensor]
#: Input, other arguments and keywords of one sample.
Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


def unlisted() -> tuple[Any, ...]:
    """Return the OpInfos, each with autograd where PyTorch's CPU has it."""
    return tuple(_info(*row) for row in _ROWS)


def _info(
    name: str, function: Callable[..., Any], dtypes: tuple[str, ...], backward: tuple[str, ...], make: Any, ad: bool
) -> Any:
    """Return a database entry for an operator that the database lacks; ``ad`` says whether it has forward mode."""
    from torch.testing._internal.opinfo import core

    describe: Any = core.OpInfo  # its annotations are narrower than what the database gives
    return describe(
        name,
        op=function,
        dtypes={getattr(torch, dtype) for dtype in dtypes},
        backward_dtypes={getattr(torch, dtype) for dtype in backward},
        sample_inputs_func=functools.partial(_samples, make),
        method_variant=None,
        inplace_variant=getattr(torch.Tensor, f"{name}_", None),
        supports_out=False,
        supports_autograd=bool(backward),
        supports_forward_ad=ad,
        supports_fwgrad_bwgrad=ad,
        supports_gradgrad=ad,
    )


def _samples(
    of: Callable[[Make], Iterator[Arguments]],
    info: Any,
    device: Any,
    dtype: torch.dtype,
    requires_grad: bool,
    **_: Any,
) -> Iterator[Any]:
    """Yield the database's kind of sample for each set of arguments that ``of`` makes."""
    from torch.testing import make_tensor
    from torch.testing._internal.opinfo import core

    sample: Any = core.SampleInput
    make = functools.partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    for given, args, kwargs in of(make):
        yield sample(given, args=args, kwargs=kwargs)


def _fold(make: Make) -> Iterator[Arguments]:
    """Yield columns of patches that ``fold`` adds up to images, with other paddings, dilations and strides."""
    yield make(2, 18, 9), ((4, 5), (2, 3)), {}
    yield make(18, 15), ((4, 5), (2, 3)), {"padding": (0, 1)}
    yield make(3, 8, 9), ((7, 9), (2, 2)), {"dilation": (2, 3), "stride": (2, 2), "padding": (0, 0)}
    yield make(1, 20, 12), ((6, 8), (2, 2)), {"stride": 2}
    yield make(0, 18, 9), ((4, 5), (2, 3)), {}


def _affine_grid(make: Make) -> Iterator[Arguments]:
    """Yield affine matrices of planes and of volumes, and the sizes of their grids."""
    for aligned in (False, True):
        yield make(2, 2, 3), ([2, 3, 4, 5],), {"align_corners": aligned}
        yield make(3, 3, 4), ([3, 2, 3, 4, 5],), {"align_corners": aligned}
    given = make(2, 2, 3)
    if given.dtype.itemsize > 2:  # for images of one row, PyTorch's CPU has no kernel in 16 bits
        yield given, ([2, 1, 1, 7],), {"align_corners": False}


def _per_tensor(make: Make) -> Iterator[Arguments]:
    """Yield tensors that are quantized with one step and one zero point."""
    for lowest, highest, zero in ((-128, 127, 0), (0, 255, 128), (-8, 7, 3)):
        yield make(5, 7, low=-20, high=20), (_STEP, zero, lowest, highest), {}
    given = make(3, 4, 5, low=-20, high=20)
    if given.dtype.itemsize > 2:  # with a step that is a tensor, PyTorch's CPU has no kernel for 16 bits
        step = torch.tensor(_STEP, device=given.device)
        yield given, (step, torch.tensor(2, dtype=torch.int32, device=given.device), 0, 15), {}


def _per_channel(make: Make) -> Iterator[Arguments]:
    """Yield tensors that are quantized with a step and a zero point for each channel."""
    for sizes, dim, lowest, highest in (((5, 7), 0, -128, 127), ((3, 5, 4, 2), 1, -8, 7)):
        given = make(*sizes, low=-20, high=20)
        steps = torch.tensor([0.5, _STEP, 2.0, 0.25, 0.0625], device=given.device)
        zeros = torch.tensor([0, 3, -2, 7, 1], dtype=torch.int32, device=given.device)
        yield given, (steps, zeros, dim, lowest, highest), {}


def _poisson(make: Make) -> Iterator[Arguments]:
    """Yield rates below 4, where algorithms count events, and from 20 on, where they reject."""
    yield make(40, 25, low=0.5, high=4), (), {}
    yield make(30, 40, low=20, high=40), (), {}


def _binomial(make: Make) -> Iterator[Arguments]:
    """Yield few and many trials, with a chance for each."""
    chances = make(40, 25, low=0.1, high=0.9)
    yield torch.full_like(chances, 7), (chances,), {}
    yield torch.full_like(chances, 90), (chances,), {}


def _random(make: Make) -> Iterator[Arguments]:
    """Yield tensors that are filled from all numbers, up to a number, and between two."""
    given = make(40, 25)
    truth = given.dtype is torch.bool
    yield given, (), {}
    yield make(40, 25), (2 if truth else 100,), {}
    yield make(40, 25), (0, 2) if truth else (3, 90), {}


def _diagonal(make: Make) -> Iterator[Arguments]:
    """Yield matrices, a wide and a long one among them, and a cube, whose diagonal is filled."""
    yield make(5, 5), (1,), {}
    yield make(9, 4), (0,), {"wrap": True}
    yield make(4, 9), (1,), {"wrap": False}
    yield make(4, 4, 4), (1,), {}


def _channels(make: Make) -> Iterator[Arguments]:
    """Yield batches of channels that are dropped as a whole, and one that is not in training."""
    yield make(30, 40, 5), (), {"p": 0.5, "training": True}
    yield make(40, 5), (), {"p": 0.25, "training": True}
    yield make(3, 4, 5), (), {"p": 0.5, "training": False}


#: Name, function, dtypes, dtypes of the backward pass, samples, and whether it has forward mode and second derivatives.
_ROWS: Final[tuple[tuple[Any, ...], ...]] = (
    ("nn.functional.fold", F.fold, (*_FLOATS, *_COMPLEX), (*_FLOATS, *_COMPLEX), _fold, True),
    ("nn.functional.affine_grid", F.affine_grid, _FLOATS, _FLOATS, _affine_grid, True),
    ("nn.functional.dropout1d", F.dropout1d, _FLOATS, _FLOATS, _channels, False),
    ("fake_quantize_per_tensor_affine", torch.fake_quantize_per_tensor_affine, _FLOATS, _FLOATS, _per_tensor, False),
    ("fake_quantize_per_channel_affine", torch.fake_quantize_per_channel_affine, _FLOATS, _FLOATS, _per_channel, False),
    ("fill_diagonal", OnCopy(torch.Tensor.fill_diagonal_), _EVERY, (*_FLOATS, *_COMPLEX), _diagonal, True),
    ("poisson", torch.poisson, _FLOATS, (), _poisson, False),
    ("binomial", torch.binomial, _WIDE, (), _binomial, False),
    ("random", torch.Tensor.random_, (*_FLOATS, *_INTEGERS, "bool"), (), _random, False),
)
