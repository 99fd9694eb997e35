"""Drawn programs that show faults of compiled code outside the suite: a function of PyTorch's database between others.

Nothing of the suite is used: the functions around are a list of this module, and the values are drawn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.testing import make_tensor

from conformance.numerics.trees import tensors
from conformance.suites.operators.calls import database
from tests.faults.values import strided

from .nodes import over_all

#: Dtypes of programs; some are drawn more often.
_DTYPES: Final = (
    *(torch.float32,) * 6, *(torch.bfloat16,) * 2, torch.float16, torch.float64, *(torch.int64,) * 2, torch.int32,
    torch.uint8, torch.int8, torch.bool,
)  # fmt: skip
#: Shapes of large operands.
_SHAPES: Final = ((3, 1031), (70, 33), (2, 3, 17, 65), (5000,), (4, 1, 300), (129, 2), (1, 257), (33, 5, 8))
#: What stands before an operator, for a tensor with dimensions and one without, by name.
_BEFORE: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "": lambda x: x,
    "computed": lambda x: x * 1,
    "logical": lambda x: torch.where(x == x, x, x),
    "of a view": lambda x: x[...] if x.dim() < 2 else x.transpose(0, -1).contiguous().transpose(0, -1),
    "of a part": lambda x: torch.cat([x, x])[: x.shape[0]] if x.dim() else x,
    "turned twice": lambda x: x.flip(0).flip(0) if x.dim() else x,
    "wide": lambda x: x.to(torch.float64 if x.is_floating_point() else torch.int64).to(x.dtype),
    "padded": lambda x: F.pad(x, (1, 1))[..., 1:-1] if x.dim() and x.dtype is not torch.bool else x,
    "stacked": lambda x: torch.stack([x, x])[1],
    "in two": lambda x: torch.cat([x[:1], x[1:]]) if x.dim() and len(x) > 1 else x,
    "reshaped": lambda x: x.reshape(-1).view(x.shape),
}
#: What stands behind one.
_BEHIND: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "": lambda y: y,
    "turned": lambda y: y.flip(-1) if y.dim() else y,
    "summed": lambda y: y.sum(0) if y.dim() else y,
    "all summed": lambda y: y.sum(),
    "rows summed": lambda y: y.sum(-1, keepdim=True) if y.dim() else y,
    "largest": lambda y: y.amax(-1) if y.dim() and y.numel() else y,
    "place of the largest": lambda y: y.argmax(0) if y.dim() and y.numel() and y.dtype is not torch.bool else y,
    "scaled": lambda y: y * 2 + 1 if y.dtype is not torch.bool else ~y,
    "positive": lambda y: y > 0,
    "relu": lambda y: y.relu() if y.dtype is not torch.bool else y,
    "softmax": lambda y: y.softmax(-1) if y.is_floating_point() and y.dim() else y,
    "sigmoid": lambda y: y.sigmoid(),
    "mean": lambda y: y.mean(-1) if y.is_floating_point() and y.dim() else y,
    "variance": lambda y: y.var(-1, keepdim=True) if y.is_floating_point() and y.dim() and y.shape[-1] > 1 else y,
    "transposed": lambda y: y.mT.contiguous() if y.dim() > 1 else y,
    "in one row": lambda y: y.flatten(),
    "by index": lambda y: y[[-1, 0]] if y.dim() and len(y) else y,
    "padded": lambda y: F.pad(y, (1, 2), value=1) if y.dim() else y,
    "joined": lambda y: torch.cat([y, y]) if y.dim() else y,
    "running": lambda y: y.cumsum(0) if y.dim() else y,
    "product": lambda y: y @ y.mT if y.dim() > 1 and y.dtype is not torch.bool else y,
    "float32": lambda y: y.float(),
    "int32": lambda y: y.to(torch.int32) if not y.is_floating_point() else y,
    "16 bits": lambda y: y.to(torch.bfloat16) if y.is_floating_point() else y,
    "every second": lambda y: y[..., ::2] + 1 if y.dim() and y.dtype is not torch.bool else y,
    "less its mean": lambda y: y - y.mean() if y.is_floating_point() else y,
    "written": lambda y: y.clone().fill_(1).mul_(y) if y.dtype is not torch.bool else y,
    "a row written": lambda y: _row_written(y),
    "looked up": lambda y: F.embedding((y.flatten()[:3] > 0).long(), y) if y.dim() == 2 and len(y) > 1 else y,
}


def _row_written(y: torch.Tensor) -> torch.Tensor:
    if not y.dim() or not len(y):
        return y
    y = y.clone()
    y[0] = y[-1]
    return y


@dataclass(frozen=True)
class Program:
    """A function, its arguments, and whether its gradients are taken."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    trained: bool

    def results(self, device: torch.device, wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        """Return the results on a device for the arguments, and for others of the same form in the same function."""
        function, found = wrap(self.function), []
        for change in (lambda tensor: tensor, _others):
            given = over_all(self.arguments, lambda leaf, change=change: change(leaf).to(device))
            leaves = [each for each in tensors(given) if self.trained and each.is_floating_point()]
            for leaf in leaves:
                leaf.requires_grad_()
            torch.manual_seed(3)
            made = tensors(function(*given))
            found += [each.detach() for each in made]
            ends = [each for each in made if each.requires_grad]
            if leaves and ends:
                steps = [(torch.arange(end.numel()) % 7 - 3).view(end.shape).to(end) for end in ends]
                found += [
                    each for each in torch.autograd.grad(ends, leaves, steps, allow_unused=True) if each is not None
                ]
        return [each.cpu() for each in found]


def _others(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in another order, in memory of the same form."""
    if tensor.numel() < 2 or not tensor.is_floating_point():
        return tensor
    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    other.copy_(tensor.flatten().roll(1).view(tensor.shape))
    return other


def draw(chance: random.Random, names: Sequence[str]) -> Program | None:
    """Draw a program: an operator, a dtype, arguments, and what stands around it. None if PyTorch has none for it."""
    info = database.find(chance.choice(names))
    dtype, trained = chance.choice(_DTYPES), chance.random() < 0.35
    if dtype not in (info.dtypes if not trained else info.backward_dtypes):
        return None
    torch.manual_seed(chance.randrange(1 << 30))
    given = _large(info, dtype, chance) if chance.random() < 0.5 else None
    if given is None:
        try:
            samples = list(itertools.islice(info.sample_inputs("cpu", dtype), 24))
        except Exception:
            return None
        if not samples:
            return None
        sample = chance.choice(samples)
        given = (sample.input, *sample.args), sample.kwargs
    arguments, options = given
    layout = chance.choice(("", "", "permuted", "with gaps", "special"))
    laid = over_all(tuple(arguments), lambda leaf: _laid(leaf.detach(), layout))
    before = chance.choice(list(_BEFORE)) if chance.random() < 0.7 else ""
    behind = [chance.choice(list(_BEHIND)) if chance.random() < 0.8 else "" for _ in "ab"]

    def function(*given: Any) -> Any:
        one = over_all(given, lambda leaf: _BEFORE[before](leaf) if leaf.dtype == dtype else leaf)
        found = info.op(*one, **options)
        return [over_all(_listed(found), _BEHIND[each]) for each in dict.fromkeys(behind)]

    name = f"{info.full_name} {dtype} {layout} [{before}] [{', '.join(behind)}]{' trained' * trained}"
    return Program(name, function, laid, trained)


def _listed(found: Any) -> Any:
    return list(found) if isinstance(found, tuple) else found


def _large(info: Any, dtype: torch.dtype, chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return large operands for an operator of elements or a reduction; None for another one."""
    kinds = [kind.__name__ for kind in type(info).__mro__]
    count = 2 if "BinaryUfuncInfo" in kinds else 1
    if not {"UnaryUfuncInfo", "BinaryUfuncInfo", "ReductionOpInfo"}.intersection(kinds):
        return None
    shape = chance.choice(_SHAPES)
    domain = getattr(info, "domain", None) or (None, None)
    low, high = domain if isinstance(domain, tuple) else (None, None)
    shapes = [shape, chance.choice((shape, shape[-1:], (*shape[:-1], 1), (1, *shape[1:])))][:count]
    made = tuple(make_tensor(each, dtype=dtype, device="cpu", low=low, high=high) for each in shapes)
    if "ReductionOpInfo" in kinds and chance.random() < 0.8:
        return made, {"dim": chance.choice((0, -1))}
    return made, {}


def _laid(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    if not tensor.dim() or tensor.layout is not torch.strided or not tensor.numel():
        return tensor
    if layout == "permuted" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "with gaps":
        return strided(tensor)
    if layout == "special" and tensor.is_floating_point():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        flat = tensor.view(-1)
        for step, value in ((5, float("nan")), (7, float("inf")), (3, -0.0), (4, 1.0)):
            flat[step - 1 :: step * 2] = value
    return tensor
