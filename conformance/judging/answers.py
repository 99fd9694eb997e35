"""Answers of a run with a challenge: a few values that the device computed, for a reviewer to check.

Results of two devices differ in their last bits, so a hash of results cannot be checked on another device. Single
values can: a second run of the same case puts them at the places they came from and compares them with the same error
budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.base.errors import JournalError, UsageError
from conformance.reports.challenge import VALUES, parsed, place, seed_of_challenge, written
from conformance.reports.json_files import read_json

#: Names of the integer dtypes that carry the bits of an element, by its size in bytes.
_INTEGER_OF_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}

#: Elements of the small computation, and a bound of its numbers: products of them are exact in float32.
_ELEMENTS = 16
_SMALL = 4096


class Answers:
    """Values that a case keeps. ``claimed`` is the answer of another run, if that answer is to be judged."""

    def __init__(self, nonce: str, case: str, claimed: str | None = None) -> None:
        self.nonce, self.case = nonce, case
        self.claimed_text = claimed
        self.claimed = None if claimed is None else parsed(claimed)
        self._values: dict[str, str] = {}
        self._seen: Counter[str] = Counter()
        self._open = True

    @property
    def base_seed(self) -> int:
        """Return the base seed of a run with this challenge."""
        return seed_of_challenge(self.nonce)

    def close(self) -> None:
        """Stop keeping values: the results that follow depend on random numbers drawn by the device."""
        self._open = False

    def of(self, where: str, tensor: Any) -> Any:
        """Keep one value of a host tensor; return the tensor, with the claimed value in its place if there is one.

        ``where`` names the comparison. The nonce, the case and ``where`` choose the element.
        """
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

    def of_bits(self, tensor: Any) -> Any:
        """Do the same with the bits of a tensor, for comparisons bit by bit: no text says which NaN a NaN is."""
        import torch

        host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        parts = torch.view_as_real(host) if host.is_complex() else host
        bits = self.of("bits", parts.view(getattr(torch, _INTEGER_OF_SIZE[parts.element_size()])))
        parts = bits.contiguous().view(parts.dtype)
        return torch.view_as_complex(parts) if host.is_complex() else parts

    def of_device(self, device: Any) -> None:
        """Keep one value of a small computation on the device, if the case compared no tensor that could answer.

        Its numbers follow from the nonce, and every device has to compute them exactly: they are whole and small. A
        device that refuses keeps no value. Raises AssertionError if the value is wrong.
        """
        if self._values:
            return
        import torch

        numbers = [place(self.nonce, self.case, "device", n)[1] % _SMALL for n in range(3 * _ELEMENTS)]
        parts = torch.tensor(numbers, dtype=torch.float32).reshape(3, _ELEMENTS)
        try:
            one, two, three = parts.to(device)
            computed = (one * two + three).cpu()
        except Exception:  # noqa: BLE001 - whatever a device raises: other cases judge what it can
            return
        self._open = True
        if not torch.equal(self.of("device", computed), parts[0] * parts[1] + parts[2]):
            raise AssertionError("the device computes a product and a sum of small whole numbers wrongly")

    def values(self) -> dict[str, str]:
        """Return the values that can stand in the answer, by place."""
        return {name: self._values[name] for name in sorted(self._values)[:VALUES]}

    def add(self, values: Mapping[str, str]) -> None:
        """Keep values of a rank too."""
        self._values.update(values)

    def text(self) -> str:
        """Return the answer as the report keeps it; empty if no compared result can be computed again."""
        return written(self._values)

    def missing(self) -> bool:
        """Return whether the claimed answer names other elements than the challenge chooses."""
        return self.claimed is not None and set(self.claimed) != set(sorted(self._values)[:VALUES])


def _text(element: Any) -> str:
    """Return one element as text without loss, so that a reviewer can compare it exactly."""
    import torch

    if element.dtype.is_floating_point:
        return repr(element.to(torch.float64).item())
    if element.dtype.is_complex:
        return repr(element.to(torch.complex128).item())
    return str(int(element.item()))


def _value(text: str, dtype: Any) -> Any:
    """Return the number in a claimed answer as a 0-dimensional tensor; AssertionError if it does not fit the dtype."""
    import torch

    kind = float if dtype.is_floating_point else complex if dtype.is_complex else int
    wide = torch.float64 if kind is float else torch.complex128 if kind is complex else dtype
    # The text comes from another party, so anything may stand in it.
    try:
        return torch.tensor(kind(text), dtype=wide).to(dtype)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise AssertionError(f"the answer has {text!r} where a value of {dtype} is expected") from error


def read_answers(path: Path) -> dict[str, str]:
    """Return the answers by case from a file of ``conformance challenge``; UsageError if it is no such file."""
    try:
        value = read_json(path)
    except JournalError as error:
        raise UsageError(f"--challenge-answers: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(answer, str) for answer in value.values()):
        raise UsageError(f"--challenge-answers {path}: expected a JSON object with an answer for each case.")
    return value
