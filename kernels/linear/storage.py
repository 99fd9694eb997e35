"""Storage of a weight: quantized, and in parts on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from conformance.kernels.arguments import wrong
from conformance.kernels.builders import find_builder
from conformance.kernels.groups import member_of
from conformance.kernels.specifications.fp_quantization import format_of
from conformance.kernels.specifications.quantization import kind_of

#: A float32 behind the codes of each group.
_SCALE_BYTES = 4
_HINT = "choose another one; see conformance.kernels.linear"
#: Dtypes of weights that the quantizers take, for floating-point and for integer codes.
_WEIGHTS = {"fp": (torch.float16, torch.bfloat16), "int": (torch.float32, torch.float16, torch.bfloat16)}


class StoredAs(Enum):
    """Number format of a quantized weight: (bits, bits of the mantissa)."""

    INT8 = (8, 0)
    FP6 = (6, 2)
    FP8 = (8, 3)
    FP12 = (12, 4)


def loaded(builder: str) -> Any:
    """Return the functions of this project's own ``builder``, which work on any device."""
    return find_builder(builder)().load()


@dataclass(frozen=True)
class Codec:
    """Codec of floats as rows of bytes: a row has the codes of a group, followed by its scale in float32.

    ``load(name)`` returns the functions of the builder ``name``: an accelerator's own, or this project's.
    """

    stored_as: StoredAs = StoredAs.FP8
    group_size: int = 512
    load: Callable[[str], Any] = loaded

    def __post_init__(self) -> None:
        # Four codes of 6 bits, or two of 12 bits, fill three bytes; a group has to end at such a boundary.
        bits, unit = self.stored_as.value[0], 3 if self.stored_as in (StoredAs.FP6, StoredAs.FP12) else 1
        if self.group_size < 1 or self.group_size * bits % (8 * unit):
            raise wrong("group_size", f"a number of {bits}-bit numbers that fills {unit} bytes", self.group_size, _HINT)

    def __deepcopy__(self, memo: Any) -> Codec:
        """Return this object: kernels are not copied."""
        return self

    @property
    def _is_float(self) -> bool:
        return self.stored_as is not StoredAs.INT8

    def check(self, dtype: torch.dtype) -> None:
        """Raise UsageError for a weight whose dtype the quantizer does not take."""
        allowed = _WEIGHTS["fp" if self._is_float else "int"]
        if dtype not in allowed:
            raise wrong("weight", " or ".join(map(str, allowed)), dtype, _HINT)

    def coded(self, flat: Tensor) -> Tensor:
        """Return the flat numbers as uint8 of shape (groups, bytes); zeros fill the last group."""
        # Zeros never raise a group's largest magnitude, so they do not change its scale.
        rest = -flat.numel() % self.group_size
        rows = functional.pad(flat, (0, rest)).view(-1, self.group_size).contiguous()
        if self._is_float:
            bits, mantissa = self.stored_as.value
            out = rows.new_zeros(len(rows), self.group_size * bits // 8 + _SCALE_BYTES, dtype=torch.uint8)
            self.load("FPQuantizerBuilder").quantize(out, rows, self.group_size, 0, bits, mantissa)
            return out
        functions = self.load("QuantizerBuilder")
        data, steps = functions.quantize(rows, len(rows), 8, kind_of(functions, 0))
        return torch.cat([data.view(torch.uint8), steps.contiguous().view(torch.uint8).view(len(rows), -1)], dim=1)

    def decoded(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the flat numbers in ``dtype``, including the padding of the last group."""
        if self._is_float:
            kind = format_of(*self.stored_as.value)
            found = torch.empty(len(rows), self.group_size, dtype=dtype, device=rows.device)
            functions = self.load("FPQuantizerBuilder")
            functions.dequantize(found, rows, self.group_size, kind.mantissa, kind.exponent)
            return found.view(-1)
        functions = self.load("QuantizerBuilder")
        data = rows[:, : self.group_size].contiguous().view(torch.int8)
        steps = rows[:, self.group_size :].contiguous().view(-1).view(torch.float32).view(len(rows), 1)
        numbers: Tensor = functions.dequantize_fp32(data, steps, len(rows), 8, kind_of(functions, 0))
        return numbers.view(-1).to(dtype)


@dataclass(frozen=True)
class Shards:
    """Ranks that share a weight; all ranks if ``group`` is None. Raises UsageError without a process group."""

    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        member_of(self.group)

    def __deepcopy__(self, memo: Any) -> Shards:
        """Return this object: process groups are not copied."""
        return self

    @property
    def rank(self) -> int:
        """Return this process's rank in the group."""
        return member_of(self.group)[0]

    @property
    def size(self) -> int:
        """Return the number of ranks in the group."""
        return member_of(self.group)[1]

    def gathered(self, own: Tensor) -> Tensor:
        """Return the tensors of all ranks, concatenated in the first dimension; they have to be of one shape."""
        every = own.new_empty(self.size * len(own), *own.shape[1:])
        dist.all_gather(list(every.chunk(self.size)), own.contiguous(), group=self.group)
        return every
