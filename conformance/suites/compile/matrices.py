"""Functions of one or two matrices that compilers write anew: of changing sizes, in any memory order, and in place.

Each has the operators that a device has to claim. Gradients of ``MOVING`` are exact, those of ``REDUCED`` are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from .tables import Writes

#: Functions of a matrix whose sizes change from call to call: (name, operator, function).
SIZED: tuple[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("mean of columns", "mean", lambda x: x.mean(0)),
    ("mean of rows", "mean", lambda x: x.mean(-1, keepdim=True)),
    ("mean", "mean", lambda x: x.mean()),
    ("var", "var", lambda x: x.var(0)),
    ("std", "std", lambda x: x.std(-1, correction=0)),
    ("layer_norm", "nn.functional.layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
    ("gelu", "nn.functional.gelu", lambda x: F.gelu(x, approximate="tanh")),
    ("embedding", "nn.functional.embedding",
     lambda x: F.embedding(torch.arange(x.shape[0], device=x.device).flip(0), x) * 2),
    ("softmax", "softmax", lambda x: torch.softmax(x, 0)),
    ("log_softmax", "log_softmax", lambda x: torch.log_softmax(x, -1)),
    ("logsumexp", "logsumexp", lambda x: torch.logsumexp(x, 0)),
    ("avg_pool1d", "nn.functional.avg_pool1d", lambda x: F.avg_pool1d(x[None], 3, 1, 1, count_include_pad=False)),
    ("mse_loss", "nn.functional.mse_loss", lambda x: F.mse_loss(x, x.flip(0))),
    ("l1_loss", "nn.functional.l1_loss", lambda x: F.l1_loss(x, x * 0.5)),
    ("cross_entropy", "nn.functional.cross_entropy",
     lambda x: F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % x.shape[1])),
    ("kl_div", "nn.functional.kl_div", lambda x: F.kl_div(x, x.softmax(-1), reduction="batchmean")),
    ("arange", "arange", lambda x: torch.arange(x.shape[0], device=x.device)[:, None] * x),
    ("cumsum", "cumsum", lambda x: torch.cumsum(x, 0)),
    ("norm", "linalg.vector_norm", lambda x: torch.linalg.vector_norm(x, dim=0)),
    ("normalize", "nn.functional.normalize", lambda x: F.normalize(x, dim=-1)),
    ("numel", "div.no_rounding_mode", lambda x: x / x.numel()),
    ("tril", "tril", lambda x: torch.tril(x)),
    ("roll", "roll", lambda x: torch.roll(x, 1, 0)),
    ("a half", "__getitem__", lambda x: x[: x.shape[0] // 2] + x[-1]),
    ("cat", "cat", lambda x: torch.cat([x, x * 2]).sum(0)),
    ("pad", "constant_pad_nd", lambda x: F.pad(x, (1, 2), value=3.0)),
)  # fmt: skip


#: Functions of one matrix whose memory a compiler may read in another order: (name, operator, function).
#: The index of a result that is not in memory yet is left out: inductor 2.13 itself, above all devices, gives a wrong
#: one for ``x.t().contiguous().argmax()`` and for that of means along the last of several turned dimensions (pytorch
#: #197739).
ARRANGED: tuple[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("argmax", "argmax", lambda x: x.argmax()),
    ("argmax of the transpose", "argmax", lambda x: x.t().argmax()),
    ("argmin of the transpose", "argmin", lambda x: x.t().argmin()),
    ("argmin of rows", "argmin", lambda x: x.argmin(-1, keepdim=True)),
    ("largest of columns", "max.reduction_with_dim", lambda x: x.max(0).values),
    ("softmax", "softmax", lambda x: x.softmax(0)),
    ("norm", "linalg.vector_norm", lambda x: torch.linalg.vector_norm(x, dim=0)),
    ("sum of columns", "sum", lambda x: x.sum(0)),
    ("product of rows", "prod", lambda x: (x / 8 + 1).prod(-1)),
    ("roll", "roll", lambda x: x.roll(1, 0)),
    ("gather", "gather", lambda x: x.gather(0, (x > 0).long())),
    ("flat transpose", "reshape", lambda x: x.t().reshape(-1)[1::3] * 2),
    ("cat", "cat", lambda x: torch.cat([x, x.flip(0)])),
    ("tril", "tril", lambda x: x.tril() + 1),
    ("how many", "sum", lambda x: (x > 0).sum(0)),
    ("a softmax of a sum", "softmax", lambda x: (x.t() + 1).flip(0).softmax(-1).sum(0)),
    ("a view of a view", "mul", lambda x: x[1:].t()[1:] * x[:-1].t()[1:]),
    # Inductor calls a library for the others. It writes what comes before them as one kernel.
    ("topk", "topk", lambda x: x.topk(2, 0).values),
    ("sort", "sort", lambda x: x.sort(0).values),
    ("cumsum", "cumsum", lambda x: x.cumsum(0)),
    ("logcumsumexp of long rows", "logcumsumexp", lambda x: x.t().reshape(7, -1).logcumsumexp(-1)),
    ("product", "matmul", lambda x: x @ x.mT),
)  # fmt: skip


def _rows_moved_down(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:] = x[:-1].clone()
    return x + y


def _rows_moved_up(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:-1] = x[1:].clone()
    return x + y


def _halves_in_turn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:4] = x[4:8].clone() * 2
    x[4:8] = x[:4] + 1
    return x - y


def _read_before_a_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mirrored = x.flip(0) + y
    x.mul_(2)
    return mirrored


def _a_part_that_changes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y[:2] = x[1:3]
    x.add_(1)
    return y


def _the_whole_that_changes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y[0:, :] = x[0:, :]
    x.add_(1)
    return y


def _list_with_a_mirror(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x, y], [x.flip(0), x * 2])
    return x


def _mirror_after_an_index(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.index_put_((torch.arange(9, device=x.device),), x * 2)
    return x.add_(x.flip(0))


def _view_of_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int16) * 2
    bits.sub_(-4)
    x[:, 2:5] = 2
    return bits.view(torch.int32)


def _mixed_up(x: torch.Tensor) -> torch.Tensor:
    """Write numbers of which neither the smallest nor the largest stands on the diagonal of the matrix."""
    return x.mul_(29).add_(7).remainder_(81)


def _average_beside_a_conversion(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    narrow = x.to(torch.bfloat16)
    y.lerp_(x, 0.25)
    x.add_(y, alpha=-0.5)
    return narrow.float() * 2


#: Functions that write into memory that they read at other places: (name, operator, function). Inductor 2.13 itself is
#: wrong in all those of "joined": pytorch #197829, #198131, #198033, #198270 and #198101.
OVERLAPPING: dict[str, tuple[tuple[str, str, Writes], ...]] = {
    "alone": (
        ("a mirrored sum", "add", lambda x, y: x.add_(x.flip(0))),
        ("rows moved up", "clone", _rows_moved_up),
        ("halves in turn", "clone", _halves_in_turn),
        ("a read before a write", "flip", _read_before_a_write),
        ("a part that changes after its copy", "add", _a_part_that_changes),
        ("an average beside a conversion", "lerp", _average_beside_a_conversion),
        ("running sums in place", "cumsum", lambda x, y: x.copy_(x.cumsum(0))),
        ("the place of the smallest that is written and turned", "argmin", lambda x, y: _mixed_up(x).t().argmin()),
        ("the place of the largest that is written and turned", "argmax", lambda x, y: _mixed_up(y).t().argmax()),
        ("rows of what is written and turned", "reshape", lambda x, y: x.add_(1).t().reshape(-1) * 2),
    ),
    "joined": (
        ("rows moved down", "clone", _rows_moved_down),
        ("a whole that changes after its copy", "add", _the_whole_that_changes),
        ("a list with a mirrored sum", "add", _list_with_a_mirror),
        ("a mirrored sum after writes by index", "index_put", _mirror_after_an_index),
        ("a view of bits that change later", "view", _view_of_bits),
    ),
}  # fmt: skip

#: The same for matrices that are many: a compiler writes them with several groups of threads.
LARGE: tuple[tuple[str, str, Writes], ...] = (
    ("matrices transposed in place", "clone", lambda x, y: x.copy_(x.mT * 1.0)),
    ("matrices mirrored in place", "flip", lambda x, y: x.copy_(x.flip(-1) + 1)),
    ("matrices moved in place", "roll", lambda x, y: x.copy_(x.roll(1, 0) * 2)),
)


def _sums(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of the rows for each of them: their gradient is one number that repeats."""
    return x.sum(1).expand(9, 9)


def _cut_and_padded(x: torch.Tensor, y: torch.Tensor, mode: str) -> torch.Tensor:
    """Return a matrix that is cut at two edges and padded as much at the others, times another one."""
    return F.pad(x[None, None], (-2, 2, 3, -3), mode=mode)[0, 0] * y


def _cut() -> Iterator[tuple[str, str, Writes]]:
    for mode in ("reflect", "replicate", "circular"):
        run = partial(_cut_and_padded, mode=mode)
        yield f"a matrix cut and padded in mode {mode}", f"nn.functional.pad.{mode} mul", run


#: Functions of two matrices of nine rows that write to a part of a copy or pad, and whose gradients move whole numbers:
#: (name, operators, function).
MOVING: tuple[tuple[str, str, Writes], ...] = (
    ("rows written to a copy", "slice_scatter", lambda x, y: torch.slice_scatter(x, y[2:4], 0, 0, 2)),
    ("a column written to a copy", "select_scatter", lambda x, y: torch.select_scatter(x, y[3], 1, 4)),
    ("a diagonal written to a copy", "diagonal_scatter", lambda x, y: torch.diagonal_scatter(x, y[:, 2])),
    ("sums with rows of a copy", "slice_scatter", lambda x, y: _sums(torch.slice_scatter(x, y[2:4], 0, 0, 2))),
    ("sums with a column of a copy", "select_scatter", lambda x, y: _sums(torch.select_scatter(x, y[3], 1, 4))),
    ("sums with a diagonal of a copy", "diagonal_scatter", lambda x, y: _sums(torch.diagonal_scatter(x, y[:, 2]))),
    *_cut(),
)


def _shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scale, shift = y.chunk(2)
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale) + x * shift


def _pooled_or_not(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    image, weight = x[:81].reshape(1, 1, 27, 27), y.flatten()[:9].view(1, 1, 3, 3)
    found = F.conv2d(image, weight, padding=1)
    return torch.where(image > 0, found, F.max_pool2d(found, 3, 1, 1))


def _resized_place(x: torch.Tensor, y: torch.Tensor, mode: str) -> torch.Tensor:
    """Return the one place that a convolution makes of an image as large as its kernel, resized to one place.

    More places are left out: inductor 2.13 itself refuses to add them up in one number on hosts with several threads.
    """
    image, weight = (part.flatten()[:16].view(1, 1, 4, 4) for part in (x[:2], y))
    return F.interpolate(F.conv2d(image, weight), size=(1, 1), mode=mode)


def _resized() -> Iterator[tuple[str, str, Writes]]:
    for mode in ("nearest", "bilinear"):
        operators = f"nn.functional.conv2d nn.functional.interpolate.{mode}"
        yield f"one place of a convolution resized in mode {mode}", operators, partial(_resized_place, mode=mode)


#: Functions of many rows and of two rows whose gradients are sums over them: (name, operators, function).
REDUCED: tuple[tuple[str, str, Writes], ...] = (
    ("the variance of rows", "var", lambda x, y: x.var(-1, keepdim=True) * y[:1]),
    ("the deviation of columns", "std", lambda x, y: x.std(0, correction=0) + y),
    ("parts of one parameter", "nn.functional.layer_norm", _shifted),
    ("running products with zeros", "cumprod", lambda x, y: x[:99].cumprod(-1) * y[:1]),
    ("products with zeros", "prod", lambda x, y: x[:99].prod(-1, keepdim=True) * y[:1]),
    *_resized(),
    ("places before and after pooling", "nn.functional.conv2d nn.functional.max_pool2d where", _pooled_or_not),
)
