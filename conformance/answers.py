"""Answers of a challenged run: a few values of what the device computed, kept, or judged in place of this device's.

Results of two devices differ in their last bits, so that a hash of them could not be made again elsewhere. Single
values can: whoever computes the same case again puts them where they were taken from, and judges them by the same
budget as the device was.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from conformance.errors import JournalError, UsageError
from conformance.reports.challenge import VALUES, parsed, place, written
from conformance.reports.json_files import read_json


class Answers:
    """The values that one case keeps. ``claimed`` is what another run answered, if that is to be judged."""

    def __init__(self, nonce: str, case: str, claimed: str | None = None) -> None:
        self.nonce, self.case = nonce, case
        self.claimed = None if claimed is None else parsed(claimed)
        self._values: dict[str, str] = {}
        self._seen: Counter[str] = Counter()
        self._open = True

    def close(self) -> None:
        """Keep nothing from here on: what follows depends on random numbers that the device drew."""
        self._open = False

    def of(self, where: str, tensor: Any) -> Any:
        """Keep a value of this host tensor; the tensor itself, or with the claimed value where it would be."""
        if not self._open or not tensor.numel():
            return tensor
        name, number = place(self.nonce, self.case, where, self._seen[where])
        self._seen[where] += 1
        index = number % tensor.numel()
        self._values[name] = _text(tensor.reshape(-1)[index])
        if self.claimed is None or name not in self.claimed:
            return tensor
        judged = tensor.clone().contiguous()
        judged.view(-1)[index] = _value(self.claimed[name], tensor.dtype)
        return judged

    def text(self) -> str:
        """The answer, as the report keeps it; empty if the case compared nothing that can be computed again."""
        return written(self._values)

    def missing(self) -> bool:
        """Whether the claimed answer is of other places than those that were asked for."""
        return self.claimed is not None and set(self.claimed) != set(sorted(self._values)[:VALUES])


def _text(element: Any) -> str:
    import torch

    if element.dtype.is_floating_point:
        return repr(element.to(torch.float64).item())
    if element.dtype.is_complex:
        return repr(element.to(torch.complex128).item())
    return str(int(element.item()))


def _value(text: str, dtype: Any) -> Any:
    """The value of a stranger's text as a tensor without dimensions; AssertionError if it is none of this dtype."""
    import torch

    kind = float if dtype.is_floating_point else complex if dtype.is_complex else int
    wide = torch.float64 if kind is float else torch.complex128 if kind is complex else dtype
    try:
        return torch.tensor(kind(text), dtype=wide).to(dtype)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise AssertionError(f"the answer has {text!r} where a value of {dtype} was asked for") from error


def read_answers(path: Path) -> dict[str, str]:
    """Answers by case, as ``conformance challenge`` writes them."""
    try:
        value = read_json(path)
    except JournalError as error:
        raise UsageError(f"--challenge-answers: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise UsageError(f"--challenge-answers {path}: expected an object of answers by case.")
    return value
