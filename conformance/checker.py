"""The ``check`` fixture: comparisons that are counted, and numbers that go into the report."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.answers import Answers

Number = float | int | str


class Checker:
    """Counts what a case compared. A generated case that compared nothing has verified nothing."""

    def __init__(self, answers: Answers | None = None) -> None:
        self.count = 0
        #: What a challenged run keeps of its results; None in all others.
        self.answers = answers
        self.metrics: dict[str, Number] = {}
        #: What has to be the same on all ranks, by name.
        self.digests: dict[str, str] = {}

    def that(self, condition: object, message: str) -> None:
        """Count one comparison; fail with ``message`` unless ``condition`` holds."""
        self.count += 1
        if not condition:
            raise AssertionError(message)

    def equal(self, actual: Any, expected: Any, message: str) -> None:
        """Count one comparison of values with ``==``, or of tensors bit for bit (NaN equals NaN)."""
        self.that(_same(actual, expected), f"{message}: {_brief(actual)} is not {_brief(expected)}")

    def same_on_all_ranks(self, name: str, value: Any) -> None:
        """Count one comparison of this value, bit for bit, across the ranks of the case.

        The ranks' digests meet in the pytest process: no collective under test carries them.
        """
        if name in self.digests:
            raise ValueError(f"{name!r} is compared across ranks twice; give one of the two another name")
        self.count += 1
        self.digests[name] = f"{hashlib.sha256(_bytes(value)).hexdigest()[:16]} {_brief(value)[:200]}"

    def metric(self, name: str, value: Number) -> None:
        """Keep a flat number or short string for the report."""
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"metric {name!r} must be a number or a string, not {type(value).__name__}")
        self.metrics[name] = value


def _same(actual: Any, expected: Any) -> bool:
    if not (hasattr(actual, "untyped_storage") and hasattr(expected, "untyped_storage")):
        return bool(actual == expected)
    import torch

    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    left, right = (t.detach().cpu().contiguous().flatten().view(torch.uint8) for t in (actual, expected))
    return torch.equal(left, right)


def _bytes(value: Any) -> bytes:
    if not hasattr(value, "untyped_storage"):
        return repr(value).encode()
    import torch

    data: bytes = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} ".encode() + data


def _brief(value: Any) -> str:
    if hasattr(value, "untyped_storage"):
        shown = value.detach().flatten()[:8].tolist()
        return f"{value.dtype} {tuple(value.shape)} {shown}{' …' if value.numel() > 8 else ''}"
    return repr(value)
