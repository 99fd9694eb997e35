"""Checker behind the ``check`` fixture: counts comparisons and keeps metrics for the report."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.answers import Answers

Number = float | int | str


class Checker:
    """Counter of a case's comparisons. A generated case without a comparison has verified nothing."""

    def __init__(self, answers: Answers | None = None) -> None:
        self.count = 0
        #: Values that a run with a challenge keeps of its results; None without a challenge.
        self.answers = answers
        self.metrics: dict[str, Number] = {}
        #: Whether subnormal inputs are judged: the device declares that it keeps them.
        self.subnormals = True
        #: Digests of values that must be the same on all ranks, by name.
        self.digests: dict[str, str] = {}
        #: The call that ended the device's context where PyTorch allows it; empty if there was none.
        self.context_ended_by = ""

    def that(self, condition: object, message: str) -> None:
        """Count one comparison; raise AssertionError with ``message`` if ``condition`` is false."""
        self.count += 1
        if not condition:
            raise AssertionError(message)

    def equal(self, actual: Any, expected: Any, message: str) -> None:
        """Compare values with ``==`` and tensors bit for bit (NaN equals NaN); raise AssertionError if they differ."""
        self.that(_same(actual, expected), f"{message}: {_shown(actual)} is not {_shown(expected)}")

    def same_on_all_ranks(self, name: str, value: Any) -> None:
        """Compare a value bit for bit across the ranks of the case.

        The pytest process compares the digests of all ranks, so that no collective under test carries them. ``name``
        identifies the value; ValueError if it is used twice in a case.
        """
        if name in self.digests:
            raise ValueError(f"{name!r} names two comparisons across ranks; give one of them another name")
        self.count += 1
        # The shown value makes a difference readable; the digest covers elements that are not shown.
        self.digests[name] = f"{hashlib.sha256(_bytes(value)).hexdigest()[:16]} {_shown(value)[:200]}"

    def answer(self) -> None:
        """Keep the case's answer to the challenge as a metric; without a challenge do nothing.

        AssertionError if another run's answer is judged, and has other values than the challenge asks for.
        """
        if self.answers is None:
            return
        self.that(not self.answers.missing(), "the answer to the challenge does not have the values that it asks for")
        if text := self.answers.text():
            self.metric("answer", text)

    def metric(self, name: str, value: Number) -> None:
        """Keep a number or a short string for the report; TypeError for other types."""
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"metric {name!r} must be a number or a string, not {type(value).__name__}")
        self.metrics[name] = value


def _same(actual: Any, expected: Any) -> bool:
    """Return whether two values are equal; tensors bit by bit, with dtype and shape."""
    if not (hasattr(actual, "untyped_storage") and hasattr(expected, "untyped_storage")):
        return bool(actual == expected)
    import torch

    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    # torch.equal on bytes: NaN equals itself, and -0.0 differs from 0.0.
    left, right = (tensor.detach().cpu().contiguous().flatten().view(torch.uint8) for tensor in (actual, expected))
    return torch.equal(left, right)


def _bytes(value: Any) -> bytes:
    """Return bytes that stand for a value. Equal bytes mean equal values."""
    if not hasattr(value, "untyped_storage"):
        return repr(value).encode()
    import torch

    data: bytes = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    # Equal bytes of other dtypes or shapes are other values.
    return f"{value.dtype} {tuple(value.shape)} ".encode() + data


def _shown(value: Any) -> str:
    """Return a value for a message, a tensor with its first eight elements."""
    if hasattr(value, "untyped_storage"):
        first = value.detach().flatten()[:8].tolist()
        return f"{value.dtype} {tuple(value.shape)} {first}{' …' if value.numel() > 8 else ''}"
    return repr(value)
