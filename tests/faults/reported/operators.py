"""Effects that one reported bug of an operator has alone: its arithmetic, a part of a list, or memory that it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from tests.faults.outputs import outputs_of
from tests.faults.overriding import Call

#: Draws among which one is an exact zero: 873 of 29 billion were.
_DRAWS_BETWEEN_ZEROS = 33_000_000
#: Bytes that each new shape costs the host.
_KEPT = 1 << 20

_DRAWN: Counter[str] = Counter()
_MEMORY: list[bytearray] = []


def reset() -> None:
    """Forget all calls, and free what they kept."""
    _DRAWN.clear()
    _MEMORY.clear()


def _named(call: Call, name: str) -> Any:
    names = [argument.name for argument in call.arguments]
    return call.values[names.index(name)] if name in names else None


def group_size(call: Call) -> int:
    """Return how many channels a group of a normalization has."""
    return int(_named(call, "C") // _named(call, "group"))


def _edited(call: Call, edit: Callable[[torch.Tensor], object]) -> Any:
    """Make the call and edit its first output in place."""
    result = call.run()
    with torch.no_grad():
        edit(outputs_of(call, result)[0].detach())
    return result


def _out_kept(call: Call) -> Any:
    return _named(call, "out")


def _as_before(call: Call) -> Any:
    before = call.values[0].clone()
    return _edited(call, lambda t: t.copy_(before))


def _first_column(call: Call) -> Any:
    """Spoil the first number of each row but the first."""

    def edit(t: torch.Tensor) -> None:
        rows = t.view(-1, t.shape[-1])
        rows[1:, 0] = rows[1:, 0] * 2 + 1

    return _edited(call, edit)


def _rounded_quotient(call: Call) -> Any:
    """Subtract as many divisors as the product with the divisor's rounded reciprocal says."""
    left, right = call.values[:2]
    with torch.no_grad():
        made = left - right * (left * (1 / right)).floor()
    return _edited(call, lambda t: t.copy_(made) if t.shape == made.shape else None)


def _negative_zeros(call: Call) -> Any:
    """Write NaN of float8_e4m3fn for each -0.0 of a copy's source."""
    source = call.values[0]
    where = (source == 0) & source.signbit()
    result = call.run()
    memory = call.values[1].view(torch.uint8)
    memory.copy_(torch.where(where, torch.full_like(memory, 0x7F), memory))
    return result


def _saturated(call: Call) -> Any:
    """Stop at the ends of eight bits where PyTorch wraps around."""
    added, left, right = (call.values[place] for place in range(3))
    if added.dtype not in (torch.int8, torch.uint8):
        return call.run()
    beta, alpha = _named(call, "beta"), _named(call, "alpha")
    wide = int(beta) * added.long() + int(alpha) * torch.matmul(left.long(), right.long())
    ends = torch.iinfo(added.dtype)
    return _edited(call, lambda t: t.copy_(wide.clamp(ends.min, ends.max)))


def _first_checked(call: Call) -> Any:
    """Look for infinities in the first tensor of a list alone."""
    tensors, found = call.values[:2]
    before = found.clone()
    is_finite = bool(tensors[0].isfinite().all()) if tensors else True
    result = call.run()
    if is_finite:
        found.copy_(before)
    return result


def _norms_behind_empty(call: Call) -> Any:
    result = list(call.run())
    empty = [not tensor.numel() for tensor in call.values[0]]
    return [torch.zeros_like(norm) if any(empty[:at]) else norm for at, norm in enumerate(result)]


def _rare_zero(call: Call) -> Any:
    """Draw an exact zero once in so many numbers."""

    def edit(t: torch.Tensor) -> None:
        before = _DRAWN["all"]
        _DRAWN["all"] += t.numel()
        if before // _DRAWS_BETWEEN_ZEROS != _DRAWN["all"] // _DRAWS_BETWEEN_ZEROS and t.is_contiguous():
            t.view(-1)[_DRAWS_BETWEEN_ZEROS - before % _DRAWS_BETWEEN_ZEROS - 1] = 0

    return _edited(call, edit)


def _memory_kept(call: Call) -> Any:
    _MEMORY.append(bytearray(b"1") * _KEPT)
    return call.run()


#: Effects by name.
EFFECTS: dict[str, Callable[[Call], Any]] = {
    "out kept": _out_kept,
    "as before": _as_before,
    "first column of later rows": _first_column,
    "remainder by rounded quotient": _rounded_quotient,
    "negative zeros to nan": _negative_zeros,
    "eight bits saturated": _saturated,
    "first tensor checked alone": _first_checked,
    "norms behind empty zero": _norms_behind_empty,
    "zero once in 33 million": _rare_zero,
    "host memory kept": _memory_kept,
}
